"""When the commit fails, at any step and with any exception, everything is bit for bit as it was before the call."""

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import ztrio
from tests.kit.trees import Snapshot, snapshot
from tests.supervisor.support import ANYTHING, fill, job_directories, nothing_left, opened, play, settle, state
from ztrio import Outcome
from ztrio.testing import FaultyOps, FaultyStore, ScriptedCall, inline

FAILED = ["allow", "start", "error", "worker_terminated", "rollback"]


def same(before: Snapshot, workspace: Path) -> bool:
    """Whether everything below is as it was; the workspace's own mtime tells only that a job directory was there."""
    return {**before, ".": None} == {**snapshot(workspace), ".": None}


def interrupts(error: BaseException) -> bool:
    """Whether it ends the program instead of the call."""
    return not isinstance(error, Exception)


async def fail_once(workspace: Path, arguments: dict[str, Any], error: BaseException, **faults: Any) -> list[str]:
    """Call `publish`, which fails with `error` somewhere in its commit; assert that nothing happened. Its events."""
    before = snapshot(workspace)
    store: FaultyStore = faults.setdefault("store", FaultyStore())
    log = None
    try:
        async with opened(workspace, **faults) as (supervisor, log):
            with pytest.raises(ztrio.ZtrioError) as caught:
                await supervisor.call("publish", arguments)
            assert Outcome.ROLLED_BACK == caught.value.outcome
            codes = {"COMMIT_FAILED"}
            if isinstance(error, PermissionError):  # what may not be looked at is somebody's doing
                codes |= {"OUTPUT_UNSAFE", "OUTPUT_CONFLICT"}
            assert caught.value.code in codes
            assert await state(supervisor) is None
            if not interrupts(error):
                await nothing_left(supervisor, workspace)
                # And it works again.
                store.fail.clear()
                await supervisor.call("count")
                assert await state(supervisor) is not None
    except (KeyboardInterrupt, SystemExit) as passed:
        assert passed is error
    else:
        assert not interrupts(error)
    assert log is not None
    assert same(before, workspace)
    assert [] == job_directories(workspace)
    return log.names(log.events[0].execution_job_id)


STEPS = ["advance:publishing_outputs", "finish:commit"]


