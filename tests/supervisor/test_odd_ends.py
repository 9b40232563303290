"""Ends that should not happen and do: each is still one known state, with an answer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import ztrio
from tests.supervisor.support import fill, job_directories, nothing_left, opened, play, settle, sleep_forever
from tests.supervisor.tools_for_calls import toolbox
from ztrio import Outcome
from ztrio.plain import encode
from ztrio.testing import FaultyOps, FaultyStore, ScriptedBackend
from ztrio.testing.scripted import ScriptedWorker
from ztrio.workers.wire import Failure, Result


class Speaker(ScriptedWorker):
    """A worker that prints a lot and sends one given frame."""

    frame: Result | Failure

    async def receive(self, on_progress: Callable[[float, float | None, str | None], None]) -> Result | Failure:
        """The frame."""
        await trio.lowlevel.checkpoint()
        return self.frame

    def output_tail(self) -> str:
        """What it printed."""
        return "x" * 10_000 + "the end"


class Replying(ScriptedBackend):
    """A backend whose workers send one given frame."""

    def __init__(self, frame: Result | Failure) -> None:
        super().__init__()
        self.frame = frame

    async def acquire(self) -> ScriptedWorker:
        """A worker that sends the frame."""
        await trio.lowlevel.checkpoint()
        worker = Speaker(self, 4711)
        worker.frame = self.frame
        return worker


async def test_internal_failure(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A failure of our own refuses the call and asks to be reported; the supervisor goes on."""

    class Broken(ScriptedBackend):
        async def acquire(self) -> ScriptedWorker:
            await trio.lowlevel.checkpoint()
            raise RuntimeError("a bug")

    async with opened(tmp_path, Broken()) as (supervisor, log):
        with pytest.raises(ztrio.CommitFailed, match="a bug") as caught:
            await supervisor.call("count")
        assert (Outcome.NOT_STARTED, "RuntimeError") == (caught.value.outcome, log.one("deny").exception_type)
        await nothing_left(supervisor, tmp_path)


