import os
import signal
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.workers.support import BOUND, Reports, begin, request
from ztrio.errors import InvalidArguments, WorkerFailed
from ztrio.plain import decode, encode
from ztrio.testing.leaks import processes
from ztrio.workers.backend import Backend
from ztrio.workers.conversation import describe_exit
from ztrio.workers.forked import ForkedWorker
from ztrio.workers.pool import PooledWorker
from ztrio.workers.process import WorkerProcess
from ztrio.workers.wire import Failure, Result


def inside(worker: PooledWorker) -> WorkerProcess | ForkedWorker:
    """The worker with what it keeps to itself."""
    assert isinstance(worker, WorkerProcess | ForkedWorker)
    return worker


async def reader(worker: PooledWorker) -> int:
    """Process id of what reads the requests: below the guard, where there is one, once it has its own group."""
    if not isinstance(worker, ForkedWorker) or worker.link.rung != "job-init":
        await trio.lowlevel.checkpoint()
        return worker.pid
    with trio.fail_after(10):
        while True:
            for info in processes().values():
                if info.parent == worker.pid and info.group == info.pid:
                    return info.pid
            await trio.sleep(0.001)


async def failure_of(worker: PooledWorker, workspace: Path, function: str, **arguments: Any) -> WorkerFailed:
    """The error that a misbehaving tool ends in, within a bound."""
    with trio.fail_after(20):
        await worker.send_request(request(workspace, function, arguments))
        with pytest.raises(WorkerFailed) as caught:
            await worker.receive(Reports())
    return caught.value


async def test_a_call_and_its_proof(worker: PooledWorker, backend: Backend, tmp_path: Path) -> None:
    """A worker answers, and its end is proven on success too."""
    before = trio.current_time()
    await worker.send_request(request(tmp_path, "add", {"a": 1}))
    answer = await worker.receive(Reports())
    assert answer == Result(value=encode(2), session=None)
    proof = await worker.terminate(grace=0, bound=BOUND)
    assert proof is not None
    rung = backend.report.rung
    assert (proof.rung, proof.complete, proof.pid, proof.status) == (rung, rung != "group", worker.pid, -9)
    assert before < proof.killed_at <= proof.proven_at <= trio.current_time()
    assert proof.as_dict()["containment"] == ("partial" if rung == "group" else "full")
    assert await worker.terminate(grace=0, bound=BOUND) is proof


@pytest.mark.parametrize(
    ("function", "arguments", "status", "words"),
    [
        ("exit_at_once", {"status": 3}, 3, "ended with exit status 3"),
        ("exit_at_once", {"status": 0}, 0, "ended with exit status 0"),
        ("die_by", {"number": int(signal.SIGTERM)}, -15, "was killed by SIGTERM"),
        ("segfault", {}, -11, "was killed by SIGSEGV"),
    ],
)
async def test_a_worker_that_dies(
    worker: PooledWorker,
    backend: Backend,
    tmp_path: Path,
    function: str,
    arguments: dict[str, Any],
    status: int,
    words: str,
) -> None:
    """The error says how the worker ended, and carries its last words."""
    if function == "die_by" and backend.report.rung == "pidns":
        pytest.skip("PID 1 cannot kill itself by a signal")
    error = await failure_of(worker, tmp_path, function, **arguments)
    assert (error.code, error.details["exit_status"]) == ("WORKER_DIED", status)
    assert words in error.message
    assert error.details["output"] == ("goodbye\n" if function == "exit_at_once" else "")
    proof = await worker.terminate(grace=0, bound=BOUND)
    assert proof is not None
    assert proof.status == status


def test_exits_in_words() -> None:
    """Every kind of status has a sentence."""
    assert [describe_exit(status) for status in (None, 1, -9, -63, -200)] == [
        "ended",
        "ended with exit status 1",
        "was killed by SIGKILL",
        "was killed by signal 63",
        "was killed by signal 200",
    ]


