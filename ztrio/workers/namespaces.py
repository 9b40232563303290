"""Namespaces and re-parenting: the Linux system calls that contain a tree of processes.

`os.unshare` and `os.setns` exist from Python 3.12 on, so they are called through ctypes. What is decided with them is
in `launcher` and `fork_server`; here is only how.

A process that enters a PID namespace does not move: its *children* are born in there, the first of them as PID 1. When
PID 1 ends, the kernel kills everybody else in the namespace and reports its exit only after the last of them is gone.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from pathlib import Path
from typing import Any, Final

__all__ = [
    "children",
    "enter_pid_namespace",
    "leave_pid_namespace",
    "own_pid_namespace",
    "thread_count",
    "unshare_pid_namespace",
    "use_as_subreaper",
]

# linux/sched.h
_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWPID: Final = 0x20000000
# linux/prctl.h
_PR_SET_CHILD_SUBREAPER: Final = 36

_libc: Any = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _checked(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare_pid_namespace() -> None:
    """Let the next child be PID 1 of a new PID namespace. Needs CAP_SYS_ADMIN in this user namespace.

    Raises:
        OSError: EPERM, or ENOSPC where there are too many namespaces.
    """
    _checked(_libc.unshare(ctypes.c_int(_CLONE_NEWPID)), "unshare(CLONE_NEWPID)")


def enter_pid_namespace() -> None:
    """Let this process's children live in a new PID namespace, in a new user namespace where that takes one.

    The user keeps its numbers inside. The process must have one thread.

    Raises:
        OSError: the kernel, or what guards it, does not allow it.
    """
    try:
        unshare_pid_namespace()
        return
    except OSError as error:
        if error.errno != errno.EPERM:
            raise
    user, group = os.geteuid(), os.getegid()
    _checked(_libc.unshare(ctypes.c_int(_CLONE_NEWUSER | _CLONE_NEWPID)), "unshare(CLONE_NEWUSER | CLONE_NEWPID)")
    own = Path("/proc/self")
    (own / "uid_map").write_text(f"{user} {user} 1")
    # user_namespaces(7): without this an unprivileged process may not write its gid_map.
    (own / "setgroups").write_text("deny")
    (own / "gid_map").write_text(f"{group} {group} 1")


def own_pid_namespace() -> int:
    """A descriptor of the PID namespace that this process lives in."""
    return os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)


def leave_pid_namespace(own: int) -> int:
    """After a fork that followed `unshare_pid_namespace`: let further children be born in our own namespace again.

    Args:
        own: What `own_pid_namespace` gave.

    Returns:
        The inode number of the namespace that was made; it names it while it lives.

    Raises:
        OSError: the process cannot go on: its next child would be born in a foreign namespace.
    """
    try:
        return os.stat("/proc/self/ns/pid_for_children").st_ino  # noqa: PTH116 - for each worker
    finally:
        _checked(_libc.setns(ctypes.c_int(own), ctypes.c_int(_CLONE_NEWPID)), "setns")


def use_as_subreaper() -> None:
    """Make this process the parent of every descendant whose own parent ends; prctl(2), PR_SET_CHILD_SUBREAPER."""
    rest = (ctypes.c_ulong(0),) * 3
    result = _libc.prctl(ctypes.c_int(_PR_SET_CHILD_SUBREAPER), ctypes.c_ulong(1), *rest)
    _checked(result, "PR_SET_CHILD_SUBREAPER")


def children() -> list[int]:
    """The children of this process, which has one thread; a list that may be out of date when it is returned."""
    try:
        return [int(word) for word in Path("/proc/thread-self/children").read_bytes().split()]
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        return _children_by_scan()


def _children_by_scan() -> list[int]:
    own, found = str(os.getpid()).encode(), []
    for name in os.listdir("/proc"):  # noqa: PTH208 - names, quickly
        if name.isdigit():
            try:
                stat = Path("/proc", name, "stat").read_bytes()
            except OSError:
                continue  # it ended
            # The second field, the name, may hold anything; the parent is the second field after it.
            if stat.rpartition(b")")[2].split()[1] == own:
                found.append(int(name))
    return found


def thread_count() -> int:
    """Threads of this process, whoever started them."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - names, quickly
