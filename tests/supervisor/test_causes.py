"""Why a call ends: the first recorded word stands."""

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import ztrio
from tests.supervisor.support import nothing_left, opened, play, settle, sleep_forever
from ztrio import Outcome
from ztrio.testing import ScriptedBackend, ScriptedCall


async def causes_of(supervisor: ztrio.Supervisor, log: Any) -> list[str | None]:
    """The distinct causes in the audit, in order."""
    return list(dict.fromkeys(event.cause for event in log.events))


async def test_timeout_before_a_cancellation(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A caller that leaves while a timed-out call is cleaned up does not change why it ended."""
    async with opened(tmp_path, ScriptedBackend(sleep_forever, dies_after=1.0)) as (supervisor, log):
        with trio.move_on_after(5.5) as scope:
            await supervisor.call("count", timeout=5.0, cause=ztrio.Cause("cancelled by client: late"))
        assert scope.cancelled_caught
        assert [None, "timeout"] == await causes_of(supervisor, log)
        assert 6.0 == trio.current_time()


async def test_cancellation_before_shutdown(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Closing while a cancelled call is cleaned up does not change why it ended."""
    async with opened(tmp_path, ScriptedBackend(sleep_forever, dies_after=1.0)) as (supervisor, log):
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _() -> None:
                with trio.move_on_after(1):
                    await supervisor.call("count", cause=ztrio.Cause("cancelled by client: enough"))

            await trio.sleep(1.5)
            await supervisor.aclose("client_gone")
        assert [None, "cancelled by client: enough"] == await causes_of(supervisor, log)


async def test_closing_before_the_caller_leaves(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A caller that is cancelled by the program's end, after closing began, does not change why its call ended."""
    async with opened(tmp_path, ScriptedBackend(sleep_forever, dies_after=1.0)) as (supervisor, log):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.call, "count")
            await settle()
            nursery.start_soon(supervisor.aclose, "client_gone")
            await trio.sleep(0.5)
            nursery.cancel_scope.cancel()
        assert [None, "client_gone"] == await causes_of(supervisor, log)
        assert "rollback" == log.names()[-1]


async def test_closing_twice_with_two_causes(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """The cause of the first closing stands."""
    async with opened(tmp_path, ScriptedBackend(sleep_forever, dies_after=1.0)) as (supervisor, log):
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _() -> None:
                with pytest.raises(ztrio.ShuttingDown):
                    await supervisor.call("count")

            await settle()
            nursery.start_soon(supervisor.aclose, "client_gone")
            await trio.sleep(0.5)
            await supervisor.aclose("shutdown")
        assert [None, "client_gone"] == await causes_of(supervisor, log)


async def test_closing_with_calls_in_the_queue(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A call that still waits when closing begins never starts, and is told so."""
    async with opened(tmp_path, sleep_forever) as (supervisor, log), trio.open_nursery() as nursery:
        codes: list[Any] = []

        async def call() -> None:
            with pytest.raises(ztrio.ShuttingDown) as caught:
                await supervisor.call("count")
            codes.append(caught.value.outcome)

        for _number in range(2):
            nursery.start_soon(call)
            await settle()
        await supervisor.aclose("client_gone")
        await settle()
        assert sorted([Outcome.ROLLED_BACK, Outcome.NOT_STARTED]) == sorted(codes)
        assert ["allow", "cancel"] == log.names(log.events[2].execution_job_id)
        assert {None, "client_gone"} == {event.cause for event in log.events}


async def test_leaving_the_body_is_a_shutdown(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A body that leaves with calls in flight in other tasks ends them with `shutdown`."""
    async with trio.open_nursery() as nursery:
        async with opened(tmp_path, sleep_forever) as (supervisor, log):

            @nursery.start_soon
            async def _() -> None:
                with pytest.raises(ztrio.ShuttingDown) as caught:
                    await supervisor.call("count")
                assert Outcome.ROLLED_BACK == caught.value.outcome

            await settle()
        assert [None, "shutdown"] == await causes_of(supervisor, log)


async def test_a_cancel_while_death_is_proven_wins_over_success(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Until the commit begins a cancellation is honoured, also when the result is there already."""
    async with opened(tmp_path, ScriptedBackend(play, dies_after=1.0)) as (supervisor, log):
        with trio.move_on_after(0.5) as scope:
            await supervisor.call("export", {"out": "out"})
        assert scope.cancelled_caught
        assert ["allow", "start", "cancel", "worker_terminated", "rollback"] == log.names()
        assert not (tmp_path / "out").exists()
        await nothing_left(supervisor, tmp_path)


async def test_an_error_before_a_cancellation_stands(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A tool that raised has failed, whoever leaves while its death is being proven."""

    async def script(call: ScriptedCall) -> None:
        raise LookupError("no")

    async with opened(tmp_path, ScriptedBackend(script, dies_after=1.0)) as (supervisor, log):
        with trio.move_on_after(0.5):
            await supervisor.call("count")
        assert ["allow", "start", "error", "rollback"] == log.names()
        assert "TOOL_ERROR" == log.one("error").code


@pytest.mark.parametrize("cause", ["timeout", "cancel", "shutdown"])
async def test_grace(tmp_path: Path, autojump_clock: trio.testing.MockClock, cause: str) -> None:
    """A stopped tool gets its grace, cut short while closing; one that has ended gets none."""
    backend = ScriptedBackend(sleep_forever)
    async with opened(tmp_path, backend) as (supervisor, _), trio.open_nursery() as nursery:

        @nursery.start_soon
        async def _() -> None:
            with trio.move_on_after(1 if cause == "cancel" else 99):
                with pytest.raises(ztrio.ZtrioError):
                    await supervisor.call("polite")
                return

        await trio.sleep(2)
        if cause == "shutdown":
            await supervisor.aclose()
        await trio.sleep(9)
        assert [{"timeout": 1.5, "cancel": 1.5, "shutdown": 1.0}[cause]] == [g for _, g in backend.terminations]


async def test_no_grace_for_who_has_ended(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A worker whose result is there is killed at once, whatever its grace."""
    backend = ScriptedBackend(play)
    async with opened(tmp_path, backend) as (supervisor, _):
        await supervisor.call("polite")
    assert [(0.0, 0.0)] == backend.terminations


@pytest.mark.case("R12")
@pytest.mark.leaves("a worker that may still act keeps its job directory")
@pytest.mark.parametrize("end", ["timeout", "cancel", "success"])
async def test_death_that_cannot_be_proven(tmp_path: Path, autojump_clock: trio.testing.MockClock, end: str) -> None:
    """A worker that never dies: an answer within the bound, everything stays locked, and the program still ends."""
    backend = ScriptedBackend(play if end == "success" else sleep_forever, dies_after=float("inf"))
    async with opened(tmp_path, backend) as (supervisor, log):
        with trio.move_on_after(3.0 if end == "cancel" else 999) as scope:
            with pytest.raises(ztrio.Unresolved) as caught:
                await supervisor.call("export", {"out": "out"})
            assert ("TERMINATION_UNCONFIRMED", "termination_unconfirmed", Outcome.UNRESOLVED) == (
                caught.value.code,
                caught.value.reason,
                caught.value.outcome,
            )
            assert log.one("start").pid == caught.value.details["pid"]
        assert (end == "cancel") is scope.cancelled_caught
        assert {"timeout": 7.0, "cancel": 5.0, "success": 2.0}[end] == trio.current_time()
        why = {"timeout": ["timeout"], "cancel": ["cancel"], "success": []}[end]
        assert ["allow", "start", *why, "unresolved"] == log.names()
        assert (False, Outcome.UNRESOLVED) == (
            log.one("unresolved").termination_confirmed,
            log.one("unresolved").outcome,
        )
        assert not (tmp_path / "out").exists()
        assert Outcome.UNRESOLVED == await supervisor.outcome(log.events[0].execution_job_id)
        await settle()
        left = supervisor.statistics()
        assert (1, 1, 1, 1) == (left.calls, left.tickets.granted, left.slots_in_use, left.backend.unproven)
        with pytest.raises(ztrio.QueueTimeout):
            await supervisor.call("export", {"out": "out"}, session="other", queue_timeout=1.0)
        before = trio.current_time()
    assert trio.current_time() - before <= 4.0
