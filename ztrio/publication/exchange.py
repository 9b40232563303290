"""The raw file operations of publication, each on a (directory descriptor, name) pair.

`renameat2` is not in `os` (as of Python 3.14), and it carries the promises: EXCHANGE swaps two names with no moment at
which a reader misses either, and NOREPLACE never overwrites. So it is called through ctypes, as `statx` is in
`identity`.

They are methods of `FileOps` and not functions, so that a test can make each of them fail, write down their order and
kill the process between any two of them. Nothing here follows a symlink, ever: the worker that filled staging is not
to be trusted, and whoever else works in the workspace may swap a directory for a link at any time.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from ztrio.publication.identity import Identity, Stat, look

__all__ = ["SEARCH", "FileOps", "Identity", "Stat", "handle", "is_missing"]

_POSIX: Final = os.name == "posix" and sys.platform != "win32"  # elsewhere it can only be imported, and that must work

SEARCH: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC if _POSIX else 0
"""Flags to open a directory for walking through it; Linux asks no read permission for that."""

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC if _POSIX else 0
_CHUNK: Final = 1 << 20

# linux/fs.h
_RENAME_NOREPLACE: Final = 1
_RENAME_EXCHANGE: Final = 2

# What must not pass from old content to new: privileges, and signatures of the content itself.
_XATTRS_OF_CONTENT: Final = frozenset({"security.capability", "security.ima", "security.evm"})
_NOT_ALLOWED: Final = frozenset({errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EINVAL})
_CANNOT_SYNC: Final = frozenset({errno.EINVAL, errno.ENOTSUP})  # fsync(2): the file system has no such thing

_libc: Any = ctypes.CDLL(None, use_errno=True) if _POSIX else None


def is_missing(error: OSError) -> bool:
    """Whether `error` says that a name does not exist."""
    return error.errno in (errno.ENOENT, errno.ENOTDIR)


@contextmanager
def handle(dir_fd: int, name: str) -> Iterator[tuple[str | int, os.stat_result]]:
    """Hold on to one file or directory, whatever its permissions, so that `os.chmod` and the like cannot be misled.

    Yields:
        What to pass to `os.chmod`, `os.listxattr`, … in place of a path, and its status.
    """
    if sys.platform == "linux":
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    else:  # pragma: no cover
        fd = os.open(name, _READ, dir_fd=dir_fd)
    try:
        status = os.fstat(fd)
        if stat.S_ISLNK(status.st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
        yield f"/proc/self/fd/{fd}" if sys.platform == "linux" else fd, status
    finally:
        os.close(fd)


class FileOps:
    """The operations, done for real. Each raises OSError as the system reports it."""

    def open_directory(self, dir_fd: int | None, name: str) -> int:
        """Open a directory for walking through it; the last component must not be a symlink."""
        return os.open(name, SEARCH, dir_fd=dir_fd)

    def list_directory(self, dir_fd: int, limit: int) -> list[tuple[str, os.stat_result]]:
        """The entries of a directory with their own (unfollowed) status, by name; at most `limit` + 1 of them."""
        entries: list[tuple[str, os.stat_result]] = []
        fd = os.open(".", _READ | os.O_DIRECTORY, dir_fd=dir_fd)
        try:
            with os.scandir(fd) as listing:
                for entry in listing:
                    entries.append((entry.name, entry.stat(follow_symlinks=False)))
                    if len(entries) > limit:
                        break
        finally:
            os.close(fd)
        entries.sort()
        return entries

    def stat(self, dir_fd: int, name: str) -> Stat | None:
        """What `name` stands for, or None if there is nothing; the empty name is the directory itself."""
        return look(dir_fd, name)

    def digest(self, dir_fd: int, name: str) -> str:
        """SHA-256 of a regular file's content, in hex."""
        fd = os.open(name, _READ, dir_fd=dir_fd)
        try:
            hasher = hashlib.sha256()
            while chunk := os.read(fd, _CHUNK):
                hasher.update(chunk)
        finally:
            os.close(fd)
        return hasher.hexdigest()

    def exchange(self, first_fd: int, first: str, second_fd: int, second: str) -> None:
        """Swap two names, atomically."""
        _rename(first_fd, first, second_fd, second, _RENAME_EXCHANGE)

    def move_new(self, source_fd: int, source: str, target_fd: int, target: str) -> None:
        """Rename, atomically; FileExistsError if the target exists."""
        _rename(source_fd, source, target_fd, target, _RENAME_NOREPLACE)

    def set_mode(self, dir_fd: int, name: str, mode: int) -> None:
        """Set the permissions of a file or directory."""
        with handle(dir_fd, name) as (place, _):
            os.chmod(place, mode)

    def carry_metadata(self, source_fd: int, source: str, target_fd: int, target: str) -> None:
        """Give `target` the owner, extended attributes and mode of `source`, as far as the system allows.

        Set-user-id and set-group-id of a file, its capabilities and integrity signatures stay behind: they vouch for
        content that is being replaced.
        """
        with handle(source_fd, source) as (old, was), handle(target_fd, target) as (new, now):
            # The mode comes last, for the others change it.
            changed = (was.st_uid, was.st_gid) != (now.st_uid, now.st_gid)
            if changed and not _allowed(lambda: os.chown(new, was.st_uid, was.st_gid)):
                _allowed(lambda: os.chown(new, -1, was.st_gid))
            if sys.platform == "linux":
                changed = _carry_xattrs(old, new) or changed
            mode = was.st_mode & (0o3777 if stat.S_ISDIR(was.st_mode) else 0o777)
            if changed or mode != stat.S_IMODE(now.st_mode):
                os.chmod(new, mode)

    def sync_data(self, dir_fd: int, name: str) -> None:
        """Return when a regular file, content and attributes, is on the disk; see `syncing` for trees."""
        _sync(dir_fd, name, os.O_NOFOLLOW | os.O_NONBLOCK)

    def sync_directory(self, dir_fd: int) -> None:
        """Return when the names in a directory are on the disk."""
        _sync(dir_fd, ".", os.O_DIRECTORY)

    def write_file(self, dir_fd: int, name: str, data: bytes) -> None:
        """Make `name` hold `data` with mode 0600, atomically.

        Not with `os.replace`: ext4 takes renaming over a file for the wish to have it on disk soon (auto_da_alloc),
        and whoever removes it next waits milliseconds for that. An exchange carries no such wish.
        """
        draft = f"{name}.new"
        _remove(dir_fd, draft)
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
        try:
            _rename(dir_fd, draft, dir_fd, name, _RENAME_NOREPLACE)
        except FileExistsError:
            _rename(dir_fd, draft, dir_fd, name, _RENAME_EXCHANGE)
            _remove(dir_fd, draft)


