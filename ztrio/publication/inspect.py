"""Looking at trees: what a target was like, and whether what the tool left in staging may be published.

A tree is walked with directory descriptors and without following anything. One descriptor is open per level, so the
depth is bounded; so are the entries and, in inspection, the bytes. What was inspected cannot change before it is
published, because by then everything that could change it is proven dead.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from typing import Final

import attrs

from ztrio.errors import LimitExceeded, OutputRejected
from ztrio.publication.exchange import FileOps, handle
from ztrio.publication.identity import Identity, Mark, Stat
from ztrio.publication.targets import Target

__all__ = ["Budget", "Fingerprint", "OutputLimits", "TooDeep", "fingerprint", "inspect_staged", "too_large", "walk"]

MAX_DEPTH: Final = 128
"""Levels of directories below an output; each costs a descriptor while the tree is walked."""


@attrs.frozen(kw_only=True)
class OutputLimits:
    """Bounds of what is published and of what is compared.

    Args:
        max_bytes: Bytes that all outputs of a call may have together.
        max_entries: Files and directories that all outputs of a call may have together.
        hash_limit: Bytes up to which the content of a target is hashed to notice that somebody changed it; beyond,
            inode, birth time, size and modification time have to do.
        manifest_entries: Entries of a target directory that are compared; changes beyond go unnoticed.
    """

    max_bytes: int = 1 << 30
    max_entries: int = 100_000
    hash_limit: int = 16 << 20
    manifest_entries: int = 10_000


@attrs.frozen
class Fingerprint:
    """What an object was like; equal fingerprints mean that nobody changed it.

    Args:
        identity: Which object it was.
        size: Bytes of a file, 0 for a directory.
        mtime_ns: Modification time.
        digest: Hash of a file's content or of a directory's manifest; None where it was not taken.
    """

    identity: Identity
    size: int
    mtime_ns: int
    digest: str | None

    def mark(self, *, directory: bool) -> Mark:
        """The object as it is written down, to be known again after a crash."""
        return Mark(
            inode=self.identity.inode,
            born_ns=self.identity.born_ns,
            directory=directory,
            size=self.size,
            mtime_ns=self.mtime_ns,
            digest=self.digest,
        )


class TooDeep(Exception):
    """A tree has more levels than are walked."""


@attrs.define
class Budget:
    """What the outputs of one call may still use."""

    # Both only fall, and inspection ends when one would fall below zero.
    bytes: int
    entries: int

    def spend(self, target: Target, size: int) -> None:
        """Count one entry.

        Raises:
            LimitExceeded: OUTPUT_TOO_LARGE.
        """
        self.bytes -= size
        self.entries -= 1
        if self.bytes < 0 or self.entries < 0:
            what = "bytes" if self.bytes < 0 else "files and directories"
            raise too_large(target, f"the outputs of the call have more {what} than are allowed")


def walk(ops: FileOps, dir_fd: int, name: str, limit: int, *, depth: int = 1) -> Iterator[tuple[str, os.stat_result]]:
    """Everything below the directory `name`, parents first, siblings by name.

    Args:
        ops: The operations.
        dir_fd: The directory that holds `name`.
        name: A directory, not a link.
        limit: Entries listed per directory at most, plus one; the caller counts.
        depth: Level of `name`'s entries.

    Yields:
        Path relative to `name`, and the entry's own status.

    Raises:
        TooDeep: there are more than `MAX_DEPTH` levels.
        OSError: as the system reports it.
    """
    if depth > MAX_DEPTH:
        raise TooDeep
    fd = ops.open_directory(dir_fd, name)
    try:
        for entry, found in ops.list_directory(fd, limit):
            yield entry, found
            if stat.S_ISDIR(found.st_mode):
                for below, status in walk(ops, fd, entry, limit, depth=depth + 1):
                    yield f"{entry}/{below}", status
    finally:
        os.close(fd)


class _Manifest:
    """A running digest over the entries of a directory.

    The change time is in it: no write, however it sets the modification time back, goes without it, and the
    directory's own renaming does not touch its entries' change times.
    """

    def __init__(self) -> None:
        self._hasher = hashlib.sha256()

    def add(self, path: str, found: os.stat_result) -> None:
        facts = (found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        self._hasher.update(os.fsencode(path) + b"\0" + repr(facts).encode())

    def digest(self) -> str:
        return self._hasher.hexdigest()


def fingerprint(
    ops: FileOps, dir_fd: int, name: str, found: Stat, limits: OutputLimits, *, content: bool = True
) -> Fingerprint:
    """Take the fingerprint of a file or directory.

    Args:
        ops: The operations.
        dir_fd: The directory that holds `name`.
        name: A regular file or a directory.
        found: Its status.
        limits: How far to look.
        content: Whether to hash a file's content.

    Raises:
        OSError: it cannot be looked at. A file that may not be read is not hashed, which is no failure.
    """
    if found.is_dir:
        return Fingerprint(found.identity, 0, found.mtime_ns, _manifest(ops, dir_fd, name, limits))
    digest = None
    if content and found.is_file and found.size <= limits.hash_limit:
        try:
            digest = ops.digest(dir_fd, name)
        except PermissionError:
            digest = None
    return Fingerprint(found.identity, found.size, found.mtime_ns, digest)


def _manifest(ops: FileOps, dir_fd: int, name: str, limits: OutputLimits) -> str:
    manifest = _Manifest()
    left = limits.manifest_entries
    try:
        for path, status in walk(ops, dir_fd, name, left):
            if not left:
                break
            left -= 1
            manifest.add(path, status)
    except (TooDeep, PermissionError):
        pass  # the digest of what can be seen; seen again, it is the same
    return manifest.digest()


def inspect_staged(
    ops: FileOps, dir_fd: int, target: Target, budget: Budget, limits: OutputLimits
) -> Fingerprint | None:
    """Decide whether what the tool left for `target` may be published.

    Args:
        ops: The operations.
        dir_fd: The directory that holds the staged object under the target's name.
        target: What it is for.
        budget: Spent as entries are seen.
        limits: The bounds, for the fingerprint.

    Returns:
        Its fingerprint (a file's without content); None if there is nothing and need not be.

    Raises:
        OutputRejected: OUTPUT_MISSING, OUTPUT_UNSAFE.
        LimitExceeded: OUTPUT_TOO_LARGE.
    """
    found = ops.stat(dir_fd, target.name)
    if found is None:
        if not target.policy.required:
            return None
        raise OutputRejected(
            f"{target.parameter}: the tool made no {_kind(target)} at its path; nothing was published. The tool must "
            "make what it declares, or declare it with required=False.",
            code="OUTPUT_MISSING",
            parameter=target.parameter,
        )
    if found.is_dir != (target.policy.kind == "dir"):
        raise _unsafe(target, target.name, f"is not a {_kind(target)}, which is what the tool declares")
    _check_entry(target, target.name, found.mode, found.links)
    budget.spend(target, 0 if found.is_dir else found.size)
    _refuse_capabilities(target, dir_fd, target.name, target.name)
    if not found.is_dir:
        return fingerprint(ops, dir_fd, target.name, found, limits, content=False)
    return _inspect_tree(ops, dir_fd, target, found, budget, limits)


def _inspect_tree(
    ops: FileOps, dir_fd: int, target: Target, top: Stat, budget: Budget, limits: OutputLimits
) -> Fingerprint:
    manifest = _Manifest()
    left = limits.manifest_entries
    try:
        fd = ops.open_directory(dir_fd, target.name)
        try:
            for path, status in walk(ops, dir_fd, target.name, budget.entries):
                _check_entry(target, path, status.st_mode, status.st_nlink)
                budget.spend(target, 0 if stat.S_ISDIR(status.st_mode) else status.st_size)
                _refuse_capabilities(target, fd, path, path)
                if left:
                    left -= 1
                    manifest.add(path, status)
        finally:
            os.close(fd)
    except TooDeep:
        raise too_large(target, f"the output has more than {MAX_DEPTH} levels of directories") from None
    except PermissionError as error:
        raise _unsafe(target, str(error.filename or target.name), "cannot be read") from error
    return Fingerprint(top.identity, 0, top.mtime_ns, manifest.digest())


def _check_entry(target: Target, path: str, mode: int, links: int) -> None:
    if stat.S_ISDIR(mode):
        # Set-group-id on a directory is inherited from the workspace and only passes on its group.
        if mode & stat.S_ISUID:
            raise _unsafe(target, path, "is a set-user-id directory")
        return
    if stat.S_ISLNK(mode):
        raise _unsafe(target, path, "is a symbolic link")
    if not stat.S_ISREG(mode):
        raise _unsafe(target, path, "is a device, a pipe or a socket")
    if links != 1:
        raise _unsafe(target, path, f"has {links} hard links, so it could be changed from elsewhere later")
    if mode & (stat.S_ISUID | stat.S_ISGID):
        raise _unsafe(target, path, "is a set-user-id or set-group-id program")


def _refuse_capabilities(target: Target, dir_fd: int, name: str, path: str) -> None:
    # File capabilities are set-user-id by another name, and only a privileged worker can have set them.
    if os.geteuid() != 0 or not hasattr(os, "getxattr"):
        return
    with handle(dir_fd, name) as (place, _):
        try:
            os.getxattr(place, "security.capability")
        except OSError as error:
            if error.errno in (errno.ENODATA, errno.ENOTSUP):
                return
            raise
    raise _unsafe(target, path, "carries capabilities")


def _kind(target: Target) -> str:
    return "directory" if target.policy.kind == "dir" else "file"


def _unsafe(target: Target, path: str, why: str) -> OutputRejected:
    return OutputRejected(
        f"{target.parameter}: {path!r} in what the tool made {why}; nothing was published. Outputs are regular files "
        "and directories.",
        code="OUTPUT_UNSAFE",
        parameter=target.parameter,
        path=path,
    )


def too_large(target: Target, why: str) -> LimitExceeded:
    """The refusal of an output beyond its bounds."""
    return LimitExceeded(
        f"{target.parameter}: {why}; nothing was published. Produce less, or raise the bound.",
        code="OUTPUT_TOO_LARGE",
        parameter=target.parameter,
    )
