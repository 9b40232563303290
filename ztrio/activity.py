"""What a store keeps of pending calls: two tables, and what one step writes into both at once.

The *activity* table says of each call that somebody was not sure about what is known of it. The *journal* has a row for
each write that is on its way or shuts a gate, so that whoever starts next finds the gate as it was. A step of the
registry may touch both, and half of it would be a lie, so a `PendingWrite` is written as a whole.

Rows go by revision and not by arrival: what comes late, or twice, changes nothing, and a final state never goes back,
though facts may still be added to it. That is why whoever does not know whether something was written just writes it
again, and why a snapshot of everything, from time to time, repairs whatever got lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import attrs

from ztrio.pending.states import UNTRACKED, State
from ztrio.pending.transitions import ActivityRow, JournalRow

__all__ = [
    "FINAL",
    "MAX_ACTIVITY",
    "MAX_SEQ",
    "OPEN",
    "ActivityRow",
    "BlockerWrite",
    "JournalRow",
    "LeftPending",
    "PendingSnapshot",
    "PendingStore",
    "PendingWrite",
]

OPEN: Final = tuple(state.value for state in State if not state.terminal)
"""States of calls that are still followed."""

FINAL: Final = tuple(state.value for state in State if state.terminal)
"""States that never change. `untracked` is neither: whoever knows better may say so."""

MAX_ACTIVITY: Final = 4096
"""Activity rows kept of each principal, the newest."""

MAX_SEQ: Final = 2**63 - 1
"""The greatest sequence number that a store can hold."""


@attrs.frozen(kw_only=True)
class BlockerWrite:
    """What happened to a blocker, and so to every call that was folded into it and is still open.

    Args:
        blocker: Id of the blocker.
        revision: The revision that this gives their rows.
        pending_state: Their state now.
        settled_by: Who ended their gate, and how.
        resolved_at: When their state became final, seconds since the epoch.
        into: Id of the blocker that it was merged into, or None.
    """

    blocker: str
    revision: int
    pending_state: str
    settled_by: str | None = None
    resolved_at: float | None = None
    into: str | None = None

    def applied(self, row: ActivityRow) -> ActivityRow:
        """The row of a call, after this."""
        if row.blocker != self.blocker or row.revision >= self.revision or row.pending_state in FINAL:
            return row
        return attrs.evolve(
            row,
            revision=self.revision,
            pending_state=self.pending_state,
            settled_by=self.settled_by or row.settled_by,
            resolved_at=self.resolved_at or row.resolved_at,
            blocker=self.into or row.blocker,
        )


@attrs.frozen(kw_only=True)
class PendingWrite:
    """What one step leaves in the tables, all or nothing.

    Args:
        row: The activity row of a call.
        blocker: What happened to the calls of a blocker.
        put: The journal row to write, or to write anew.
        drop: Ids of journal rows to remove.
        until: The newest sequence number that a row may have which is removed: one of a call that was sent anew is not.
    """

    row: ActivityRow | None = None
    blocker: BlockerWrite | None = None
    put: JournalRow | None = None
    drop: tuple[str, ...] = ()
    until: int = MAX_SEQ

    def removes(self, row: JournalRow) -> bool:
        """Whether a row of the journal goes with this."""
        return row.call_id in self.drop and row.seq <= self.until


@attrs.frozen(kw_only=True)
class PendingSnapshot:
    """Everything that is true now.

    Args:
        rows: Activity rows.
        blockers: What is true of the calls that were folded.
        known: Ids of calls and blockers that are known; whatever else is open in the table is untracked from now on.
        journal: The journal; it has no other rows.
    """

    rows: Sequence[ActivityRow] = ()
    blockers: Sequence[BlockerWrite] = ()
    known: frozenset[str] = frozenset()
    journal: Sequence[JournalRow] = ()


@attrs.frozen(kw_only=True)
class LeftPending:
    """What an earlier process left.

    Args:
        journal: The journal, in the order of the sequence.
        activity: The activity rows of its calls, by id.
        revision: The greatest revision and sequence number that anything has.
    """

    journal: Sequence[JournalRow] = ()
    activity: Mapping[str, ActivityRow] = attrs.field(factory=dict)
    revision: int = 0


class PendingStore(Protocol):
    """The part of a store that is about pending calls. The rules of `ztrio.store.Store` hold here, too."""

    async def write_pending(self, writes: Sequence[PendingWrite]) -> None:
        """Write what some steps leave, all or nothing. It is there when this returns."""

    async def resync_pending(self, snapshot: PendingSnapshot) -> None:
        """Make both tables say what is true, and forget rows of calls that are too many and too old.

        What is handed over after this has been called, in whichever way, takes effect after it.
        """

    def append_pending_nowait(self, row: JournalRow) -> None:
        """Note a write that is about to be sent, without waiting."""

    async def left_pending(self) -> LeftPending:
        """What an earlier process left in the journal."""

    async def activity(self, call_id: str) -> ActivityRow | None:
        """What is known of a call, or None."""

    async def activities(self, *, principal: str | None, limit: int) -> list[ActivityRow]:
        """The newest calls that somebody was not sure about, of a principal or of all, newest first."""


def updated(old: ActivityRow | None, new: ActivityRow) -> ActivityRow:
    """A row after an update that may be late, or known already."""
    if old is None:
        return new
    if new.revision <= old.revision:
        return old
    known = {name: value for name, value in attrs.asdict(new).items() if value is not None}
    if old.pending_state in FINAL:
        known["pending_state"] = old.pending_state
    return attrs.evolve(old, **known)


def lost_sight_of(row: ActivityRow, known: frozenset[str]) -> bool:
    """Whether a row is open and nobody follows its call any more."""
    return row.pending_state in OPEN and row.call_id not in known and (row.blocker is None or row.blocker not in known)


def untracked(row: ActivityRow) -> ActivityRow:
    """The row of a call that nobody follows any more."""
    return attrs.evolve(row, pending_state=UNTRACKED)
