"""Reads: in the server process or in a worker, concurrently, without effects."""

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import ztrio
from tests.supervisor.support import nothing_left, opened, sleep_forever
from ztrio import Outcome
from ztrio.testing import FaultyStore


async def test_read(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A read: allow, completed."""
    async with opened(tmp_path) as (supervisor, log):
        result = await supervisor.call("look")
        assert ["allow", "completed"] == log.names()
        assert (Outcome.COMPLETED, {}) == (result.outcome, result.value)
        assert log.one("completed").termination_confirmed is None


async def test_read_error(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A read that raises: allow, error."""
    async with opened(tmp_path) as (supervisor, log):
        with pytest.raises(ztrio.ToolError) as caught:
            await supervisor.call("look", {"fail": True})
        assert ["allow", "error"] == log.names()
        assert ("TOOL_ERROR", "LookupError") == (log.one("error").code, log.one("error").exception_type)
        assert Outcome.COMPLETED == caught.value.outcome


@pytest.mark.parametrize("tool", ["look", "look_apart"])
async def test_read_timeout(tmp_path: Path, autojump_clock: trio.testing.MockClock, tool: str) -> None:
    """A read that runs too long: allow, error; in a worker, which is proven dead then."""
    async with opened(tmp_path, sleep_forever) as (supervisor, log):
        with pytest.raises(ztrio.ToolTimeout):
            await supervisor.call(tool, {"seconds": 99.0} if tool == "look" else {})
        assert ["allow", "error"] == log.names()
        assert ("TOOL_TIMEOUT", "timeout", 5.0) == (
            log.one("error").code,
            log.one("error").cause,
            log.one("error").duration,
        )
        assert (True if tool == "look_apart" else None) is log.one("error").termination_confirmed
        await nothing_left(supervisor, tmp_path)


async def test_isolated_read(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A read in a worker: allow, completed, with the proof of death."""
    async with opened(tmp_path) as (supervisor, log):
        await supervisor.call("look_apart")
        assert ["allow", "completed"] == log.names()
        assert log.one("completed").termination_confirmed is True
        assert log.one("completed").proof is not None
        await nothing_left(supervisor, tmp_path)


@pytest.mark.parametrize("tool", ["leave", "leave_thread"])
async def test_read_that_exits(tmp_path: Path, tool: str) -> None:
    """A read that calls sys.exit has failed; the server goes on."""
    async with opened(tmp_path) as (supervisor, log):
        with pytest.raises(ztrio.ToolError) as caught:
            await supervisor.call(tool)
        assert "SystemExit" == caught.value.details["exception_type"]
        assert ["allow", "error"] == log.names()
        await supervisor.call("look")


async def test_read_reports_progress(tmp_path: Path) -> None:
    """Progress of a read in a thread reaches its caller in order."""
    seen: list[Any] = []
    async with opened(tmp_path) as (supervisor, _):
        await supervisor.call("look_around", on_progress=lambda *report: seen.append(report))
    assert [(1, 2, None), (2, 2, "done")] == seen


async def test_read_sees_committed_state(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A read gets the last committed state, a copy of it: what it leaves there is thrown away."""
    async with opened(tmp_path) as (supervisor, _):
        await supervisor.call("count")
        assert {"count": 1} == (await supervisor.call("look")).value
        assert {"count": 1, "scribble": 1} == (await supervisor.call("look", {"scribble": True})).value
        assert {"count": 1} == (await supervisor.call("look")).value


async def test_session_that_cannot_be_read(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A read whose session cannot be read says that the store failed, not the tool."""
    async with opened(tmp_path, store=FaultyStore(fail={"session": OSError("gone")})) as (supervisor, log):
        with pytest.raises(ztrio.StoreUnavailable):
            await supervisor.call("look")
        assert ["allow", "error"] == log.names()


async def test_a_read_that_does_not_look_at_its_session_does_not_need_it(tmp_path: Path) -> None:
    """A read without a `ToolContext` goes on while sessions cannot be read."""
    async with opened(tmp_path, store=FaultyStore(fail={"session": OSError("gone")})) as (supervisor, log):
        assert "seen" == (await supervisor.call("look_long", {"path": str(tmp_path)})).value
        assert ["allow", "completed"] == log.names()
