"""Write-behind: what the registry decided, on its way into the store.

Nobody waits for it, because what it says is true already and a slow disk must not keep a caller from its answer. So the
queue is bounded, and what does not fit is not lost but caught up with: the whole truth is read off the registry and
compared with the tables. The same happens when the store starts, after it failed, and half a minute after any change,
so that whatever goes wrong in between is put right by then. While nothing changes, nothing is compared.

Only what the store has committed is acknowledged; until then the registry does not forget it willingly.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import attrs
import trio

from ztrio.activity import PendingSnapshot, PendingStore, PendingWrite

__all__ = ["PendingWriter", "WriterStatistics"]

RESYNC: Final = 30.0
"""Seconds from a change to the comparison that repairs whatever went wrong with it."""

_QUEUED: Final = 1024  # steps that may wait
_BATCH: Final = 128  # steps in one transaction
_BOUND: Final = 10.0  # seconds for the store to take something; then it is handed over once more, which does no harm
_RETRY: Final = 0.5  # seconds between attempts while the store cannot be written

Ack = tuple[str, int]


@attrs.frozen
class WriterStatistics:
    """A snapshot.

    Args:
        waiting: Steps that are not written yet.
        overflowed: How often more waited than fit.
        resyncs: Comparisons so far.
        failing: Whether the last attempt to write failed.
    """

    waiting: int
    overflowed: int
    resyncs: int
    failing: bool


class PendingWriter:
    """Writes what is put, in order.

    Args:
        store: Where to.
        snapshot: Reads the whole truth off the registry, and what of it is to be acknowledged.
        acknowledge: Called with (id, revision) pairs that the store has committed.
    """

    def __init__(
        self,
        store: PendingStore,
        snapshot: Callable[[], tuple[PendingSnapshot, list[Ack]]],
        acknowledge: Callable[[Iterable[Ack]], None],
    ) -> None:
        self._store = store
        self._snapshot = snapshot
        self._acknowledge = acknowledge
        # At most `_QUEUED`; what is being written stays in front until it is committed.
        self._queue: deque[tuple[PendingWrite, Ack | None]] = deque()
        # When everything is to be compared, on trio's clock; None while nothing has changed since the last time.
        self._due: float | None = None
        # Set when there is something to do earlier than was known.
        self._wake = trio.Event()
        # Bumped when the queue is thrown away: what was being written then is not taken off the new one.
        self._generation = 0
        self._overflowed = self._resyncs = 0
        self._failing = False

    @staticmethod
    def now() -> float:
        """The clock that it goes by, seconds."""
        return trio.current_time()

    def put(self, write: PendingWrite, ack: Ack | None = None) -> None:
        """Have a step written, after everything that was put before it."""
        if len(self._queue) >= _QUEUED:
            self._overflowed += 1
            self.compare(now=True)
            return
        self._queue.append((write, ack))
        self.compare(now=False)

    def compare(self, *, now: bool) -> None:
        """Have everything compared, at once or in half a minute."""
        if now:
            self._queue.clear()
            self._generation += 1
            self._due = trio.current_time()
        elif self._due is None:
            self._due = trio.current_time() + RESYNC
        self._wake.set()

    def statistics(self) -> WriterStatistics:
        """A snapshot."""
        return WriterStatistics(len(self._queue), self._overflowed, self._resyncs, self._failing)

    async def run(self) -> None:
        """Write for as long as it is let."""
        while True:
            await self._something_to_do()
            try:
                await self.flush()
                self._failing = False
            except Exception:  # noqa: BLE001 - whatever it is, it was not written, and the next time may do
                self._failing = True
                await trio.sleep(_RETRY)

    async def _something_to_do(self) -> None:
        while not self._queue:
            self._wake = trio.Event()
            with trio.move_on_at(math.inf if self._due is None else self._due) as waiting:
                await self._wake.wait()
            if waiting.cancelled_caught:
                return

    async def flush(self) -> None:
        """Write what there is to write now.

        Raises:
            Exception: the store cannot be written; what was not is still to be.
        """
        while self._queue or (self._due is not None and self._due <= trio.current_time()):
            if self._due is not None and self._due <= trio.current_time():
                await self._resync()
            else:
                await self._write()

    async def _write(self) -> None:
        batch = [self._queue[index] for index in range(min(_BATCH, len(self._queue)))]
        generation = self._generation
        with trio.fail_after(_BOUND):
            await self._store.write_pending([write for write, _ in batch])
        if generation == self._generation:
            for _ in batch:
                self._queue.popleft()
        self._acknowledge([ack for _, ack in batch if ack is not None])

    async def _resync(self) -> None:
        snapshot, acks = self._snapshot()
        due, self._due = self._due, None
        self._queue.clear()
        self._generation += 1
        try:
            with trio.fail_after(_BOUND):
                await self._store.resync_pending(snapshot)
        except BaseException:
            self._due = due
            raise
        self._resyncs += 1
        self._acknowledge(acks)
