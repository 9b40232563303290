"""Whether an output can be put where it belongs: what is found out before a tool runs.

Renaming works within a mount only, and not everything that stands at a target may be exchanged for something else. To
find that out after the tool has run would waste its work.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from ztrio.errors import OutputRefused
from ztrio.publication.identity import Identity, Stat
from ztrio.publication.jobdir import JobDirectory
from ztrio.publication.targets import Target, refuse

__all__ = ["Reached", "check_movable", "check_replaceable", "directory_refused"]

_MAX_PLACES: Final = 10_000


class Reached:
    """Places that are known to be reached by renaming from a job directory of the workspace, so as not to try again.

    A place is a directory's path and identity and the kind of the output. If that changes meanwhile, publication fails
    and everything is put back; then all of it is tried anew.
    """

    def __init__(self) -> None:
        # Used from several threads; each operation is one step of the interpreter.
        self._places: set[tuple[str, Identity, str]] = set()

    def __contains__(self, place: object) -> bool:
        return place in self._places

    def add(self, place: tuple[str, Identity, str]) -> None:
        """Remember a place."""
        if len(self._places) >= _MAX_PLACES:
            self._places.clear()
        self._places.add(place)

    def clear(self) -> None:
        """Forget everything."""
        self._places.clear()


def check_replaceable(target: Target, parent: Stat, found: Stat) -> None:
    """Refuse what an exchange would fail on, or do other than what a reader of the target expects."""
    uid = os.geteuid()
    if found.pinned:
        why = "is a mount point, or immutable or append-only, so it cannot be exchanged"
    elif found.is_file and found.links > 1:
        why = f"has {found.links} hard links; replacing it would leave its other names with the old content"
    elif parent.mode & stat.S_ISVTX and uid not in (0, parent.uid, found.uid):
        why = f"belongs to another user, and {target.path.parent} lets only owners rename"
    else:
        return
    raise refuse(target, "OUTPUT_NOT_WRITABLE", why)


def check_movable(target: Target, job: JobDirectory, parent_fd: int, found: Stat) -> None:
    """Refuse an existing directory that cannot be moved."""
    try:
        job.can_move(parent_fd, target.name)
    except PermissionError as error:
        if os.geteuid() == found.uid and not found.mode & stat.S_IWUSR:
            return  # its owner gives write permission for the exchange
        raise refuse(
            target, "OUTPUT_NOT_WRITABLE", f"is a directory that may not be moved: {error.strerror}"
        ) from error
    except OSError as error:
        layered = " (it comes from a lower layer of an overlay file system)" if error.errno == errno.EXDEV else ""
        why = f"is a directory that cannot be moved: {error.strerror}{layered}"
        raise refuse(target, "OUTPUT_NOT_WRITABLE", why) from error


def directory_refused(target: Target, error: OSError) -> OutputRefused:
    """The refusal of an output into a directory that cannot be used."""
    return refuse(
        target, "OUTPUT_NOT_WRITABLE", f"cannot be published: its directory {target.path.parent}: {error.strerror}"
    )
