"""SIGKILL of supervisor, launcher or fork server takes everything along within 50 ms, whatever is going on.

The time runs from the kill to the last end of what was below the victim before it, as pidfds tell, and of what was born
meanwhile, which becomes a child of this process. Another program may keep the machine from doing anything for longer
than that. So of a few tries the best counts, each on a set of processes of its own, and every one has a looser bound;
`ztrio bench orphans` has the distribution.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.workers.support import child_pids
from tests.workers.walk_of_rungs import named
from ztrio.testing.leaks import processes
from ztrio_bench.drivers import orphans

SUPERVISOR = """
import sys, trio
from pathlib import Path
from tests.workers.support import begin, request, settings
from ztrio.workers.spawn import open_spawn_backend

async def main():
    place = Path(sys.argv[1])
    async with open_spawn_backend(settings(place, prewarmed=1)) as backend:
        worker = await backend.acquire()
        reports = await begin(worker, request(place, "pipeline"))
        while not backend.statistics().idle:
            await trio.sleep(0.01)
        idle = backend._idle[0]
        print(worker.pid, int(reports[0][0]), idle.pid, flush=True)
        await trio.sleep_forever()

trio.run(main)
"""

BOOTING = """
import sys, trio
from pathlib import Path
from tests.workers.support import settings
from ztrio.workers.spawn import open_spawn_backend

async def main():
    place = Path(sys.argv[1])
    options = settings(place, prewarmed=1, modules=(("slow_tools", str(place / "slow_tools.py")),))
    async with open_spawn_backend(options) as backend:
        while not backend._alive:
            await trio.sleep(0.001)
        print(*[worker.pid for worker in backend._alive], flush=True)
        await trio.sleep_forever()

trio.run(main)
"""

ROOT = Path(__file__).parents[2]


PROMISED = 0.05  # seconds
BOUND = 2.0
TRIES = 4


@contextmanager
def supervisor(script: str, place: Path, *words: str) -> Iterator[tuple["subprocess.Popen[str]", list[int]]]:
    """A supervisor in a process of its own, and the pids it prints; killed at the end."""
    place.mkdir(exist_ok=True)
    command = [sys.executable, "-c", script, str(place), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, process_group=0) as process:
        try:
            assert process.stdout is not None
            yield process, [int(word) for word in process.stdout.readline().split()]
        finally:
            process.kill()


def below(ancestor: int) -> set[int]:
    """A process and its descendants."""
    found, table = {ancestor}, processes()
    while more := {info.pid for info in table.values() if info.parent in found and info.state not in "ZX"} - found:
        found |= more
    return found


def seconds_to_end(victim: int, along: Iterable[int]) -> float:
    """Kill the victim, and see how long it takes until all of these, and what they made meanwhile, have ended."""
    pidfds = {}
    for pid in {victim, *along}:
        try:
            pidfds[pid] = os.pidfd_open(pid)
        except ProcessLookupError:
            continue  # one of those that come and go
    others = child_pids() - pidfds.keys()
    try:
        # Whose init reaps orphans once a second would see a namespace end as late.
        with orphans.adopting_orphans():
            start = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            assert orphans.wait_for_end(pidfds, BOUND, spare=others) == set()
            return time.monotonic() - start
    finally:
        for pidfd in pidfds.values():
            os.close(pidfd)


def best(tries: Iterator[float]) -> float:
    """The first try within the promise, or the best of all."""
    least = BOUND
    for seconds in tries:
        least = min(least, seconds)
        if least <= PROMISED:
            break
    return least


def test_workers_end_with_their_supervisor(tmp_path: Path) -> None:
    """SIGKILL of the supervisor takes a worker with what it started along, and idle workers too."""

    def tries() -> Iterator[float]:
        for number in range(TRIES):
            with supervisor(SUPERVISOR, tmp_path / f"{number}") as (process, told):
                assert set(told) <= below(process.pid)
                yield seconds_to_end(process.pid, below(process.pid))

    assert best(tries()) <= PROMISED


def test_a_worker_ends_with_its_supervisor_while_it_loads(tmp_path: Path) -> None:
    """SIGKILL of the supervisor also ends a worker that is not ready yet, whatever it has come to."""

    def tries(delay: float) -> Iterator[float]:
        for number in range(TRIES):
            place = tmp_path / f"{delay}-{number}"
            place.mkdir()
            (place / "slow_tools.py").write_text("import time; time.sleep(300)")
            with supervisor(BOOTING, place) as (process, [worker]):
                time.sleep(delay)  # a moment like any other
                assert worker in below(process.pid)
                yield seconds_to_end(process.pid, [worker])

    for delay in (0.0, 0.1, 0.5):
        assert best(tries(delay)) <= PROMISED


WITHOUT = "import fcntl, sys; del fcntl.F_SETSIG; from ztrio.workers.child import main; main(*map(int, sys.argv[1:]))"
WITH = "import sys; from ztrio.workers.child import main; main(*map(int, sys.argv[1:]))"


@pytest.mark.parametrize(("script", "status"), [(WITH, 1), (WITHOUT, 1)], ids=["F_SETSIG", "without"])
def test_a_supervisor_that_is_gone_before_the_worker_begins(tmp_path: Path, script: str, status: int) -> None:
    """A worker whose lifeline is cut already ends at once."""
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    os.close(write)
    with ours, theirs:
        done = subprocess.run(
            [sys.executable, "-c", script, str(theirs.fileno()), str(read)],
            pass_fds=(theirs.fileno(), read),
            start_new_session=True,
            timeout=20,
            check=False,
            cwd=ROOT,
        )
    os.close(read)
    assert done.returncode == status


FORKING = """
import sys, trio
from functools import partial
from pathlib import Path
from tests.workers.support import fork_server
from tests.workers.walk_of_rungs import begin, request, settings
from ztrio.errors import WorkerFailed
from ztrio.workers.zygote import open_zygote_backend

