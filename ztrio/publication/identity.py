"""Which object is it? The names by which a file or directory is known again, and what the system says about one.

A path says nothing after a crash: whoever was at work may have put anything there. An inode number says little, since
the next file made may get it. Inode number and birth time together name one object for as long as it exists, across
renames, reboots and remounts; a device number would not survive the last of these and is no part of it.

Birth times are in no `os.stat_result` on Linux, so `statx` is called through ctypes. Where the file system keeps none
(and on overlayfs, whose birth time is that of a layer and changes when a file is first touched), the fallback is

    a file         inode number, size and modification time: a file that was edited in place is then another one, which
                   is the safe mistake, for what is not known is left alone
    a directory    inode number: its modification time changes with every entry made in it

`Identity` alone is what one process needs for things that it has seen seconds ago; `Mark` is what is written down.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
from typing import Any, Final

import attrs
import msgspec

__all__ = ["Identity", "Mark", "Stat", "look"]

_POSIX: Final = os.name == "posix" and sys.platform != "win32"  # elsewhere it can only be imported, and that must work

# linux/stat.h, linux/fcntl.h
_AT_FLAGS: Final = 0x100 | 0x800  # AT_SYMLINK_NOFOLLOW, AT_NO_AUTOMOUNT
_AT_EMPTY_PATH: Final = 0x1000
_STATX_BTIME: Final = 0x800
_STATX_MNT_ID: Final = 0x1000  # Linux >= 5.8
_WANTED: Final = 0xFFF | _STATX_MNT_ID  # STATX_BASIC_STATS, the birth time, the mount
_MOUNT_ROOT: Final = 0x2000  # STATX_ATTR_MOUNT_ROOT
_PINNED: Final = 0x10 | 0x20 | _MOUNT_ROOT  # STATX_ATTR_IMMUTABLE, _APPEND
# Up to the mount; what is of no use here is skipped.
_STATX: Final = struct.Struct("=I4xQ IIIH2x QQ16x 16x qI4x 16x qI4x 8x IIQ")
_STATX_SIZE: Final = 256

# Mounts that were asked about. Used from several threads; each operation is one step of the interpreter. A mount that
# was replaced by one with the same numbers is taken for it, and then an object is at worst not known again.
_overlays: Final[dict[tuple[int, ...], bool]] = {}
_MAX_MOUNTS: Final = 1000

_OVERLAYFS_MAGIC: Final = 0x794C7630  # linux/magic.h
_MAGIC: Final = struct.Struct("l")
_STATFS_SIZE: Final = 256  # 120 bytes on 64-bit Linux; f_type comes first

_libc: Any = ctypes.CDLL(None, use_errno=True) if _POSIX else None
_HAS_STATX: Final = hasattr(_libc, "statx")  # Linux with glibc >= 2.28 or musl >= 1.2.2
if _HAS_STATX:
    # Said once, they need not be found out in each call.
    _libc.statx.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p)
    _libc.fstatfs.argtypes = (ctypes.c_int, ctypes.c_void_p)


@attrs.frozen
class Identity:
    """Names one file or directory for as long as it exists, across renames and remounts.

    Args:
        inode: Inode number.
        born_ns: Birth time in nanoseconds since the epoch, or None where there is none.
    """

    inode: int
    born_ns: int | None


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


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """An object as it is written down, to be known again after a crash.

    Args:
        inode: Inode number.
        born_ns: Birth time in nanoseconds since the epoch, or None where there is none.
        directory: Whether it is a directory.
        size: Bytes of a file, 0 for a directory.
        mtime_ns: Modification time in nanoseconds since the epoch.
        digest: Hash of a directory's manifest; None where it was not taken.
    """

    inode: int
    born_ns: int | None
    directory: bool
    size: int
    mtime_ns: int
    digest: str | None = None

    def names(self, found: Stat | None) -> bool:
        """Whether `found` is this object, whatever became of its content; see the module for the fallback."""
        if found is None or found.identity.inode != self.inode or found.is_dir != self.directory:
            return False
        born = found.identity.born_ns
        if born is not None and self.born_ns is not None:
            return born == self.born_ns
        return self.directory or (found.size, found.mtime_ns) == (self.size, self.mtime_ns)


def look(dir_fd: int, name: str) -> Stat | None:
    """What `name` in a directory stands for, or None if there is nothing; the empty name is the directory itself.

    Raises:
        OSError: as the system reports it.
    """
    return _statx(dir_fd, name) if _HAS_STATX else _portable_stat(dir_fd, name)


def _statx(dir_fd: int, name: str) -> Stat | None:
    buffer = ctypes.create_string_buffer(_STATX_SIZE)
    flags = _AT_FLAGS if name else _AT_FLAGS | _AT_EMPTY_PATH
    if _libc.statx(dir_fd, os.fsencode(name), flags, _WANTED, buffer):
        number = ctypes.get_errno()
        if number == errno.ENOENT:
            return None
        raise OSError(number, os.strerror(number), name)
    mask, attributes, links, uid, gid, mode, inode, size, *rest = _STATX.unpack_from(buffer)
    born_s, born_ns, mtime_s, mtime_ns, *mount = rest
    # What is mounted at `name` is not where its directory is.
    known = mask & _STATX_MNT_ID and not (name and attributes & _MOUNT_ROOT)
    born = None
    if mask & _STATX_BTIME and not _is_overlay(dir_fd, tuple(mount) if known else None):
        born = born_s * 10**9 + born_ns
    return Stat(
        identity=Identity(inode, born),
        mode=mode,
        size=size,
        mtime_ns=mtime_s * 10**9 + mtime_ns,
        uid=uid,
        gid=gid,
        links=links,
        pinned=attributes & _PINNED != 0,
    )


def _is_overlay(dir_fd: int, mount: tuple[int, ...] | None) -> bool:
    """Whether a directory is on overlayfs; asked once per mount, where that is known by its device numbers and id."""
    found = None if mount is None else _overlays.get(mount)
    if found is None:
        found = _asked_whether_overlay(dir_fd)
        if mount is not None:
            if len(_overlays) >= _MAX_MOUNTS:
                _overlays.clear()
            _overlays[mount] = found
    return found


def _asked_whether_overlay(dir_fd: int) -> bool:
    buffer = ctypes.create_string_buffer(_STATFS_SIZE)
    if _libc.fstatfs(dir_fd, buffer):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    (magic,) = _MAGIC.unpack_from(buffer)
    return bool(magic == _OVERLAYFS_MAGIC)


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
