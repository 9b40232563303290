"""Where the socket of a workspace's server is, and whose process is at its other end.

It is `.ztrio/serve.sock` in the workspace, which the server's lock makes its own: whoever holds that lock knows that a
socket which is there already belongs to a dead server. The path of a socket may have about a hundred bytes, those of a
workspace may have more, and some file systems know no sockets. Then it lies in a new private directory for temporary
files, and `serve.sock` is a symbolic link to it, so that nothing has to be agreed upon but the workspace: environments
of server and operator may differ.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import struct
import sys
import tempfile
from pathlib import Path
from typing import Final, Protocol

__all__ = ["FOLDER", "MAX_PATH", "bind", "connect", "peer_uid", "remove"]

FOLDER: Final = ".ztrio"
MAX_PATH: Final = 100
"""Bytes of the longest path of a socket that is used; Linux takes 107, macOS 103."""

_NAME: Final = "serve.sock"
_PREFIX: Final = "ztrio-"
_PRIVATE: Final = 0o077


class _Connected(Protocol):
    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes:
        """As sockets have it."""


def socket_path(workspace: Path) -> Path:
    """Where a workspace's socket, or the link to it, is."""
    return workspace / FOLDER / _NAME


def bind(workspace: Path) -> tuple[socket.socket, Path]:
    """Make the socket of a workspace, in place of one that a dead server left. Only for who holds the workspace's lock.

    Returns:
        The socket, not listening yet, and its path for `remove`.

    Raises:
        OSError: there can be none.
    """
    place = socket_path(workspace)
    place.parent.mkdir(mode=0o700, exist_ok=True)
    remove(place)
    if _fits(place) and place.parent.stat().st_mode & _PRIVATE == 0:
        # A file system without sockets: the one for temporary files has them.
        with contextlib.suppress(OSError):
            return _bound(place), place
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_short_directory()))
    try:
        bound = _bound(folder / _NAME)
        try:
            place.symlink_to(folder / _NAME)
        except BaseException:
            bound.close()
            raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return bound, place


def _bound(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind(os.fsencode(path))
        path.chmod(0o600)  # nobody else was there before: the directory is private
    except BaseException:
        made.close()
        path.unlink(missing_ok=True)
        raise
    return made


def _short_directory() -> str:
    """A directory for temporary files in which the path of a socket fits."""
    here = Path(tempfile.gettempdir())
    return str(here) if _fits(here / f"{_PREFIX}12345678" / _NAME) else "/tmp"  # noqa: S108 - a private one is made in it


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= MAX_PATH


def remove(place: Path) -> None:
    """Remove a socket or the link to one, and the private directory that the link leads to. Nothing else goes."""
    try:
        found = place.lstat()
    except OSError:
        return
    if stat.S_ISLNK(found.st_mode):
        target = place.readlink()
        if target.name == _NAME and target.parent.name.startswith(_PREFIX) and _is_ours(target.parent):
            target.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # somebody keeps something there; that stays
                target.parent.rmdir()
    place.unlink(missing_ok=True)


def _is_ours(folder: Path) -> bool:
    """Whether a directory is a private one of this user."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and found.st_mode & _PRIVATE == 0


def connect(workspace: Path, *, wait: bool = True) -> socket.socket:
    """Connect to the server of a workspace.

    Args:
        workspace: The workspace.
        wait: Whether to wait for a server that has more connections than it takes.

    Returns:
        The connection; one that does not block where nobody was to wait.

    Raises:
        BlockingIOError: a server runs there, and would have to be waited for.
        FileNotFoundError, ConnectionRefusedError: no server runs there.
        PermissionError: it is another user's.
        OSError: it cannot be reached.
    """
    place = socket_path(workspace)
    if place.is_symlink():
        place = place.readlink()
    elif not place.exists() or not _fits(place):
        raise FileNotFoundError(place)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.setblocking(wait)
        made.connect(os.fsencode(place))
        owner = peer_uid(made)
    except BaseException:
        made.close()
        raise
    if owner != os.geteuid():
        made.close()
        raise PermissionError(f"the process at {place} belongs to user {owner}")
    return made


def peer_uid(connection: _Connected) -> int:
    """User id of the process at the other end of a connection, as the kernel says."""
    if sys.platform == "darwin":
        # struct xucred (sys/ucred.h): version, user id, …; SOL_LOCAL is 0 and LOCAL_PEERCRED 1 (sys/un.h).
        return int(struct.unpack_from("=II", connection.getsockopt(0, 1, 76))[1])
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(uid)
