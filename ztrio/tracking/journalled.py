"""A store whose journal of sent writes is in a file; everything else is the store's own.

The two cannot be written at once, so what is written where comes in the order in which a crash in between errs on the
safe side: a row is in the file before the store says anything of its call, and leaves it after the store has said how
the call ended. At worst a call comes back that was over, and then the activity record settles it.

An ordinary call that ends leaves nothing in the activity record, so the store does not hear of it at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import attrs

from ztrio.activity import ActivityRow, JournalRow, LeftPending, PendingSnapshot, PendingWrite
from ztrio.store import Store
from ztrio.tracking.journal import FileJournal

if TYPE_CHECKING:
    from ztrio.activity import PendingStore

__all__ = ["JournalledStore", "journalled"]


def journalled(store: Store, journal: FileJournal) -> Store:
    """The store, with its journal in a file.

    Args:
        store: The store. Rows that its own journal has are found as well, and leave it with the next comparison.
        journal: The file, which is open.
    """
    return cast("Store", JournalledStore(store, journal))


class JournalledStore:
    """What `journalled` gives: a `Store` to whoever calls it, though only the part about pending calls is written out.

    Args:
        store: The store.
        journal: The file, which is open.
    """

    def __init__(self, store: Store, journal: FileJournal) -> None:
        self._store = store
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def append_pending_nowait(self, row: JournalRow) -> None:
        """See `PendingStore`.

        Raises:
            OSError: it cannot be noted, so the call must not be sent.
        """
        self._journal.append(row)

    async def sync_pending(self) -> None:
        """Wait until every write that was noted so far survives the machine.

        Raises:
            OSError: it may not, so none of those that waited may be sent.
        """
        await self._journal.sync()

    async def write_pending(self, writes: Sequence[PendingWrite]) -> None:
        """See `PendingStore`."""
        journal = self._journal
        put, drop = self._net(writes)
        journal.put(put)
        facts = [
            PendingWrite(row=each.row, blocker=each.blocker)
            for each in writes
            if each.row is not None or each.blocker is not None
        ]
        if facts:
            await self._store.write_pending(facts)
        self._drop(drop)
        await journal.tidy()

    async def resync_pending(self, snapshot: PendingSnapshot) -> None:
        """See `PendingStore`."""
        journal = self._journal
        true = {row.call_id for row in snapshot.journal}
        drop = {row.call_id: row for row in journal.left() if row.call_id not in true}
        journal.put([row for row in snapshot.journal if row != journal.get(row.call_id)])
        await self._store.resync_pending(attrs.evolve(snapshot, journal=()))
        self._drop(drop)
        await journal.tidy()

    async def left_pending(self) -> LeftPending:
        """See `PendingStore`."""
        left = await self._store.left_pending()
        rows = {row.call_id: row for row in left.journal} | {row.call_id: row for row in self._journal.left()}
        journal = sorted(rows.values(), key=lambda row: (row.seq, row.call_id))
        activity: dict[str, ActivityRow] = {}
        for call_id in rows:
            known = await self._store.activity(call_id)
            if known is not None:
                activity[call_id] = known
        revision = max([left.revision, *(row.seq for row in journal)])
        return LeftPending(journal=journal, activity=activity, revision=revision)

    async def activity(self, call_id: str) -> ActivityRow | None:
        """See `PendingStore`."""
        return await self._store.activity(call_id)

    async def activities(self, *, principal: str | None, limit: int) -> list[ActivityRow]:
        """See `PendingStore`."""
        return await self._store.activities(principal=principal, limit=limit)

    def _net(self, writes: Iterable[PendingWrite]) -> tuple[list[JournalRow], dict[str, JournalRow]]:
        """What the writes come to: rows to write first, and rows, as they are in the file now, to remove at last."""
        net: dict[str, JournalRow | None] = {}
        for write in writes:
            for call_id in write.drop:
                old = net[call_id] if call_id in net else self._journal.get(call_id)
                if old is not None and write.removes(old):
                    net[call_id] = None
            row = write.put
            if row is not None:
                old = net[row.call_id] if row.call_id in net else self._journal.get(row.call_id)
                if old is None or old.seq <= row.seq:
                    net[row.call_id] = row
        drop = {call_id: self._journal.get(call_id) for call_id, row in net.items() if row is None}
        return (
            [row for row in net.values() if row is not None],
            {call_id: row for call_id, row in drop.items() if row is not None},
        )

    def _drop(self, rows: Mapping[str, JournalRow]) -> None:
        """Remove rows, except where another was written since: what was handed over later takes effect later."""
        self._journal.drop([call_id for call_id, row in rows.items() if self._journal.get(call_id) is row])


if TYPE_CHECKING:

    def _is_pending_store(store: JournalledStore) -> PendingStore:
        return store
