"""The registry with a clock, an audit and a store: whoever commands it hands here what it answered.

    transitions = tracker.did(tracker.registry.release(call_id, actor=…, **tracker.moment()))

`did` publishes what changed, in order, and puts it on its way into the store, without a checkpoint, so it is part of
the command. It is not called back by the registry, which knows nobody; that a command's answer is handed in is what the
types say: nothing else makes use of it.

Facts from outside come in through the audit bus: a proof about a call, or the end of a connection generation, is
published by whoever finds it out, and the reducer here tells the registry. Its own events are none of these.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypedDict

import attrs
import trio

from ztrio.activity import PendingStore
from ztrio.audit import AuditBus, AuditEvent
from ztrio.pending import (
    ActivityRow,
    LateOutcome,
    PendingSettings,
    Proof,
    Registry,
    RegistryStatistics,
    Rejected,
    Restored,
    State,
    Transition,
    Transport,
)
from ztrio.tracking.callers import Callers
from ztrio.tracking.notices import Notices, Notify
from ztrio.tracking.recording import Records
from ztrio.tracking.telling import BLOCKER_PREFIX, event_of, line_of
from ztrio.tracking.writing import WriterStatistics

__all__ = ["EPOCH_ENDED", "PROOF", "Moment", "Tracker", "TrackerStatistics"]

PROOF: Final = "pending_proof"
"""Name of the event by which somebody says what became of a call: `pending` has `call_id` and `proof`."""
EPOCH_ENDED: Final = "epoch_ended"
"""Name of the event that a connection generation has ended: `pending` has `server`, `epoch` and `transport`.

