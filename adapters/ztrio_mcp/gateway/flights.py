"""Calls under way to a server, from the moment their frame is handed to the writer until nothing of them can come.

A flight outlives its caller: when the wait ends without a response, the flight stays as an entry of a table, no task,
and whatever comes for it later is told to the registry. It ends with its response, with the process of its server, or
with the record it stands for, whichever is first; so none is older than the fixed deadline of its exchange.

The caller's task sleeps in `wait`, and the reader of the connection wakes it. Between the two there is no event and no
channel: who is first is decided by which of `answer` and `left` is set, and both are set without a checkpoint.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import attrs
import msgspec
import trio

from ztrio.audit import AuditEvent
from ztrio.pending import Call, State
from ztrio.tracking.telling import PENDING_CALL
from ztrio.tracking.tracker import Tracker
from ztrio.upstream import Death
from ztrio_mcp.peer import Exchange

__all__ = ["MAX_LATE", "Answer", "Flight", "Flights"]

MAX_LATE: Final = 1024
"""Late responses that are waited for at once. Those of calls that were folded are among them: they cost a table entry
each, and each that comes lets its blocker shrink. Beyond it the oldest are not waited for any more."""

# States in which a response is still news: `cancelled` notes what came after all.
_OPEN: Final = frozenset({State.UNRESOLVED.value, State.CANCELLING.value, State.CANCELLED.value})


@attrs.frozen
class Answer:
    """A response.

    Args:
        result: The result, as it came; None for an error.
        error: The JSON-RPC error, as it came.
        malformed: Why it is neither; empty when it is one of them.
    """

    result: msgspec.Raw | None
    error: msgspec.Raw | None = None
    malformed: str = ""


@attrs.define(eq=False, kw_only=True)
class Flight:
    """One call under way."""

    call: Call
    # Seconds without progress after which the wait ends, and the moment on trio's clock after which it ends anyway.
    idle: float | None
    ceiling: float
    # Told of progress, as it came; None where the caller wants none.
    on_progress: Callable[[msgspec.Raw], None] | None
    # Whether the registry has it on its books.
    tracked: bool
    # Its exchange, from the moment that its frame was taken.
    exchange: Exchange | None = None
    # Lets go of the exchange.
    forget: Callable[[], object] = attrs.field(default=lambda: None)
    # Told that the process is dead, while the caller waits.
    lost: Callable[[Death], object] = attrs.field(default=lambda _death: None)
    # Set once by the reader, never after `left`.
    answer: Answer | None = None
    # Set once: the process of the server is dead, or the frame can never be written.
    death: Death | None = None
    unsendable: bool = False
    # The wait is over, or about to be: what comes now is late.
    left: bool = False
    # Ends the wait; its deadline moves with progress.
    limit: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _sleeper: trio.lowlevel.Task | None = None

    @property
    def over(self) -> bool:
        """Whether there is nothing to wait for any more."""
        return self.answer is not None or self.death is not None or self.unsendable

    async def wait(self) -> None:
        """Sleep until it is over. A cancellation that comes first makes everything late that comes after it."""
        if self.over:
            return

        def abort(_: object) -> trio.lowlevel.Abort:
            self._sleeper, self.left = None, True
            return trio.lowlevel.Abort.SUCCEEDED

        self._sleeper = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)

    def wake(self) -> None:
        """It is over."""
        if self._sleeper is not None:
            trio.lowlevel.reschedule(self._sleeper)
            self._sleeper = None

    def progressed(self, now: float) -> None:
        """The server is at it: the idle limit begins anew, within the ceiling."""
        if self.idle is not None and not self.left:
            self.limit.deadline = min(self.ceiling, now + self.idle)


class Flights:
    """The flights of one server.

    Args:
        server: Its name.
        tracker: The registry's shell.
        most: Late responses that are waited for at once.
    """

    def __init__(self, server: str, tracker: Tracker, *, most: int = MAX_LATE) -> None:
        self.server = server
        self._tracker = tracker
        self._most = most
        # Call id → flight, in the order in which they were handed to the writer; of those whose callers wait.
        self._waiting: dict[str, Flight] = {}
        # Call id → flight, oldest first; of those whose callers do not wait any more.
        self._late: OrderedDict[str, Flight] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def only(self) -> str | None:
        """The id of the call whose caller waits, if exactly one does."""
        return next(iter(self._waiting)) if len(self._waiting) == 1 else None

    @property
    def late(self) -> int:
        """Late responses that are waited for."""
        return len(self._late)

    def get(self, call_id: str) -> Flight | None:
        """The flight of a call, whether or not its caller waits."""
        return self._waiting.get(call_id) or self._late.get(call_id)

    def add(self, flight: Flight) -> None:
        """Its frame is about to be handed to the writer."""
        self._waiting[flight.call.call_id] = flight

    def remove(self, flight: Flight) -> None:
        """Nothing of it can come, or it is answered."""
        self._waiting.pop(flight.call.call_id, None)
        if self._late.pop(flight.call.call_id, None) is not None:
            self._tracker.unfollow(flight.call.call_id)

    def leave(self, flight: Flight, blocker: str | None) -> None:
        """Its caller waits no longer; what comes for it is told to the registry.

        Args:
            flight: The flight, whose call is unresolved.
            blocker: What it was folded into at once, or None.
        """
        call_id = flight.call.call_id
        self._waiting.pop(call_id, None)
        flight.on_progress = None
        self._late[call_id] = flight
        self._tracker.follow(call_id, blocker)
        while len(self._late) > self._most:
            self._drop(next(iter(self._late)))

    def died(self, death: Death) -> None:
        """The process of a connection generation is dead, and nothing can come for its calls."""
        for flight in [each for each in self._waiting.values() if each.call.lease.epoch <= death.epoch]:
            flight.lost(death)
        for flight in [each for each in self._late.values() if each.call.lease.epoch <= death.epoch]:
            self._drop(flight.call.call_id)

    def learn(self, event: AuditEvent) -> None:
        """A reducer of the audit bus: a call that is settled is not waited for any more."""
        facts = event.pending
        if event.event == PENDING_CALL and facts is not None and facts["state"] not in _OPEN:
            self._drop(facts["call_id"])

    def _drop(self, call_id: str) -> None:
        flight = self._late.pop(call_id, None)
        if flight is not None:
            self._tracker.unfollow(call_id)
            flight.forget()
