import gc
import os
import select
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.workers.support import BOUND, TOOLS, Reports, begin, fork_server, is_alive, request, settings, tools
from tests.workers.walk_of_rungs import TOOLS as RUNG_TOOLS
from ztrio.errors import WorkerFailed
from ztrio.plain import decode
from ztrio.testing.leaks import LeakProbe, processes, resident_bytes
from ztrio.workers import control
from ztrio.workers.forked import ForkedWorker
from ztrio.workers.selection import open_backend
from ztrio.workers.server import ForkServerLink
from ztrio.workers.wire import Result
from ztrio.workers.zygote import Refused, ZygoteBackend, open_zygote_backend

RUNGS = ["pidns", "job-init", "group"]


@pytest.fixture
async def zygote(tmp_path: Path) -> AsyncIterator[ZygoteBackend]:
    """A backend that keeps nothing ready."""
    async with open_zygote_backend(settings(tmp_path, modules=(TOOLS, RUNG_TOOLS))) as opened:
        yield opened


async def call(backend: ZygoteBackend, place: Path, function: str, **arguments: Any) -> Any:
    """The value of one call in a worker of its own."""
    worker = await backend.acquire()
    module = RUNG_TOOLS if function in ("draw", "descriptors") else TOOLS
    await worker.send_request(request(place, function, arguments, module=module))
    answer = await worker.receive(Reports())
    assert isinstance(answer, Result), answer
    assert await worker.terminate(grace=0, bound=BOUND) is not None
    return decode(answer.value)


# -- loading


@pytest.mark.parametrize(
    ("text", "helper", "culprit"),
    [
        ("import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", "", "eager"),
        (
            "import json, eager_helper, csv",
            "import _thread, time; _thread.start_new_thread(time.sleep, (60,))",
            "eager_helper",
        ),
    ],
    ids=["the module itself", "one that it imports"],
)
async def test_a_module_that_starts_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, helper: str, culprit: str
) -> None:
    """Loading that starts a thread is refused, naming the module; `auto` takes spawn and keeps the reason."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "eager_helper.py").write_text(helper)
    options = settings(tmp_path, **tools(tmp_path / "eager.py", text))
    with pytest.raises(Refused, match=f"loading {culprit} starts a thread") as caught:
        async with open_backend(options, "zygote"):
            raise AssertionError
    assert caught.value.code == "WORKER_START_FAILED"
    async with open_backend(options) as backend:
        assert backend.report.backend == "spawn"
        assert f"loading {culprit} starts a thread" in backend.report.backends[0].reason
        worker = await backend.acquire()
        assert await worker.terminate(grace=0, bound=BOUND) is not None


async def test_a_thread_that_has_ended(tmp_path: Path) -> None:
    """A module may use a thread while it is loaded, if it waits for its end."""
    text = "import threading; t = threading.Thread(target=print); t.start(); t.join()"
    async with open_zygote_backend(settings(tmp_path, **tools(tmp_path / "brief.py", text))) as backend:
        assert (await backend.acquire()).pid > 0


async def test_one_thread_while_loading_only(tmp_path: Path) -> None:
    """Numerical libraries are told to start no threads while they are loaded; what a tool starts may use many."""
    text = """
        import os
        SEEN = os.environ.get("OPENBLAS_NUM_THREADS")
        def look() -> list:
            return [SEEN, os.environ.get("OPENBLAS_NUM_THREADS")]
    """
    options = settings(tmp_path, **tools(tmp_path / "numerical.py", text))
    async with open_zygote_backend(options) as backend:
        worker = await backend.acquire()
        (module,) = options.modules
        await worker.send_request(request(tmp_path, "look", module=module))
        answer = await worker.receive(Reports())
        assert isinstance(answer, Result)
        assert decode(answer.value) == ["1", None]


async def test_workers_differ(zygote: ZygoteBackend, tmp_path: Path) -> None:
    """Forked workers do not have each other's random numbers, nor the names of each other's temporary files."""
    drawn = [await call(zygote, tmp_path, "draw") for _ in range(3)]
    assert len({number for numbers in drawn for number in numbers}) == sum(map(len, drawn))


async def test_everything_is_loaded(tmp_path: Path) -> None:
    """A worker has its module and its validators before it is forked."""
    options = settings(tmp_path, functions=(("tools_for_workers", "preloaded"),))
    async with open_zygote_backend(options) as backend:
        asked = time.monotonic()
        assert await call(backend, tmp_path, "preloaded") < asked


async def test_the_last_word_of_a_launcher() -> None:
    """What a launcher said before it ended is heard, even if its end is noticed first."""
    link = await ForkServerLink.launch()
    heard: list[Refused] = []

    async def choose() -> None:
        with pytest.raises(Refused, match="no way to contain a worker works here") as caught:
            await link.choose(("cgroup",), None)
        heard.append(caught.value)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(choose)
        await trio.testing.wait_all_tasks_blocked()
        assert os.waitid(os.P_PID, link.pid, os.WEXITED | os.WNOWAIT) is not None  # noqa: ASYNC222 - soon
        link._read = link.ended.wait  # type: ignore[method-assign]
        await link.run()
    await link.close()
    assert ["cgroup"] == [trial.name for trial in heard[0].trials]


async def test_a_word_that_was_heard_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is woken for a message that the end of the launcher has had read first goes on waiting."""
    link = await ForkServerLink.launch()
    wait_readable, woken = trio.lowlevel.wait_readable, 0

    async def wake(sock: Any) -> None:
        nonlocal woken
        if sock is link._sock and not woken:
            woken += 1
            await trio.lowlevel.checkpoint()
        else:
            await wait_readable(sock)

    monkeypatch.setattr(trio.lowlevel, "wait_readable", wake)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert (1, False) == (woken, link.died.is_set())
        await link.close()