A generation is the process of a stdio server, or the session with one over HTTP: so a session that ends is told, too.
"""


_SET: Final = 0.5  # seconds between two clocks by which one of them was set, and did not just run
_PATIENCE: Final = 2.0  # seconds for a store to say what it knows of a call


class Moment(TypedDict):
    """When a command is given."""

    now: float
    seq: int


@attrs.frozen(kw_only=True)
class TrackerStatistics:
    """A snapshot.

    Args:
        registry: The registry.
        writer: What is on its way into the store.
        alarm: When the next call expires, on trio's clock; infinite when none does.
        refused: Calls refused so far, early and when their turn had come.
    """

    registry: RegistryStatistics
    writer: WriterStatistics
    alarm: float
    refused: int


class Tracker:
    """What follows from what the registry decides.

    Args:
        settings: The registry's settings.
        audit: Where it is published.
        store: Where it is written.
        notify: The log.
        wall: The wall clock, seconds since the epoch.

    Attributes:
        registry: The registry.
        records: What of it is in the store, or on its way there.
        callers: Those who have quotas in it.
        notices: What the log is told.
    """

    def __init__(
        self,
        settings: PendingSettings,
        *,
        audit: AuditBus,
        store: PendingStore,
        notify: Notify | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.registry = Registry(settings)
        self.notices = Notices(notify)
        self._store = store
        self._audit = audit
        self._wall = wall
        self.records = Records(self.registry, store, wall=lambda: self.wall, acknowledged=self._set_alarm)
        self.callers = Callers(self.registry)
        # The wall clock minus trio's: what is shown of a moment does not depend on when it is shown.
        self._offset = wall() - trio.current_time()
        # The newest sequence number given out; only grows, over restarts as well.
        self._seq = 0
        # What the expiry sleeps until, and how it is woken when that has become earlier.
        self._alarm = math.inf
        self._sooner = trio.Event()
        # Calls whose end somebody will tell us of, and blockers that they were folded into; None while they were not.
        self._followed: dict[str, str | None] = {}
        # Calls refused so far, wherever.
        self.refused = 0
        # Set once, when no call is to become unresolved any more: the journal has them.
        self.closing = False
        audit.add_reducer(self._learn)

    # ---- time

    @property
    def now(self) -> float:
        """Trio's clock, seconds."""
        return trio.current_time()

    @property
    def wall(self) -> float:
        """The wall clock minus trio's, seconds; the same each time unless one of them was set."""
        offset = self._wall() - trio.current_time()
        if abs(offset - self._offset) > _SET:
            self._offset = offset
        return self._offset

    def next_seq(self) -> int:
        """The next sequence number."""
        self._seq += 1
        return self._seq

    def start_above(self, seq: int) -> None:
        """Give out only sequence numbers above one that an earlier process gave."""
        self._seq = max(self._seq, seq)

    def moment(self) -> Moment:
        """Now, for a command."""
        return {"now": trio.current_time(), "seq": self.next_seq()}

    # ---- what was decided

    def did(self, transitions: Sequence[Transition], *, cause: str | None = None) -> Sequence[Transition]:
        """Publish and write what a command has changed.

        Args:
            transitions: What the registry answered.
            cause: Why, in the words of whoever gave the command.

        Returns:
            The same transitions.
        """
        changed = [each for each in transitions if each.changed]
        if changed:
            wall = self.wall
            for transition in changed:
                if transition.blocker is not None:
                    self._folded(transition.call.call_id, transition.blocker)
                self.records.write(transition, wall)
                if transition.recorded:
                    self._publish(transition, cause)
            self._set_alarm()
        return transitions

    def follow(self, call_id: str, blocker: str | None) -> None:
        """Keep in mind where an unresolved call is, until `proven` says what became of it."""
        self._followed[call_id] = blocker

    def proven(self, call_id: str, outcome: Proof) -> None:
        """Somebody has found out what became of an unresolved call, wherever it is by now."""
        blocker = self._followed.pop(call_id, None)
        registry = self.registry
        if blocker is not None:
            self.did(registry.resolve_member(blocker, proof=outcome, **self.moment()))
        elif registry.get(call_id) is not None:
            self.did(registry.proven(call_id, outcome=outcome, **self.moment()))

    def unfollow(self, call_id: str) -> None:
        """Nobody will tell what became of it."""
        self._followed.pop(call_id, None)

    def late(self, call_id: str, outcome: LateOutcome) -> Sequence[Transition]:
        """The response of a call came whose caller does not wait any more, wherever the call is by now."""
        blocker = self._followed.pop(call_id, None)
        registry = self.registry
        if blocker is not None:
            return self.did(registry.resolve_member(blocker, outcome=outcome, **self.moment()))
        return self.did(registry.resolve_late(call_id, outcome=outcome, **self.moment()))

    def _folded(self, call_id: str, blocker: str) -> None:
        if call_id in self._followed:
            self._followed[call_id] = blocker
        elif call_id.startswith(BLOCKER_PREFIX):
            for each, where in self._followed.items():
                if where == call_id:
                    self._followed[each] = blocker

    def restored(self, restored: Restored, journal: Iterable[str], told: Mapping[str, str]) -> None:
        """Take over what an earlier process left.

        Args:
            restored: What came back.
            journal: Calls that have a row in the store's journal, or are to have one.
            told: Call → the state that the audit has of it already.
        """
        self.records.took_over(journal, restored.drop)
        for transition in restored.transitions:
            if transition.changed:
                self.records.write(transition, self.wall)
                if transition.recorded and told.get(transition.call.call_id) != transition.after:
                    self._publish(transition, None)
        gating = [record.call.call_id for record in self.registry.entries() if record.gating]
        if gating:
            self.notices.say("calls of an earlier run are unresolved", entries=len(gating), newest=gating[-1])
        self._set_alarm()

    def _publish(self, transition: Transition, cause: str | None) -> None:
        self._audit.publish(event_of(transition, cause))
        call = transition.call
        if transition.after is State.UNRESOLVED and transition.before is State.SENT:
            self.notices.say("call unresolved", **line_of(transition))
        elif transition.event == "fold":
            self.notices.say_rarely(
                "calls folded", server=call.server, principal=call.principal, now=transition.at, into=transition.blocker
            )

    # ---- what others found out

    def _learn(self, event: AuditEvent) -> None:
        """A reducer must not raise: a fact about what is not on the books, or is over, means nothing."""
        facts = event.pending
        if facts is None:
            return
        try:
            if event.event == PROOF:
                self.proven(facts["call_id"], Proof(facts["proof"]))
            elif event.event == EPOCH_ENDED:
                transport = Transport(facts["transport"])
                self.did(self.registry.end_epoch(facts["server"], facts["epoch"], transport=transport, **self.moment()))
        except (Rejected, KeyError, ValueError):
            return

    # ---- tasks

    async def expire(self) -> None:
        """End calls when their time has come. Runs as long as the supervisor."""
        self._set_alarm()
        while True:
            self._sooner = trio.Event()
            with trio.move_on_at(self._alarm):
                await self._sooner.wait()
            if self._alarm <= trio.current_time():
                self.did(self.registry.expire(**self.moment()))
                self._alarm = self.registry.next_expiry()

    def _set_alarm(self) -> None:
        at = self.registry.next_expiry()
        if at < self._alarm:
            self._sooner.set()
        self._alarm = at

    # ---- questions

    def statistics(self) -> TrackerStatistics:
        """A snapshot."""
        return TrackerStatistics(
            registry=self.registry.statistics(),
            writer=self.records.statistics(),
            alarm=self._alarm,
            refused=self.refused,
        )

    async def row(self, call_id: str) -> ActivityRow | None:
        """What the store says of a call that may not be on the books any more; None also when it does not answer."""
        if not call_id.isascii():
            return None
        try:
            with trio.move_on_after(_PATIENCE):
                return await self._store.activity(call_id)
        except Exception:  # noqa: BLE001, S110 - whatever it is, the store does not say
            pass
        return None
