"""Copying an existing target into staging, for `existing="copy_in"`."""

from __future__ import annotations

import os
import stat

from ztrio.publication.exchange import FileOps
from ztrio.publication.inspect import MAX_DEPTH, Budget, TooDeep, too_large, walk
from ztrio.publication.targets import Target, refuse

__all__ = ["copy_in"]

_CHUNK = 1 << 20


def copy_in(ops: FileOps, parent_fd: int, slot_fd: int, target: Target, budget: Budget) -> None:
    """Copy the target into its slot, with modes, owners where allowed, extended attributes and modification times.

    Args:
        ops: The operations.
        parent_fd: The directory that holds the target.
        slot_fd: The directory that gets the copy, under the target's name.
        target: What to copy.
        budget: Spent as entries are copied.

    Raises:
        OutputRefused: OUTPUT_NOT_WRITABLE, it holds what cannot be an output.
        LimitExceeded: OUTPUT_TOO_LARGE.
        OSError: as the system reports it.
    """
    name = target.name
    if target.policy.kind == "file":
        _copy_file(ops, parent_fd, slot_fd, name, target, budget)
        return
    directories = [name]
    os.mkdir(name, 0o700, dir_fd=slot_fd)
    try:
        for below, found in walk(ops, parent_fd, name, budget.entries):
            path = f"{name}/{below}"
            if stat.S_ISDIR(found.st_mode):
                budget.spend(target, 0)
                os.mkdir(path, 0o700, dir_fd=slot_fd)
                directories.append(path)
            elif stat.S_ISREG(found.st_mode):
                _copy_file(ops, parent_fd, slot_fd, path, target, budget)
            else:
                raise refuse(target, "OUTPUT_NOT_WRITABLE", f"holds {below!r}, which is no file or directory")
    except TooDeep:
        raise too_large(target, f"it has more than {MAX_DEPTH} levels of directories") from None
    # Last, children before parents: a directory may deny writing, and writing changes its modification time.
    for path in reversed(directories):
        _carry(ops, parent_fd, slot_fd, path)


def _copy_file(ops: FileOps, parent_fd: int, slot_fd: int, path: str, target: Target, budget: Budget) -> None:
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    source = os.open(path, os.O_RDONLY | flags, dir_fd=parent_fd)
    try:
        budget.spend(target, os.fstat(source).st_size)
        copy = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | flags, 0o600, dir_fd=slot_fd)
        try:
            while chunk := memoryview(os.read(source, _CHUNK)):
                while chunk:
                    chunk = chunk[os.write(copy, chunk) :]
        finally:
            os.close(copy)
    finally:
        os.close(source)
    _carry(ops, parent_fd, slot_fd, path)


def _carry(ops: FileOps, parent_fd: int, slot_fd: int, path: str) -> None:
    ops.carry_metadata(parent_fd, path, slot_fd, path)
    found = os.stat(path, dir_fd=parent_fd, follow_symlinks=False)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns), dir_fd=slot_fd, follow_symlinks=False)