async def forking(backend):
    while True:
        try:
            worker = await backend.acquire()
            await worker.terminate(grace=0, bound=5)
        except WorkerFailed:
            await trio.sleep(0.01)

async def main():
    place, rung, name = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    async with open_zygote_backend(settings(place, rung, prewarmed=2)) as backend, trio.open_nursery() as nursery:
        workers = [await backend.acquire() for _ in range(3)]
        server = fork_server(backend)
        if rung != "group":  # which promises nothing about who makes a session of his own
            await begin(workers[0], request(place, "setsid", name=name))
        await begin(workers[1], request(place, "deaf", name=name))
        await begin(workers[2], request(place, "deaf", name=name))
        nursery.start_soon(partial(workers[2].terminate, grace=60, bound=5))
        nursery.start_soon(forking, backend)
        print(backend._link.pid, server, flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


@pytest.mark.case("R11")
@pytest.mark.skipif(sys.platform != "linux", reason="the zygote backend is for Linux")
@pytest.mark.parametrize("victim", ["supervisor", "launcher", "fork server"])
@pytest.mark.parametrize("rung", ["pidns", "cgroup", "job-init", "group"])
def test_everything_ends_with_its_supervisor(tmp_path: Path, rung: str, victim: str) -> None:
    """SIGKILL of supervisor, launcher or fork server takes every worker along, and every daemon of a tool, while tools
    run, one is in its grace, and workers are forked.
    """

    def tries() -> Iterator[float]:
        for number in range(TRIES):
            name = f"zo{os.urandom(5).hex()}"
            with supervisor(FORKING, tmp_path / f"{number}", rung, name) as (process, [launcher, server]):
                assert len(named(name)) == (4 if rung == "group" else 6)
                time.sleep(0.005 * number)  # a moment like any other
                killed = {"supervisor": process.pid, "launcher": launcher, "fork server": server}[victim]
                yield seconds_to_end(killed, below(min(killed, launcher)).union(named(name)))
                assert named(name) == []

    assert best(tries()) <= PROMISED


@pytest.mark.skipif(sys.platform != "linux", reason="the zygote backend is for Linux")
@pytest.mark.parametrize("delay", [0.02, 0.1, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5])
def test_a_supervisor_that_is_killed_while_it_opens(tmp_path: Path, delay: float) -> None:
    """Whatever launcher and fork server are doing, they end with the supervisor; the probe of all tests looks."""

    def tries() -> Iterator[float]:
        for _ in range(TRIES):
            command = [sys.executable, "-c", FORKING, str(tmp_path), "pidns", "zopen"]
            with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
                time.sleep(delay)  # a moment like any other
                yield seconds_to_end(process.pid, below(process.pid))

    assert best(tries()) <= PROMISED
