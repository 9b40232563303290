"""Taking stdin and stdout for the wire, so that nothing else that a process prints can get onto it."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["claimed_stdio"]


@contextmanager
def claimed_stdio() -> Iterator[tuple[int, int]]:
    """Take fds 0 and 1 for the wire: yields private duplicates, and puts the originals back at the end.

    Meanwhile fd 0 is the null device and fd 1 is stderr (the null device where there is none).

    Returns:
        The file descriptors to read from and to write to; they belong to the caller.
    """
    saved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (0, 1)]
    wire = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (0, 1)]
    null = os.open(os.devnull, os.O_RDWR)
    _flush_stdout()
    try:
        os.dup2(null, 0)
        try:
            os.dup2(2, 1)
        except OSError:
            os.dup2(null, 1)
        yield wire[0], wire[1]
    finally:
        _flush_stdout()
        for fd, original in enumerate(saved):
            os.dup2(original, fd)
            os.close(original)
        os.close(null)


def _flush_stdout() -> None:
    """Let what was printed go where fd 1 points now, not where it will point later."""
    try:
        sys.stdout.flush()
    except (AttributeError, OSError, ValueError):
        pass  # there is no stdout, it is closed, or its reader is gone