async def test_staging_cannot_be_made(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A disk that has no room for the job directory's file refuses the call before anything ran."""
    arguments = fill(tmp_path)
    async with opened(tmp_path, ops=FaultyOps("write_file", OSError(28, "No space left on device"))) as (
        supervisor,
        log,
    ):
        with pytest.raises(ztrio.OutputRefused) as caught:
            await supervisor.call("publish", arguments)
        assert ("OUTPUT_NOT_WRITABLE", Outcome.NOT_STARTED) == (caught.value.code, caught.value.outcome)
        assert ["allow", "deny"] == log.names()
        await nothing_left(supervisor, tmp_path)


@pytest.mark.parametrize("tool", ["count", "look_apart"])
@pytest.mark.parametrize("frame", [Result(value=b"\xc1"), Result(value=encode(1), session=b"\xc1")])
async def test_result_that_does_not_decode(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, frame: Result, tool: str
) -> None:
    """A result that is no encoded value is a broken protocol, and nothing is published."""
    async with opened(tmp_path, Replying(frame)) as (supervisor, _):
        with pytest.raises(ztrio.WorkerFailed) as caught:
            await supervisor.call(tool)
        expected = Outcome.ROLLED_BACK if tool == "count" else Outcome.COMPLETED
        assert ("WORKER_PROTOCOL_ERROR", expected) == (caught.value.code, caught.value.outcome)
        await nothing_left(supervisor, tmp_path)


@pytest.mark.parametrize("code", ["RESULT_TOO_LARGE", "STATE_TOO_LARGE"])
async def test_limits(tmp_path: Path, autojump_clock: trio.testing.MockClock, code: str) -> None:
    """A tool that makes more than its bounds allow ended by itself: allow, start, error, rollback."""
    frame = Failure(code=code, message="It is too large.", traceback="somewhere")
    async with opened(tmp_path, Replying(frame)) as (supervisor, log):
        with pytest.raises(ztrio.LimitExceeded) as caught:
            await supervisor.call("count")
        assert (code, Outcome.ROLLED_BACK) == (caught.value.code, caught.value.outcome)
        assert ["allow", "start", "error", "rollback"] == log.names()
        await nothing_left(supervisor, tmp_path)


@pytest.mark.leaves("what was displaced stays where somebody else replaced what was published")
async def test_rollback_keeps_what_somebody_else_made(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Somebody replaces a target between publication and a commit that fails: theirs stays, and everybody is told."""
    target = tmp_path / "out"
    target.write_text("old")

    def replace(operation: str) -> None:
        if operation == "finish:commit":
            target.unlink()
            target.write_text("theirs")

    store = FaultyStore(fail={"finish:commit": OSError("gone")}, before=replace)
    async with opened(tmp_path, store=store) as (supervisor, log):
        with pytest.raises(ztrio.CommitFailed) as caught:
            await supervisor.call("export", {"out": "out"})
        assert "theirs" == target.read_text()
        assert [str(target)] == caught.value.details["kept"]
        assert (str(target),) == log.one("rollback").kept
        (directory,) = job_directories(tmp_path)
        assert "old" == (directory / "0" / "out").read_text()


@pytest.mark.leaves("a worker that may still act keeps its job directory")
@pytest.mark.parametrize("tool", ["export", "look_apart"])
async def test_closing_does_not_wait_for_a_death(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, tool: str
) -> None:
    """Closing cuts the wait for a proof short where it would take longer than closing may, and says so."""
    backend = ScriptedBackend(sleep_forever, dies_after=50.0)
    settings = ztrio.Settings(termination_bound=60.0)
    async with opened(tmp_path, backend, settings=settings) as (supervisor, log), trio.open_nursery() as nursery:

        @nursery.start_soon
        async def _() -> None:
            with pytest.raises(ztrio.Unresolved if tool == "export" else ztrio.ShuttingDown) as caught:
                await supervisor.call(tool, {"out": "out"} if tool == "export" else {})
            expected = Outcome.UNRESOLVED if tool == "export" else Outcome.COMPLETED
            assert expected == caught.value.outcome

        await settle()
        await supervisor.aclose()
        assert trio.current_time() <= 4.0
    expected = ["start", "cancel", "unresolved"] if tool == "export" else ["error"]
    assert ["allow", *expected] == log.names()
    assert not (tmp_path / "out").exists()


async def test_session_tool_waits_its_turn(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Destruction queues with everybody else, and gives up after its queue_timeout: allow, queue_timeout."""
    async with opened(tmp_path, sleep_forever) as (supervisor, log), trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.call, "count")
        await settle()
        with pytest.raises(ztrio.QueueTimeout) as caught:
            await supervisor.call("session_destroy", queue_timeout=1.0)
        assert ["allow", "queue_timeout"] == log.names(caught.value.job_id)
        nursery.cancel_scope.cancel()


async def test_session_tool_without_a_store(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A store that does not take the row of a session tool's call: deny."""
    store = FaultyStore(fail={"insert_job": OSError("gone")})
    async with opened(tmp_path, store=store) as (supervisor, log):
        with pytest.raises(ztrio.StoreUnavailable) as caught:
            await supervisor.call("session_open")
        assert (["deny"], Outcome.NOT_STARTED) == (log.names(), caught.value.outcome)
        await nothing_left(supervisor, tmp_path)


async def test_store_that_stays_away_for_long(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """What could not be written is tried again until it is; nothing is written twice."""
    arguments = fill(tmp_path)
    store = FaultyStore(fail={"finish": OSError("gone")})
    async with opened(tmp_path, store=store) as (supervisor, _):
        with pytest.raises(ztrio.CommitFailed) as caught:
            await supervisor.call("publish", arguments)
        await trio.sleep(60)
        store.fail.clear()
        await trio.sleep(60)
        await supervisor.call("publish", arguments)
        events = [
            event["event"] for event in await supervisor.events() if event["execution_job_id"] == caught.value.job_id
        ]
        assert 1 == events.count("rollback")


async def test_output_of_the_worker_in_errors(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """What the worker printed last is in the error's details."""
    backend = Replying(Failure(code="TOOL_ERROR", message="no", exception_type="ValueError"))
    async with opened(tmp_path, backend) as (supervisor, _):
        with pytest.raises(ztrio.ToolError) as caught:
            await supervisor.call("count")
        assert caught.value.details["output"].endswith("the end")
        assert len(caught.value.details["output"]) < 10_000


async def test_the_same_error_is_not_shared(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Each answer is an error of its own, with its own job id."""
    async with opened(tmp_path, play, settings=ztrio.Settings(admitted=1)) as (supervisor, _):
        ids = set()
        for _number in range(2):
            with pytest.raises(ztrio.InvalidArguments) as caught:
                await supervisor.call("count", timeout=-1)
            ids.add(caught.value.job_id)
        assert 2 == len(ids)


@pytest.mark.parametrize("tool", ["count", "look", "session_open"])
async def test_store_that_never_heard_of_a_call(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, tool: str
) -> None:
    """A call whose row could not be stored has its events all the same, and is no trouble once the store works."""
    store = FaultyStore(fail={"insert_job": OSError("gone")})
    async with opened(tmp_path, store=store) as (supervisor, log):
        try:
            await supervisor.call(tool)
        except ztrio.StoreUnavailable as error:
            assert Outcome.NOT_STARTED == error.outcome
        store.fail.clear()
        assert [event["event"] for event in await supervisor.events()] == log.names()
        await supervisor.call("count")
        await nothing_left(supervisor, tmp_path)


@pytest.mark.leaves("a worker that may still act keeps its job directory")
async def test_backend_that_fails_to_end_a_worker(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A backend that raises where it should prove a death has proven nothing; the other calls go on."""

    class Raising(ScriptedWorker):
        async def terminate(self, *, grace: float, bound: float) -> None:
            await trio.lowlevel.checkpoint()
            raise OSError(24, "Too many open files")

    class Backend(ScriptedBackend):
        async def acquire(self) -> ScriptedWorker:
            worker = await super().acquire()
            return Raising(self, worker.pid) if self.handed_over == 1 else worker

    async with opened(tmp_path, Backend(play)) as (supervisor, _):
        with pytest.raises(ztrio.Unresolved) as caught:
            await supervisor.call("count")
        assert "termination_unconfirmed" == caught.value.reason
        await supervisor.call("count", session="other")


@pytest.mark.leaves("a directory that could not be removed")
async def test_job_directory_that_stays(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A job directory that cannot be removed changes nothing about its call or the others."""

    async def blocking(function: Callable[..., Any], /, *args: Any) -> Any:
        await trio.lowlevel.cancel_shielded_checkpoint()
        if getattr(function, "__name__", "") == "discard":
            raise RuntimeError("can't start new thread")
        return function(*args)

    async with ztrio.open_supervisor(
        toolbox, workspace=tmp_path, backend=ScriptedBackend(play).open, blocking=blocking
    ) as supervisor:
        for expected in (1, 2):
            assert expected == (await supervisor.call("count")).value
        await settle()
        assert 0 == supervisor.statistics().calls
