"""The raw file operations of publication, each on a (directory descriptor, name) pair; the one module with ctypes.

Neither `renameat2` nor `statx` is in `os` (as of Python 3.14), and both carry the promises: EXCHANGE swaps two names
with no moment at which a reader misses either, NOREPLACE never overwrites, and `statx` gives the birth time without
which an inode number, reused by the next file, names nothing.

They are methods of `FileOps` and not functions, so that a test can make each of them fail and later code can put
syncing between them. Nothing here follows a symlink, ever: the worker that filled staging is not to be trusted, and
whoever else works in the workspace may swap a directory for a link at any time.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import stat
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import attrs

__all__ = ["SEARCH", "FileOps", "Identity", "Stat", "handle", "is_missing"]

_POSIX: Final = os.name == "posix" and sys.platform != "win32"  # elsewhere it can only be imported, and that must work

SEARCH: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC if _POSIX else 0
"""Flags to open a directory for walking through it; Linux asks no read permission for that."""

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC if _POSIX else 0
_CHUNK: Final = 1 << 20

# linux/fs.h, linux/stat.h, linux/fcntl.h
_RENAME_NOREPLACE: Final = 1
_RENAME_EXCHANGE: Final = 2
_AT_FLAGS: Final = 0x100 | 0x800  # AT_SYMLINK_NOFOLLOW, AT_NO_AUTOMOUNT
_AT_EMPTY_PATH: Final = 0x1000
_STATX_BASIC_STATS_AND_BTIME: Final = 0xFFF
_STATX_BTIME: Final = 0x800
_ATTRIBUTE_IMMUTABLE: Final = 0x10
_ATTRIBUTE_APPEND: Final = 0x20
_ATTRIBUTE_MOUNT_ROOT: Final = 0x2000
_STATX: Final = struct.Struct("=IIQ IIIHH QQQQ qIi qIi qIi qIi IIII")

_OVERLAYFS_MAGIC: Final = 0x794C7630  # linux/magic.h

# What must not pass from old content to new: privileges, and signatures of the content itself.
_XATTRS_OF_CONTENT: Final = frozenset({"security.capability", "security.ima", "security.evm"})
_NOT_ALLOWED: Final = frozenset({errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EINVAL})

_libc: Any = ctypes.CDLL(None, use_errno=True) if _POSIX else None
_HAS_STATX: Final = hasattr(_libc, "statx")  # Linux with glibc >= 2.28 or musl >= 1.2.2


@attrs.frozen
class Identity:
    """Names one file or directory for as long as it exists, across renames and remounts.

    Device numbers are no part of it: they change on remount. Where the file system keeps no birth time, the inode
    number alone has to do; a file made after another was removed may then pass for it. So it is on overlayfs, whose
    birth time is that of the layer and changes when a file is first touched.

    Args:
        inode: Inode number.
        born_ns: Birth time in nanoseconds since the epoch, or None where there is none.
    """

    inode: int
    born_ns: int | None

    def as_dict(self) -> dict[str, int | None]:
        """The identity as it stands in `recovery.json`."""
        return {"inode": self.inode, "born_ns": self.born_ns}


@attrs.frozen(kw_only=True)
class Stat:
    """What a name stands for; never what a symlink points to. Times in nanoseconds since the epoch, size in bytes."""

    identity: Identity
    mode: int
    size: int
    mtime_ns: int
    uid: int
    gid: int
    links: int
    pinned: bool = False
    """Whether the name cannot be exchanged at all: a mount point, or immutable or append-only."""

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self.mode)

    @property
    def permissions(self) -> int:
        """The mode without the type."""
        return stat.S_IMODE(self.mode)


def is_missing(error: OSError) -> bool:
    """Whether `error` says that a name does not exist."""
    return error.errno in (errno.ENOENT, errno.ENOTDIR)


@contextmanager
def handle(dir_fd: int, name: str) -> Iterator[str | int]:
    """Hold on to one file or directory, whatever its permissions, so that `os.chmod` and the like cannot be misled.

    Yields:
        What to pass to `os.chmod`, `os.listxattr`, … in place of a path.
    """
    if sys.platform == "linux":
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    else:  # pragma: no cover
        fd = os.open(name, _READ, dir_fd=dir_fd)
    try:
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
        yield f"/proc/self/fd/{fd}" if sys.platform == "linux" else fd
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
        return _statx(dir_fd, name) if _HAS_STATX else _portable_stat(dir_fd, name)

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
        with handle(dir_fd, name) as place:
            os.chmod(place, mode)

    def carry_metadata(self, source_fd: int, source: str, target_fd: int, target: str) -> None:
        """Give `target` the owner, extended attributes and mode of `source`, as far as the system allows.

        Set-user-id and set-group-id of a file, its capabilities and integrity signatures stay behind: they vouch for
        content that is being replaced.
        """
        with handle(source_fd, source) as old, handle(target_fd, target) as new:
            was, now = os.stat(old), os.stat(new)
            if (was.st_uid, was.st_gid) != (now.st_uid, now.st_gid) and not _allowed(
                lambda: os.chown(new, was.st_uid, was.st_gid)
            ):
                _allowed(lambda: os.chown(new, -1, was.st_gid))
            if sys.platform == "linux":
                _carry_xattrs(old, new)
            os.chmod(new, was.st_mode & (0o3777 if stat.S_ISDIR(was.st_mode) else 0o777))

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


def _allowed(change: Callable[[], None]) -> bool:
    try:
        change()
    except OSError as error:
        if error.errno not in _NOT_ALLOWED:
            raise
        return False
    return True


def _carry_xattrs(old: str | int, new: str | int) -> None:
    try:
        names = os.listxattr(old)
    except OSError as error:
        if error.errno not in _NOT_ALLOWED:
            raise
        return
    for name in names:
        if name not in _XATTRS_OF_CONTENT:
            _allowed(lambda name=name: os.setxattr(new, name, os.getxattr(old, name)))  # type: ignore[misc]


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


def _statx(dir_fd: int, name: str) -> Stat | None:
    buffer = ctypes.create_string_buffer(256)
    flags = _AT_FLAGS if name else _AT_FLAGS | _AT_EMPTY_PATH
    if _libc.statx(dir_fd, os.fsencode(name), flags, ctypes.c_uint(_STATX_BASIC_STATS_AND_BTIME), buffer):
        number = ctypes.get_errno()
        if number == errno.ENOENT:
            return None
        raise OSError(number, os.strerror(number), name)
    fields = _STATX.unpack_from(buffer)
    mask, attributes, links, uid, gid, mode, inode, size = (fields[index] for index in (0, 2, 3, 4, 5, 6, 8, 9))
    born_s, born_ns, mtime_s, mtime_ns = (fields[index] for index in (15, 16, 21, 22))
    born = born_s * 10**9 + born_ns if mask & _STATX_BTIME and not _is_overlay(dir_fd) else None
    return Stat(
        identity=Identity(inode, born),
        mode=mode,
        size=size,
        mtime_ns=mtime_s * 10**9 + mtime_ns,
        uid=uid,
        gid=gid,
        links=links,
        pinned=bool(attributes & (_ATTRIBUTE_MOUNT_ROOT | _ATTRIBUTE_IMMUTABLE | _ATTRIBUTE_APPEND)),
    )


def _is_overlay(dir_fd: int) -> bool:
    buffer = ctypes.create_string_buffer(256)  # struct statfs, 120 bytes on 64-bit; f_type comes first
    if _libc.fstatfs(dir_fd, buffer):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return ctypes.c_long.from_buffer(buffer).value == _OVERLAYFS_MAGIC


def _portable_stat(dir_fd: int, name: str) -> Stat | None:
    try:
        found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False) if name else os.fstat(dir_fd)
    except FileNotFoundError:
        return None
    born = getattr(found, "st_birthtime", None)
    return Stat(
        identity=Identity(found.st_ino, None if born is None else int(born * 10**9)),
        mode=found.st_mode,
        size=found.st_size,
        mtime_ns=found.st_mtime_ns,
        uid=found.st_uid,
        gid=found.st_gid,
        links=found.st_nlink,
    )
