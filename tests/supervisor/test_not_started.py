"""Calls that never run: refused at once, or allowed and then given up, with the sequences that say so."""

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import ztrio
from tests.supervisor.support import ANNA, nothing_left, opened, play, settle, sleep_forever
from ztrio import Outcome
from ztrio.testing import FaultyStore, ScriptedBackend


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
    ("step", "expected"),
    [
        ("insert_job", ["deny"]),  # what the store does not know is not allowed
        ("advance:preparing", ["allow", "deny"]),
        ("session", ["allow", "deny"]),
        ("advance:worker_running", ["allow", "deny"]),
    ],
)
async def test_store_failed_before_the_start(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, step: str, expected: list[str]
) -> None:
    """A store that fails before the tool ran: allow, deny; nothing ran."""
    backend = ScriptedBackend(play)
    async with opened(tmp_path, backend, store=FaultyStore(fail={step: OSError("no")})) as (supervisor, log):
        with pytest.raises(ztrio.StoreUnavailable) as caught:
            await supervisor.call("export", {"out": "out"})
        assert expected == log.names()
        assert ("STORE_UNAVAILABLE", Outcome.NOT_STARTED) == (log.one("deny").code, caught.value.outcome)
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


async def test_allowed_while_the_session_is_being_destroyed(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A call allowed while the destroying transaction is under way belongs to the life that ends."""

    class Slow(FaultyStore):
        async def _step(self, operation: str, detail: str | None = None) -> None:
            if operation == "finish" and "session_destroy" in started:
                await trio.sleep(1)
            await super()._step(operation, detail)

    started: set[str | None] = set()
    async with opened(tmp_path, store=Slow()) as (supervisor, _), trio.open_nursery() as nursery:
        await supervisor.call("count")
        supervisor.audit.add_reducer(lambda event: started.add(event.tool) if event.event == "start" else None)
        nursery.start_soon(supervisor.call, "session_destroy")
        await settle()
        with pytest.raises(ztrio.SessionDestroyedError):
            await supervisor.call("count")
        started.clear()
        assert 1 == (await supervisor.call("count")).value
