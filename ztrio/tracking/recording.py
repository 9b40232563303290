"""What of the registry is in the store: which rows follow from a transition, and which from everything together."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ztrio.activity import PendingSnapshot, PendingStore, PendingWrite
from ztrio.pending import Blocker, JournalRow, Registry, Transition, activity_row, journal_of
from ztrio.tracking.telling import BLOCKER_PREFIX, blocker_of, blocker_write
from ztrio.tracking.writing import Ack, PendingWriter, WriterStatistics

__all__ = ["Records"]


class Records:
    """Writes what the registry decides.

    Args:
        registry: The registry.
        store: The store.
        wall: The wall clock minus trio's, seconds.
        acknowledged: Called when the store has committed something, which may let the registry forget it.
    """

    def __init__(
        self,
        registry: Registry,
        store: PendingStore,
        *,
        wall: Callable[[], float],
        acknowledged: Callable[[], object],
    ) -> None:
        self._registry = registry
        self._store = store
        self._wall = wall
        self._acknowledged = acknowledged
        self._writer = PendingWriter(store, self._snapshot, self._acknowledge)
        # Calls that have a row in the store's journal, or will.
        self._journalled: set[str] = set()

    async def run(self) -> None:
        """Write behind. Runs as long as the supervisor."""
        await self._writer.run()

    async def flush(self) -> None:
        """Write what there is to write now. Whatever the store says against it is known by then."""
        try:
            await self._writer.flush()
        except Exception:  # noqa: BLE001 - what was not written is found by the next start
            return

    def statistics(self) -> WriterStatistics:
        """A snapshot."""
        return self._writer.statistics()

    def journal(self, row: JournalRow | None) -> None:
        """Note a write that is about to be sent, without waiting; None for what needs no note."""
        if row is not None:
            self._store.append_pending_nowait(row)
            self._journalled.add(row.call_id)

    def took_over(self, journal: Iterable[str], drop: Iterable[str]) -> None:
        """An earlier process left a journal; these rows of it mean nothing now. Have everything compared."""
        self._journalled.update(journal)
        self._journalled.difference_update(drop)
        self._writer.compare(now=True)

    def write(self, transition: Transition, wall: float) -> None:
        """Have the rows of a transition written."""
        put = journal_of(transition, wall=wall)
        drop = tuple(call_id for call_id in transition.journal_drop if call_id in self._journalled)
        self._journalled.difference_update(drop)
        if put is not None:
            self._journalled.add(put.call_id)
        call_id, row, blocker = transition.call.call_id, None, None
        if transition.recorded and not transition.forgotten:
            if call_id.startswith(BLOCKER_PREFIX):
                blocker = blocker_write(transition, wall=wall)
            else:
                row = activity_row(transition, wall=wall)
        if row is not None or blocker is not None or put is not None or drop:
            ack = (call_id, transition.seq) if row is not None or blocker is not None else None
            self._writer.put(PendingWrite(row=row, blocker=blocker, put=put, drop=drop, until=transition.seq), ack)

    def _snapshot(self) -> tuple[PendingSnapshot, list[Ack]]:
        wall = self._wall()
        true = self._registry.resync(now=self._writer.now(), wall=wall)
        blockers = [blocker_of(each, wall=wall) for each in self._registry.entries() if isinstance(each, Blocker)]
        # Our own calls in flight have their job rows; only those that may have done something elsewhere were noted.
        journal = [row for row in true.journal if row.call_id in self._journalled]
        snapshot = PendingSnapshot(rows=true.rows, blockers=blockers, known=true.known, journal=journal)
        acks = [(row.call_id, row.revision) for row in true.rows]
        return snapshot, [*acks, *((each.blocker, each.revision) for each in blockers)]

    def _acknowledge(self, acks: Iterable[Ack]) -> None:
        self._registry.acknowledge(list(acks), now=self._writer.now())
        self._acknowledged()
