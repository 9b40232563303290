"""Ending a worker whose supervisor is gone: for recovery, which knows it by what was written down.

Every rung of the containment ladder ends workers when the supervisor dies, so there should be none. This is for what
should not be. A process number is reused, so it counts only together with the start time; both are read while a pidfd
is open, which goes on standing for the same process.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from ztrio.workers.containment import started_at

__all__ = ["end_orphan", "is_alive"]

_SAME_START: Final = 1.0  # seconds: start times are told in wall-clock time, which is slewed while a process runs


def is_alive(pid: int, born: float) -> bool:
    """Whether there is a process of this number *and* start time, which has not ended.

    Args:
        pid: Process id on the host.
        born: Start time, seconds since the epoch.
    """
    with _hold(pid, born) as pidfd:
        return pidfd is not None


async def end_orphan(pid: int, born: float, *, bound: float) -> bool | None:
    """Kill the process of this number *and* start time, with its group if it leads one.

    Args:
        pid: Process id on the host.
        born: Start time, seconds since the epoch.
        bound: Seconds to wait for its end.

    Returns:
        None if there is no such process; else whether it ended within the bound.
    """
    await trio.lowlevel.checkpoint()
    with _hold(pid, born) as pidfd:
        if pidfd is None:
            return None
        try:
            if os.getpgid(pid) == pid:
                os.killpg(pid, signal.SIGKILL)
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # it has ended meanwhile, or nobody may
        with trio.move_on_after(bound):
            try:
                await trio.lowlevel.wait_readable(pidfd)
            finally:
                trio.lowlevel.notify_closing(pidfd)
            return True
        return False


@contextmanager
def _hold(pid: int, born: float) -> Iterator[int | None]:
    if sys.platform != "linux":  # pragma: no cover - nobody tells when a process started
        yield None
        return
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, ValueError):
        yield None
        return
    try:
        yield pidfd if math.isclose(started_at(pid), born, abs_tol=_SAME_START, rel_tol=0) else None
    finally:
        os.close(pidfd)
