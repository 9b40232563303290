import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.workers.support import BOUND, Reports, child_pids, is_alive, request, settings
from ztrio.errors import WorkerFailed
from ztrio.plain import decode
from ztrio.testing.leaks import LeakProbe
from ztrio.workers import spawn
from ztrio.workers.backend import BackendStatistics
from ztrio.workers.process import WorkerProcess
from ztrio.workers.spawn import SpawnBackend, open_spawn_backend
from ztrio.workers.wire import Result


async def until(condition: Callable[[], bool]) -> None:
    """Wait for real processes, within a bound."""
    with trio.fail_after(20):
        while not condition():
            await trio.sleep(0.005)


def module(path: Path, text: str) -> dict[str, Any]:
    """Settings for a tools file with this text."""
    path.write_text(textwrap.dedent(text))
    return {"modules": ((path.stem, str(path)),)}


async def failures(backend: SpawnBackend, count: int = 1) -> list[WorkerFailed]:
    """The errors of several that ask at once."""
    found: list[WorkerFailed] = []

    async def ask() -> None:
        with pytest.raises(WorkerFailed) as caught:
            await backend.acquire()
        found.append(caught.value)

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(ask)
    return found


async def test_the_pool_keeps_workers_ready(tmp_path: Path) -> None:
    """Prewarmed workers are handed over oldest first, with everything loaded, and are replaced."""
    options = settings(tmp_path, prewarmed=2, functions=(("tools_for_workers", "preloaded"),))
    async with open_spawn_backend(options) as backend:
        await until(lambda: backend.statistics().idle == 2)
        first = await backend.acquire()
        asked = time.monotonic()
        await first.send_request(request(tmp_path, "preloaded"))
        answer = await first.receive(Reports())
        assert isinstance(answer, Result)
        assert decode(answer.value) < asked
        assert first.started_at <= time.time()
        await until(lambda: backend.statistics().idle == 2)
        assert backend.statistics() == BackendStatistics(name="spawn", idle=2, starting=0, handed_over=1, unproven=0)
        second = await backend.acquire()
        assert second.started_at > first.started_at - 0.02  # clock ticks
        await first.terminate(grace=0, bound=BOUND)
        assert is_alive(second.pid)
    assert not is_alive(second.pid)


async def test_first_come_first_served(tmp_path: Path) -> None:
    """However workers arrive, callers get them in the order in which they asked."""
    order = []
    async with open_spawn_backend(settings(tmp_path)) as backend, trio.open_nursery() as nursery:

        async def ask(number: int) -> None:
            worker = await backend.acquire()
            order.append(number)
            await worker.terminate(grace=0, bound=BOUND)

        for number in range(5):
            nursery.start_soon(ask, number)
            await trio.testing.wait_all_tasks_blocked()
        assert backend.statistics().starting == min(5, spawn._MAX_STARTING)
    assert order == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("text", "reason", "printed"),
    [
        ("print('so far'); raise RuntimeError('no licence')", "RuntimeError: no licence", "so far"),
        ("raise SystemExit(2)", "SystemExit: 2", "SystemExit"),
        ("this is no Python", "SyntaxError", "SyntaxError"),
        ("print('so far', flush=True); import os; os._exit(7)", "ended with exit status 7", "so far"),
        ("import os; os.closerange(3, 100); import time; time.sleep(99)", "the end of the stream", ""),
        ("print('so far', flush=True); import time; time.sleep(99)", "not ready within 1.5 s", "so far"),
    ],
    ids=["raises", "exits", "no Python", "dies", "closes", "hangs"],
)
async def test_tools_that_cannot_be_loaded(tmp_path: Path, text: str, reason: str, printed: str) -> None:
    """Everyone who waits learns why, with what was printed; nothing is tried again until somebody asks."""
    patience = 1.5 if "1.5 s" in reason else 30.0
    options = settings(tmp_path, prewarmed=2, start_timeout=patience, **module(tmp_path / "broken_tools.py", text))
    async with open_spawn_backend(options) as backend:
        errors = await failures(backend, 3)
        assert len({id(error) for error in errors}) == 3
        for error in errors:
            assert error.code == "WORKER_START_FAILED"
            assert reason in error.message
            assert "Nothing ran" in error.message
            assert printed in error.details["output"]
        await until(lambda: backend.statistics().starting == 0)
        await trio.sleep(0.1)
        assert (backend.statistics().starting, child_pids()) == (0, set())
        # Somebody mends it.
        (tmp_path / "broken_tools.py").write_text("")
        worker = await backend.acquire()
        assert is_alive(worker.pid)
        await until(lambda: backend.statistics().idle == 2)


