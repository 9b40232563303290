"""A job directory: made, probed for whether a rename from it reaches a target's directory, removed.

    .ztrio-job-<id>/            0700
        recovery.json           what the call is about to do (in the workspace's only)
        tmp/                    the worker's TMPDIR (likewise)
        0/board.csv             one slot per output, with the target's own name: the staging path

A rename works within a mount only, so outputs on another mount than the workspace get their slots in a second job
directory beside their target. Which is the case is found out by renaming something there, as is whether the target's
directory can be written and knows EXCHANGE at all. Comparing device numbers would not do: bind mounts share them, and
permission bits do not tell of read-only mounts or security modules.
"""

from __future__ import annotations

import errno
import os
from typing import Final, Literal

import attrs

from ztrio.publication.exchange import SEARCH, FileOps
from ztrio.publication.removal import remove_contents

__all__ = ["JOB_PREFIX", "PROBE_PREFIX", "JobDirectory"]

JOB_PREFIX: Final = ".ztrio-job-"
"""A job directory's name is this and the job's id."""

PROBE_PREFIX: Final = ".ztrio-probe-"
"""Likewise, of what is made in a target's directory for a moment, to see whether that works."""


@attrs.define
class JobDirectory:
    """One directory that belongs to one call.

    Args:
        path: Its canonical path.
        fd: Its descriptor, which this object owns.
    """

    path: str
    fd: int
    # Set by `remove` or `close`; `fd` must not be used after that.
    closed: bool = False

    @classmethod
    def make(cls, place: str, place_fd: int, job_id: str) -> JobDirectory:
        """Make it in the directory `place`, open as `place_fd`.

        Raises:
            OSError: as the system reports it; FileExistsError if the job has one there already.
        """
        name = JOB_PREFIX + job_id
        os.mkdir(name, 0o700, dir_fd=place_fd)
        try:
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place_fd)
        except BaseException:
            os.rmdir(name, dir_fd=place_fd)
            raise
        return cls(os.path.join(place, name), fd)

    def reaches(self, ops: FileOps, dir_fd: int, kind: Literal["file", "dir"]) -> bool:
        """Whether objects of a kind can be moved and exchanged between here and a directory; done for real.

        Returns:
            False if that directory is on another mount.

        Raises:
            OSError: it does not work there at all: no permission, read-only, no EXCHANGE, no room.
        """
        there = PROBE_PREFIX + os.path.basename(self.path).removeprefix(JOB_PREFIX)
        try:
            for name in ("probe-1", "probe-2"):
                _make(self.fd, name, kind)
            ops.move_new(self.fd, "probe-1", dir_fd, there)
            ops.exchange(self.fd, "probe-2", dir_fd, there)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return False
        finally:
            for fd, name in ((self.fd, "probe-1"), (self.fd, "probe-2"), (dir_fd, there)):
                _unmake(fd, name, kind)
        return True

    def can_move(self, dir_fd: int, name: str) -> None:
        """See whether an existing directory can be moved here, without moving it.

        It is renamed over a directory that is not empty, which must fail; it fails with ENOTEMPTY only after the
        system found nothing else to object to.

        Raises:
            OSError: what the system objects to: EXDEV for a directory of a lower overlayfs layer, EACCES, EPERM, …
        """
        for probe in ("probe", "probe/full"):
            os.mkdir(probe, 0o700, dir_fd=self.fd)
        try:
            os.rename(name, "probe", src_dir_fd=dir_fd, dst_dir_fd=self.fd)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        finally:
            os.rmdir("probe/full", dir_fd=self.fd)
            os.rmdir("probe", dir_fd=self.fd)

    def remove(self) -> bool:
        """Remove it with everything in it. Follows no link; whatever can be removed is.

        Returns:
            Whether nothing is left, as far as this call can tell: after `close` it does not look.
        """
        if self.closed:
            return True
        try:
            left = remove_contents(self.fd)
            return not left and self._remove_name()
        finally:
            self.close()

    def _remove_name(self) -> bool:
        place, name = os.path.split(self.path)
        try:
            place_fd = os.open(place, SEARCH)
        except OSError:
            return False
        try:
            found = os.stat(name, dir_fd=place_fd, follow_symlinks=False)
            if not os.path.samestat(found, os.fstat(self.fd)):
                return False
            os.rmdir(name, dir_fd=place_fd)
        except OSError:
            return False
        finally:
            os.close(place_fd)
        return True

    def close(self) -> None:
        """Let go of it without removing it. Idempotent."""
        if not self.closed:
            self.closed = True
            os.close(self.fd)


def _make(dir_fd: int, name: str, kind: str) -> None:
    if kind == "dir":
        os.mkdir(name, 0o700, dir_fd=dir_fd)
    else:
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=dir_fd))


def _unmake(dir_fd: int, name: str, kind: str) -> None:
    try:
        if kind == "dir":
            os.rmdir(name, dir_fd=dir_fd)
        else:
            os.unlink(name, dir_fd=dir_fd)
    except FileNotFoundError:
        pass
