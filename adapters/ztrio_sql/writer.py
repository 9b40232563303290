"""The one that writes: it takes everything that waits, has it done in one transaction, and answers all.

So the more calls there are at once, the fewer syncs each of them pays for, and nobody waits for a lock. Operations take
effect in the order in which they were submitted, whoever did. That a call was accepted need not be written at once, if
nobody waits for it: in a moment there is more to say about it, and then all of it is one transaction.

Mostly that is a thread of the store's own. A thread that would have to wait takes the turn itself when it is free (see
`do`): to wake another one and to be woken by it takes as long as the transaction.

While the store cannot be written, whoever waits is told so at once, and what was submitted without waiting is kept and
tried again in its order, as is a transaction that changes nothing, so that it is noticed when the trouble ends.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import attrs
from outcome import Error, Outcome, Value

from ztrio.errors import Outcome as CallOutcome
from ztrio.errors import StoreUnavailable
from ztrio_sql import reading
from ztrio_sql.batches import Batches, CommitRaised
from ztrio_sql.operations import Abort, Touch
from ztrio_sql.reserve import DiskReserve
from ztrio_sql.sqlite import trouble_of
from ztrio_sql.transaction import Operation

__all__ = ["Ticket", "Writer", "WriterStatistics"]

_MAX_BATCH: Final = 512  # operations in a transaction
_MAX_BATCH_BYTES: Final = 16 * 2**20
_LINGER: Final = 0.01  # seconds that a lazy operation waits, so that the death of this process may lose it
_RETRY: Final = 0.5  # seconds between attempts while the store cannot be written
_IDLE: Final = 60.0  # seconds between looks whether there is something to tidy up
_FIRST_LOOK: Final = 2.0  # seconds after the start; whoever waits for it has other worries


@attrs.define(eq=False)
class Ticket:
    """One submitted operation.

    Args:
        operation: The operation.
        awaited: Whether somebody waits for the answer; else it is kept until it is done.
        answer: What came of it; set once, by the writer.
    """

    operation: Operation
    awaited: bool
    answer: Outcome[Any] | None = None

    @property
    def lazy(self) -> bool:
        """Whether it need not be written at once."""
        return self.operation.lazy and not self.awaited


@attrs.frozen
class WriterStatistics:
    """A snapshot of the writer.

    Args:
        waiting: Operations submitted and not done yet.
        batches: Transactions committed so far.
        operations: Operations in them.
        synced: Transactions that were synced.
        trouble: Why the store cannot be written now, or None.
    """

    waiting: int
    batches: int
    operations: int
    synced: int
    trouble: str | None


class Writer:
    """Writes to one database. `run` is its thread; everything else may be called from any.

    Args:
        batches: How batches are written.
        reserve: Space for a full disk.
        deliver: Called in the thread with tickets that were awaited and have their answers.
        report: Called in the thread when the store cannot be written, with the reason, and with None when it can again.
        chore: Called in the thread when it is time to tidy up; an operation that does some of it and answers whether
            there is more.
    """

    def __init__(
        self,
        batches: Batches,
        reserve: DiskReserve,
        *,
        deliver: Callable[[list[Ticket]], None],
        report: Callable[[str | None], None],
        chore: Callable[[], Operation],
    ) -> None:
        self._batches = batches
        self._reserve = reserve
        self._deliver = deliver
        self._report = report
        self._chore = chore
        # Held by whoever takes from the queue and writes.
        self._turn = threading.Lock()
        self._wake = threading.Condition()
        # These are changed under the condition's lock. What waits, oldest first, and how many of them are awaited:
        self._queue: deque[Ticket] = deque()
        self._awaited = 0
        # Until when what waits may wait, by the monotonic clock; meaningless while nothing waits.
        self._due = 0.0
        # Whether nothing more is taken.
        self._closing = False
        # Whether tickets were taken that are not done yet.
        self._busy = False
        # Why the last transaction failed, or None. Changed only by whoever has the turn, like everything below.
        self._trouble: str | None = None
        # Tickets that nobody waits for, of the batch that is in doubt.
        self._uncertain: list[Ticket] = []
        # Whether the reserve is kept, and when to tidy up next, by the monotonic clock.
        self._reserved = False
        self._tidy_at = 0.0
        # Whether what was left while closing has been tried.
        self._last_try = False
        self._operations = 0

    # ---- for everybody

    def do(self, ticket: Ticket) -> None:
        """Have an operation done, in this thread if nobody else is writing. Blocks; the answer may still be to come.

        Raises:
            StoreUnavailable: the store is closed.
        """
        mine = self._trouble is None and self._turn.acquire(blocking=False)
        try:
            self.submit(ticket, wake=not mine)
            if mine:
                self._write(self._pop())
        finally:
            if mine:
                self._turn.release()

    def submit(self, ticket: Ticket, *, wake: bool = True) -> None:
        """Have an operation done after everything submitted before it.

        Args:
            ticket: The operation.
            wake: Whether the thread has to be told.

        Raises:
            StoreUnavailable: the store is closed.
        """
        with self._wake:
            if self._closing:
                raise StoreUnavailable("The store is closed. Nothing was written.")
            now = time.monotonic()
            due = now + _LINGER if ticket.lazy and len(self._queue) < _MAX_BATCH else now
            sooner = not self._queue or due < self._due
            self._queue.append(ticket)
            self._awaited += ticket.awaited
            if sooner:
                self._due = due
                if wake:
                    self._wake.notify()

    def withdraw(self, ticket: Ticket) -> bool:
        """Take an awaited ticket back; False when it is too late, because it is being done or was."""
        with self._wake:
            try:
                self._queue.remove(ticket)
            except ValueError:
                return False
            self._awaited -= 1
            return True

    def close(self) -> None:
        """Take nothing more; the thread ends when everything submitted so far is done or failed."""
        with self._wake:
            self._closing = True
            self._wake.notify()

    @property
    def waiting(self) -> int:
        """Operations submitted and not taken yet."""
        return len(self._queue)

    @property
    def idle(self) -> bool:
        """Whether everything submitted so far is done or failed."""
        with self._wake:
            return not self._queue and not self._busy

    @property
    def trouble(self) -> str | None:
        """Why the store cannot be written now, or None."""
        return self._trouble

    def statistics(self) -> WriterStatistics:
        """A snapshot."""
        batches = self._batches
        return WriterStatistics(self.waiting, batches.written, self._operations, batches.synced, self._trouble)

    # ---- the thread, and whoever takes the turn in its place

    def run(self) -> None:
        """Write until the writer is closed."""
        self._tidy_at = time.monotonic() + _FIRST_LOOK
        self._reserved = self._reserve.keep()
        try:
            while self._wait():
                with self._turn:
                    self._write(self._pop())
                    self._tidy()
        finally:
            with self._turn:
                self._end()

    def _wait(self) -> bool:
        """Wait for something to do, to try again or to tidy up; False at the end."""
        with self._wake:
            until = time.monotonic() + _RETRY if self._trouble is not None else self._tidy_at
            while not self._closing and not (self._trouble is not None and self._awaited):
                at = min(until, self._due) if self._queue and self._trouble is None else until
                left = at - time.monotonic()
                if left <= 0:
                    break
                self._wake.wait(left)
            if self._closing:
                failing = self._trouble is not None
                if self._last_try if failing else not self._queue:
                    return False
                self._last_try = failing
            return True

    def _pop(self) -> list[Ticket]:
        """Take a batch, the oldest first."""
        with self._wake:
            batch: list[Ticket] = []
            room = _MAX_BATCH_BYTES
            while self._queue and len(batch) < _MAX_BATCH and room > 0:
                ticket = self._queue.popleft()
                self._awaited -= ticket.awaited
                batch.append(ticket)
                room -= ticket.operation.size
            self._busy = True
            return batch

    def _write(self, tickets: list[Ticket]) -> None:
        """Do a batch. While there is trouble, an empty one finds out whether there still is."""
        try:
            if tickets or self._trouble is not None:
                self._try(tickets)
        finally:
            with self._wake:
                self._busy = False

    def _try(self, tickets: list[Ticket]) -> None:
        """Do a batch, and answer it whatever comes of it."""
        try:
            if self._batches.in_doubt:
                tickets = self._settle() + tickets  # what is in doubt comes first
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing is written, and the next time may do
            self._fail(tickets, error)
            return
        try:
            answers = self._batches.write([each.operation for each in tickets] or [Touch()])
        except CommitRaised as raised:
            self._look(tickets, raised)
        except Exception as error:  # noqa: BLE001 - the same
            self._fail(tickets, error)
        else:
            self._done(tickets, answers)

    def _settle(self) -> list[Ticket]:
        """Find out about the batch in doubt; what of it is still to be done.

        Raises:
            Exception: nobody can tell yet.
        """
        there = self._is_there()
        uncertain, self._uncertain = self._uncertain, []
        return [] if there else uncertain

    def _is_there(self) -> bool:
        try:
            return self._batches.settle()
        except Exception as error:
            if not _is_full(error) or not self._reserve.spend():
                raise
        self._reserved = False
        return self._batches.settle()  # with the space that was kept back for this

    def _look(self, tickets: list[Ticket], raised: CommitRaised) -> None:
        """COMMIT raised: find out at once whether the batch is there."""
        try:
            there = self._is_there()
        except Exception:  # noqa: BLE001 - the same as in `_try`; what COMMIT raised says more
            self._uncertain = [each for each in tickets if not each.awaited]
            self._fail([each for each in tickets if each.awaited], raised)
            return
        if there:
            self._done(tickets, raised.answers)
        else:
            self._fail(tickets, raised)

    def _done(self, tickets: list[Ticket], answers: list[Outcome[Any]]) -> None:
        for ticket, answer in zip(tickets, answers, strict=False):  # of `Touch` there is no ticket
            ticket.answer = answer
        self._operations += len(tickets)
        if self._trouble is not None:
            self._trouble = None
            self._report(None)
        self._deliver([each for each in tickets if each.awaited])

    def _fail(self, tickets: list[Ticket], error: Exception) -> None:
        """Tell whoever waits, in the batch or after it; keep the rest."""
        why = _words(error)
        with self._wake:
            tickets = [*tickets, *self._queue]
            self._queue.clear()
            self._awaited = 0
        told = [each for each in tickets if each.awaited]
        for ticket in told:
            ticket.answer = self._refusal(ticket.operation, why)
        # An abort that was granted is still to be noted.
        kept = [each for each in tickets if not each.awaited or isinstance(each.answer, Value)]
        with self._wake:
            self._queue.extendleft(Ticket(each.operation, awaited=False) for each in reversed(kept))
        if self._trouble is None:
            self._report(why)
        self._trouble = why
        self._deliver(told)

    def _refusal(self, operation: Operation, why: str) -> Outcome[Any]:
        doubt = self._batches.in_doubt
        if isinstance(operation, Abort) and not doubt:
            # Every COMMIT so far is known to have happened or not, so it is enough to look.
            try:
                row = self._batches.read(lambda connection: reading.job(connection, operation.job_id or ""))
            except Exception as error:  # noqa: BLE001 - the same as in `_try`
                why = _words(error)
            else:
                committed = row is not None and row.outcome is CallOutcome.COMMITTED
                return Value(CallOutcome.COMMITTED if committed else None)
        if doubt:
            return Error(StoreUnavailable(f"The store cannot tell whether this was written: {why}."))
        return Error(StoreUnavailable(f"The store cannot be written: {why}. Nothing was changed."))

    def _tidy(self) -> None:
        """What is nobody's business: after the answers, and only while everything works."""
        if self._trouble is not None:
            return
        self._batches.checkpoint()
        if time.monotonic() < self._tidy_at:
            return
        if not self._reserved:
            self._reserved = self._reserve.keep()
        more = False
        try:
            [done] = self._batches.write([self._chore()])
            more = isinstance(done, Value) and bool(done.value)
        except Exception as error:  # noqa: BLE001 - the same as in `_try`
            self._fail([], error)
        self._tidy_at = time.monotonic() + (0.0 if more else _IDLE)

    def _end(self) -> None:
        with self._wake:
            self._closing = self._busy = True
            left, self._awaited = [each for each in self._queue if each.awaited], 0
            self._queue.clear()
        self._batches.close()
        for ticket in left:
            ticket.answer = Error(StoreUnavailable("The store was closed before this was written."))
        self._deliver(left)


def _cause(error: BaseException) -> BaseException:
    return error.__cause__ or error if isinstance(error, CommitRaised) else error


def _is_full(error: BaseException) -> bool:
    trouble = trouble_of(_cause(error))
    return trouble is not None and trouble.kind == "full"


def _words(error: BaseException) -> str:
    cause = _cause(error)
    trouble = trouble_of(cause)
    return f"{type(cause).__name__}: {cause}" if trouble is None else trouble.sentence
