"""Landlock: a process that gives up writing anywhere but beneath a few directories, for itself and all it starts.

All rights that change a tree are handled, so what is not granted is denied: writing and truncating, making, removing
and renaming. Two of them are younger than Landlock itself: without REFER nothing could be renamed between two
directories at all, without TRUNCATE a file anywhere could be emptied. A kernel that lacks one of them therefore counts
as one without Landlock. Signals to processes outside are denied as well where the kernel knows how, so that a tool of
the same user cannot end what contains it. Reading is not restricted. Changing mode, owner, times and extended
attributes is not something Landlock knows (as of Linux 6.18).

Whether it works is found out by doing it: a version says nothing of a security module that was compiled in and not
enabled, or of a container's system call filter.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import threading
from collections.abc import Iterable
from functools import cache
from typing import Final

from ztrio.workers import linux

__all__ = ["make_ruleset", "restrict_writes", "why_unavailable"]

_NULL: Final = "/dev/null"
_OTHER: Final = "/dev/zero"  # a device that everybody may write, and that the trial does not grant
_PATH: Final = getattr(os, "O_PATH", 0) | getattr(os, "O_CLOEXEC", 0)


def restrict_writes(paths: Iterable[str]) -> None:
    """Let this thread, and what it makes from here on, write beneath `paths` and to the null device only.

    Where the kernel can, they may then signal only each other, too. Needs no_new_privs. A path that does not exist is
    left out; one that is no directory can be written and truncated.

    Raises:
        OSError: as the system reports it.
    """
    ruleset = make_ruleset(paths)
    try:
        linux.restrict_self(ruleset)
    finally:
        os.close(ruleset)


def make_ruleset(paths: Iterable[str]) -> int:
    """A descriptor of what `restrict_writes` grants; it restricts nobody yet.

    Raises:
        OSError: as the system reports it.
    """
    ruleset = linux.create_ruleset()
    try:
        for path in (_NULL, *paths):
            try:
                fd = os.open(path, _PATH)
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                continue
            try:
                is_directory = stat.S_ISDIR(os.fstat(fd).st_mode)
                linux.add_path(ruleset, fd, linux.LANDLOCK_WRITES if is_directory else linux.LANDLOCK_FILE_WRITES)
            finally:
                os.close(fd)
    except BaseException:
        os.close(ruleset)
        raise
    return ruleset


@cache
def why_unavailable() -> str | None:
    """Why Landlock cannot be used here, or None if it works. Tried once per process.

    A thread of its own is restricted, which ends with the trial; the process is as free as before.
    """
    if sys.platform != "linux":
        return "it is a part of Linux"
    found: list[str | None] = []
    thread = threading.Thread(target=lambda: found.append(_try()), name="ztrio-landlock-trial")
    thread.start()
    thread.join()
    return found[0]


def _try() -> str | None:
    try:
        _write(_OTHER)
        linux.set_no_new_privs()
        restrict_writes(())
        _write(_NULL)
    except OSError as error:
        return _reason(error)
    try:
        _write(_OTHER)
    except PermissionError:
        return None
    return "it restricts nothing here"


def _write(path: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, b"x")
    finally:
        os.close(fd)


def _reason(error: OSError) -> str:
    reasons = {
        errno.ENOSYS: "this kernel has no Landlock, or a system call filter hides it",
        errno.EOPNOTSUPP: "this kernel has Landlock, but it is not enabled (boot with lsm=landlock,...)",
        errno.EINVAL: "this kernel's Landlock is too old: it does not know REFER and TRUNCATE (Linux 6.2)",
        errno.EPERM: "a system call filter, as containers have it, forbids it",
    }
    return reasons.get(error.errno or 0, str(error))
