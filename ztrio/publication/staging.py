"""The private place in which a call's outputs come into being: `Publisher.prepare` makes it, `discard` ends it.

All of this blocks; the supervisor calls each step in a thread. The steps in their order:

    prepare → record("worker_running") → inspect → publish → record("committing_state") → … → discard
                                                   └──────────── roll_back ────────────┘

Where the store is durable, the call's row tells what `committing_state` would.

`roll_back` and `discard` may come at any time, and repeatedly; `close` instead of `discard` leaves everything in place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ztrio.errors import OutputRefused
from ztrio.publication.commit import Publication, Slot
from ztrio.publication.copying import copy_in
from ztrio.publication.entries import described, journal_of
from ztrio.publication.exchange import FileOps
from ztrio.publication.identity import Stat
from ztrio.publication.inspect import Budget, Fingerprint, OutputLimits, fingerprint, inspect_staged
from ztrio.publication.jobdir import JobDirectory
from ztrio.publication.journal import Journal, encode_journal
from ztrio.publication.ownership import Owners, give_back, hand_over, let_pass, make_folder
from ztrio.publication.places import Reached, check_movable, check_replaceable, directory_refused
from ztrio.publication.public import Replacement
from ztrio.publication.recovery_file import RecoveryFile
from ztrio.publication.targets import Target, check_existing, open_parent, refuse, refuse_overlap

__all__ = ["Publisher", "Staging"]


class Publisher:
    """Makes stagings. One per supervisor; any number of threads may use it at once.

    Args:
        workspace: The workspace's directory.
        ops: The file operations.
        limits: Bounds of what is published and compared.
        worker: User and group id that workers run as; this process's own when omitted.
    """

    def __init__(
        self,
        workspace: Path,
        *,
        ops: FileOps | None = None,
        limits: OutputLimits | None = None,
        worker: tuple[int, int] | None = None,
    ) -> None:
        self._workspace = os.path.realpath(workspace)
        # None where nothing can be given to anybody. A worker of root has none of root's privileges.
        self._worker = (worker or (0, os.getegid())) if hasattr(os, "geteuid") and os.geteuid() == 0 else None
        self._ops = FileOps() if ops is None else ops
        self._limits = OutputLimits() if limits is None else limits
        # The store that the calls belong to, for `recovery.json`; set before the first call.
        self._whose: dict[str, Any] = {}
        # What was found to be reached by renaming; shared by all stagings.
        self._reached = Reached()

    def sign(self, store_id: str, *, durable: bool) -> None:
        """Say to which store the calls belong, so that the job directories tell it to whoever finds them.

        Args:
            store_id: The store.
            durable: Whether it survives its process.
        """
        self._whose = {"store_id": store_id, "durable": durable}

    def prepare(
        self, job_id: str, targets: Sequence[Target], *, label: Mapping[str, Any], phase: str = "preparing"
    ) -> Staging:
        """Make the job directory of a call, and see that its outputs can be published later.

        Args:
            job_id: The call's id.
            targets: Its outputs, as `resolve_output` found them.
            label: JSON-like facts about the call for `recovery.json`: session, tool, …; `external` says that the tool
                has effects elsewhere.
            phase: The phase that is reached when it returns: `preparing`, or `worker_running` where there is a worker.

        Raises:
            OutputRefused: a target cannot be published to; OUTPUT_NOT_WRITABLE names the directory.
            LimitExceeded: OUTPUT_TOO_LARGE, a target is too big to be copied in.
            OSError: staging could not be made. In every case nothing is left behind.
        """
        refuse_overlap(targets)
        staging = Staging(self._workspace, job_id, self._ops, self._limits, self._worker, self._reached)
        try:
            staging.make(targets, {**self._whose, **label}, phase)
        except BaseException:
            staging.discard()
            raise
        return staging


class Staging:
    """The staged outputs of one call. Made by `Publisher.prepare`, ended by `discard`."""

    def __init__(
        self,
        workspace: str,
        job_id: str,
        ops: FileOps,
        limits: OutputLimits,
        worker: tuple[int, int] | None,
        reached: Reached,
    ) -> None:
        self._workspace = workspace
        self._job_id = job_id
        self._ops = ops
        self._limits = limits
        self._worker = worker
        self._reached = reached
        # The workspace's comes first; grows only within `make`.
        self._directories: list[JobDirectory] = []
        # One per output, in the order of the targets; complete when `make` returns.
        self._slots: list[Slot] = []
        self._publication = Publication(workspace, ops, limits, self._slots)
        # Whether the tool has effects elsewhere; known when `make` begins.
        self._external = False
        # Set when the workspace's job directory is there.
        self._recovery: RecoveryFile | None = None
        # These two are complete when `make` returns and never change after that.
        self._replacement = Replacement(())
        self._paths: dict[str, str] = {}

    @property
    def paths(self) -> Mapping[str, str]:
        """Parameter → the staging path for the tool. Its parent exists; it does not, except with `copy_in`."""
        return self._paths

    @property
    def job_directory(self) -> Path:
        """The job directory in the workspace."""
        return Path(self._directories[0].path)

    @property
    def tmp(self) -> Path:
        """A private directory for the worker, 0700."""
        return self.job_directory / "tmp"

    @property
    def writable(self) -> tuple[str, ...]:
        """The directories that the worker must be able to write: each slot and `tmp`, not the job directory itself."""
        return (str(self.tmp), *(os.path.dirname(slot.path) for slot in self._slots))

    @property
    def begun(self) -> bool:
        """Whether publication has begun, so that there may be something to roll back."""
        return self._publication.state != "idle"

    def make(self, targets: Sequence[Target], label: Mapping[str, Any], phase: str) -> None:
        """The work of `Publisher.prepare`, which cleans up after it."""
        self._external = bool(label.get("external"))
        home = self._make_home()
        self._recovery = RecoveryFile(self._ops, home.fd, {"job_id": self._job_id, **label})
        self._announce(home, targets)
        budget = Budget(self._limits.max_bytes, self._limits.max_entries)
        for target in targets:
            try:
                parent_fd = open_parent(self._ops, self._workspace, target)
            except OSError as error:
                raise directory_refused(target, error) from error
            try:
                self._slots.append(self._make_slot(target, parent_fd, budget))
            finally:
                os.close(parent_fd)
        self._paths = {slot.target.parameter: slot.path for slot in self._slots}
        self._replacement = Replacement(
            (slot.path, os.path.relpath(slot.path, self._workspace), slot.public) for slot in self._slots
        )
        self.record(phase)

    def _announce(self, home: JobDirectory, targets: Sequence[Target]) -> None:
        """Note where something may be made outside of the workspace's own job directory, before it is.

        The store may not have the call yet, and then whoever comes after a crash has nothing else to go by.
        """
        beside = dict.fromkeys(str(target.path) for target in targets if len(target.parts) > 1)
        if beside:
            assert self._recovery is not None
            places = journal_of(self._job_id, self._workspace, (), (home.path, *beside), external=self._external)
            self._recovery.write("preparing", described(places, ()))

    def record(self, phase: str, **facts: Any) -> None:
        """Note in `recovery.json` that a phase is reached; a call without outputs has none, having nothing to recover.

        Args:
            phase: `preparing`, `worker_running`, `publishing_outputs`, `committing_state` or `committed`.
            facts: JSON-like facts to add: the worker's pid, …

        Raises:
            ValueError: there is no such phase.
            OSError: it cannot be written.
        """
        assert self._recovery is not None
        self._refuse_closed()
        if self._slots or self._external:
            self._recovery.write(phase, {**described(self._journal(), self._slots), **facts})

    def inspect(self) -> None:
        """See whether what the tool made may be published. Only after everything of the worker is proven dead.

        Raises:
            OutputRejected: OUTPUT_MISSING, OUTPUT_UNSAFE.
            LimitExceeded: OUTPUT_TOO_LARGE.
            OSError: as the system reports it.
        """
        self._refuse_closed()
        budget = Budget(self._limits.max_bytes, self._limits.max_entries)
        for slot in self._slots:
            slot_fd = self._publication.open_slot(slot)
            give_back(self._ops, slot_fd, slot.target.name, slot.owners, budget.entries)
            slot.staged = inspect_staged(self._ops, slot_fd, slot.target, budget, self._limits)

    def publish(self, intent: Callable[[bytes], object] | None = None) -> Mapping[str, str]:
        """Put everything that was made and inspected to its target, after noting in `recovery.json` what is to happen.

        Args:
            intent: Writes the journal durably into the call's row, and returns when that is done; called when
                everything staged is on the disk and nothing has moved. Given where the store is durable, and only
                there; not called when there is nothing to publish.

        Returns:
            Parameter → public path, of what was published.

        Raises:
            OutputConflict: somebody else changed a target, or the directory that holds it.
            OSError: as the system reports it. Whatever was raised, `roll_back` puts everything back.
        """
        self.record("publishing_outputs")
        try:
            self._publication.publish(None if intent is None else partial(intent, self.journal()))
        except BaseException:
            self._reached.clear()  # it may have failed because something is mounted otherwise by now
            raise
        return {slot.target.parameter: slot.public for slot in self._slots if slot.staged is not None}

    def journal(self) -> bytes:
        """What the call is about to do to which files, as it is known now; see `journal`."""
        return encode_journal(self._journal())

    def _journal(self) -> Journal:
        directories = [directory.path for directory in self._directories]
        return journal_of(self._job_id, self._workspace, self._slots, directories, external=self._external)

    def roll_back(self) -> tuple[str, ...]:
        """Put everything back as it was. Does nothing where nothing was done.

        Returns:
            Paths that stayed because somebody else had changed them since; the job directory with what was displaced
            then stays as well.

        Raises:
            OSError: something could not be put back; the rest was. May be called again.
        """
        return self._publication.roll_back()

    def discard(self) -> tuple[str, ...]:
        """Remove the job directories, unless they hold what a failed or partial rollback still needs.

        Returns:
            Job directories that are still there.
        """
        if not self._publication.disposable:
            self.close()
            return tuple(directory.path for directory in self._directories)
        self._publication.close()
        # The workspace's own last: as long as it is there, whoever looks for leftovers finds the others through it.
        return tuple(directory.path for directory in reversed(self._directories) if not directory.remove())

    def close(self) -> None:
        """Let go of everything and leave it where it is: for a call whose outcome nobody knows yet."""
        self._publication.close()
        for directory in self._directories:
            directory.close()

    def _refuse_closed(self) -> None:
        # A closed descriptor's number may be somebody else's by now.
        if self._directories[0].closed:
            raise RuntimeError("this staging was discarded or closed")

    def public(self, value: Any) -> Any:
        """A copy of JSON-like data in which staging paths, also within strings, are replaced by public ones."""
        return self._replacement.apply(value)

    def _make_home(self) -> JobDirectory:
        try:
            workspace_fd = self._ops.open_directory(None, self._workspace)
            try:
                home = JobDirectory.make(self._workspace, workspace_fd, self._job_id)
            finally:
                os.close(workspace_fd)
            self._directories.append(home)
            let_pass(home.fd, self._worker)
            make_folder("tmp", home.fd, self._worker)
        except OSError as error:
            raise OutputRefused(
                f"No job directory can be made in the workspace {self._workspace}: {error.strerror}; nothing was "
                "started. Make it writable.",
                code="OUTPUT_NOT_WRITABLE",
                path=self._workspace,
            ) from error
        return home

    def _make_slot(self, target: Target, parent_fd: int, budget: Budget) -> Slot:
        parent = _present(self._ops, parent_fd)
        found = self._ops.stat(parent_fd, target.name)
        if found is not None:
            check_existing(target, found.mode)
            check_replaceable(target, parent, found)
        job = self._directory_for(target, parent_fd, parent)
        if found is not None and found.is_dir:
            check_movable(target, job, parent_fd, found)
        folder = str(len(self._slots))
        make_folder(folder, job.fd, self._worker)
        owners: Owners = {}
        slot_fd = self._ops.open_directory(job.fd, folder)
        try:
            identity = _present(self._ops, slot_fd).identity
            before = None if found is None else self._take(target, parent_fd, slot_fd, found, budget)
            if self._worker is not None:
                owners = hand_over(self._ops, slot_fd, target.name, self._worker, self._limits.max_entries)
        finally:
            os.close(slot_fd)
        return Slot(
            target=target,
            job_fd=job.fd,
            job_path=job.path,
            folder=folder,
            folder_identity=identity,
            parent_identity=parent.identity,
            before=before,
            before_mode=None if found is None else found.permissions,
            owners=owners,
        )

    def _take(self, target: Target, parent_fd: int, slot_fd: int, found: Stat, budget: Budget) -> Fingerprint:
        """Note what stands at the target and copy it in if asked; in this order, so that a later change is noticed."""
        compared = target.policy.on_conflict == "fail"
        try:
            before = fingerprint(self._ops, parent_fd, target.name, found, self._limits, content=compared)
            if target.policy.existing == "copy_in":
                copy_in(self._ops, parent_fd, slot_fd, target, budget)
        except OSError as error:
            raise refuse(target, "OUTPUT_NOT_WRITABLE", f"cannot be taken into account: {error.strerror}") from error
        return before

    def _directory_for(self, target: Target, parent_fd: int, parent: Stat) -> JobDirectory:
        """The job directory from which renaming to the target works."""
        place = str(target.path.parent), parent.identity, target.policy.kind
        if place in self._reached:
            return self._directories[0]
        try:
            for directory in self._directories:
                if directory.reaches(self._ops, parent_fd, target.policy.kind):
                    if directory is self._directories[0]:
                        self._reached.add(place)
                    return directory
            directory = JobDirectory.make(str(target.path.parent), parent_fd, self._job_id)
            self._directories.append(directory)
            let_pass(directory.fd, self._worker)
            if directory.reaches(self._ops, parent_fd, target.policy.kind):
                return directory
        except OSError as error:
            raise directory_refused(target, error) from error
        raise refuse(target, "OUTPUT_NOT_WRITABLE", f"is in {target.path.parent}, within which nothing can be renamed")


def _present(ops: FileOps, dir_fd: int) -> Stat:
    found = ops.stat(dir_fd, "")
    assert found is not None  # an open directory is something
    return found
