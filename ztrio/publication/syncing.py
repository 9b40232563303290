"""Bringing to the disk what a durable call publishes.

In this order, because each step is only worth anything once the one before it cannot be lost:

    what was made, content and attributes    a name must never lead to content that is not there
    the intent, in the store                 recovery knows both objects before either of them moves
    (the exchange)
    the directories of target and slot       so that a committed call cannot come back half published
    COMMIT, in the store

For one file these are five syncs. A tree costs one for each file and directory in it; nothing cheaper is worth its
name: `syncfs` would wait for what everybody else wrote to the disk.
"""

from __future__ import annotations

import os
import stat

from ztrio.publication.exchange import FileOps
from ztrio.publication.inspect import MAX_DEPTH, TooDeep

__all__ = ["sync_tree"]


def sync_tree(ops: FileOps, dir_fd: int, name: str, limit: int, *, depth: int = 1) -> None:
    """Bring a directory to the disk with everything in it, children before parents.

    Args:
        ops: The operations.
        dir_fd: The directory that holds `name`.
        name: A directory that was inspected, so it holds regular files and directories only.
        limit: Entries listed per directory at most.
        depth: Level of `name`'s entries.

    Raises:
        OSError: as the system reports it.
        TooDeep: there are more levels than inspection lets pass.
    """
    if depth > MAX_DEPTH + 1:
        raise TooDeep
    fd = ops.open_directory(dir_fd, name)
    try:
        for entry, found in ops.list_directory(fd, limit):
            if stat.S_ISDIR(found.st_mode):
                sync_tree(ops, fd, entry, limit, depth=depth + 1)
            else:
                ops.sync_data(fd, entry)
        ops.sync_directory(fd)
    finally:
        os.close(fd)
