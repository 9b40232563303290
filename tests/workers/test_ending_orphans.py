"""Ending workers that outlived their supervisor, by number and start time."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ztrio.workers.containment import started_at
from ztrio.workers.orphans import end_orphan, is_alive

SLEEP = "import time; time.sleep(60)"
FAMILY = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}])
print(child.pid, flush=True)
child.wait()
"""


@contextmanager
def started(code: str = SLEEP, *, leads: bool = True) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that sleeps, which is killed and reaped in the end; the leader of a group if asked."""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=leads) as process:
        try:
            yield process
        finally:
            process.kill()


def goes(pid: int) -> bool:
    """Whether a process ends and is reaped, by whoever its parent is now, within a few seconds."""
    deadline = time.monotonic() + 5.0
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.01)
    return not os.path.exists(f"/proc/{pid}")


async def test_a_group_ends_with_its_leader() -> None:
    """An orphan that leads a process group is killed with every member of it."""
    with started(FAMILY) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        born = started_at(process.pid)
        assert is_alive(process.pid, born)
        assert True is await end_orphan(process.pid, born, bound=5.0)
        assert -signal.SIGKILL == process.wait()
        assert goes(child)
        assert not is_alive(process.pid, born)


async def test_one_that_leads_nothing_ends_alone() -> None:
    """An orphan in somebody else's process group is killed, and the group is not."""
    with started(leads=False) as process:
        assert True is await end_orphan(process.pid, started_at(process.pid), bound=5.0)
        assert -signal.SIGKILL == process.wait()


async def test_another_process_of_the_number_is_left_alone() -> None:
    """A process that started at another time is not the one that is meant."""
    with started() as process:
        for born in (0.0, started_at(process.pid) - 2.0, started_at(process.pid) + 2.0):
            assert None is await end_orphan(process.pid, born, bound=0.1)
            assert not is_alive(process.pid, born)
        assert None is process.poll()


@pytest.mark.parametrize("pid", [2**22 + 1, -1])
async def test_nobody_is_ended(pid: int) -> None:
    """A number that no process has, or can have, stands for nobody."""
    assert None is await end_orphan(pid, 0.0, bound=0.1)


async def test_one_that_does_not_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where SIGKILL does not end it within the bound, that is the answer."""
    with started() as process:
        born = started_at(process.pid)
        monkeypatch.setattr(os, "killpg", lambda *_: None)
        monkeypatch.setattr(signal, "pidfd_send_signal", lambda *_: None)
        assert False is await end_orphan(process.pid, born, bound=0.05)
        assert None is process.poll()

        def refuse(*_: object) -> None:
            raise PermissionError

        monkeypatch.setattr(os, "killpg", refuse)
        assert False is await end_orphan(process.pid, born, bound=0.05)
