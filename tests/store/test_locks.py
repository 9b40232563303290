"""One process at a time."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ztrio.errors import AlreadyInUse, StoreUnavailable
from ztrio.locks import ProcessLock

HOLD = """if True:
    import pathlib, sys, time
    from ztrio.locks import ProcessLock
    ProcessLock(pathlib.Path(sys.argv[1]), what="it", code="STORE_BUSY").acquire()
    print("held", flush=True)
    time.sleep(60)"""


def lock(path: Path) -> ProcessLock:
    """A lock on a workspace."""
    return ProcessLock(path, what="the workspace /ws", code="WORKSPACE_BUSY")


def test_the_second_is_refused_with_the_owners_pid(tmp_path: Path) -> None:
    """While one holds the lock, another is refused and told who holds it; afterwards it can be had."""
    path = tmp_path / "it.lock"
    with lock(path) as first:
        assert first.held
        with pytest.raises(AlreadyInUse) as caught:
            lock(path).acquire()
        assert ("WORKSPACE_BUSY", os.getpid()) == (caught.value.code, caught.value.details["pid"])
        assert "This process itself" in caught.value.message
        assert "/ws" in caught.value.message
    first.release()
    with lock(path):
        pass


def test_the_file_is_private_and_stays(tmp_path: Path) -> None:
    """The file is its owner's alone, has the pid while the lock is held, and is not removed."""
    path = tmp_path / "it.lock"
    mask = os.umask(0)
    try:
        with lock(path):
            assert 0o600 == stat.S_IMODE(path.stat().st_mode)
            assert f"{os.getpid()}\n" == path.read_text()
    finally:
        os.umask(mask)
    assert path.exists()


def test_it_ends_with_the_process(tmp_path: Path) -> None:
    """A killed owner holds nothing; while it lives, its pid is told, also to those who open the file anew."""
    path = tmp_path / "it.lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert b"held\n" == owner.stdout.readline()
        for _ in range(2):
            with pytest.raises(AlreadyInUse) as caught:
                lock(path).acquire()
            assert owner.pid == caught.value.details["pid"]
            assert f"Process {owner.pid}" in caught.value.message
        owner.send_signal(signal.SIGKILL)
    with lock(path):
        assert f"{os.getpid()}\n" == path.read_text()


def test_children_do_not_inherit_it(tmp_path: Path) -> None:
    """A child that outlives its owner's lock does not hold it."""
    path = tmp_path / "it.lock"
    with lock(path):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    try:
        # The system closes the child's descriptors a moment after it lets the parent go on.
        for attempt in range(100):
            try:
                with lock(path):
                    break
            except AlreadyInUse:
                assert attempt < 99
                time.sleep(0.01)
    finally:
        child.communicate(b"\n")


def test_an_owner_that_says_nothing(tmp_path: Path) -> None:
    """Where the file does not tell who holds the lock, the refusal does not either."""
    path = tmp_path / "it.lock"
    with lock(path):
        path.write_text("who knows")
        with pytest.raises(AlreadyInUse) as caught:
            lock(path).acquire()
        assert "pid" not in caught.value.details
        assert "Another process" in caught.value.message


def test_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    """A lock file that cannot be made, or is a link to somewhere else, is an error that says so."""
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path / "missing" / "it.lock", tmp_path / "link"):
        with pytest.raises(StoreUnavailable, match="lock file"):
            lock(path).acquire()
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk_keeps_nobody_from_locking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no room for the pid: locked all the same. Any other failure is an error, and nothing is locked."""

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    def broken(*_: object) -> int:
        raise OSError(5, "Input/output error")

    path = tmp_path / "it.lock"
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with lock(path), pytest.raises(AlreadyInUse):
            lock(path).acquire()
        patch.setattr(os, "pwrite", broken)
        with pytest.raises(StoreUnavailable, match="Input/output error"):
            lock(path).acquire()
    with lock(path):
        pass
