"""Finding records: by id, by connection generation, by id on the wire, by when their time is up.

Every index answers without a walk over records. The heap keeps entries of records that have gone or moved on, which
are recognised when they come up; when more than half of it is such, it is built anew, so that it is never longer than
what is alive, whatever comes and goes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator

from ztrio.pending.bounds import MAX_ROUNDS
from ztrio.pending.records import Blocker, Record
from ztrio.pending.states import State

__all__ = ["Indexes", "due"]

_SLACK = 64


class Indexes:
    """The indexes of all records.

    Args:
        due: When the time of a record is up, in monotonic seconds; infinite for never.
    """

    def __init__(self, due: Callable[[Record], float]) -> None:
        self._due = due
        self.records: dict[str, Record] = {}
        # Server → epoch → what its end concerns: calls that are not final, and blockers by their earliest member.
        self._epochs: dict[str, dict[int, dict[str, Record]]] = {}
        # (transport instance, typed id) → the call whose response has that id; only while one is waited for.
        self._wires: dict[tuple[str, str | int], Record] = {}
        # (when, tie, record); of a record at most one entry is valid: the newest, while that is at its `due`.
        self._heap: list[tuple[float, int, Record]] = []
        self._tie = 0

    def add(self, record: Record) -> None:
        """Find `record` by its id and epoch."""
        call = record.call
        self.records[call.call_id] = record
        self._epochs.setdefault(call.server, {}).setdefault(_epoch(record), {})[call.call_id] = record

    def end(self, record: Record) -> None:
        """The end of its connection means nothing to `record` any more: do not find it by epoch."""
        call = record.call
        epochs = self._epochs.get(call.server, {})
        epoch = _epoch(record)
        concerned = epochs.get(epoch)
        if concerned is not None and concerned.pop(call.call_id, None) is not None and not concerned:
            del epochs[epoch]
            if not epochs:
                del self._epochs[call.server]

    def remove(self, record: Record) -> None:
        """Do not find `record` any more."""
        self.end(record)
        self.unwire(record)
        del self.records[record.call.call_id]

    def of_epochs(self, server: str, epoch: int) -> Iterator[Record]:
        """What the end of `epoch`, and of every one before it, concerns; oldest first."""
        epochs = self._epochs.get(server, {})
        for each in sorted(number for number in epochs if number <= epoch):
            yield from list(epochs[each].values())

    def wire(self, record: Record, wire_id: str | int) -> None:
        """Find `record` by its newest id on the wire, which keeps its JSON type."""
        self.unwire(record)
        record.wire_ids = (*record.wire_ids[1 - MAX_ROUNDS :], wire_id)
        self._wires[record.call.lease.instance, wire_id] = record

    def unwire(self, record: Record) -> None:
        """Do not find `record` by its id on the wire any more."""
        if record.wire_ids:
            key = record.call.lease.instance, record.wire_ids[-1]
            if self._wires.get(key) is record:
                del self._wires[key]

    def by_wire(self, instance: str, wire_id: str | int) -> Record | None:
        """The call that a response with this id answers; None for an id that nobody waits for."""
        return self._wires.get((instance, wire_id))

    def schedule(self, record: Record) -> None:
        """Let `record` come up when its time is up."""
        at = self._due(record)
        if math.isinf(at) or (record.timer and record.timer_at == at):
            return
        if len(self._heap) > 2 * len(self.records) + _SLACK:
            self._compact()
        self._tie += 1
        record.timer, record.timer_at = self._tie, at
        heapq.heappush(self._heap, (at, self._tie, record))

    def next_due(self) -> float:
        """When the next record's time is up; infinite when there is none."""
        while self._heap and not self._valid(*self._heap[0]):
            self._drop(*heapq.heappop(self._heap)[1:])
        return self._heap[0][0] if self._heap else math.inf

    def pop_due(self, now: float) -> Iterator[Record]:
        """Each record whose time is up, in the order of time."""
        while self.next_due() <= now:
            record = heapq.heappop(self._heap)[2]
            record.timer = 0
            yield record

    def _compact(self) -> None:
        kept = []
        for entry in self._heap:
            if self._valid(*entry):
                kept.append(entry)
            else:
                self._drop(*entry[1:])
        heapq.heapify(kept)
        self._heap = kept

    @staticmethod
    def _drop(tie: int, record: Record) -> None:
        if record.timer == tie:
            record.timer = 0

    def _valid(self, when: float, tie: int, record: Record) -> bool:
        known = self.records.get(record.call.call_id) is record
        return known and record.timer == tie and self._due(record) == when

    def sizes(self) -> tuple[int, int, int, int]:
        """Records, ids on the wire, epochs, entries of the heap; for tests and statistics."""
        return (
            len(self.records),
            len(self._wires),
            sum(map(len, self._epochs.values())),
            len(self._heap),
        )


def _epoch(record: Record) -> int:
    return record.min_epoch if isinstance(record, Blocker) else record.call.lease.epoch


def due(record: Record, tombstone: float) -> float:
    """When the time of `record` is up, in monotonic seconds; infinite for never.

    Args:
        record: The record.
        tombstone: Seconds that a settled call is kept.
    """
    if record.state is State.UNRESOLVED:
        return record.ends_at
    if record.resolved_at is not None and not record.gating:
        return record.resolved_at + tombstone
    return math.inf
