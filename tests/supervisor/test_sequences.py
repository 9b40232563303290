"""Every audit sequence, literally."""

from pathlib import Path
from typing import Any

import pytest
import trio

import ztrio
from tests.kit.trees import snapshot
from tests.supervisor.support import ANNA, Log, fill, nothing_left, opened, play, sleep_forever
from ztrio import Outcome
from ztrio.testing import FaultyOps, FaultyStore, ScriptedBackend, ScriptedCall

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


async def test_queue_timeout(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A call that waits too long for its turn: allow, queue_timeout."""
    async with opened(tmp_path, sleep_forever) as (supervisor, log), trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.call, "count")
        await trio.testing.wait_all_tasks_blocked()
        first = log.events[0].execution_job_id
        with pytest.raises(ztrio.QueueTimeout) as caught:
            await supervisor.call("count", queue_timeout=2.0)
        second = caught.value.job_id
        assert ["allow", "queue_timeout"] == log.names(second)
        event = log.events[-1]
        assert ("QUEUE_TIMEOUT", 2.0, Outcome.NOT_STARTED) == (event.code, event.duration, event.outcome)
        assert event.termination_confirmed is None
        assert ["allow", "start"] == log.names(first)
        nursery.cancel_scope.cancel()


async def test_cancel_in_queue(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A call whose caller leaves before its turn: allow, cancel."""
    async with opened(tmp_path, sleep_forever) as (supervisor, log), trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.call, "count")
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(1):
            await supervisor.call("count", cause=ztrio.Cause("cancelled by client: changed my mind"))
        last = log.events[-1]
        assert ["allow", "cancel"] == log.names(last.execution_job_id)
        assert ("cancelled by client: changed my mind", Outcome.NOT_STARTED) == (last.cause, last.outcome)
        assert Outcome.NOT_STARTED == await supervisor.outcome(last.execution_job_id)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("fault", "code", "error"),
    [
        ({"advance:preparing": OSError("no")}, "STORE_UNAVAILABLE", ztrio.StoreUnavailable),
        ({"insert_job": OSError("no")}, "STORE_UNAVAILABLE", ztrio.StoreUnavailable),
        ({"session": OSError("no")}, "STORE_UNAVAILABLE", ztrio.StoreUnavailable),
        ({"advance:worker_running": OSError("no")}, "STORE_UNAVAILABLE", ztrio.StoreUnavailable),
    ],
)
async def test_store_failed_before_the_start(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, fault: Any, code: str, error: type[ztrio.ZtrioError]
) -> None:
    """A store that fails before the tool ran: allow, deny; nothing ran."""
    backend = ScriptedBackend(play)
    async with opened(tmp_path, backend, store=FaultyStore(fail=fault)) as (supervisor, log):
        with pytest.raises(error) as caught:
            await supervisor.call("export", {"out": "out"})
        assert ["allow", "deny"] == log.names()
        assert (code, Outcome.NOT_STARTED) == (log.one("deny").code, caught.value.outcome)
        assert backend.handed_over == backend.proven
        await nothing_left(supervisor, tmp_path)


async def test_refused_in_prepare(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A target that cannot be published to: allow, deny."""
    (tmp_path / "out").write_text("old")
    (tmp_path / "other").hardlink_to(tmp_path / "out")
    async with opened(tmp_path) as (supervisor, log):
        with pytest.raises(ztrio.OutputRefused) as caught:
            await supervisor.call("export", {"out": "out"})
        assert ["allow", "deny"] == log.names()
        assert ("OUTPUT_NOT_WRITABLE", Outcome.NOT_STARTED) == (caught.value.code, caught.value.outcome)
        await nothing_left(supervisor, tmp_path)


async def test_start_failed(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A worker that cannot be started: allow, deny."""

    class Broken(ScriptedBackend):
        async def acquire(self) -> Any:
            await trio.lowlevel.checkpoint()
            raise ztrio.WorkerFailed("No worker process could be started.", code="WORKER_START_FAILED")

    async with opened(tmp_path, Broken()) as (supervisor, log):
        with pytest.raises(ztrio.WorkerFailed) as caught:
            await supervisor.call("export", {"out": "out"})
        assert ["allow", "deny"] == log.names()
        assert ("WORKER_START_FAILED", Outcome.NOT_STARTED) == (log.one("deny").code, caught.value.outcome)
        await nothing_left(supervisor, tmp_path)


async def test_start_stalled(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A worker that does not take its request in time: the clock of `timeout` has not started, start_bound ends it."""
    async with opened(tmp_path, ScriptedBackend(stall=("send_request",))) as (supervisor, log):
        with pytest.raises(ztrio.WorkerFailed) as caught:
            await supervisor.call("export", {"out": "out"}, timeout=1.0)
        assert ["allow", "start", "error", "worker_terminated", "rollback"] == log.names()
        assert ("WORKER_START_FAILED", 30.0) == (caught.value.code, log.one("error").duration)
        await nothing_left(supervisor, tmp_path)


async def test_session_destroyed(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A call that waited while its session was destroyed: allow, deny."""
    async with opened(tmp_path) as (supervisor, log):
        handle = (await supervisor.call("session_open")).value["session"]
        async with trio.open_nursery() as nursery:
            await nursery.start(_start_call, supervisor, "session_destroy", handle)
            with pytest.raises(ztrio.SessionDestroyedError) as caught:
                await supervisor.call("count", session=handle)
        assert ["allow", "deny"] == log.names(caught.value.job_id)
        assert "SESSION_DESTROYED" == log.events[-1].code
        await nothing_left(supervisor, tmp_path)


async def _start_call(
    supervisor: ztrio.Supervisor, tool: str, session: str, *, task_status: trio.TaskStatus[None]
) -> None:
    """Call, and say when the call has its place in the queue."""
    stop = supervisor.statistics().calls
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: supervisor.call(tool, session=session))
        while supervisor.statistics().calls == stop:
            await trio.lowlevel.checkpoint()
        task_status.started()


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


@pytest.mark.parametrize("event", ["policy", "tool", "argument", "path", "overlap", "timeout", "session", "handle"])
async def test_refusal(tmp_path: Path, autojump_clock: trio.testing.MockClock, event: str) -> None:
    """A call that is refused leaves one event: deny, with the code."""
    cases: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
        "policy": ("PERMISSION_DENIED", "mail", {}, {"context": ANNA}),
        "tool": ("INVALID_ARGUMENTS", "nothing", {}, {}),
        "argument": ("INVALID_ARGUMENTS", "export", {"out": 5}, {}),
        "path": ("OUTPUT_OUTSIDE_WORKSPACE", "export", {"out": "../out"}, {}),
        "overlap": ("OUTPUT_OVERLAP", "publish", {"page": "a", "fresh": "a", "site": "b"}, {}),
        "timeout": ("INVALID_ARGUMENTS", "count", {}, {"timeout": 6.0, "capped": True}),
        "session": ("INVALID_ARGUMENTS", "count", {}, {"session": ""}),
        "handle": ("SESSION_NOT_FOUND", "count", {}, {"session": "zs_guessed"}),
    }
    code, tool, arguments, options = cases[event]
    async with opened(tmp_path, policy=ztrio.allow("read", "write")) as (supervisor, log):
        with pytest.raises(ztrio.ZtrioError) as caught:
            await supervisor.call(tool, arguments, **options)
        assert (code, Outcome.NOT_STARTED) == (caught.value.code, caught.value.outcome)
        assert ["deny"] == log.names(caught.value.job_id)
        assert (code, caught.value.message) == (log.one("deny").code, log.one("deny").reason)
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
