"""The ticket table: calls that touch the same session or the same paths run one after the other, in order.

Why one table and not a lock per key: a call needs its session *and* its targets. Taken one by one, in any order, they
make either deadlocks (a holds the session, b the target) or convoys (a call that waits for its second key blocks its
first). Here a call enters the queue of all its keys in one step without a checkpoint and is granted all of them in
one step, when no earlier ticket conflicts. So the order of `enter` calls is the order of service, and a call waits
only for calls it really conflicts with.

Keys are tuples of strings. Two keys conflict when one is a prefix of the other: equal paths, and a directory with
everything below it. Each granted key is held as a `trio.CapacityLimiter(1)` borrowed on behalf of the ticket, so
that a task other than the one that entered may release it and the statistics are trio's own.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import attrs
import trio

__all__ = ["Key", "KeyedLimiter", "KeyedLimiterStatistics", "Ticket"]

Key = tuple[str, ...]


@attrs.frozen
class KeyedLimiterStatistics:
    """A snapshot of the table.

    Args:
        granted: Tickets that hold their keys.
        waiting: Tickets that wait.
        keys: Key → the statistics of its limiter, for granted keys only.
    """

    granted: int
    waiting: int
    keys: dict[Key, trio.CapacityLimiterStatistics]


@attrs.define(eq=False)
class Ticket:
    """A call's place in the table; made by `KeyedLimiter.enter`, ended by `leave`."""

    holder: Hashable
    keys: frozenset[Key]
    _table: KeyedLimiter
    # Earlier tickets that conflict and are still in the table; the ticket is granted when it becomes empty.
    _blockers: set[Ticket] = attrs.field(factory=set)
    # Later tickets that have this one among their blockers.
    _blocking: set[Ticket] = attrs.field(factory=set)
    _granted: trio.Event = attrs.field(factory=trio.Event)
    # True once left; leaving twice does nothing.
    _left: bool = False

    @property
    def granted(self) -> bool:
        """Whether the ticket holds all its keys."""
        return self._granted.is_set()

    async def wait(self) -> None:
        """Wait until all keys are granted. A cancelled wait keeps the place: call `leave` to give it up."""
        await self._granted.wait()

    def leave(self) -> None:
        """Give up the place or the keys; whoever waited only for this ticket is granted at once."""
        self._table._leave(self)


class KeyedLimiter:
    """The table. See the module for what it decides."""

    def __init__(self) -> None:
        # Tickets that have exactly this key.
        self._at: dict[Key, set[Ticket]] = {}
        # Tickets that have a key strictly below this prefix.
        self._below: dict[Key, set[Ticket]] = {}
        # One borrowed limiter per granted key; a key vanishes with its ticket.
        self._limiters: dict[Key, trio.CapacityLimiter] = {}
        # Tickets in the table, granted or not, and how many of them are granted.
        self._tickets = 0
        self._granted = 0

    def enter(self, holder: Hashable, keys: Iterable[Key]) -> Ticket:
        """Take a place in the queue of every key, without a checkpoint.

        Args:
            holder: Who it is for, shown in the statistics as borrower.
            keys: The keys; equal or nested ones within one call count once.
        """
        ticket = Ticket(holder, frozenset(keys), self)
        for key in ticket.keys:
            ticket._blockers |= self._at.get(key, set()) | self._below.get(key, set())
            for prefix in _prefixes(key):
                ticket._blockers |= self._at.get(prefix, set())
        for blocker in ticket._blockers:
            blocker._blocking.add(ticket)
        for key in ticket.keys:
            self._at.setdefault(key, set()).add(ticket)
            for prefix in _prefixes(key):
                self._below.setdefault(prefix, set()).add(ticket)
        self._tickets += 1
        if not ticket._blockers:
            self._grant(ticket)
        return ticket

    def statistics(self) -> KeyedLimiterStatistics:
        """A snapshot of the table."""
        return KeyedLimiterStatistics(
            granted=self._granted,
            waiting=self._tickets - self._granted,
            keys={key: limiter.statistics() for key, limiter in self._limiters.items()},
        )

    def _grant(self, ticket: Ticket) -> None:
        for key in ticket.keys:
            limiter = self._limiters[key] = trio.CapacityLimiter(1)
            limiter.acquire_on_behalf_of_nowait(ticket)
        self._granted += 1
        ticket._granted.set()

    def _leave(self, ticket: Ticket) -> None:
        if ticket._left:
            return
        ticket._left = True
        self._tickets -= 1
        if ticket.granted:
            self._granted -= 1
            for key in ticket.keys:
                self._limiters.pop(key).release_on_behalf_of(ticket)
        for key in ticket.keys:
            _discard(self._at, key, ticket)
            for prefix in _prefixes(key):
                _discard(self._below, prefix, ticket)
        for blocker in ticket._blockers:
            blocker._blocking.discard(ticket)
        for blocked in ticket._blocking:
            blocked._blockers.discard(ticket)
            if not blocked._blockers:
                self._grant(blocked)


def _prefixes(key: Key) -> Iterable[Key]:
    return (key[:length] for length in range(1, len(key)))


def _discard(index: dict[Key, set[Ticket]], key: Key, ticket: Ticket) -> None:
    tickets = index.get(key)
    if tickets is not None:
        tickets.discard(ticket)
        if not tickets:
            del index[key]
