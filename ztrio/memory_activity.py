"""The two tables of pending calls, in memory, for `MemoryStore`; the rules are those of `ztrio.activity`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

from ztrio.activity import (
    MAX_ACTIVITY,
    ActivityRow,
    BlockerWrite,
    JournalRow,
    LeftPending,
    PendingSnapshot,
    PendingWrite,
    lost_sight_of,
    untracked,
    updated,
)

__all__ = ["MemoryActivity"]


class MemoryActivity:
    """The tables.

    Args:
        kept: Activity rows kept of each principal, the newest.
    """

    def __init__(self, *, kept: int = MAX_ACTIVITY) -> None:
        self._kept = kept
        # Oldest first, in the order in which their calls were first heard of.
        self._rows: OrderedDict[str, ActivityRow] = OrderedDict()
        # Principal → how many of them; never zero.
        self._of: dict[str, int] = {}
        self._journal: dict[str, JournalRow] = {}
        # Blocker → the calls of its rows; never empty.
        self._folded: dict[str, set[str]] = {}

    def write(self, writes: Sequence[PendingWrite]) -> None:
        """See `PendingStore.write_pending`."""
        for write in writes:
            if write.row is not None:
                self._put(write.row)
            if write.blocker is not None:
                self._settle(write.blocker)
            for call_id in write.drop:
                if call_id in self._journal and write.removes(self._journal[call_id]):
                    del self._journal[call_id]
            if write.put is not None:
                self.append(write.put)

    def append(self, row: JournalRow) -> None:
        """Write a journal row, unless a newer one of the call is there."""
        old = self._journal.get(row.call_id)
        if old is None or old.seq <= row.seq:
            self._journal[row.call_id] = row

    def resync(self, snapshot: PendingSnapshot) -> None:
        """See `PendingStore.resync_pending`."""
        for row in snapshot.rows:
            self._put(row)
        for blocker in snapshot.blockers:
            self._settle(blocker)
        for row in list(self._rows.values()):
            if lost_sight_of(row, snapshot.known):
                self._set(untracked(row))
        self._journal = {row.call_id: row for row in snapshot.journal}

    def left(self) -> LeftPending:
        """See `PendingStore.left_pending`."""
        journal = sorted(self._journal.values(), key=lambda row: (row.seq, row.call_id))
        return LeftPending(
            journal=journal,
            activity={row.call_id: self._rows[row.call_id] for row in journal if row.call_id in self._rows},
            revision=max(
                max((row.revision for row in self._rows.values()), default=0),
                max((row.seq for row in journal), default=0),
            ),
        )

    def activity(self, call_id: str) -> ActivityRow | None:
        """The row of a call, or None."""
        return self._rows.get(call_id)

    def activities(self, principal: str | None, limit: int) -> list[ActivityRow]:
        """The newest rows of a principal, or of all, newest first."""
        wanted = (row for row in reversed(self._rows.values()) if principal in (None, row.principal))
        return list(islice(wanted, limit))

    def _settle(self, write: BlockerWrite) -> None:
        for call_id in sorted(self._folded.get(write.blocker, ())):
            self._set(write.applied(self._rows[call_id]))

    def _put(self, row: ActivityRow) -> None:
        self._set(updated(self._rows.get(row.call_id), row))
        if self._of[row.principal] > self._kept:
            oldest = next(each for each in self._rows.values() if each.principal == row.principal)
            self._remove(oldest)

    def _set(self, row: ActivityRow) -> None:
        old = self._rows.get(row.call_id)
        if old is None:
            self._of[row.principal] = self._of.get(row.principal, 0) + 1
        elif old.blocker != row.blocker:
            self._unfold(old)
        self._rows[row.call_id] = row
        if row.blocker is not None:
            self._folded.setdefault(row.blocker, set()).add(row.call_id)

    def _remove(self, row: ActivityRow) -> None:
        del self._rows[row.call_id]
        self._unfold(row)
        left = self._of[row.principal] - 1
        if left:
            self._of[row.principal] = left
        else:
            del self._of[row.principal]

    def _unfold(self, row: ActivityRow) -> None:
        if row.blocker is None:
            return
        members = self._folded[row.blocker]
        members.remove(row.call_id)
        if not members:
            del self._folded[row.blocker]