def _remove(dir_fd: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=dir_fd)
    except FileNotFoundError:
        pass


def _sync(dir_fd: int, name: str, flags: int) -> None:
    fd = _open_to_sync(dir_fd, name, flags)
    if fd is None:
        os.sync()  # not even its owner may open it; then everything is brought to the disk
        return
    try:
        if sys.platform == "darwin":  # pragma: no cover
            _full_sync(fd)
        else:
            os.fsync(fd)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
    finally:
        os.close(fd)


def _open_to_sync(dir_fd: int, name: str, flags: int) -> int | None:
    for access in (os.O_RDONLY,) if flags & os.O_DIRECTORY else (os.O_RDONLY, os.O_WRONLY):
        try:
            return os.open(name, access | os.O_CLOEXEC | flags, dir_fd=dir_fd)
        except PermissionError:
            continue
    return None


def _full_sync(fd: int) -> None:  # pragma: no cover
    """What macOS calls fsync leaves the data in the drive's own cache; fcntl(2), F_FULLFSYNC."""
    import fcntl  # noqa: PLC0415 - this module can be imported where there is none

    try:
        fcntl.fcntl(fd, 51)  # F_FULLFSYNC, sys/fcntl.h
    except OSError as error:
        if error.errno not in _CANNOT_SYNC | {errno.ENOTTY}:
            raise
        os.fsync(fd)  # a network volume


def _allowed(change: Callable[[], None]) -> bool:
    try:
        change()
    except OSError as error:
        if error.errno not in _NOT_ALLOWED:
            raise
        return False
    return True


def _carry_xattrs(old: str | int, new: str | int) -> bool:
    """Give `new` the extended attributes of `old`; whether there were any."""
    try:
        names = [name for name in os.listxattr(old) if name not in _XATTRS_OF_CONTENT]
    except OSError as error:
        if error.errno not in _NOT_ALLOWED:
            raise
        return False
    for name in names:
        _allowed(lambda name=name: os.setxattr(new, name, os.getxattr(old, name)))  # type: ignore[misc]
    return bool(names)


def _rename(source_fd: int, source: str, target_fd: int, target: str, flag: int) -> None:
    arguments = (source_fd, os.fsencode(source), target_fd, os.fsencode(target))
    if sys.platform == "darwin":  # pragma: no cover
        # sys/stdio.h: RENAME_SWAP 2, RENAME_EXCL 4
        failed = _libc.renameatx_np(*arguments, ctypes.c_uint(4 if flag == _RENAME_NOREPLACE else 2))
    else:
        failed = _libc.renameat2(*arguments, ctypes.c_uint(flag))
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), source, None, target)