@pytest.mark.parametrize(
    ("function", "arguments", "words"),
    [
        ("send_garbage", {}, "unknown frame kind 255"),
        ("announce", {"size": 100 * 2**20}, "a frame of 104857600 bytes is over the limit"),
        ("announce", {"size": 300_000}, "a frame of 300000 bytes is over the limit"),
        ("send_large_result", {"size": 300_000}, "over the limit"),
        ("send_kind", {"name": "Started"}, "an unexpected Started frame"),
        ("send_kind", {"name": "Ready"}, "an unexpected Ready frame"),
        ("send_kind", {"name": "Boot"}, "an unexpected Boot frame"),
        ("send_kind", {"name": "Failure"}, "the unknown failure code 'COMMITTED'"),
        ("send_kind", {"name": "Progress"}, "without a finite number"),
        ("send_progress", {"count": 100_000}, "a flood of Progress frames"),
        ("close_descriptors", {}, "the end of the stream, though it still runs"),
    ],
)
async def test_a_worker_that_breaks_the_protocol(
    worker: PooledWorker, tmp_path: Path, function: str, arguments: dict[str, Any], words: str
) -> None:
    """Whatever foreign code sends, the error is WORKER_PROTOCOL_ERROR and the worker can be ended."""
    error = await failure_of(worker, tmp_path, function, **arguments)
    assert error.code == "WORKER_PROTOCOL_ERROR"
    assert words in error.message
    assert await worker.terminate(grace=0, bound=BOUND) is not None


async def test_frames_after_the_result_change_nothing(worker: PooledWorker, tmp_path: Path) -> None:
    """The first terminal frame stands; what a worker sends afterwards is never looked at."""
    await worker.send_request(request(tmp_path, "send_after_result"))
    assert await worker.receive(Reports()) == Result(value=encode(1))


async def test_death_with_heirs(worker: PooledWorker, tmp_path: Path) -> None:
    """A worker that dies while a fork of it holds its socket and its output keeps nobody waiting."""
    error = await failure_of(worker, tmp_path, "die_before_child", status=4)
    assert (error.code, error.details["exit_status"]) == ("WORKER_DIED", 4)
    proof = await worker.terminate(grace=0, bound=BOUND)
    assert proof is not None
    assert (proof.status, proof.survivors_killed) == (4, 1 if proof.rung == "group" else 0)


async def test_death_before_the_request(worker: PooledWorker, tmp_path: Path) -> None:
    """A worker that dies before it has the request is found dead, also when the request is too large to be buffered."""
    os.kill(await reader(worker), signal.SIGKILL)
    large = request(tmp_path, "add", {"a": 1}, session=b"x" * 5_000_000)
    with trio.fail_after(10), pytest.raises(WorkerFailed, match=r"WORKER_DIED.*SIGKILL"):
        await worker.send_request(large)
    assert worker.has_exited


async def test_a_stopped_worker_that_dies_while_it_is_sent_to(worker: PooledWorker, tmp_path: Path) -> None:
    """Sending to a worker that takes nothing ends with the worker."""
    pid = await reader(worker)
    os.kill(pid, signal.SIGSTOP)
    large = request(tmp_path, "add", {"a": 1}, session=b"x" * 5_000_000)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def kill() -> None:
                await trio.testing.wait_all_tasks_blocked(0.05)
                os.kill(pid, signal.SIGKILL)

            with pytest.raises(WorkerFailed, match="WORKER_DIED"):
                await worker.send_request(large)


async def something_came(worker: PooledWorker) -> None:
    """Wait for the answer; it may have come with the word that the tool has started, and is read already."""
    channel = inside(worker)._conversation._channel
    if not channel._decoder._buffer:
        await trio.lowlevel.wait_readable(channel._sock)


async def test_what_a_dead_worker_sent_before_is_read(worker: PooledWorker, tmp_path: Path) -> None:
    """A complete result counts even when its sender is gone before it was looked at."""
    await worker.send_request(request(tmp_path, "add", {"a": 1}))
    await something_came(worker)
    os.kill(worker.pid, signal.SIGKILL)
    with trio.fail_after(10):
        while not inside(worker)._leader.exited.is_set():
            await trio.sleep(0.001)
        assert await worker.receive(Reports()) == Result(value=encode(2))
        with pytest.raises(WorkerFailed, match="WORKER_DIED"):
            await worker.receive(Reports())