# -- what a worker finds


@pytest.mark.parametrize("rung", RUNGS)
async def test_nothing_is_inherited(tmp_path: Path, rung: str) -> None:
    """A worker has stdin at the null device, the output pipe and its socket; of the fork server's descriptors, none."""
    async with open_zygote_backend(settings(tmp_path, containment=rung, modules=(TOOLS, RUNG_TOOLS))) as backend:
        other = await backend.acquire()
        found = await call(backend, tmp_path, "descriptors")
        assert found.pop("0") == "/dev/null"
        assert found["1"] == found.pop("2")
        assert found.pop("1").startswith("pipe:")
        assert found.pop("3").startswith("socket:")
        assert set(found) == ({"4"} if rung == "group" else set())
        assert await other.terminate(grace=0, bound=BOUND) is not None


async def test_a_session_and_signals_of_its_own(zygote: ZygoteBackend, tmp_path: Path) -> None:
    """A worker leads its session and group, with nothing blocked; SIGTERM has a handler where PID 1 would ignore it."""
    found = await call(zygote, tmp_path, "surroundings", names=[])
    assert (found["session"], found["blocked"]) == (True, 0)
    assert found["signals"] == [zygote.report.rung != "pidns", True, False]


async def test_a_real_init(zygote: ZygoteBackend, tmp_path: Path) -> None:
    """With `init` the tool is not PID 1: orphans are reaped, signals have their usual effect on it."""
    if zygote.report.rung != "pidns":
        pytest.skip("only in a PID namespace")
    for init, expected in ((False, [1, False, False]), (True, [2, True, True])):
        worker = await zygote.acquire()
        arguments = {"patience": 10.0 if init else 0.1}
        await worker.send_request(request(tmp_path, "orphan", arguments, module=RUNG_TOOLS, init=init))
        answer = await worker.receive(Reports())
        assert isinstance(answer, Result)
        assert decode(answer.value) == expected
        assert await worker.terminate(grace=0, bound=BOUND) is not None
    worker = await zygote.acquire()
    await worker.send_request(request(tmp_path, "term_self", module=RUNG_TOOLS, init=True))
    with trio.fail_after(10), pytest.raises(WorkerFailed) as caught:
        await worker.receive(Reports())
    assert caught.value.details["exit_status"] == 128 + signal.SIGTERM
    proof = await worker.terminate(grace=0, bound=BOUND)
    assert (proof is not None and proof.complete) is True


@pytest.mark.parametrize("function", ["sleep_until_term", "tidy_up"])
async def test_grace_below_an_init(zygote: ZygoteBackend, tmp_path: Path, function: str) -> None:
    """An init passes SIGTERM on, so that a tool below it has its grace."""
    arguments = {"path": str(tmp_path / "note")} if function == "tidy_up" else {}
    worker = await zygote.acquire()
    await begin(worker, request(tmp_path, function, arguments, init=True))
    proof = await worker.terminate(grace=10, bound=BOUND)
    assert proof is not None
    assert not proof.escalated
    assert function == "sleep_until_term" or (tmp_path / "note").read_text() == "tidied"


# -- who gets which worker


async def test_first_come_first_served(zygote: ZygoteBackend) -> None:
    """Callers get their workers in the order in which they asked."""
    order = []

    async def ask(number: int) -> None:
        worker = await zygote.acquire()
        order.append(number)
        await worker.terminate(grace=0, bound=BOUND)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(ask, number)
            await trio.testing.wait_all_tasks_blocked()
    assert order == list(range(10))


async def test_when_the_pool_is_filled_up(tmp_path: Path) -> None:
    """A worker that was handed over is replaced when it has ended; at once only when it was the last."""

    async def full() -> None:
        with trio.fail_after(10):
            while backend.statistics().idle < 2:
                await trio.sleep(0.001)

    async with open_zygote_backend(settings(tmp_path, prewarmed=2)) as backend:
        await full()
        first = await backend.acquire()
        assert (1, 0) == (backend.statistics().idle, backend.statistics().starting)
        await first.terminate(grace=0, bound=BOUND)
        await full()
        workers = [await backend.acquire() for _ in range(2)]
        await full()
        for worker in workers:
            await worker.terminate(grace=0, bound=BOUND)
    assert 3 == backend.statistics().handed_over


