"""Publication of a call's outputs: exchange them all, compare what came out, or put everything back.

For each output there is a *slot*, a directory in the job directory in which the staged object has the target's own
name. EXCHANGE swaps slot and target, so afterwards the slot holds what was displaced: the backup costs nothing and
there is no moment without a target. A target that did not exist is made by a rename that never overwrites.

Comparing comes *after* the exchange. Looking first and exchanging then leaves an instant in which somebody's edit is
displaced unseen; what is already in the slot can no longer be reached by its name. (There is a look before as well,
so that a change that is plain to see is not even exchanged.)

Rolling back decides by identity alone, never by what we remember to have done: an exception may strike between the
operation and the note of it, and an exchange done twice undoes itself. If what we would take back is not what we
published, somebody put it there: then it stays, the backup stays, and both are reported.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from typing import Literal

import attrs

from ztrio.errors import OutputConflict, OutputRejected
from ztrio.publication.exchange import FileOps
from ztrio.publication.identity import Identity, Stat
from ztrio.publication.inspect import Fingerprint, OutputLimits, fingerprint
from ztrio.publication.ownership import Owners
from ztrio.publication.syncing import sync_tree
from ztrio.publication.targets import Target, open_parent

__all__ = ["Publication", "Slot"]

State = Literal["idle", "publishing", "published", "rolling_back", "rolled_back", "kept"]


@attrs.define(kw_only=True)
class Slot:
    """One output between `prepare` and the end of its call.

    Args:
        target: Where it is to go.
        job_fd: The job directory; borrowed.
        job_path: Its path, for people.
        folder: Name of the slot's directory in the job directory.
        folder_identity: Which directory that is; the worker could replace it.
        parent_identity: Which directory held the target at prepare.
        before: The target at prepare, None if there was none.
        before_mode: Its mode then.
        owners: To whom what was copied in belongs.
    """

    target: Target
    job_fd: int
    job_path: str
    folder: str
    folder_identity: Identity
    parent_identity: Identity
    before: Fingerprint | None
    before_mode: int | None
    owners: Owners = attrs.field(factory=dict)

    # What inspection found in the slot; None before it, and for an optional output that was not made.
    staged: Fingerprint | None = None
    # How we are about to publish, set before the operation is tried and never cleared: whether it took effect is
    # told by identities.
    intent: Literal["exchange", "move"] | None = None
    # Whose owner, mode and attributes the staged object has by now; None for nobody's.
    carried: Identity | None = None
    # What stood at the target right before the exchange; set before `intent`.
    displaced: Stat | None = None
    # Directories of target and slot, open from the start of publication until `Publication.close`.
    parent_fd: int | None = None
    slot_fd: int | None = None

    @property
    def path(self) -> str:
        """The staging path, later the backup's."""
        return os.path.join(self.job_path, self.folder, self.target.name)

    @property
    def public(self) -> str:
        """The target's path."""
        return str(self.target.path)


