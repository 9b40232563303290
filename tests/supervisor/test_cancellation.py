"""The caller leaves, at every await of a call; nothing is left and the audit says why."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

import ztrio
from tests.kit.trees import Snapshot, snapshot
from tests.supervisor.support import Log, fill, nothing_left, opened, play, settle, sleep_forever, state
from ztrio import Outcome
from ztrio.testing import FaultyStore, ScriptedBackend

QUEUED = ["allow", "cancel"]
STARTED = ["allow", "start", "cancel", "worker_terminated", "rollback"]


@attrs.frozen
class Await:
    """One await of a call and what never ends there."""

    name: str
    expected: list[str]
    backend: Callable[[], ScriptedBackend] = ScriptedBackend
    workers: int = 64
    # Tools that were called before and never end.
    before: tuple[str, ...] = ()


def _stalled(*stall: str) -> Callable[[], ScriptedBackend]:
    return lambda: ScriptedBackend(play, stall)


AWAITS = [
    Await("ticket", QUEUED, lambda: ScriptedBackend(sleep_forever), before=("build",)),
    Await("slot", QUEUED, lambda: ScriptedBackend(sleep_forever), workers=1, before=("mail",)),
    Await("acquire", QUEUED, _stalled("acquire")),
    Await("send_request", STARTED, _stalled("send_request")),
    Await("receive", STARTED, _stalled("receive")),
    Await("script", STARTED, lambda: ScriptedBackend(sleep_forever)),
    Await("terminate", STARTED, lambda: ScriptedBackend(sleep_forever, dies_after=1.9)),
]


def same(before: Snapshot, workspace: Path) -> bool:
    """Whether everything below is as it was; the workspace's own mtime tells only that a job directory was there."""
    now = snapshot(workspace)
    return {**before, ".": None} == {**now, ".": None}


async def leave(supervisor: ztrio.Supervisor, arguments: dict[str, Any], *, twice: bool) -> bool:
    """Call, and leave once everything waits; with `twice` another cancellation hits the cleanup. Whether it left."""
    cause = ztrio.Cause()
    with trio.CancelScope() as outer, trio.CancelScope() as inner:
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _() -> None:
                await settle()
                cause.record("cancelled by client: changed my mind")
                inner.cancel()
                if twice:
                    with trio.CancelScope(shield=True):
                        await trio.sleep(0.1)
                        cause.record("another cause")
                        outer.cancel()

            await supervisor.call("publish", arguments, session="own", cause=cause)
    return inner.cancelled_caught or outer.cancelled_caught


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("place", AWAITS, ids=lambda place: place.name)
async def test_cancelled_at_each_await(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, place: Await, twice: bool
) -> None:
    """Wherever the call waits, nothing is left when its caller leaves, and a second cancellation changes nothing."""
    arguments = fill(tmp_path)
    before = snapshot(tmp_path)
    backend = place.backend()
    settings = ztrio.Settings(workers=place.workers)
    async with (
        opened(tmp_path, backend, settings=settings) as (supervisor, log),
        trio.open_nursery() as nursery,
    ):
        for tool in place.before:
            target = {"site": "site"} if tool == "build" else {}
            nursery.start_soon(partial(supervisor.call, tool, target, session="other"))
            await settle()
        assert await leave(supervisor, arguments, twice=twice)
        await settle()
        own = Log([event for event in log.events if event.session == "own"])
        assert place.expected == own.names()
        assert [None, "cancelled by client: changed my mind"] == list(
            dict.fromkeys(event.cause for event in own.events)
        )
        assert (Outcome.NOT_STARTED if place.expected == QUEUED else Outcome.ROLLED_BACK) == own.events[-1].outcome
        assert len(place.before) == supervisor.statistics().calls
        nursery.cancel_scope.cancel()
    await settle()
    assert same(before, tmp_path)
    assert backend.handed_over == backend.proven
    with pytest.raises(ztrio.ShuttingDown):
        await supervisor.call("count")
    await nothing_left(supervisor, tmp_path)


