"""Every audit sequence, literally."""

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import ztrio
from tests.kit.trees import snapshot
from tests.supervisor.support import Log, fill, nothing_left, opened, play, sleep_forever
from ztrio import Outcome
from ztrio.testing import FaultyOps, FaultyStore, ScriptedCall

TERMINAL = {
    "deny",
    "queue_timeout",
    "commit",
    "rollback",
    "completed",
    "recovered",
    "unresolved",
}


def terminal_events(log: Log) -> list[str]:
    """The terminal ones; `cancel` and `error` are so where no worker had started."""
    names = log.names()
    found = [name for name in names if name in TERMINAL]
    if "start" not in names:
        found += [name for name in names if name in ("cancel", "error")]
    return found


async def fail(call: ScriptedCall) -> None:
    """Play a tool that writes and raises."""
    await play(call)
    raise LookupError("no such board")


async def die(call: ScriptedCall) -> None:
    """Play a worker that dies."""
    await play(call)
    raise ztrio.WorkerFailed("The worker ended with exit status 3.", code="WORKER_DIED")


async def babble(call: ScriptedCall) -> None:
    """Play a worker that breaks its protocol."""
    await play(call)
    raise ztrio.WorkerFailed("The worker sent something else.", code="WORKER_PROTOCOL_ERROR")


