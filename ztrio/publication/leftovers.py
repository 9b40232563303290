"""Job directories that a dead process left: found, looked into, put right as `recovery` decides, removed.

Everything here blocks. Nothing follows a link, and nothing is touched that is not recognisably ours: of the right name
and owner, closed to others, with a `recovery.json` that can be read or none yet. Each deed is followed by another look,
and only when a look finds nothing left to do is the call's outcome written and its directory removed, so that whatever
kills recovery in between, the next one sees the same or less.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import attrs

from ztrio.publication.exchange import FileOps, is_missing
from ztrio.publication.identity import Mark
from ztrio.publication.inspect import OutputLimits, fingerprint
from ztrio.publication.jobdir import JOB_PREFIX, PROBE_PREFIX, JobDirectory
from ztrio.publication.journal import Entry, Journal, JournalDamaged
from ztrio.publication.recovery import Case, Plan, Presence, Sight, Step, plan
from ztrio.publication.recovery_file import RecoveryNote, read_recovery_file

__all__ = ["Found", "Leftovers"]

_JOB_ID: Final = re.compile(r"job_[a-z2-7]{16}")
_ROUNDS: Final = 4  # looks at one call; whoever changes a target faster than that is left to it


@attrs.frozen(kw_only=True)
class Found:
    """A directory in the workspace that has a job directory's name.

    Args:
        job_id: The id in its name.
        foreign: Why it is none of ours, or None.
        damage: Why its `recovery.json` says nothing, or None.
        note: What its `recovery.json` says, if there is one.
    """

    job_id: str
    foreign: str | None = None
    damage: str | None = None
    note: RecoveryNote | None = None


class _Changed(Exception):
    """Somebody was quicker than the move, which was undone; another look decides."""


class Leftovers:
    """Works on what is left in one workspace. Only while nobody else is at work there.

    Args:
        workspace: Canonical path of the workspace.
        durable: Whether what is put right must be on the disk before it is said to be.
        ops: The file operations.
        limits: How far to look into trees.
    """

    def __init__(
        self, workspace: str, *, durable: bool, ops: FileOps | None = None, limits: OutputLimits | None = None
    ) -> None:
        self.workspace = workspace
        self._durable = durable
        self._ops = FileOps() if ops is None else ops
        self._limits = OutputLimits() if limits is None else limits

    # ---- finding

    def find(self) -> list[Found]:
        """Every directory in the workspace that has a job directory's name, by name.

        Raises:
            OSError: the workspace cannot be looked at.
        """
        with self._open(()) as fd:
            assert fd is not None
            listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
            try:
                names = os.listdir(listed)  # names only: a workspace may hold very many files
            finally:
                os.close(listed)
            return [self._examine(fd, name) for name in sorted(names) if name.startswith(JOB_PREFIX)]

    def _examine(self, workspace_fd: int, name: str) -> Found:
        job_id = name.removeprefix(JOB_PREFIX)
        if not _JOB_ID.fullmatch(job_id):
            return Found(job_id=job_id, foreign="its name is not one that a call's directory has")
        try:
            found = os.stat(name, dir_fd=workspace_fd, follow_symlinks=False)
            if (reason := _not_ours(found)) is not None:
                return Found(job_id=job_id, foreign=reason)
            fd = self._ops.open_directory(workspace_fd, name)
            try:
                note = read_recovery_file(fd)
            finally:
                os.close(fd)
        except (OSError, JournalDamaged) as error:
            return Found(job_id=job_id, damage=f"its recovery.json is damaged ({error})")
        if note is not None and note.job_id != job_id:
            return Found(job_id=job_id, damage=f"its recovery.json is that of {note.job_id}")
        return Found(job_id=job_id, note=note)

    # ---- looking

    def plan(self, case: Case) -> Plan:
        """Look, and decide what is to be done. Changes nothing."""
        return plan(case, self._look_at_all(case, {}, change=False))

    def settle(self, case: Case) -> Plan:
        """Look and do, until nothing is left to be done.

        Returns:
            The decision of the last look, which has no moves; where something could not be done it says so.
        """
        failures: dict[Entry, str] = {}
        moved: set[Entry] = set()
        decided = plan(case, self._look_at_all(case, failures, change=True))
        for _ in range(_ROUNDS):
            if not decided.moves:
                break
            for step in decided.moves:
                try:
                    self._do(case.job_id, step)
                    moved.add(step.entry)
                except _Changed:
                    pass
                except OSError as error:
                    failures[step.entry] = f"{step.reason}, but it could not be put right: {_words(error)}"
            decided = plan(case, self._look_at_all(case, failures, change=True))
        for step in decided.moves:
            failures[step.entry] = "somebody keeps changing it"
        if self._durable:
            for entry in moved:
                try:
                    self._sync(case.job_id, entry)
                except OSError as error:
                    failures[entry] = f"it was put right, but that could not be brought to the disk: {_words(error)}"
        return plan(case, self._look_at_all(case, failures, change=True)) if failures else decided

    def _look_at_all(self, case: Case, failures: dict[Entry, str], *, change: bool) -> list[Sight]:
        outputs = () if case.journal is None else case.journal.outputs
        return [self._look_at(case.job_id, entry, failures.get(entry), change=change) for entry in outputs]

    def _look_at(self, job_id: str, entry: Entry, failure: str | None, *, change: bool) -> Sight:
        if failure is not None:
            return Sight(target="unknown", slot="unknown", failure=failure)
        try:
            with self._slot(job_id, entry) as slot_fd, self._parent(entry) as parent_fd:
                slot = self._presence(entry, slot_fd)
                target: Presence = "unknown" if parent_fd is None else self._presence(entry, parent_fd)
                edited = slot == "new" and slot_fd is not None and self._was_edited(entry, slot_fd, change=change)
                lent = target == "old" and parent_fd is not None and self._is_lent(entry, parent_fd)
                return Sight(target=target, slot=slot, edited=edited, lent=lent)
        except OSError as error:
            return Sight(target="unknown", slot="unknown", failure=f"it cannot be looked at: {_words(error)}")

    def _presence(self, entry: Entry, dir_fd: int | None) -> Presence:
        found = None if dir_fd is None else self._ops.stat(dir_fd, entry.path[-1])
        if found is None:
            return "absent"
        if entry.new is not None and entry.new.names(found):
            return "new"
        return "old" if entry.old is not None and entry.old.names(found) else "other"

    def _was_edited(self, entry: Entry, slot_fd: int, *, change: bool) -> bool:
        name, new = entry.path[-1], entry.new
        found = self._ops.stat(slot_fd, name)
        if found is None or new is None:
            return False
        if found.is_dir and found.permissions & stat.S_IRWXU != stat.S_IRWXU:
            # It may have got a mode from its target that keeps even its owner from looking.
            if not change:
                return False
            self._ops.set_mode(slot_fd, name, found.permissions | stat.S_IRWXU)
        now = fingerprint(self._ops, slot_fd, name, found, self._limits, content=False)
        return (now.size, now.mtime_ns, now.digest) != (new.size, new.mtime_ns, new.digest)

    def _is_lent(self, entry: Entry, parent_fd: int) -> bool:
        found = self._ops.stat(parent_fd, entry.path[-1])
        if found is None or not found.is_dir or entry.old_mode is None:
            return False
        mode = int(entry.old_mode, 8)
        return not mode & stat.S_IWUSR and found.permissions == mode | stat.S_IWUSR

    # ---- doing

    def _do(self, job_id: str, step: Step) -> None:
        entry, name = step.entry, step.entry.path[-1]
        with self._slot(job_id, entry) as slot_fd, self._parent(entry) as parent_fd:
            if parent_fd is not None and step.move == "restore mode":
                assert entry.old_mode is not None
                self._ops.set_mode(parent_fd, name, int(entry.old_mode, 8))
            elif parent_fd is None or slot_fd is None:
                raise _Changed
            elif step.move == "take back":
                self._lend(parent_fd, name)
                self._move(entry.new, parent_fd, slot_fd, name)
            elif step.move == "put forward":
                mode = self._lend(slot_fd, name)
                self._move(entry.new, slot_fd, parent_fd, name)
                if mode is not None:
                    self._ops.set_mode(parent_fd, name, mode)
            else:
                self._exchange(step, slot_fd, parent_fd)

    def _move(self, wanted: Mark | None, source_fd: int, target_fd: int, name: str) -> None:
        try:
            self._ops.move_new(source_fd, name, target_fd, name)
        except (FileExistsError, FileNotFoundError):
            raise _Changed from None
        if wanted is None or not wanted.names(self._ops.stat(target_fd, name)):
            self._ops.move_new(target_fd, name, source_fd, name)  # theirs goes back where they put it
            raise _Changed

    def _exchange(self, step: Step, slot_fd: int, parent_fd: int) -> None:
        name, back = step.entry.path[-1], step.move == "exchange back"
        wanted = step.entry.new if back else step.entry.old
        mode = None
        try:
            if not back:
                self._ops.carry_metadata(parent_fd, name, slot_fd, name)
                mode = self._lend(slot_fd, name)
            else:
                self._lend(slot_fd, name)
            self._lend(parent_fd, name)
            self._ops.exchange(slot_fd, name, parent_fd, name)
        except FileNotFoundError:
            raise _Changed from None
        if wanted is None or not wanted.names(self._ops.stat(slot_fd, name)):
            self._ops.exchange(slot_fd, name, parent_fd, name)  # theirs goes back where they put it
            raise _Changed
        if mode is not None:
            self._ops.set_mode(parent_fd, name, mode)

    def _lend(self, dir_fd: int, name: str) -> int | None:
        """Give a directory's owner write permission, without which it cannot be moved; the mode that it had before."""
        found = self._ops.stat(dir_fd, name)
        if found is None or not found.is_dir or found.mode & stat.S_IWUSR:
            return None
        self._ops.set_mode(dir_fd, name, found.permissions | stat.S_IWUSR)
        return found.permissions

    def _sync(self, job_id: str, entry: Entry) -> None:
        with self._slot(job_id, entry) as slot_fd, self._parent(entry) as parent_fd:
            for fd in (parent_fd, slot_fd):
                if fd is not None:
                    self._ops.sync_directory(fd)

    def remove(self, job_id: str, journal: Journal | None, targets: Iterable[str] = ()) -> list[str]:
        """Remove what a call left in the workspace: job directories on every mount, the workspace's own last.

        Args:
            job_id: The call's id.
            journal: What it was about to do, if that is known.
            targets: Absolute paths of its targets; beside them lie job directories that are in no journal yet.

        Returns:
            What is still there.
        """
        places = set[tuple[str, ...]]() if journal is None else set(journal.places)
        beside = {parts[:-1] for parts in map(self.parts_of, targets) if parts}
        left = []
        for place in sorted(places | beside | {()}, key=len, reverse=True):
            with ExitStack() as stack:
                try:
                    fd = stack.enter_context(self._open(place))
                    if fd is not None:
                        _remove_probe(fd, job_id)
                        left += self._remove_from(fd, place, job_id)
                except OSError as error:
                    left.append(f"{os.path.join(self.workspace, *place, JOB_PREFIX + job_id)} ({_words(error)})")
        return left

    def _remove_from(self, place_fd: int, place: tuple[str, ...], job_id: str) -> list[str]:
        name = JOB_PREFIX + job_id
        path = os.path.join(self.workspace, *place, name)
        try:
            if _not_ours(os.stat(name, dir_fd=place_fd, follow_symlinks=False)) is not None:
                return [path]
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place_fd)
        except FileNotFoundError:
            return []
        return [] if JobDirectory(path, fd).remove() else [path]

    def parts_of(self, path: str) -> tuple[str, ...]:
        """The components of an absolute path relative to the workspace; none if it lies elsewhere."""
        root = self.workspace.rstrip("/") + "/"
        return tuple(path.removeprefix(root).split("/")) if path.startswith(root) else ()

    # ---- opening, without following anything

    @contextmanager
    def _open(self, parts: tuple[str, ...]) -> Iterator[int | None]:
        """A directory below the workspace; None if there is none any more."""
        fd: int | None = self._ops.open_directory(None, self.workspace)
        try:
            for name in parts:
                assert fd is not None
                try:
                    below = self._ops.open_directory(fd, name)
                except OSError as error:
                    if not (is_missing(error) or error.errno == errno.ELOOP):
                        raise
                    below = None
                finally:
                    os.close(fd)
                    fd = None
                fd = below
                if fd is None:
                    break
            yield fd
        finally:
            if fd is not None:
                os.close(fd)

    @contextmanager
    def _parent(self, entry: Entry) -> Iterator[int | None]:
        """The directory that held the target; None if it is gone or another one is in its place."""
        with self._open(entry.path[:-1]) as fd:
            yield fd if fd is not None and entry.parent.names(self._ops.stat(fd, "")) else None

    @contextmanager
    def _slot(self, job_id: str, entry: Entry) -> Iterator[int | None]:
        """The directory that holds what is staged; None if it is gone."""
        with self._open((*entry.place, JOB_PREFIX + job_id, entry.folder)) as fd:
            yield fd


def _not_ours(found: os.stat_result) -> str | None:
    """Why something of a job directory's name is none of ours."""
    if not stat.S_ISDIR(found.st_mode):
        return "it is no directory"
    if found.st_uid != os.geteuid():
        return f"it belongs to user {found.st_uid}"
    if stat.S_IMODE(found.st_mode) & ~(stat.S_IRWXU | stat.S_IXGRP | stat.S_ISGID):  # see `ownership.let_pass`
        return f"others may look into it (mode {stat.S_IMODE(found.st_mode):04o})"
    return None


def _remove_probe(dir_fd: int, job_id: str) -> None:
    """What `JobDirectory.reaches` leaves in a target's directory when it is killed in the middle."""
    name = PROBE_PREFIX + job_id
    for remove in (os.unlink, os.rmdir):
        try:
            remove(name, dir_fd=dir_fd)
        except OSError:
            continue


def _words(error: OSError) -> str:
    return error.strerror or str(error)