class DurableStore(FaultyStore):
    """A store that is asked for what a durable one is asked for."""

    durable = True


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
async def test_cancelled_while_it_is_noted_that_it_runs(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, twice: bool
) -> None:
    """A tool with effects elsewhere does not run before that is noted; whose caller leaves until then has no effect."""
    backend = ScriptedBackend(play)
    store = DurableStore(stall=("advance:worker_running",))
    async with opened(tmp_path, backend, store=store) as (supervisor, log):
        cause = ztrio.Cause()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def _() -> None:
                    await settle()
                    cause.record("changed my mind")
                    scope.cancel()
                    if twice:
                        nursery.cancel_scope.cancel()

                await supervisor.call("mail", cause=cause)
        assert scope.cancelled_caught
        assert QUEUED == log.names()
        assert ("changed my mind", Outcome.NOT_STARTED) == (log.events[-1].cause, log.events[-1].outcome)
        assert backend.handed_over == backend.proven
        await nothing_left(supervisor, tmp_path)


COMMIT = ["advance:publishing_outputs", "finish:commit"]


@pytest.mark.parametrize("step", COMMIT)
async def test_cancelled_during_the_commit(tmp_path: Path, autojump_clock: trio.testing.MockClock, step: str) -> None:
    """Once the commit has begun a cancellation undoes nothing: the call ends committed, and unanswered."""
    arguments = fill(tmp_path)
    scope = trio.CancelScope()

    def before(operation: str) -> None:
        if operation == step:
            scope.cancel()

    async with opened(tmp_path, store=FaultyStore(before=before)) as (supervisor, log):
        with scope:
            await supervisor.call("publish", arguments)
        assert scope.cancelled_caught
        assert ["allow", "start", "commit", "commit_unanswered"] == log.names()
        assert "new page" == (tmp_path / "page").read_text()
        found = await state(supervisor)
        assert found is not None
        assert 1 == found[0]
        assert Outcome.COMMITTED == await supervisor.outcome(log.events[0].execution_job_id)
        await nothing_left(supervisor, tmp_path)


@pytest.mark.parametrize("step", COMMIT)
async def test_commit_overdue(tmp_path: Path, autojump_clock: trio.testing.MockClock, step: str) -> None:
    """A commit that outlasts its bound is answered as unresolved, keeps its locks, and settles later."""
    arguments = fill(tmp_path)
    go_on = trio.Event()

    class Slow(FaultyStore):
        async def _step(self, operation: str, detail: str | None = None) -> None:
            if step in (operation, f"{operation}:{detail}"):
                await go_on.wait()
            await super()._step(operation, detail)

    async with opened(tmp_path, store=Slow()) as (supervisor, log):
        begin = trio.current_time()
        with pytest.raises(ztrio.Unresolved) as caught:
            await supervisor.call("publish", arguments)
        job_id = caught.value.job_id
        assert job_id is not None
        assert 10.0 == trio.current_time() - begin
        assert ("COMMIT_UNCONFIRMED", "commit_unconfirmed") == (caught.value.code, caught.value.reason)
        assert Outcome.UNRESOLVED == await supervisor.outcome(job_id)
        with pytest.raises(ztrio.QueueTimeout):
            await supervisor.call("build", {"site": "site"}, session="other", queue_timeout=1.0)
        with pytest.raises(ztrio.QueueTimeout):
            await supervisor.call("count", queue_timeout=1.0)
        assert 1 == supervisor.statistics().calls

        go_on.set()
        await settle()
        assert ["allow", "start", "unresolved", "settled"] == log.names(job_id)
        settled = log.one("settled")
        assert (Outcome.COMMITTED, True) == (settled.outcome, settled.termination_confirmed)
        assert Outcome.COMMITTED == await supervisor.outcome(job_id)
        assert "new page" == (tmp_path / "page").read_text()
        await nothing_left(supervisor, tmp_path)