@pytest.mark.parametrize("error", ANYTHING, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("step", STEPS)
async def test_store_fails(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, step: str, error: BaseException
) -> None:
    """Publication noted, state commit and terminal event: whatever the store raises there, everything goes back."""
    names = await fail_once(tmp_path, fill(tmp_path), error, store=FaultyStore(fail={step: error}))
    assert FAILED == names


async def operations(workspace: Path, arguments: dict[str, Any]) -> list[tuple[str, int]]:
    """Every file operation of the commit of `publish` up to its transaction: (name, which call of it)."""
    ops = FaultyOps()
    marks: list[int] = []

    async def script(call: ScriptedCall) -> Any:
        value = await play(call)
        marks.append(len(ops.calls))
        return value

    def note(operation: str) -> None:
        if operation == "finish:commit":
            marks.append(len(ops.calls))

    workspace.mkdir()
    fill(workspace)
    async with opened(workspace, script, ops=ops, store=FaultyStore(before=note)) as (supervisor, _):
        await supervisor.call("publish", arguments)
    begin, end = marks
    return [(name, ops.calls[: index + 1].count(name)) for index, name in enumerate(ops.calls) if begin <= index < end]


@pytest.mark.parametrize("after", [False, True], ids=["instead", "after"])
@pytest.mark.parametrize("error", ANYTHING, ids=lambda error: type(error).__name__)
async def test_file_operation_fails(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, error: BaseException, after: bool
) -> None:
    """Inspection and publication: whatever any of their operations raises, before or after it worked, all goes back."""
    arguments = {"page": "page", "fresh": "fresh", "site": "site"}
    listed = await operations(tmp_path / "model", arguments)
    assert {"exchange", "move_new", "write_file", "stat"} <= {name for name, _ in listed}
    if not isinstance(error, RuntimeError):  # which one strikes everywhere, the others the last one of each kind
        listed = list(dict(listed).items())
    for number, (operation, nth) in enumerate(listed):
        workspace = tmp_path / str(number)
        workspace.mkdir()
        ops = FaultyOps(operation, error, nth=nth, after=after)
        names = await fail_once(workspace, fill(workspace), error, ops=ops)
        assert ops.fired
        assert FAILED == names, (operation, nth)


@pytest.mark.parametrize("error", ANYTHING, ids=lambda error: type(error).__name__)
async def test_nothing_is_undone_after_the_transaction(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, error: BaseException
) -> None:
    """Once the transaction has returned there is only forward, whatever the note of it in the job directory raises."""
    arguments = fill(tmp_path)
    store = FaultyStore()

    class Late(FaultyOps):
        def write_file(self, dir_fd: int, name: str, data: bytes) -> None:
            if "finish:commit" in store.calls:
                self.fired = True
                raise error
            super().write_file(dir_fd, name, data)

    ops = Late()
    try:
        async with opened(tmp_path, ops=ops, store=store) as (supervisor, log):
            result = await supervisor.call("publish", arguments)
            assert Outcome.COMMITTED == result.outcome
            found = await state(supervisor)
            assert found is not None
            assert 1 == found[0]
            await settle()
    except (KeyboardInterrupt, SystemExit) as passed:
        assert passed is error
    assert ops.fired
    assert ["allow", "start", "commit"] == log.names()
    assert "new page" == (tmp_path / "page").read_text()
    assert [] == job_directories(tmp_path)


@pytest.mark.leaves("a call of unknown outcome keeps its files")
@pytest.mark.parametrize("error", ANYTHING, ids=lambda error: type(error).__name__)
async def test_abort_fails(tmp_path: Path, autojump_clock: trio.testing.MockClock, error: BaseException) -> None:
    """A transaction that can be neither confirmed nor aborted: nothing is touched, locks stay, mutators are refused."""
    arguments = fill(tmp_path)
    store = FaultyStore(fail={"finish:commit": OSError(5, "I/O error"), "abort": error})
    try:
        async with opened(tmp_path, store=store) as (supervisor, log):
            with pytest.raises(ztrio.Unresolved) as caught:
                await supervisor.call("publish", arguments)
            assert "commit_unconfirmed" == caught.value.reason
            assert ["allow", "start", "unresolved"] == log.names()
            if not interrupts(error):
                await settle()
                assert (1, 1) == (supervisor.statistics().calls, supervisor.statistics().tickets.granted)
                with pytest.raises(ztrio.StoreUnavailable) as refused:
                    await supervisor.call("count", session="other")
                assert Outcome.NOT_STARTED == refused.value.outcome
                assert {} == (await supervisor.call("look")).value
                assert caught.value.job_id is not None
                assert Outcome.UNRESOLVED == await supervisor.outcome(caught.value.job_id)
    except (KeyboardInterrupt, SystemExit) as passed:
        assert passed is error
    assert "new page" == (tmp_path / "page").read_text()
    (directory,) = job_directories(tmp_path)
    assert "old page" == (directory / "0" / "page").read_text()


@pytest.mark.leaves("what could not be put back stays where it is")
async def test_putting_back_fails(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Files that cannot be put back: the call is unresolved, its locks stay, and the originals are kept."""
    (tmp_path / "out").write_text("old")

    class Stuck(FaultyOps):
        def exchange(self, first_fd: int, first: str, second_fd: int, second: str) -> None:
            if self.calls.count("exchange") == 2:  # the probe, the publication
                raise OSError(5, "I/O error")
            super().exchange(first_fd, first, second_fd, second)

    async with opened(tmp_path, ops=Stuck(), store=FaultyStore(fail={"finish:commit": OSError("no")})) as (
        supervisor,
        log,
    ):
        with pytest.raises(ztrio.Unresolved) as caught:
            await supervisor.call("export", {"out": "out"})
        assert ([str(tmp_path / "out")], "commit_unconfirmed") == (caught.value.details["targets"], caught.value.reason)
        assert ["allow", "start", "error", "worker_terminated", "unresolved"] == log.names()
        await settle()
        with pytest.raises(ztrio.QueueTimeout):
            await supervisor.call("export", {"out": "out"}, session="other", queue_timeout=1.0)
    (directory,) = job_directories(tmp_path)
    assert "old" == (directory / "0" / "out").read_text()


@pytest.mark.parametrize("error", [OSError("full"), RuntimeError("broken")], ids=["OSError", "RuntimeError"])
async def test_rollback_cannot_be_recorded(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, error: BaseException
) -> None:
    """A rollback that the store does not take is answered all the same, and written as soon as it can be."""
    arguments = fill(tmp_path)
    before = snapshot(tmp_path)
    store = FaultyStore(fail={"finish": error})
    async with opened(tmp_path, store=store) as (supervisor, log):
        with pytest.raises(ztrio.CommitFailed) as caught:
            await supervisor.call("publish", arguments)
        assert (Outcome.ROLLED_BACK, FAILED) == (caught.value.outcome, log.names())
        await settle()
        assert same(before, tmp_path)
        job_id = caught.value.job_id
        assert job_id is not None
        assert Outcome.ROLLED_BACK == await supervisor.outcome(job_id)
        with pytest.raises(ztrio.StoreUnavailable):
            await supervisor.call("count")
        store.fail.clear()
        await trio.sleep(1)
        assert Outcome.ROLLED_BACK == await supervisor.outcome(job_id)
        stored = [event["event"] for event in await supervisor.events() if event["execution_job_id"] == job_id]
        assert FAILED == stored
        await supervisor.call("count")
        await nothing_left(supervisor, tmp_path)


async def test_log_that_fails_does_not_break_cleanup(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A log that cannot be appended to refuses new mutating calls and leaves those in flight whole."""

    class Mute(FaultyStore):
        def record(self, event: ztrio.AuditEvent) -> None:
            if event.event == "start":
                raise OSError(28, "No space left on device")
            super().record(event)

    arguments = fill(tmp_path)
    before = snapshot(tmp_path)
    async with opened(tmp_path, _patient, store=Mute()) as (supervisor, log):
        with pytest.raises(ztrio.StoreUnavailable) as caught:
            await supervisor.call("publish", arguments)
        assert Outcome.ROLLED_BACK == caught.value.outcome
        assert ["allow", "start", "cancel", "worker_terminated", "rollback"] == log.names()
        assert "audit_unavailable" == log.one("rollback").cause
        await settle()
        assert same(before, tmp_path)
        await nothing_left(supervisor, tmp_path)


async def _patient(call: ScriptedCall) -> Any:
    await trio.sleep(1)
    return await play(call)


@pytest.mark.parametrize("error", ANYTHING, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("tool", ["session_open", "session_destroy"])
async def test_session_tool_fails(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, tool: str, error: BaseException
) -> None:
    """Opening and destroying happen or do not happen, whatever the transaction raises."""
    store = FaultyStore()
    try:
        async with opened(tmp_path, store=store) as (supervisor, log):
            await supervisor.call("count")
            await settle()
            log.events.clear()
            store.fail = {"finish:commit": error}
            with pytest.raises((ztrio.CommitFailed, ztrio.Unresolved)):
                await supervisor.call(tool)
            if not interrupts(error):
                assert ["allow", "start", "error", "rollback"] == log.names()
                assert ["default"] == [row["name"] for row in (await supervisor.call("session_list")).value["sessions"]]
                await nothing_left(supervisor, tmp_path)
    except (KeyboardInterrupt, SystemExit) as passed:
        assert passed is error


async def test_session_tool_that_stalls(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A transaction that outlasts its bound is aborted; where that fails, the call is unresolved and keeps its lock."""
    store = FaultyStore(stall=("finish:commit",))
    async with opened(tmp_path, store=store) as (supervisor, log):
        with pytest.raises(ztrio.CommitFailed) as failed:
            await supervisor.call("session_open")
        assert (Outcome.ROLLED_BACK, 10.0) == (failed.value.outcome, trio.current_time())
        await nothing_left(supervisor, tmp_path)
        store.fail = {"abort": OSError("gone")}
        log.events.clear()
        with pytest.raises(ztrio.Unresolved) as unresolved:
            await supervisor.call("session_open")
        assert ["allow", "start", "unresolved"] == log.names()
        assert "commit_unconfirmed" == unresolved.value.reason
        assert 1 == supervisor.statistics().calls


def test_inline_runs_here() -> None:
    """The scripted supervisor does the blocking work in line, so that a virtual clock can jump."""
    assert 3 == trio.run(inline, max, 1, 3)
