"""Looking at trees of files, and doing a tool's work in a staging."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ztrio.publication.staging import Staging

__all__ = ["Snapshot", "fill", "listing", "snapshot"]

Snapshot = dict[str, tuple[Any, ...]]


def snapshot(path: Path) -> Snapshot:
    """Everything that must be the same after a rollback: inode, mode, mtime, owner, xattrs and content; all below.

    Without ztrio's own folder of a workspace, which is made where a supervisor runs.
    """
    found: Snapshot = {}
    places = [path, *sorted(path.rglob("*"))] if path.is_dir() and not path.is_symlink() else [path]
    for place in places:
        if not os.path.lexists(place) or ".ztrio" in place.relative_to(path).parts:
            continue
        status = place.lstat()
        content: Any = None
        if place.is_symlink():
            content = str(place.readlink())
        elif place.is_file():
            content = place.read_bytes()
        xattrs = {name: os.getxattr(place, name) for name in os.listxattr(place)} if not place.is_symlink() else {}
        found[str(place.relative_to(path))] = (
            status.st_ino,
            status.st_mode,
            status.st_mtime_ns,
            (status.st_uid, status.st_gid),
            sorted(xattrs.items()),
            content,
        )
    return found


def fill(staging: Staging, content: Mapping[str, str | Mapping[str, str]]) -> None:
    """Do a tool's work: a file from a str, a directory from a mapping."""
    for name, data in content.items():
        place = Path(staging.paths[name])
        if isinstance(data, str):
            place.write_text(data)
        else:
            place.mkdir(exist_ok=True)
            for below, text in data.items():
                (place / below).parent.mkdir(parents=True, exist_ok=True)
                (place / below).write_text(text)


def listing(place: Path) -> list[str]:
    """Names in a directory."""
    return sorted(below.name for below in place.iterdir())
