"""Removing a job directory, whatever a tool left in it.

Not `shutil.rmtree`: it needs one descriptor or one level of recursion per directory level, and a tool can make
thousands; it gives up at a directory without permissions; and it stops at the first name it cannot remove. Here every
directory is emptied by moving its subdirectories up to the top, so two descriptors do for any depth.
"""

from __future__ import annotations

import itertools
import os
import secrets
import stat

from ztrio.publication.exchange import SEARCH, handle

__all__ = ["remove_contents"]


def remove_contents(top: int) -> list[str]:
    """Remove everything in a directory. Follows no link.

    Args:
        top: The directory's descriptor; it and its own name stay.

    Returns:
        Names in it that could not be removed.
    """
    token = secrets.token_hex(8)
    fresh = (f"removing-{token}-{number}" for number in itertools.count())
    pending = [name for name in _names(top) if not _unlinked(top, name) and not _rmdir(top, name)]
    if not pending:
        return []
    while pending:
        name = pending.pop()
        try:
            _make_removable(top, name)
            fd = os.open(name, SEARCH, dir_fd=top)
        except OSError:
            continue
        try:
            for child in _names(fd):
                if not _unlinked(fd, child) and not _rmdir(fd, child):
                    lifted = next(fresh)
                    if _lift(fd, child, top, lifted):
                        pending.append(lifted)
        finally:
            os.close(fd)
        _rmdir(top, name)
    return _names(top)


def _names(dir_fd: int) -> list[str]:
    try:
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=dir_fd)
    except OSError:
        return []
    try:
        return os.listdir(fd)
    finally:
        os.close(fd)


def _unlinked(dir_fd: int, name: str) -> bool:
    """Remove what is not a directory; False if it is one, or stays."""
    try:
        os.unlink(name, dir_fd=dir_fd)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _rmdir(dir_fd: int, name: str) -> bool:
    try:
        os.rmdir(name, dir_fd=dir_fd)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _lift(source_fd: int, name: str, top: int, lifted: str) -> bool:
    try:
        _make_removable(source_fd, name)
        os.rename(name, lifted, src_dir_fd=source_fd, dst_dir_fd=top)
    except OSError:
        return False
    return True


def _make_removable(dir_fd: int, name: str) -> None:
    with handle(dir_fd, name) as (place, found):
        mode = found.st_mode
        if stat.S_ISDIR(mode) and mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(place, stat.S_IRWXU)