async def test_a_request_that_fits_no_frame(
    worker: PooledWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too large a request is the caller's to mend, and the worker stays usable."""
    monkeypatch.setattr("ztrio.workers.wire.MAX_FRAME", 10_000)
    with pytest.raises(InvalidArguments, match=r"too large.*Nothing ran"):
        await worker.send_request(request(tmp_path, "add", {"a": 1}, session=b"x" * 10_000))
    await worker.send_request(request(tmp_path, "add", {"a": 1}))
    assert await worker.receive(Reports()) == Result(value=encode(2))


async def test_frames_before_the_request(worker: PooledWorker, tmp_path: Path) -> None:
    """A worker that says something else than that it has the request is refused."""
    await worker.send_request(request(tmp_path, "send_kind", {"name": "Ready"}))
    with pytest.raises(WorkerFailed, match="a Ready frame instead of Started"):
        await worker.send_request(request(tmp_path, "add", {"a": 1}))


@pytest.mark.case("R31")
async def test_a_flood_of_output(worker: PooledWorker, tmp_path: Path) -> None:
    """100 MB of output block nobody, cost no memory, and the last words are kept."""
    with trio.fail_after(60):
        await worker.send_request(request(tmp_path, "flood", {"megabytes": 100}))
        answer = await worker.receive(Reports())
    assert answer == Result(value=encode(100))
    await worker.terminate(grace=0, bound=BOUND)
    assert worker.output_tail().endswith("oolast words\nand these\n")
    assert inside(worker)._conversation._output.ring.seen == 100 * 2**20 + len("last words\nand these\n")
    assert len(worker.output_tail()) == 64 * 1024


async def test_output_that_cannot_be_encoded(worker: PooledWorker, tmp_path: Path) -> None:
    """A print of any text succeeds, and is captured before the worker ends."""
    await worker.send_request(request(tmp_path, "say", {"text": "größer"}))
    assert isinstance(await worker.receive(Reports()), Result)
    assert worker.output_tail() == "größer \\ud800\n"


async def test_a_tool_that_closes_its_streams(worker: PooledWorker, tmp_path: Path) -> None:
    """A tool may close what it prints to; its result arrives all the same."""
    await worker.send_request(request(tmp_path, "close_streams"))
    assert await worker.receive(Reports()) == Result(value=encode("quiet"))


async def test_progress_is_rate_limited(worker: PooledWorker, tmp_path: Path) -> None:
    """A tight loop of reports sends a burst, then about 50 a second, with bounded messages."""
    reports = Reports()
    await worker.send_request(request(tmp_path, "report", {"seconds": 0.5}))
    answer = await worker.receive(reports)
    assert isinstance(answer, Result)
    assert decode(answer.value) > 100
    assert (
        100 <= len(reports) <= 200
    )  # the burst, and 50 a second for half a second or, on a busy machine, a little more
    assert reports[0] == (1.0, 1e9, "m" * 1000)


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_cancelling_a_wait_loses_no_frame(worker: PooledWorker, tmp_path: Path, moment: str) -> None:
    """A wait for the result can be cancelled and taken up again."""
    await worker.send_request(request(tmp_path, "add", {"a": 1}))
    if moment == "after":
        await something_came(worker)
    with trio.CancelScope() as scope:
        scope.cancel()
        await worker.receive(Reports())
    assert scope.cancelled_caught
    assert await worker.receive(Reports()) == Result(value=encode(2))


async def test_a_forked_copy_is_mute(worker: PooledWorker, tmp_path: Path) -> None:
    """A copy of the worker that returns into the runtime answers nothing; the worker's own answer counts."""
    await worker.send_request(request(tmp_path, "fork_and_return"))
    answer = await worker.receive(Reports())
    assert isinstance(answer, Result)
    assert decode(answer.value) > 0


async def test_a_forked_copy_reports_nothing(worker: PooledWorker, tmp_path: Path) -> None:
    """Progress of a copy of the worker is dropped."""
    reports = Reports()
    await worker.send_request(request(tmp_path, "fork_and_report"))
    assert await worker.receive(reports) == Result(value=encode("parent"))
    assert reports == []


async def test_sigterm_answered_by_a_tool_that_goes_on(worker: PooledWorker, tmp_path: Path) -> None:
    """An async tool that answers although cancelled ends without escalation."""
    await begin(worker, request(tmp_path, "swallow_cancellation"))
    proof = await worker.terminate(grace=10, bound=BOUND)
    assert proof is not None
    assert (proof.status, proof.escalated) == (0, False)


async def test_a_tool_error_is_no_worker_failure(worker: PooledWorker, tmp_path: Path) -> None:
    """What the tool raises arrives as a Failure."""
    await worker.send_request(request(tmp_path, "fail", {"text": "no outline"}))
    answer = await worker.receive(Reports())
    assert isinstance(answer, Failure)
    assert (answer.code, answer.message, answer.exception_type) == (
        "TOOL_ERROR",
        "LookupError: no outline",
        "LookupError",
    )