async def test_commit_overdue_and_failed(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """An overdue commit that fails in the end settles as rolled back, with everything as it was."""
    arguments = fill(tmp_path)
    before = snapshot(tmp_path)

    class Slow(FaultyStore):
        async def _step(self, operation: str, detail: str | None = None) -> None:
            if detail == "commit":
                await trio.sleep(15)
                raise OSError("gone")
            await super()._step(operation, detail)

    async with opened(tmp_path, store=Slow()) as (supervisor, log):
        with pytest.raises(ztrio.Unresolved):
            await supervisor.call("publish", arguments)
        await trio.sleep(10)
        assert ["allow", "start", "unresolved", "error", "worker_terminated", "settled"] == log.names()
        assert Outcome.ROLLED_BACK == log.one("settled").outcome
        assert Outcome.ROLLED_BACK == await supervisor.outcome(log.events[0].execution_job_id)
        assert same(before, tmp_path)
        await nothing_left(supervisor, tmp_path)


@pytest.mark.leaves("a call whose commit was cut short keeps its files for recovery")
async def test_commit_that_never_ends_does_not_keep_the_supervisor(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Closing waits its bound for a commit, answers the call as unresolved and ends."""
    arguments = fill(tmp_path)
    store = FaultyStore(stall=("finish:commit",))
    async with opened(tmp_path, store=store) as (supervisor, log), trio.open_nursery() as nursery:

        @nursery.start_soon
        async def _() -> None:
            with pytest.raises(ztrio.Unresolved) as caught:
                await supervisor.call("publish", arguments)
            assert "commit_unconfirmed" == caught.value.reason

        await settle()
        begin = trio.current_time()
        await supervisor.aclose()
        assert trio.current_time() - begin <= 4.0
    assert ["allow", "start", "unresolved"] == log.names()


@pytest.mark.parametrize("stall", ["finish:rollback", "finish:cancel"])
async def test_rollback_does_not_wait_for_the_store(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, stall: str
) -> None:
    """What was put back is said at once, also when the store never writes it."""
    arguments = fill(tmp_path)
    before = snapshot(tmp_path)
    backend = ScriptedBackend(sleep_forever, stall=("acquire",) if stall == "finish:cancel" else ())
    async with opened(tmp_path, backend, store=FaultyStore(stall=(stall,))) as (supervisor, log):
        with trio.move_on_after(1) as scope:
            await supervisor.call("publish", arguments)
        assert scope.cancelled_caught
        assert 1.0 == trio.current_time()
        assert (QUEUED if stall == "finish:cancel" else STARTED) == log.names()
        await settle()
        assert same(before, tmp_path)
        await nothing_left(supervisor, tmp_path)


@pytest.mark.parametrize("tool", ["look", "look_apart", "session_list", "session_destroy"])
async def test_other_tools_cancelled(tmp_path: Path, autojump_clock: trio.testing.MockClock, tool: str) -> None:
    """A read or session tool whose caller leaves ends at once, unharmed, with the cause."""
    store = FaultyStore()
    async with opened(tmp_path, sleep_forever, store=store) as (supervisor, log):
        await supervisor.call("look")
        store.stall = {"session", "sessions"} if tool.startswith("session") else set()
        log.events.clear()
        with trio.move_on_after(1) as scope:
            await supervisor.call(tool, {"seconds": 99.0} if tool == "look" else {}, cause=ztrio.Cause("client_gone"))
        assert scope.cancelled_caught
        assert 1.0 == trio.current_time()
        read = tool in ("look", "look_apart", "session_list")
        assert ["allow", "error" if read else "cancel"] == log.names()
        assert ("client_gone", None) == (log.events[-1].cause, log.events[-1].code)
        await nothing_left(supervisor, tmp_path)


async def test_all_are_killed_before_the_first_is_cleaned_up(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """When many calls are cancelled at once, every tool is stopped before anything is done about the first of them."""
    backend = ScriptedBackend(sleep_forever)
    async with opened(tmp_path, backend) as (supervisor, _), trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(partial(supervisor.call, "count", session=f"s{number}"))
        await settle()
        nursery.cancel_scope.cancel()
    assert 5 * ["kill"] + 5 * ["terminate"] == backend.ends


async def test_cancelled_before_it_is_made(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A call in a scope that is cancelled already is never allowed."""
    async with opened(tmp_path) as (supervisor, log):
        with trio.CancelScope() as scope:
            scope.cancel()
            await supervisor.call("count")
        assert scope.cancelled_caught
        assert [] == log.events


async def test_cancelled_as_the_answer_comes(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A cancellation that meets the answer does not undo it."""
    async with opened(tmp_path) as (supervisor, log):
        scope = trio.CancelScope()
        supervisor.audit.add_reducer(lambda event: scope.cancel() if event.event == "commit" else None)
        with scope:
            await supervisor.call("count")
        assert scope.cancelled_caught
        assert ["allow", "start", "commit", "commit_unanswered"] == log.names()
        assert "cancelled by caller" not in {event.cause for event in log.events}
