"""What processes that ztrio starts do first: hang on the supervisor, reset signals, let go of what they inherited."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
from typing import Final

from ztrio.workers.linux import close_range

__all__ = ["bind", "close_all_but", "flush", "hang_on", "prepare_streams", "reset_signals"]

_LAST_DESCRIPTOR: Final = 2**32 - 1


def bind(lifeline_fd: int, group: int) -> None:
    """Have the kernel kill a process group when the other end of the pipe closes; where the platform can do that.

    It is a property of the open file, whoever holds it, and holds while somebody does.
    """
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, -group)
        fcntl.fcntl(lifeline_fd, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(lifeline_fd, fcntl.F_GETFL)
        fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, flags | os.O_ASYNC | os.O_NONBLOCK)


def hang_on(lifeline_fd: int) -> None:
    """Have the kernel kill this process group when the supervisor's end of the pipe closes, however it ends."""
    bind(lifeline_fd, os.getpgrp())
    poll = select.poll()
    poll.register(lifeline_fd, 0)
    if poll.poll(0):  # closed before the line above
        os._exit(1)


def close_all_but(*kept: int) -> None:
    """Close every other descriptor. Linux only: where close-on-exec does nothing, because nothing is executed."""
    first = 0
    for fd in (*sorted(kept), _LAST_DESCRIPTOR + 1):
        if first < fd and not close_range(first, fd - 1):
            _close_listed(first, fd - 1)
        first = fd + 1


def _close_listed(first: int, last: int) -> None:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names, quickly
        if first <= int(name) <= last:
            try:
                os.close(int(name))
            except OSError:
                pass  # the one through which the list was read


def reset_signals() -> None:
    """Undo what whoever started the server blocked or ignored; a tool and its programs get the defaults."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def prepare_streams() -> None:
    """What was printed before a kill should be in the pipe; text that cannot be encoded is no reason to fail."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]


def flush() -> None:
    """Write out what is buffered."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass  # the tool closed it