@pytest.mark.parametrize("turns", range(12))
async def test_a_caller_that_leaves_leaves_nothing(zygote: ZygoteBackend, turns: int) -> None:
    """Wherever `acquire` is cancelled, its worker goes to the next in line, or is ended with the backend."""
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(zygote.acquire)
            for _ in range(turns):
                await trio.lowlevel.checkpoint()
            scope.cancel()
    with trio.fail_after(10):
        worker = await zygote.acquire()
    assert is_alive(worker.pid)
    assert len(zygote._waiters) == 0


async def test_a_turn_that_comes_with_the_cancellation(zygote: ZygoteBackend) -> None:
    """A worker that is handed to a call in the very step in which that is cancelled goes to the next in line."""
    worker = await zygote.make()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            zygote._starting = 64  # nothing else is made
            nursery.start_soon(zygote.acquire)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            zygote._idle.append(worker)
            zygote._dispatch()
    assert (zygote.statistics().handed_over, zygote.statistics().idle) == (0, 1)
    assert await zygote.acquire() is worker
    zygote._starting = 0


async def test_a_worker_for_nobody(zygote: ZygoteBackend) -> None:
    """A worker that arrives after whoever made it was cancelled is killed where it arrives."""
    await (await zygote.acquire()).terminate(grace=0, bound=BOUND)
    server = fork_server(zygote)
    os.kill(server, signal.SIGSTOP)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(zygote.make)
        await trio.testing.wait_all_tasks_blocked(0.01)
        nursery.cancel_scope.cancel()
    os.kill(server, signal.SIGCONT)
    await (await zygote.acquire()).terminate(grace=0, bound=BOUND)  # made after it
    with trio.fail_after(10):
        while any(info.parent == server and info.state != "Z" for info in processes().values()):
            await trio.sleep(0.001)


async def test_a_worker_that_arrives_with_the_cancellation(zygote: ZygoteBackend) -> None:
    """A worker that arrives in the very step in which its maker is cancelled is killed and nothing of it stays open."""
    await (await zygote.acquire()).terminate(grace=0, bound=BOUND)
    assert zygote._link is not None
    sock, server, before = zygote._link._sock, fork_server(zygote), len(os.listdir("/proc/self/fd"))
    os.kill(server, signal.SIGSTOP)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(zygote.make)
        await trio.testing.wait_all_tasks_blocked(0.01)
        os.kill(server, signal.SIGCONT)
        assert select.select([sock], [], [], BOUND)[0]
        nursery.cancel_scope.cancel()
        arrived = control.receive(sock)
        assert arrived is not None
        zygote._link._deliver(*arrived)
    assert len(os.listdir("/proc/self/fd")) == before
    with trio.fail_after(10):
        while any(info.parent == server and info.state != "Z" for info in processes().values()):
            await trio.sleep(0.001)


async def test_more_messages_than_the_socket_holds(zygote: ZygoteBackend, tmp_path: Path) -> None:
    """A fork server that is busy for a while loses no message."""
    server = fork_server(zygote)
    os.kill(server, signal.SIGSTOP)
    made: list[ForkedWorker] = []

    async def make() -> None:
        made.append(await zygote.acquire())

    async with trio.open_nursery() as nursery:
        for _ in range(60):
            nursery.start_soon(make)
        for _ in range(20_000):
            zygote._link._send_now(trio_message(), ())  # type: ignore[union-attr]
        await trio.testing.wait_all_tasks_blocked(0.01)
        os.kill(server, signal.SIGCONT)
    assert len({worker.pid for worker in made}) == 60


def trio_message() -> Any:
    """A message that the fork server ignores."""
    return control.Boot([], [])


# -- what is left


@pytest.mark.timeout(300)
async def test_two_thousand_calls_leave_nothing(tmp_path: Path, nothing_left_behind: LeakProbe) -> None:
    """Descriptors, memory and processes are after two thousand calls as they were after a hundred."""

    async def calls(count: int) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(some, count // 4)

    async def some(count: int) -> None:
        for _ in range(count):
            worker = await backend.acquire()
            await worker.send_request(request(tmp_path, "add", {"a": 1}))
            assert isinstance(await worker.receive(Reports()), Result)
            assert await worker.terminate(grace=0, bound=BOUND) is not None

    async with open_zygote_backend(settings(tmp_path)) as backend:
        server = fork_server(backend)

        def state() -> tuple[int, int, int]:
            gc.collect()
            below = [info for info in processes().values() if info.parent == server]
            return len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{server}/fd")), len(below)

        await calls(100)
        before, memory, theirs = state(), resident_bytes(), resident_bytes(server)
        await calls(2000)
        with trio.fail_after(5):
            while state() != before:
                await trio.sleep(0.01)
        assert resident_bytes() - memory < 8 * 2**20
        assert resident_bytes(server) - theirs < 2 * 2**20
        assert isinstance(backend._link, ForkServerLink)
        assert backend._link.workers == 0