@attrs.define
class Publication:
    """The outputs of one call, all or none.

    Args:
        workspace: Canonical path of the workspace.
        ops: The operations.
        limits: How far to look when comparing.
        slots: The outputs, in the order of publication.
    """

    _workspace: str
    _ops: FileOps
    _limits: OutputLimits
    _slots: Sequence[Slot]

    # `idle` until the first operation that may move a target; `published` only if every one of them succeeded and
    # compared equal; `rolled_back` only if every target is as it was found; `kept` if foreign data was left alone.
    state: State = attrs.field(default="idle", init=False)
    # Paths that the last `roll_back` left because somebody else had changed them.
    kept: tuple[str, ...] = attrs.field(default=(), init=False)
    # Whether what is published must be on the disk; set by `publish` before anything moves.
    _durable: bool = attrs.field(default=False, init=False)

    @property
    def disposable(self) -> bool:
        """Whether the slots hold nothing that anybody could still need."""
        return self.state in ("idle", "published", "rolled_back")

    def open(self) -> None:
        """Open the directories of all slots and see that they are the ones of `prepare`.

        Raises:
            OutputRejected: OUTPUT_UNSAFE, the worker replaced the slot's directory.
            OutputConflict: the target's directory is another one now.
        """
        for slot in self._slots:
            self.open_slot(slot)
            if slot.parent_fd is None:
                slot.parent_fd = self._open_parent(slot)

    def open_slot(self, slot: Slot) -> int:
        """Open the directory that holds a slot's object.

        Raises:
            OutputRejected: OUTPUT_UNSAFE, the worker replaced it.
        """
        if slot.slot_fd is not None:
            return slot.slot_fd
        try:
            fd = self._ops.open_directory(slot.job_fd, slot.folder)
        except (FileNotFoundError, NotADirectoryError):
            raise _folder_replaced(slot) from None
        slot.slot_fd = fd
        found = self._ops.stat(fd, "")
        if found is None or found.identity != slot.folder_identity:
            raise _folder_replaced(slot)
        return fd

    def _open_parent(self, slot: Slot) -> int:
        try:
            fd = open_parent(self._ops, self._workspace, slot.target)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise _conflict(slot, "its directory is gone or was replaced") from error
        try:
            found = self._ops.stat(fd, "")
            if found is None or found.identity != slot.parent_identity:
                raise _conflict(slot, "its directory was replaced by another one")
        except BaseException:
            os.close(fd)
            raise
        return fd

    def publish(self, intent: Callable[[], object] | None = None) -> None:
        """Exchange everything that was made, then compare everything that was displaced.

        Args:
            intent: Writes down durably what is about to move where, and returns when that is done. With it everything
                is brought to the disk, in the order that `syncing` tells; without it nothing is synced.

        Raises:
            OutputConflict: somebody changed a target meanwhile. `roll_back` must follow.
            OSError: as the system reports it. `roll_back` must follow, as after any other exception.
        """
        self.open()
        made = [slot for slot in self._slots if slot.staged is not None]
        self._durable = intent is not None and bool(made)
        self.state = "publishing"
        for slot in made:
            self._get_ready(slot)
        if intent is not None and made:
            intent()
        for slot in made:
            self._put(slot)
        for slot in made:
            self._compare(slot)
        self._sync_directories(made)
        self.state = "published"

    def _get_ready(self, slot: Slot) -> None:
        """All that can be done before anything moves: a look at the target, its metadata carried over, syncing."""
        assert slot.parent_fd is not None and slot.slot_fd is not None
        name, directory = slot.target.name, slot.target.policy.kind == "dir"
        current = self._ops.stat(slot.parent_fd, name)
        self._refuse_changed(slot, current)
        if self._durable and directory:  # before it gets a mode that may keep even its owner from looking
            sync_tree(self._ops, slot.slot_fd, name, self._limits.max_entries)
        if current is not None:
            self._carry(slot, current)
        if self._durable and not directory:
            self._ops.sync_data(slot.slot_fd, name)

    def _carry(self, slot: Slot, current: Stat) -> None:
        assert slot.parent_fd is not None and slot.slot_fd is not None
        try:
            self._ops.carry_metadata(slot.parent_fd, slot.target.name, slot.slot_fd, slot.target.name)
        except FileNotFoundError:
            raise _conflict(slot, "it was removed") from None
        slot.carried = current.identity

    def _put(self, slot: Slot) -> None:
        assert slot.parent_fd is not None and slot.slot_fd is not None
        name = slot.target.name
        current = self._ops.stat(slot.parent_fd, name)
        self._refuse_changed(slot, current)
        directory = slot.target.policy.kind == "dir"
        new_mode = self._loosen(slot.slot_fd, name) if directory else None
        if current is None:
            slot.intent = "move"
            try:
                self._ops.move_new(slot.slot_fd, name, slot.parent_fd, name)
            except FileExistsError:
                raise _conflict(slot, "it was made by somebody else") from None
        else:
            if slot.carried != current.identity:  # another one by now, which may be overwritten
                self._carry(slot, current)
            slot.displaced = current
            slot.intent = "exchange"
            try:
                if directory:
                    self._loosen(slot.parent_fd, name)
                self._ops.exchange(slot.slot_fd, name, slot.parent_fd, name)
            except FileNotFoundError:
                raise _conflict(slot, "it was removed") from None
        if new_mode is not None:
            self._ops.set_mode(slot.parent_fd, name, new_mode)

    def _sync_directories(self, slots: Sequence[Slot]) -> None:
        """Bring the names to the disk: of each slot, and once of each directory that holds targets."""
        if not self._durable:
            return
        parents = {slot.parent_identity: slot.parent_fd for slot in slots}
        for fd in (*parents.values(), *(slot.slot_fd for slot in slots)):
            assert fd is not None
            self._ops.sync_directory(fd)

    def _refuse_changed(self, slot: Slot, current: Stat | None) -> None:
        """Refuse what is plain to see before anything is moved."""
        if current is not None:
            if current.is_dir != (slot.target.policy.kind == "dir") or not (current.is_dir or current.is_file):
                raise _conflict(slot, "something of another kind stands there now")
            if slot.target.policy.existing == "refuse":
                raise _conflict(slot, "it was made by somebody else")
        if slot.target.policy.on_conflict == "overwrite":
            return
        if slot.before is None:
            if current is not None:
                raise _conflict(slot, "it was made by somebody else")
        elif current is None:
            raise _conflict(slot, "it was removed")
        elif current.identity != slot.before.identity or current.mtime_ns != slot.before.mtime_ns:
            raise _conflict(slot, "somebody else changed it")

    def _compare(self, slot: Slot) -> None:
        if slot.intent != "exchange" or slot.target.policy.on_conflict == "overwrite":
            return
        assert slot.slot_fd is not None
        displaced = self._ops.stat(slot.slot_fd, slot.target.name)
        if (
            displaced is None
            or not (displaced.is_dir or displaced.is_file)
            or fingerprint(self._ops, slot.slot_fd, slot.target.name, displaced, self._limits) != slot.before
        ):
            raise _conflict(slot, "somebody else changed it")

    def roll_back(self) -> tuple[str, ...]:
        """Put back what `publish` did, last output first. Does nothing where nothing was done, so it may be repeated.

        Returns:
            Paths that stayed because somebody else had changed them since: the target, or the copy of ours that they
            edited and that lies in the job directory now.

        Raises:
            OSError: something could not be put back; everything else was. Repeating tries it again.
        """
        if self.state == "idle":
            return ()
        self.state = "rolling_back"
        kept: list[str] = []
        failures: list[Exception] = []
        for slot in reversed(self._slots):
            if slot.intent is None:
                continue
            try:
                left = self._take_back(slot)
            except Exception as error:  # noqa: BLE001 - the other outputs must go back whatever befell this one
                failures.append(error)
            else:
                kept += [] if left is None else [left]
        try:
            self._sync_directories([slot for slot in self._slots if slot.intent is not None])
        except OSError as error:
            failures.append(error)
        self.kept = tuple(kept)
        if failures:
            raise failures[0]
        self.state = "kept" if kept else "rolled_back"
        return self.kept

    def _take_back(self, slot: Slot) -> str | None:
        assert slot.parent_fd is not None and slot.slot_fd is not None and slot.staged is not None
        name = slot.target.name
        if not self._is_ours(slot, slot.parent_fd):
            if not self._is_ours(slot, slot.slot_fd):
                return slot.public  # ours is gone from where we put it: replaced, renamed or removed
        else:
            self._loosen(slot.parent_fd, name)
            if slot.intent == "move":
                self._ops.move_new(slot.parent_fd, name, slot.slot_fd, name)
            else:
                self._loosen(slot.slot_fd, name)
                self._ops.exchange(slot.slot_fd, name, slot.parent_fd, name)
            if not self._is_ours(slot, slot.slot_fd):
                # Replaced between look and rename: theirs goes back where they put it.
                if slot.intent == "move":
                    self._ops.move_new(slot.slot_fd, name, slot.parent_fd, name)
                else:
                    self._ops.exchange(slot.slot_fd, name, slot.parent_fd, name)
                return slot.public
        self._restore_mode(slot)
        return slot.path if self._was_edited(slot) else None

    def _is_ours(self, slot: Slot, dir_fd: int) -> bool:
        assert slot.staged is not None
        found = self._ops.stat(dir_fd, slot.target.name)
        return found is not None and found.identity == slot.staged.identity

    def _was_edited(self, slot: Slot) -> bool:
        assert slot.slot_fd is not None
        found = self._ops.stat(slot.slot_fd, slot.target.name)
        if found is None:
            return True
        if found.is_dir and found.permissions & stat.S_IRWXU != stat.S_IRWXU:
            # It may have got a mode from its target that keeps even its owner from looking.
            self._ops.set_mode(slot.slot_fd, slot.target.name, found.permissions | stat.S_IRWXU)
        again = fingerprint(self._ops, slot.slot_fd, slot.target.name, found, self._limits, content=False)
        return again != slot.staged

    def _loosen(self, dir_fd: int, name: str) -> int | None:
        """Make a directory movable: its `..` changes, so its owner needs write permission on it.

        Returns:
            The mode to give back, or None if nothing was changed.
        """
        found = self._ops.stat(dir_fd, name)
        if found is None or not found.is_dir or found.mode & stat.S_IWUSR:
            return None
        self._ops.set_mode(dir_fd, name, found.permissions | stat.S_IWUSR)
        return found.permissions

    def _restore_mode(self, slot: Slot) -> None:
        old = slot.displaced
        if old is None or not old.is_dir or old.mode & stat.S_IWUSR:
            return
        assert slot.parent_fd is not None
        found = self._ops.stat(slot.parent_fd, slot.target.name)
        if found is not None and found.identity == old.identity and found.permissions == old.permissions | stat.S_IWUSR:
            self._ops.set_mode(slot.parent_fd, slot.target.name, old.permissions)

    def close(self) -> None:
        """Close the descriptors. Idempotent."""
        for slot in self._slots:
            for fd in (slot.parent_fd, slot.slot_fd):
                if fd is not None:
                    os.close(fd)
            slot.parent_fd = slot.slot_fd = None


def _conflict(slot: Slot, why: str) -> OutputConflict:
    return OutputConflict(
        f"{slot.target.parameter}: {slot.target.path} is not as it was when the tool started: {why}. Theirs was kept "
        "and nothing of this call was published. Look at it, then repeat the call.",
        parameter=slot.target.parameter,
        path=slot.public,
    )


def _folder_replaced(slot: Slot) -> OutputRejected:
    return OutputRejected(
        f"{slot.target.parameter}: the directory that was made for the output is not there any more; nothing was "
        "published. The tool must not touch anything beside its own paths.",
        code="OUTPUT_UNSAFE",
        parameter=slot.target.parameter,
    )