async def test_success(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A call that succeeds: allow, start, commit; the commit carries the proof of death."""
    async with opened(tmp_path) as (supervisor, log):
        result = await supervisor.call("export", {"out": "out"})
        assert ["allow", "start", "commit"] == log.names()
        allow, start, commit = log.events
        assert {result.job_id} == {event.execution_job_id for event in log.events}
        assert [1, 2, 3] == [event.seq for event in log.events]
        assert (5.0, "export", "default", "local", "write", "embed") == (
            commit.timeout,
            commit.tool,
            commit.session,
            commit.principal,
            commit.capability,
            commit.surface,
        )
        assert (None, None, None) == (allow.termination_confirmed, start.termination_confirmed, commit.cause)
        assert commit.termination_confirmed is True
        assert commit.proof is not None
        assert (start.pid, "full") == (commit.proof["pid"], commit.proof["containment"])
        assert (Outcome.COMMITTED, (str(tmp_path / "out"),)) == (commit.outcome, commit.targets)
        assert allow.argument_digest is not None
        assert allow.argument_digest.startswith("sha256:")
        assert allow.arguments is None
        assert [event["event"] for event in await supervisor.events()] == log.names()
        await nothing_left(supervisor, tmp_path)


async def test_timeout(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A call that runs too long: allow, start, timeout, worker_terminated, rollback."""
    before = snapshot(tmp_path)
    async with opened(tmp_path, sleep_forever) as (supervisor, log):
        with pytest.raises(ztrio.ToolTimeout) as caught:
            await supervisor.call("export", {"out": "out"}, timeout=7.0)
        assert ["allow", "start", "timeout", "worker_terminated", "rollback"] == log.names()
        assert ("TOOL_TIMEOUT", Outcome.ROLLED_BACK) == (caught.value.code, caught.value.outcome)
        for event in log.events[2:]:
            assert (7.0, 7.0, "timeout") == (event.timeout, event.duration, event.cause)
        assert ("TOOL_TIMEOUT", "ToolTimeout") == (log.one("timeout").code, log.one("timeout").exception_type)
        assert [True, True] == [event.termination_confirmed for event in log.events[3:]]
        assert all(event.proof is not None for event in log.events[3:])
        await nothing_left(supervisor, tmp_path)
    assert {path: facts[-1] for path, facts in before.items()} == {
        path: facts[-1] for path, facts in snapshot(tmp_path).items()
    }


@pytest.mark.parametrize("cause", [None, "cancelled by client: not needed", "client_gone"])
async def test_cancellation(tmp_path: Path, autojump_clock: trio.testing.MockClock, cause: str | None) -> None:
    """A call whose caller leaves: allow, start, cancel, worker_terminated, rollback, with the recorded cause."""
    async with opened(tmp_path, sleep_forever) as (supervisor, log):
        why = ztrio.Cause()
        with trio.move_on_after(1) as scope:
            if cause is not None:
                why.record(cause)
            await supervisor.call("export", {"out": "out"}, cause=why)
        assert scope.cancelled_caught
        assert ["allow", "start", "cancel", "worker_terminated", "rollback"] == log.names()
        assert {cause or "cancelled by caller"} == {event.cause for event in log.events[2:]}
        cancel, terminated, rollback = log.events[2:]
        assert (None, None) == (cancel.code, cancel.exception_type)
        assert (True, True) == (terminated.termination_confirmed, rollback.termination_confirmed)
        assert Outcome.ROLLED_BACK == rollback.outcome
        await nothing_left(supervisor, tmp_path)


@pytest.mark.parametrize("cause", ["shutdown", "client_gone"])
async def test_shutdown(tmp_path: Path, autojump_clock: trio.testing.MockClock, cause: str) -> None:
    """Closing: the cancellation's sequence with closing's cause, and the caller is told."""
    async with opened(tmp_path, sleep_forever) as (supervisor, log), trio.open_nursery() as nursery:

        @nursery.start_soon
        async def _() -> None:
            await trio.sleep(1)
            await supervisor.aclose(cause)

        with pytest.raises(ztrio.ShuttingDown) as caught:
            await supervisor.call("export", {"out": "out"})
        assert ["allow", "start", "cancel", "worker_terminated", "rollback"] == log.names()
        assert [cause] * 3 == [event.cause for event in log.events[2:]]
        assert Outcome.ROLLED_BACK == caught.value.outcome
        assert caught.value.details["cause"] == cause


async def test_tool_raised(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A tool that raises: allow, start, error, rollback; it ended by itself, so nobody was terminated."""
    async with opened(tmp_path, fail) as (supervisor, log):
        with pytest.raises(ztrio.ToolError) as caught:
            await supervisor.call("export", {"out": "out"})
        assert ["allow", "start", "error", "rollback"] == log.names()
        error = log.one("error")
        assert ("TOOL_ERROR", "LookupError", None) == (error.code, error.exception_type, error.cause)
        assert "LookupError" == caught.value.details["exception_type"]
        assert log.one("rollback").termination_confirmed is True
        assert log.one("rollback").proof is not None
        await nothing_left(supervisor, tmp_path)


@pytest.mark.parametrize(("script", "code"), [(die, "WORKER_DIED"), (babble, "WORKER_PROTOCOL_ERROR")])
async def test_worker_failed(tmp_path: Path, autojump_clock: trio.testing.MockClock, script: Any, code: str) -> None:
    """A worker that dies or babbles: allow, start, error, worker_terminated, rollback."""
    async with opened(tmp_path, script) as (supervisor, log):
        with pytest.raises(ztrio.WorkerFailed) as caught:
            await supervisor.call("export", {"out": "out"})
        assert ["allow", "start", "error", "worker_terminated", "rollback"] == log.names()
        assert (code, code, "WorkerFailed") == (
            caught.value.code,
            log.one("error").code,
            log.one("error").exception_type,
        )
        await nothing_left(supervisor, tmp_path)


async def test_conflict(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A target that somebody changed meanwhile: theirs stays, allow, start, error, worker_terminated, rollback."""
    (tmp_path / "out").write_text("old")

    async def script(call: ScriptedCall) -> None:
        await play(call)
        (tmp_path / "out").write_text("theirs")

    async with opened(tmp_path, script) as (supervisor, log):
        with pytest.raises(ztrio.OutputConflict) as caught:
            await supervisor.call("export", {"out": "out"})
        assert ["allow", "start", "error", "worker_terminated", "rollback"] == log.names()
        assert ("OUTPUT_CONFLICT", Outcome.ROLLED_BACK) == (log.one("error").code, caught.value.outcome)
        assert "theirs" == (tmp_path / "out").read_text()
        await nothing_left(supervisor, tmp_path)


@pytest.mark.parametrize("where", ["exchange", "finish"])
async def test_commit_failed(tmp_path: Path, autojump_clock: trio.testing.MockClock, where: str) -> None:
    """A commit that fails: allow, start, error, worker_terminated, rollback."""
    (tmp_path / "out").write_text("old")
    # The first exchange is the probe of prepare.
    ops = FaultyOps("exchange", OSError(5, "I/O error"), nth=2) if where == "exchange" else None
    store = FaultyStore(fail={"finish:commit": OSError(5, "I/O error")} if where == "finish" else {})
    async with opened(tmp_path, ops=ops, store=store) as (supervisor, log):
        with pytest.raises(ztrio.CommitFailed) as caught:
            await supervisor.call("export", {"out": "out"})
        assert ["allow", "start", "error", "worker_terminated", "rollback"] == log.names()
        assert ("COMMIT_FAILED", "OSError") == (log.one("error").code, log.one("error").exception_type)
        assert Outcome.ROLLED_BACK == caught.value.outcome
        assert [event["event"] for event in await supervisor.events()] == log.names()
        await nothing_left(supervisor, tmp_path)


async def test_external_effects(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A killed tool with effects elsewhere: its files go back, the rest is unresolved."""
    async with opened(tmp_path, sleep_forever) as (supervisor, log):
        with pytest.raises(ztrio.Unresolved) as caught:
            await supervisor.call("mail")
        assert ["allow", "start", "timeout", "worker_terminated", "unresolved"] == log.names()
        assert ("CALL_UNRESOLVED", "external_effects") == (caught.value.code, caught.value.reason)
        assert (Outcome.UNRESOLVED, True) == (
            log.one("unresolved").outcome,
            log.one("unresolved").termination_confirmed,
        )
        assert caught.value.job_id is not None
        assert Outcome.UNRESOLVED == await supervisor.outcome(caught.value.job_id)
        await nothing_left(supervisor, tmp_path)


async def test_external_effects_of_a_commit_that_failed(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A tool that had succeeded has had its effects elsewhere: the files go back, but it is not safe to repeat."""
    store = FaultyStore(fail={"finish:commit": OSError(5, "I/O error")})
    async with opened(tmp_path, store=store) as (supervisor, log):
        with pytest.raises(ztrio.Unresolved) as caught:
            await supervisor.call("mail")
        assert ["allow", "start", "error", "worker_terminated", "unresolved"] == log.names()
        assert ("CALL_UNRESOLVED", "external_effects") == (caught.value.code, caught.value.reason)
        assert "COMMIT_FAILED" == caught.value.details["stopped_by"]
        await nothing_left(supervisor, tmp_path)


async def test_each_call_ends_once(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Whatever becomes of a call, it has exactly one terminal event, and that is the last one."""
    arguments = fill(tmp_path)
    for script, fault in [(play, {}), (fail, {}), (die, {}), (sleep_forever, {}), (play, {"finish": OSError("no")})]:
        async with opened(tmp_path, script, store=FaultyStore(fail=fault)) as (supervisor, log):
            try:
                await supervisor.call("publish", arguments)
            except ztrio.ZtrioError:
                pass
            assert 1 == len(terminal_events(log)), log.names()
            assert log.names()[-1:] == terminal_events(log)
