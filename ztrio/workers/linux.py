"""The Linux system calls of the sandbox that `os` does not have: prctl, capabilities, Landlock.

One module holds the ctypes, so that numbers and structures stand beside the manual pages they come from and everything
else is plain Python. Nothing here decides anything. On other systems the module can be imported and not used.

All of it acts on the calling *thread* (credentials are per thread in Linux) but for `set_dumpable`, which is a
property of the address space.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from typing import Any, Final

__all__ = [
    "LANDLOCK_FILE_WRITES",
    "LANDLOCK_WRITES",
    "add_path",
    "close_range",
    "create_ruleset",
    "drop_bounding_set",
    "drop_capabilities",
    "is_dumpable",
    "parent_death_signal",
    "restrict_self",
    "set_dumpable",
    "set_no_new_privs",
    "set_parent_death_signal",
]

_LINUX: Final = sys.platform == "linux"

# linux/prctl.h
_PR_SET_PDEATHSIG: Final = 1
_PR_GET_PDEATHSIG: Final = 2
_PR_GET_DUMPABLE: Final = 3
_PR_SET_DUMPABLE: Final = 4
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4

# linux/capability.h: header {version, pid}, then two of {effective, permitted, inheritable} for 64 capabilities.
_CAPABILITY_VERSION_3: Final = 0x20080522
_CAPABILITIES: Final = 64
_OWN_CAPABILITIES: Final = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
_NO_CAPABILITIES: Final = bytes(2 * 3 * 4)

# The same on every architecture but alpha: asm-generic/unistd.h
_SYS_CLOSE_RANGE: Final = 436
_SYS_LANDLOCK_CREATE_RULESET: Final = 444
_SYS_LANDLOCK_ADD_RULE: Final = 445
_SYS_LANDLOCK_RESTRICT_SELF: Final = 446
_LANDLOCK_RULE_PATH_BENEATH: Final = 1

# linux/landlock.h, LANDLOCK_ACCESS_FS_*
_WRITE_FILE: Final = 1 << 1
_TRUNCATE: Final = 1 << 14
_SCOPE_SIGNAL: Final = 1 << 1
LANDLOCK_FILE_WRITES: Final = _WRITE_FILE | _TRUNCATE
"""The rights on content: what a rule for a single file can grant."""
LANDLOCK_WRITES: Final = LANDLOCK_FILE_WRITES | sum(1 << bit for bit in range(4, 14))
"""Every right that changes a tree: content, REMOVE_DIR, REMOVE_FILE, MAKE_* (seven kinds) and REFER."""

_libc: Any = ctypes.CDLL(None, use_errno=True) if _LINUX else None
if _LINUX:
    # prctl is variadic, and the kernel refuses garbage in the unused arguments: all of them, each as a long.
    _libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]

# Set once the bounding set was emptied here, or by the process that this one was forked from: it never fills again.
_bounding_set_is_empty = False


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _prctl(option: int, argument: int = 0, what: str = "prctl") -> int:
    return _checked(_libc.prctl(option, argument, 0, 0, 0), what)


def _syscall(number: int, *arguments: Any) -> int:
    return int(_libc.syscall(ctypes.c_long(number), *arguments))


def is_dumpable() -> bool:
    """Whether other processes of the same user may trace this one; prctl(2), PR_GET_DUMPABLE."""
    return _prctl(_PR_GET_DUMPABLE) == 1


def set_dumpable(dumpable: bool) -> None:
    """Say whether other processes of the same user may trace this one, and a crash may leave a core."""
    _prctl(_PR_SET_DUMPABLE, int(dumpable), "PR_SET_DUMPABLE")


def set_no_new_privs() -> None:
    """Let no program that is executed from here on gain privileges; cannot be undone."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, "PR_SET_NO_NEW_PRIVS")


def parent_death_signal() -> int:
    """The signal that this process gets when its parent ends; 0 for none."""
    number = ctypes.c_int(0)
    _prctl(_PR_GET_PDEATHSIG, ctypes.addressof(number), "PR_GET_PDEATHSIG")
    return number.value


def set_parent_death_signal(number: int) -> None:
    """Choose the signal that this process gets when the thread that made it ends."""
    _prctl(_PR_SET_PDEATHSIG, number, "PR_SET_PDEATHSIG")


def drop_bounding_set() -> None:
    """Empty the set of capabilities that an executed program can be given; what this process has it keeps.

    Needs CAP_SETPCAP. Without it nothing happens: `set_no_new_privs` then does the same for executed programs. A fork
    of a process that has done it need not do it again: forty system calls that are saved for each worker.
    """
    global _bounding_set_is_empty  # noqa: PLW0603 - a fact about this process, as the kernel's
    if _bounding_set_is_empty:
        return
    for capability in range(_CAPABILITIES):
        try:
            _prctl(_PR_CAPBSET_DROP, capability, "PR_CAPBSET_DROP")
        except OSError as error:
            if error.errno == errno.EPERM:  # not ours to drop
                return
            if error.errno != errno.EINVAL:
                raise
            break  # beyond the kernel's last one
    _bounding_set_is_empty = True


def drop_capabilities() -> None:
    """Give up every capability: effective, permitted, inheritable and ambient."""
    try:
        _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, "PR_CAP_AMBIENT")
    except OSError as error:
        if error.errno != errno.EINVAL:  # a kernel without ambient capabilities
            raise
    _checked(_libc.capset(_OWN_CAPABILITIES, _NO_CAPABILITIES), "capset")


def close_range(first: int, last: int) -> bool:
    """Close all descriptors from `first` to `last`, also where none is open; False where the kernel cannot (5.9)."""
    return _syscall(_SYS_CLOSE_RANGE, ctypes.c_uint32(first), ctypes.c_uint32(last), ctypes.c_uint32(0)) == 0


def create_ruleset() -> int:
    """A descriptor of a Landlock ruleset that handles `LANDLOCK_WRITES`, and signals where the kernel can (6.12).

    Raises:
        OSError: ENOSYS or EOPNOTSUPP, there is no Landlock; EINVAL, it does not know all of these rights.
    """
    try:
        # What is handled of files, of the network, and what is confined to the domain.
        return _create_ruleset(struct.pack("=QQQ", LANDLOCK_WRITES, 0, _SCOPE_SIGNAL))
    except OSError as error:
        if error.errno not in (errno.E2BIG, errno.EINVAL):
            raise
    return _create_ruleset(struct.pack("=Q", LANDLOCK_WRITES))


def _create_ruleset(attribute: bytes) -> int:
    size = ctypes.c_size_t(len(attribute))
    created = _syscall(_SYS_LANDLOCK_CREATE_RULESET, attribute, size, ctypes.c_uint32(0))
    return _checked(created, "landlock_create_ruleset")


def add_path(ruleset: int, path_fd: int, rights: int) -> None:
    """Grant `rights` on what `path_fd` is open on, and on everything beneath a directory."""
    attribute = struct.pack("=Qi", rights, path_fd)
    arguments = (ctypes.c_int(ruleset), ctypes.c_int(_LANDLOCK_RULE_PATH_BENEATH), attribute, ctypes.c_uint32(0))
    _checked(_syscall(_SYS_LANDLOCK_ADD_RULE, *arguments), "landlock_add_rule")


def restrict_self(ruleset: int) -> None:
    """Restrict the calling thread, and what it makes from here on, to what the ruleset grants. Cannot be undone."""
    arguments = (ctypes.c_int(ruleset), ctypes.c_uint32(0))
    _checked(_syscall(_SYS_LANDLOCK_RESTRICT_SELF, *arguments), "landlock_restrict_self")
