"""Letting a worker that runs as somebody else, or as root without root's privileges, work in its staging.

The supervisor keeps the job directory: the worker's group may pass through it and no more, so the worker cannot touch
`recovery.json` or swap a slot for another. Slots and the temporary directory belong to the worker. So does what is
copied in for it, until it is dead: then what is still the copy gets its owner back. What the tool made itself stays
the worker's, as if that user had run the tool; replacing a target carries the target's own owner over.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from typing import Final

from ztrio.publication.exchange import FileOps, handle
from ztrio.publication.identity import Identity
from ztrio.publication.inspect import TooDeep, walk

__all__ = ["Owners", "give_back", "hand_over", "let_pass", "make_folder"]

Owners = Mapping[Identity, tuple[int, int]]
"""Which object belonged to which user and group."""

_PASS: Final = stat.S_IRWXU | stat.S_IXGRP


def let_pass(fd: int, owner: tuple[int, int] | None) -> None:
    """Let the worker's group pass through a job directory."""
    if owner is not None and owner[0] != os.geteuid():
        os.fchown(fd, -1, owner[1])
        os.fchmod(fd, _PASS)


def make_folder(name: str, dir_fd: int, owner: tuple[int, int] | None) -> None:
    """Make a directory for the worker, 0700."""
    os.mkdir(name, 0o700, dir_fd=dir_fd)
    if owner is not None:
        os.chown(name, *owner, dir_fd=dir_fd, follow_symlinks=False)


def hand_over(
    ops: FileOps, dir_fd: int, name: str, owner: tuple[int, int], limit: int
) -> dict[Identity, tuple[int, int]]:
    """Give everything of another user at `name` to the worker.

    Returns:
        Whose it was.
    """
    owners = {}
    for path, found in list(_all(ops, dir_fd, name, limit)):
        if found.st_uid == owner[0]:
            continue
        with handle(dir_fd, path) as (place, _):
            os.chown(place, *owner)
            # That took bits away which only their owner can give; a directory's group is one.
            os.chmod(place, stat.S_IMODE(found.st_mode))
        identified = ops.stat(dir_fd, path)
        assert identified is not None  # nobody else works here yet
        owners[identified.identity] = (found.st_uid, found.st_gid)
    return owners


def give_back(ops: FileOps, dir_fd: int, name: str, owners: Owners, limit: int) -> None:
    """Give what is still the same object back to whom it belonged. Only when everything of the worker is dead."""
    if not owners:
        return
    try:
        entries = list(_all(ops, dir_fd, name, limit))
    except TooDeep:
        return  # it will not be published
    for path, found in entries:
        if not (stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)):
            continue
        identified = ops.stat(dir_fd, path)
        owner = None if identified is None else owners.get(identified.identity)
        if owner is not None:
            with handle(dir_fd, path) as (place, _):
                os.chown(place, *owner)
                os.chmod(place, stat.S_IMODE(found.st_mode) & (0o3777 if stat.S_ISDIR(found.st_mode) else 0o777))


def _all(ops: FileOps, dir_fd: int, name: str, limit: int) -> Iterator[tuple[str, os.stat_result]]:
    """The object itself and everything below it, with paths relative to `dir_fd`."""
    try:
        top = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return
    yield name, top
    if stat.S_ISDIR(top.st_mode):
        for below, found in walk(ops, dir_fd, name, limit):
            yield f"{name}/{below}", found