async def test_a_first_frame_that_is_not_ready(tmp_path: Path) -> None:
    """A module that speaks the protocol itself is refused."""
    text = """
        import os, time
        from pathlib import Path
        from ztrio.workers import wire
        fd = next(int(name) for name in os.listdir("/proc/self/fd") if Path(f"/proc/self/fd/{name}").is_socket())
        os.write(fd, wire.encode_frame(wire.Started()))
        time.sleep(99)
    """
    async with open_spawn_backend(settings(tmp_path, **module(tmp_path / "broken_tools.py", text))) as backend:
        (error,) = await failures(backend)
        assert "a Started frame instead of Ready" in error.message


async def test_a_tool_that_is_not_there(tmp_path: Path) -> None:
    """A function that cannot be found is a failure to start, not one of the call."""
    options = settings(tmp_path, functions=(("tools_for_workers", "gone"),))
    async with open_spawn_backend(options) as backend:
        (error,) = await failures(backend)
        assert "AttributeError" in error.message


async def test_no_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that cannot be started at all is reported the same way."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    async with open_spawn_backend(settings(tmp_path, prewarmed=1)) as backend:
        (error,) = await failures(backend)
        assert "No such file" in error.message


async def test_sigchld_must_not_be_ignored(tmp_path: Path) -> None:
    """Where the kernel reaps children by itself nothing can be proven, so nothing is started."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(WorkerFailed, match="ignores SIGCHLD"):
            async with open_spawn_backend(settings(tmp_path)):
                raise AssertionError
    finally:
        signal.signal(signal.SIGCHLD, before)


async def test_an_idle_worker_that_dies_is_replaced(tmp_path: Path) -> None:
    """The pool notices a death, cleans up after it and fills up again."""
    async with open_spawn_backend(settings(tmp_path, prewarmed=1)) as backend:
        await until(lambda: backend.statistics().idle == 1)
        (victim,) = child_pids()
        os.kill(victim, signal.SIGKILL)
        await until(lambda: child_pids().isdisjoint({victim}) and backend.statistics().idle == 1)
        assert victim not in child_pids()


async def test_a_worker_that_died_just_now_is_not_handed_over(tmp_path: Path) -> None:
    """Whoever asks gets a living worker, also when the pool has not noticed a death yet."""
    async with open_spawn_backend(settings(tmp_path, prewarmed=1)) as backend:
        await until(lambda: backend.statistics().idle == 1)
        (victim,) = child_pids()
        os.kill(victim, signal.SIGKILL)
        while is_alive(victim):
            time.sleep(0.001)  # noqa: ASYNC251 - the loop must not notice
        worker = await backend.acquire()
        assert worker.pid != victim


async def test_workers_that_keep_dying_are_not_made_for_ever(tmp_path: Path) -> None:
    """A pool whose idle workers die again and again rests until somebody asks."""
    text = """
        import os, threading
        threading.Timer(0.05, os._exit, (1,)).start()
    """
    options = settings(tmp_path, prewarmed=1, **module(tmp_path / "mortal_tools.py", text))
    async with open_spawn_backend(options) as backend:
        await until(lambda: backend._resting and not backend._alive)
        assert backend.statistics().starting == 0
        worker = await backend.acquire()
        assert worker.pid > 0


@pytest.mark.parametrize("delay", [0, 0.001, 0.005, 0.02, 0.1, 0.2, 0.3, 0.5])
async def test_a_caller_that_leaves_leaves_nothing(tmp_path: Path, delay: float) -> None:
    """Wherever `acquire` is cancelled, the next caller is served and nothing is left behind."""
    async with open_spawn_backend(settings(tmp_path)) as backend:
        with trio.move_on_after(delay) as scope:
            if delay == 0:
                scope.cancel()
            worker = await backend.acquire()
            await worker.terminate(grace=0, bound=BOUND)
        with trio.fail_after(20):
            worker = await backend.acquire()
        assert is_alive(worker.pid)
        assert len(backend._waiters) == 0


async def test_what_was_made_for_a_caller_that_left_stays_in_the_pool(tmp_path: Path) -> None:
    """A worker that arrives for a departed caller serves the next."""
    async with open_spawn_backend(settings(tmp_path)) as backend:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(backend.acquire)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        assert backend.statistics().starting == 1
        await until(lambda: backend.statistics().idle == 1)
        (made,) = child_pids()
        assert (await backend.acquire()).pid == made


async def test_a_cancelled_caller_takes_no_worker(tmp_path: Path) -> None:
    """A caller that is cancelled already does not take a worker with it."""
    async with open_spawn_backend(settings(tmp_path, prewarmed=1)) as backend:
        await until(lambda: backend.statistics().idle == 1)
        with trio.CancelScope() as scope:
            scope.cancel()
            await backend.acquire()
        assert (backend.statistics().idle, backend.statistics().handed_over) == (1, 0)


async def test_acquire_is_a_checkpoint(tmp_path: Path) -> None:
    """`acquire` gives other tasks a turn, also when a worker is ready."""
    async with open_spawn_backend(settings(tmp_path, prewarmed=1)) as backend:
        await until(lambda: backend.statistics().idle == 1)
        with trio.testing.assert_checkpoints():
            await backend.acquire()


@pytest.mark.parametrize("delay", [0, 0.001, 0.01, 0.1, 0.2, 0.4, 0.6])
async def test_leaving_the_context_at_any_time(tmp_path: Path, delay: float, nothing_left_behind: LeakProbe) -> None:
    """Whatever the pool is doing, leaving it ends every worker, made or being made."""
    with trio.fail_after(10):
        async with open_spawn_backend(settings(tmp_path, prewarmed=3)) as backend:
            await trio.sleep(delay)
    assert child_pids() == set()
    assert backend.statistics() == BackendStatistics(name="spawn", idle=0, starting=0, handed_over=0, unproven=0)


@pytest.mark.parametrize("delay", [0, 0.05, 0.3])
async def test_cancelling_everything(tmp_path: Path, delay: float) -> None:
    """Cancelled from outside, with callers in line, the backend ends every worker and lets the cancellation through."""
    with trio.move_on_after(delay) as scope:
        async with open_spawn_backend(settings(tmp_path, prewarmed=1)) as backend, trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(backend.acquire)
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert child_pids() == set()


async def test_a_call_being_cancelled_can_still_end_its_worker(tmp_path: Path) -> None:
    """When everything is cancelled at once, a shielded end of a worker still finds its proof."""
    proofs = []
    with trio.CancelScope() as scope:
        async with open_spawn_backend(settings(tmp_path)) as backend:
            worker = await backend.acquire()
            try:
                scope.cancel()
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * BOUND):
                    proofs.append(await worker.terminate(grace=0, bound=BOUND))
    assert [proof is not None and proof.pid for proof in proofs] == [worker.pid]


async def test_errors_of_the_body_come_out_as_they_are(tmp_path: Path) -> None:
    """No exception group around the caller's own error."""
    error = LookupError("mine")
    with pytest.raises(LookupError) as caught:
        async with open_spawn_backend(settings(tmp_path)):
            raise error
    assert caught.value is error
    assert caught.value.__context__ is None


async def test_an_error_of_the_backend_itself_is_not_hidden(tmp_path: Path) -> None:
    """A defect in a background task reaches whoever opened the backend."""

    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with open_spawn_backend(settings(tmp_path)) as backend:
            backend._watchers.start_soon(fail)
            await trio.sleep_forever()


async def test_a_closed_backend_makes_no_worker(tmp_path: Path) -> None:
    """Asking too late is an error, not a wait for ever; so is waiting when it closes."""
    errors = []
    async with trio.open_nursery() as nursery:
        async with open_spawn_backend(settings(tmp_path)) as backend:

            @nursery.start_soon
            async def ask() -> None:
                errors.extend(await failures(backend))

            await trio.testing.wait_all_tasks_blocked()
        errors.extend(await failures(backend))
    assert ["closing" in errors[0].message, "closed" in errors[1].message] == [True, True]


async def test_a_worker_that_is_not_returned_is_ended(tmp_path: Path) -> None:
    """Leaving the backend ends workers that somebody forgot."""
    async with open_spawn_backend(settings(tmp_path)) as backend:
        worker = await backend.acquire()
        assert isinstance(worker, WorkerProcess)
    assert not is_alive(worker.pid)
