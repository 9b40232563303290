"""The audit bus: every decision about a call is an event, seen in one order by everyone.

`AuditBus.publish` is synchronous: number and times, then the reducers in order, then every subscriber's channel, and
no checkpoint in between. So whoever receives an event finds every reducer (gate, statistics) already past it.

Two kinds of subscriber, because they need opposite things. A *viewer* may be slow: when its channel is full it loses
events and is told so by a `gap` event. A *durable* subscriber (the store, a file) loses nothing: when it falls behind,
*new* calls wait in `wait_room`, and the events of calls already admitted always fit, since their number is bounded.
Pressing back on cleanup instead would let a slow disk keep a killed call's locks.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import trio

from ztrio.calls import CallContext
from ztrio.events import AuditEvent, may_see
from ztrio.redaction import Redactor, redacted_text, redacted_values

__all__ = ["EVENTS_PER_CALL", "AuditBus", "AuditEvent", "AuditStatistics", "Subscription", "may_see"]

EVENTS_PER_CALL: Final = 16
"""An upper bound of the events of one call: six at most, then `commit_unanswered`, `pending_call`, …."""


@attrs.frozen
class AuditStatistics:
    """A snapshot of the bus.

    Args:
        published: Events so far.
        viewers: Live subscriptions that may lose events.
        durable: Subscriptions that may not.
        durable_backlog: Events the slowest durable subscriber has not taken yet.
        missed: Events that viewers lost so far.
    """

    published: int
    viewers: int
    durable: int
    durable_backlog: int
    missed: int


class Subscription:
    """An async iterator over events, made by `AuditBus.subscribe`."""

    def __init__(self, bus: AuditBus, capacity: int, wanted: Callable[[AuditEvent], bool], high_water: int | None):
        self._bus = bus
        self._wanted = wanted
        self._send, self._receive = trio.open_memory_channel[AuditEvent](capacity)
        # None for a viewer; for a durable subscriber the backlog beyond which new calls wait.
        self._high_water = high_water
        # Events lost since the last one that fitted; always 0 for a durable subscriber.
        self._missed = 0

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> AuditEvent:
        try:
            return await self.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None

    async def receive(self) -> AuditEvent:
        """Wait for the next event.

        Raises:
            trio.EndOfChannel: the bus was closed.
        """
        if self._missed and not self.backlog:
            await trio.lowlevel.checkpoint()
            if self._missed and not self.backlog:  # else an event came meanwhile, and the gap went in before it
                return self._take_gap()
        event = await self._receive.receive()
        self._bus._drained()
        return event

    def receive_nowait(self) -> AuditEvent:
        """The next event, or raise `trio.WouldBlock`."""
        if self._missed and not self.backlog:
            return self._take_gap()
        event = self._receive.receive_nowait()
        self._bus._drained()
        return event

    @property
    def backlog(self) -> int:
        """Events waiting to be received."""
        return self._send.statistics().current_buffer_used

    @property
    def behind(self) -> bool:
        """Whether new calls must wait for this subscriber."""
        return self._high_water is not None and self.backlog >= self._high_water

    def _deliver(self, event: AuditEvent) -> int:
        """Put one event in; the number of events lost by that."""
        if not self._wanted(event):
            return 0
        try:
            if self._missed:
                self._send.send_nowait(self._peek_gap())
                self._missed = 0
            self._send.send_nowait(event)
        except trio.WouldBlock:
            if self._high_water is not None:
                self._bus.mark_unavailable("subscriber", "a durable audit subscriber is full")
            self._missed += 1
            return 1
        return 0

    def _peek_gap(self) -> AuditEvent:
        return self._bus.stamp(AuditEvent(event="gap", missed=self._missed), numbered=False)

    def _take_gap(self) -> AuditEvent:
        gap = self._peek_gap()
        self._missed = 0
        return gap

    def _close(self) -> None:
        self._send.close()


def _everything(_: AuditEvent) -> bool:
    return True


class AuditBus:
    """Numbers, reduces and distributes audit events. See the module for the order and the two kinds of subscriber.

    Args:
        admitted: The most calls in flight at once, which bounds a durable subscriber's channel.
        recorder: Receives each published event first and must not wait: the store's log.
        redact: Replaces secrets in what tools and callers said, before anybody sees an event.
    """

    def __init__(
        self,
        *,
        admitted: int = 1024,
        recorder: Callable[[AuditEvent], None] | None = None,
        redact: Redactor | None = None,
    ) -> None:
        self._admitted = admitted
        self._recorder = recorder
        self._redact = redact
        self._seq = 0
        self._missed = 0
        self._reducers: list[Callable[[AuditEvent], None]] = []
        self._subscriptions: list[Subscription] = []
        # Set once, when nothing more will be published: whoever subscribes then finds the end.
        self._closed = False
        # Replaced each time it is set: everybody waiting for room re-checks then.
        self._room = trio.Event()
        # Who cannot write → why. While it is not empty, new mutating calls are refused.
        self._unavailable: dict[str, str] = {}
        # Set while the dict is not empty, and while it is; each replaced when it no longer holds.
        self._became_unavailable = trio.Event()
        self._became_available = trio.Event()
        self._became_available.set()

    def add_reducer(self, reducer: Callable[[AuditEvent], None]) -> None:
        """Call `reducer(event)` synchronously for each event, before any subscriber sees it. It must not raise."""
        self._reducers.append(reducer)

    def stamp(self, event: AuditEvent, *, numbered: bool = True) -> AuditEvent:
        """Give `event` its number and times without delivering it, for a transaction that carries it.

        Every event passes here before anybody sees it, so this is where secrets are taken out.
        """
        self._seq += numbered
        return event.evolved(
            **self._without_secrets(event),
            seq=self._seq,
            time=dt.datetime.now(dt.UTC).isoformat(timespec="microseconds"),
            monotonic=trio.current_time(),
        )

    def _without_secrets(self, event: AuditEvent) -> dict[str, Any]:
        """Those facts of an event that hold what tools and callers said, as they may be seen."""
        facts: dict[str, Any] = {}
        if event.reason is not None:
            facts["reason"] = redacted_text(self._redact, event.reason)
        if event.cause is not None:
            facts["cause"] = redacted_text(self._redact, event.cause)
        if event.arguments is not None and self._redact is not None:
            facts["arguments"] = redacted_values(self._redact, event.arguments)
        return facts

    def publish(self, event: AuditEvent) -> AuditEvent:
        """Stamp, record and deliver `event`; the stamped event."""
        stamped = self.stamp(event)
        if self._recorder is not None:
            try:
                self._recorder(stamped)
            except Exception as error:  # noqa: BLE001 - a log that fails must not break the cleanup that publishes
                self.mark_unavailable("log", f"the audit log cannot be written: {type(error).__name__}: {error}")
            else:
                self.mark_available("log")
        self.deliver(stamped)
        return stamped

    def deliver(self, event: AuditEvent) -> None:
        """Show a stamped event to the reducers, then to every subscriber, without a checkpoint.

        Called by itself for an event that a transaction has recorded already.
        """
        for reducer in self._reducers:
            reducer(event)
        for subscription in self._subscriptions:
            self._missed += subscription._deliver(event)

    @asynccontextmanager
    async def subscribe(
        self, *, context: CallContext | None = None, capacity: int = 256, durable: bool = False
    ) -> AsyncIterator[Subscription]:
        """Receive every event published from now on.

        Args:
            context: Show only what this caller may see; None shows everything.
            capacity: Events that may wait; beyond it a viewer gets a `gap`, and new calls wait for a durable one.
            durable: Lose nothing.
        """
        wanted = _everything if context is None else lambda event: may_see(context, event)
        headroom = self._admitted * EVENTS_PER_CALL if durable else 0
        subscription = Subscription(self, capacity + headroom, wanted, capacity if durable else None)
        if self._closed:
            subscription._close()
        else:
            self._subscriptions.append(subscription)
        try:
            yield subscription
        finally:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)
            subscription._close()
            self._drained()

    def close(self) -> None:
        """End every subscription after what it still holds."""
        self._closed = True
        for subscription in self._subscriptions:
            subscription._close()
        self._subscriptions.clear()
        self._drained()

    @property
    def behind(self) -> bool:
        """Whether new calls must wait for a durable subscriber."""
        return any(subscription.behind for subscription in self._subscriptions)

    async def wait_room(self) -> None:
        """Wait until no durable subscriber is behind. Called for new calls only."""
        await trio.lowlevel.checkpoint()
        while self.behind:
            await self._room.wait()

    @property
    def unavailable(self) -> str | None:
        """Why the audit or the store cannot be written now, or None."""
        return next(iter(self._unavailable.values()), None)

    def failing(self, who: str) -> bool:
        """Whether `who` cannot write now."""
        return who in self._unavailable

    def mark_unavailable(self, who: str, why: str) -> None:
        """Say that `who` cannot write: new mutating calls are refused, running ones roll back."""
        if not self._unavailable:
            self._became_available = trio.Event()
        self._unavailable[who] = why
        self._became_unavailable.set()

    def mark_available(self, who: str) -> None:
        """Say that `who` can write again."""
        if self._unavailable.pop(who, None) is not None and not self._unavailable:
            self._became_unavailable = trio.Event()
            self._became_available.set()

    def follow_store(self, why: str | None) -> None:
        """Take over what a store says of itself, see `Store.watch`.

        Args:
            why: Why it cannot be written; None when it can again, and has written what was kept.
        """
        if why is not None:
            self.mark_unavailable("database", f"the store cannot be written: {why}")
        else:
            self.mark_available("database")
            self.mark_available("log")

    async def wait_unavailable(self) -> None:
        """Wait until somebody cannot write."""
        await self._became_unavailable.wait()

    async def wait_available(self) -> None:
        """Wait, while somebody cannot write, until everybody can again."""
        await self._became_available.wait()

    def statistics(self) -> AuditStatistics:
        """A snapshot of the bus."""
        durable = [subscription for subscription in self._subscriptions if subscription._high_water is not None]
        return AuditStatistics(
            published=self._seq,
            viewers=len(self._subscriptions) - len(durable),
            durable=len(durable),
            durable_backlog=max((subscription.backlog for subscription in durable), default=0),
            missed=self._missed,
        )

    def _drained(self) -> None:
        if self._room.statistics().tasks_waiting:
            self._room.set()
            self._room = trio.Event()
