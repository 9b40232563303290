"""The leak probe, on real leaks."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import trio
import trio.testing

from ztrio.errors import UnsupportedPlatform
from ztrio.testing import leaks
from ztrio.testing.leaks import LeakProbe, processes, resident_bytes

DAEMON = """
import os, sys
if os.fork() == 0:
    os.setsid()
    os.chdir(sys.argv[1])
    print(os.getpid(), flush=True)
    os.close(1)
    signal_never_comes = os.read(0, 1)
"""


def start_daemon(place: Path, environment: dict[str, str] | None = None) -> tuple[int, int]:
    """A process in a session of its own whose parent is gone; its pid, and the pipe end whose closing ends it."""
    read_end, write_end = os.pipe()
    leader = subprocess.run(
        [sys.executable, "-I", "-c", DAEMON, str(place)],
        stdin=read_end,
        stdout=subprocess.PIPE,
        env=environment,
        check=True,
    )
    os.close(read_end)
    return int(leader.stdout), write_end


def is_alive(pid: int) -> bool:
    """Whether it runs; one that is dead and not yet reaped does not."""
    info = processes().get(pid)
    return info is not None and info.state != "Z"


def end_daemon(pid: int, pipe: int) -> None:
    """Let it end, and wait until it has."""
    os.close(pipe)
    deadline = time.monotonic() + 5
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)


def test_nothing_left_is_clean(tmp_path: Path) -> None:
    """Code that cleans up after itself passes, whatever it did meanwhile."""
    with LeakProbe(roots=[tmp_path], temporary=[tmp_path]):
        subprocess.run([sys.executable, "-I", "-c", ""], check=True)
        (tmp_path / "file").write_text("x")
        (tmp_path / "file").unlink()


def test_child_then_zombie_is_named() -> None:
    """A child is named while it runs, and as a zombie until somebody waits for it."""
    probe = LeakProbe()
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    [running] = probe.leaks()
    assert f"process {child.pid} (sleep), a descendant: parent {os.getpid()}, group {child.pid}" in running
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(AssertionError, match=f"zombie {child.pid} .*process {os.getpid()} never waited for it"):
        probe.assert_clean(grace=0.0)
    child.wait()
    assert [] == probe.leaks()


def test_daemon_is_found_by_its_directory(tmp_path: Path) -> None:
    """A re-parented process in a session of its own is found when its current directory is below a root."""
    probe = LeakProbe(roots=[tmp_path])
    pid, pipe = start_daemon(tmp_path)
    found = [line for line in probe.leaks() if line.startswith("process")]
    end_daemon(pid, pipe)
    assert [True] == [f"process {pid} " in line and "it came from here" in line for line in found]
    assert [] == probe.leaks()


def test_daemon_is_found_by_its_environment(tmp_path: Path) -> None:
    """A re-parented process that went elsewhere is found when its environment names a root."""
    probe = LeakProbe(roots=[tmp_path])
    pid, pipe = start_daemon(Path("/"), {"TMPDIR": str(tmp_path / "tmp")})
    found = [line for line in probe.leaks() if line.startswith("process")]
    end_daemon(pid, pipe)
    assert [True] == [f"process {pid} " in line for line in found]


def test_watched_session_is_ours() -> None:
    """A re-parented process is found when the session was watched while it was known."""
    probe = LeakProbe()
    pid, pipe = start_daemon(Path("/"))
    unwatched = [line for line in probe.leaks() if line.startswith("process")]
    probe.watch(pid)
    watched = [line for line in probe.leaks() if line.startswith("process")]
    end_daemon(pid, pipe)
    assert ([], 1) == (unwatched, len(watched))


def test_watching_what_is_gone_is_nothing() -> None:
    """A pid that names no process any more can be watched without harm."""
    probe = LeakProbe()
    child = subprocess.Popen(["true"])
    child.wait()
    probe.watch(child.pid)
    assert [] == probe.leaks()


def test_descriptor_is_named_with_its_target(tmp_path: Path) -> None:
    """An open descriptor is named with what it points to, also one whose number was in use before."""
    reused = os.open(os.devnull, os.O_RDONLY)
    probe = LeakProbe()
    os.close(reused)
    target = tmp_path / "file"
    target.touch()
    descriptor = os.open(target, os.O_RDONLY)
    assert [f"descriptor {descriptor} -> {target}"] == probe.leaks()
    os.close(descriptor)
    assert [] == probe.leaks()


def test_job_directories_and_temporary_entries(tmp_path: Path, temporary_directory: Path) -> None:
    """Job directories anywhere below a root, and any entry of a temporary directory, are named."""
    (tmp_path / "deep").mkdir()
    (tmp_path / ".ztrio-job-old").mkdir()
    probe = LeakProbe(roots=[tmp_path], temporary=[temporary_directory])
    job = tmp_path / "deep" / ".ztrio-job-new"
    job.mkdir()
    handle, name = tempfile.mkstemp()
    os.close(handle)
    found = probe.leaks()
    job.rmdir()
    Path(name).unlink()
    assert {f"directory entry {job}", f"directory entry {name}"} == set(found)
    (tmp_path / ".ztrio-job-old").rmdir()


async def test_tasks_are_counted_from_the_root() -> None:
    """A task that was started since is named, wherever its nursery is."""
    probe = LeakProbe()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever, name="the forgotten one")
        await trio.testing.wait_all_tasks_blocked()
        assert ["task the forgotten one"] == probe.leaks()
        with pytest.raises(AssertionError, match="the forgotten one"):
            await probe.wait_clean(grace=0.0)
        nursery.cancel_scope.cancel()
    await probe.wait_clean()


async def test_grace_lets_other_tasks_run() -> None:
    """Inside a loop the probe waits without blocking it, so what is just ending can end."""
    probe = LeakProbe()

    async def end_soon() -> None:
        await trio.sleep(0.05)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_soon)
        await trio.lowlevel.checkpoint()
        await probe.wait_clean(grace=5.0)


def test_grace_waits_outside_a_loop(tmp_path: Path) -> None:
    """Outside a loop the probe waits for what ends by itself."""
    probe = LeakProbe(roots=[tmp_path])
    pid, pipe = start_daemon(tmp_path)
    os.close(pipe)
    probe.assert_clean(grace=5.0)
    assert not is_alive(pid)


def test_a_failing_block_keeps_its_own_error(tmp_path: Path) -> None:
    """An exception from the block is not hidden behind what it left."""
    with pytest.raises(ZeroDivisionError), LeakProbe(temporary=[tmp_path]):
        (tmp_path / "left").touch()
        raise ZeroDivisionError


def test_resident_memory_is_plausible() -> None:
    """Resident memory is given in bytes, of this process or another."""
    assert resident_bytes() == pytest.approx(resident_bytes(os.getpid()), rel=0.1)
    assert resident_bytes() > 10 * 2**20


def test_without_proc_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a platform without /proc the probe refuses instead of finding nothing."""
    monkeypatch.setattr(leaks, "_PROC", tmp_path)
    with pytest.raises(UnsupportedPlatform):
        LeakProbe()


def test_every_test_is_probed(nothing_left_behind: LeakProbe) -> None:
    """The fixture that every test has sees what this very test does."""
    descriptor = os.open(os.devnull, os.O_RDONLY)
    found = nothing_left_behind.leaks()
    os.close(descriptor)
    assert found == [f"descriptor {descriptor} -> {os.devnull}"]
