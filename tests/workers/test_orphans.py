import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.workers.support import group, is_alive
from tests.workers.walk_of_rungs import named
from ztrio.testing.leaks import LeakProbe

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


def gone_after(condition: Callable[[], bool], bound: float = 10.0) -> float:
    """Seconds until the condition holds."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > bound:
            raise AssertionError(f"not within {bound} s")
        time.sleep(0.001)
    return time.monotonic() - start


def supervisor(script: str, place: Path, *words: str) -> tuple["subprocess.Popen[str]", list[int]]:
    """A supervisor in a process of its own, and the pids it prints."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(place), *words], stdout=subprocess.PIPE, text=True, cwd=ROOT, process_group=0
    )
    assert process.stdout is not None
    with process.stdout:
        return process, [int(word) for word in process.stdout.readline().split()]


def test_workers_end_with_their_supervisor(tmp_path: Path, nothing_left_behind: LeakProbe) -> None:
    """SIGKILL of the supervisor takes a worker with what it started along, and idle workers too."""
    process, (worker, shell, idle) = supervisor(SUPERVISOR, tmp_path)
    for pid in (worker, idle):
        nothing_left_behind.watch(pid)
    assert [is_alive(worker), is_alive(shell), is_alive(idle)] == [True] * 3
    process.kill()
    process.wait()
    elapsed = gone_after(lambda: group(worker) == group(idle) == set())
    assert not is_alive(shell)
    assert elapsed < 5  # milliseconds on an idle machine


def test_a_worker_ends_with_its_supervisor_while_it_loads(tmp_path: Path, nothing_left_behind: LeakProbe) -> None:
    """SIGKILL of the supervisor also ends a worker that is not ready yet."""
    (tmp_path / "slow_tools.py").write_text("import time; time.sleep(300)")
    process, (worker,) = supervisor(BOOTING, tmp_path)
    nothing_left_behind.watch(worker)
    process.kill()
    process.wait()
    gone_after(lambda: not is_alive(worker))


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
from pathlib import Path
from tests.workers.support import fork_server
from tests.workers.walk_of_rungs import begin, request, settings
from ztrio.workers.zygote import open_zygote_backend

async def main():
    place, rung, name = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    async with open_zygote_backend(settings(place, rung, prewarmed=2)) as backend:
        workers = [await backend.acquire() for _ in range(3)]
        await begin(workers[0], request(place, "setsid", name=name))
        await begin(workers[1], request(place, "deaf", name=name))
        print(backend._link.pid, fork_server(backend), flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


@pytest.mark.case("R11")
@pytest.mark.skipif(sys.platform != "linux", reason="the zygote backend is for Linux")
@pytest.mark.parametrize("victim", ["supervisor", "launcher", "fork server"])
@pytest.mark.parametrize("rung", ["pidns", "job-init"])
def test_everything_ends_with_its_supervisor(
    tmp_path: Path, nothing_left_behind: LeakProbe, rung: str, victim: str
) -> None:
    """SIGKILL of supervisor, launcher or fork server takes every worker along, and every daemon of a tool."""
    name = f"zo{os.urandom(5).hex()}"
    process, (launcher, server) = supervisor(FORKING, tmp_path, rung, name)
    try:
        assert len(named(name)) == 4
        os.kill({"supervisor": process.pid, "launcher": launcher, "fork server": server}[victim], signal.SIGKILL)
        elapsed = gone_after(lambda: not named(name))
        assert elapsed < 5  # milliseconds on an idle machine
    finally:
        process.kill()
        process.wait()
    gone_after(lambda: not is_alive(launcher) and not is_alive(server))


@pytest.mark.skipif(sys.platform != "linux", reason="the zygote backend is for Linux")
@pytest.mark.parametrize("delay", [0.02, 0.1, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5])
def test_a_supervisor_that_is_killed_while_it_opens(
    tmp_path: Path, nothing_left_behind: LeakProbe, delay: float
) -> None:
    """Whatever launcher and fork server are doing, they end with the supervisor; the probe of all tests looks."""
    process = subprocess.Popen(
        [sys.executable, "-c", FORKING, str(tmp_path), "pidns", "zopen"], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    time.sleep(delay)  # a moment like any other
    process.kill()
    process.wait()
    gone_after(lambda: not named("zopen"))
