"""Files and directories around a database: private, and there after a power cut."""

from __future__ import annotations

import os
import stat
from pathlib import Path

__all__ = ["make_folder", "make_private", "sync_directory"]


def make_folder(folder: Path) -> None:
    """Make a directory and those above it; what is made is private, what is there stays as it is."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def make_private(path: Path) -> None:
    """Take from others what permissions they have on a file, if it is ours to do so."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            path.chmod(mode & 0o600)
    except OSError:
        pass  # it belongs to somebody else, who has decided so


def sync_directory(path: Path) -> None:
    """Have names made in a directory survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
