"""Disk space kept back for a full disk: what puts things in order then must not fail for want of a page.

When a COMMIT failed because the disk is full, only a further transaction makes sure that it never happened, and that
one needs room too. A file of a few pages' size lies beside the database and is removed for it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["DiskReserve"]

_SIZE: Final = 256 * 1024  # bytes: some sixty pages


class DiskReserve:
    """The file. Both methods do what they can and never raise.

    Args:
        path: Where it lies, on the disk of the database.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def keep(self) -> bool:
        """Take hold of the space, if there is any; whether it is held."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return False
        try:
            if os.fstat(fd).st_size >= _SIZE:
                return True
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, 0, _SIZE)
            else:  # pragma: no cover - macOS
                os.pwrite(fd, bytes(_SIZE), 0)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def spend(self) -> bool:
        """Free the space; whether there was any to free."""
        try:
            there = self._path.stat().st_size > 0
            self._path.unlink()
        except OSError:
            return False
        return there
