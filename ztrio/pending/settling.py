"""How entries end: a late response, a cancel, a read, a proof, the operator's word, the end of a connection, time.

A cancel has three steps, because telling the upstream takes time and the answer may come meanwhile. `claim_cancel`
makes one canceller the winner; it sends, outside and within a bound; `finish_cancel` says how that went. Whatever
happened in between has happened: a response or a reset that came first stays the state, and the entry notes that a
cancel was asked for. The gate stays shut all the while.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ztrio.pending.books import Books
from ztrio.pending.reasons import ActorKind, LateOutcome, Proof, Transport
from ztrio.pending.reconcile import qualifies
from ztrio.pending.records import Blocker, Record
from ztrio.pending.states import Effect, Event, Rejected, State, rule
from ztrio.pending.transitions import ANNOTATE, MEMBER, Transition, report

__all__ = ["Settling"]

_SETTLES: Final = frozenset({Proof.COMMITTED, Proof.ROLLED_BACK, Proof.NOT_STARTED})


class Settling(Books):
    """What ends an entry."""

    # ---- responses

    def resolve_late(self, call_id: str, *, outcome: LateOutcome, now: float, seq: int) -> list[Transition]:
        """A response came, and its caller does not wait any more, whether or not the entry is made yet.

        Returns:
            Nothing for a call that is not on the books: the response is dropped, and counted.
        """
        record = self._indexes.records.get(call_id)
        if record is None:
            self._unmatched += 1
            return []
        what = rule(record.state, Event.LATE_RESPONSE)
        if what.to is not None:
            record.late_outcome = outcome
        elif what.effect is Effect.ANNOTATE and record.late_outcome is None:
            record.late_outcome = outcome
            return self._noted(record, ANNOTATE, now=now, seq=seq)
        else:
            self._unmatched += 1
        return self._step(record, Event.LATE_RESPONSE, now=now, seq=seq)

    def resolve_member(
        self,
        blocker_id: str,
        *,
        now: float,
        seq: int,
        outcome: LateOutcome | None = None,
        proof: Proof | None = None,
    ) -> list[Transition]:
        """One call of a blocker turned out after all. The last one resolves the blocker.

        A blocker does not know its calls by name, so whoever calls this sees to it that each is told of once.

        Args:
            blocker_id: The blocker.
            outcome: What the call's late response said.
            proof: What the upstream proved of the call, instead.
            now: Monotonic seconds.
            seq: The sequence number.

        Returns:
            Nothing for a blocker that is not on the books.
        """
        blocker = self._indexes.records.get(blocker_id)
        if not isinstance(blocker, Blocker) or (outcome is None and proof not in _SETTLES):
            return []
        if blocker.state.terminal:
            return [report(blocker, MEMBER, blocker.state, at=now, changed=False)]
        blocker.count -= 1
        if blocker.count:
            blocker.revision = seq
            return [report(blocker, MEMBER, blocker.state, at=now, journal_put=True)]
        blocker.late_outcome = outcome
        return self._step(blocker, Event.PROOF if outcome is None else Event.LATE_RESPONSE, now=now, seq=seq)

    def match(self, instance: str, wire_id: str | int) -> str | None:
        """The call that a response answers, by its transport and typed id; None, counted, when nobody waits for it."""
        record = self._indexes.by_wire(instance, wire_id)
        if record is None:
            self._unmatched += 1
            return None
        return record.call.call_id

    def progress(self, call_id: str, *, now: float) -> None:
        """The upstream reported progress of a call; of one that is not on the books that means nothing."""
        record = self._indexes.records.get(call_id)
        if record is not None:
            record.last_progress = max(record.last_progress, now)

    def lose_sight(self, call_id: str, *, now: float, seq: int) -> list[Transition]:
        """The stream on which a late response would come is gone."""
        record = self._indexes.records.get(call_id)
        if record is None or not self._accounts[record.call.principal].unwatch(record):
            return []
        self._indexes.unwire(record)
        return self._noted(record, "lose_sight", now=now, seq=seq)

    # ---- cancel

    def claim_cancel(self, call_id: str, *, actor: ActorKind, now: float, seq: int) -> list[Transition]:
        """The first step of a cancel: become the one who tells the upstream.

        Returns:
            A change when this caller won. No change, and the state, when somebody else is at it or it is over.

        Raises:
            Rejected: `not_unresolved` for a call that somebody waits for, `already_sent` when a cancel went out before,
                `id_unknown` for a blocker, whose calls have no ids any more, `unknown`. Nothing was changed.
        """
        record = self._find(call_id)
        if isinstance(record, Blocker):
            raise Rejected("id_unknown", record.state)
        if record.cancel_sent and (record.open_end or record.held):
            raise Rejected("already_sent", record.state)
        return self._step(record, Event.CLAIM_CANCEL, now=now, seq=seq, actor=actor)

    def finish_cancel(self, call_id: str, *, told: bool, frame_sent: bool, now: float, seq: int) -> list[Transition]:
        """The last step of a cancel, by whoever claimed it.

        Args:
            call_id: The call.
            told: Whether the upstream was told. If not, the call is unresolved again.
            frame_sent: Whether a byte of the cancel may have gone out; then no other will.
            now: Monotonic seconds.
            seq: The sequence number.

        Raises:
            Rejected: nobody has claimed it. Nothing was changed.
        """
        record = self._indexes.records.get(call_id)
        if record is None:
            return []
        event = Event.CANCEL_TOLD if told else Event.CANCEL_FAILED
        rule(record.state, event)
        record.cancel_sent = record.cancel_sent or told or frame_sent
        return self._step(record, event, now=now, seq=seq)

    # ---- reads, proofs, the operator

    def _reconcile(
        self, read: Record, named: Sequence[str], *, now: float, seq: int, actor: ActorKind
    ) -> list[Transition]:
        """Settle what a read that just succeeded settles: what it names, and what is quiet by now."""
        call, account = read.call, self._accounts[read.call.principal]
        recent = self._settings.bounds.progress
        chosen = {
            record.call.call_id: record
            for record in account.gating(call.server, call.gate_scope, every=False)
            if qualifies(record, read, named=False, now=now, progress=recent)
        }
        for name in named:
            record = self._indexes.records.get(name)
            if record is not None and qualifies(record, read, named=True, now=now, progress=recent):
                chosen[name] = record
        changes: list[Transition] = []
        for record in chosen.values():
            changes += self._step(record, Event.RECONCILE, now=now, seq=seq, actor=actor)
        return changes

    def release(self, call_id: str, *, actor: ActorKind, now: float, seq: int) -> list[Transition]:
        """The operator says that it is settled, whatever happened.

        Raises:
            Rejected: `not_unresolved`, `being_cancelled`, `unknown`. Nothing was changed.
        """
        record = self._find(call_id)
        if record.claimed:
            raise Rejected("being_cancelled", record.state)
        return self._step(record, Event.RELEASE, now=now, seq=seq, actor=actor)

    def proven(self, call_id: str, *, outcome: Proof, now: float, seq: int) -> list[Transition]:
        """The upstream's own record says what became of the call.

        Raises:
            Rejected: `not_unresolved`, `unknown`. Nothing was changed.
        """
        record = self._find(call_id)
        if isinstance(record, Blocker):
            return self.resolve_member(call_id, now=now, seq=seq, proof=outcome)
        if outcome not in _SETTLES:
            return [report(record, Event.PROOF, record.state, at=now, changed=False)]
        return self._step(record, Event.PROOF, now=now, seq=seq)

    def refused(self, call_id: str, *, now: float, seq: int) -> list[Transition]:
        """The upstream's answer proves that it did not process the call.

        Raises:
            Rejected: `not_sent_yet`. Nothing was changed.
        """
        record = self._indexes.records.get(call_id)
        return [] if record is None else self._step(record, Event.REFUSED, now=now, seq=seq)

    # ---- connections and time

    def end_epoch(self, server: str, epoch: int, *, transport: Transport, now: float, seq: int) -> list[Transition]:
        """A connection generation has ended, and with it every one before it.

        Of a stdio server the process tree is proven dead by then: what was sent is `connection_reset`, what was not is
        `not_sent`, and a call that is marked later gets the same. Over other transports only what was not sent ends,
        since a new connection can go on with the rest.
        """
        changes: list[Transition] = []
        stdio = transport is Transport.STDIO
        if stdio:
            self._floor[server] = max(self._floor.get(server, epoch), epoch)
        for record in self._indexes.of_epochs(server, epoch):
            if isinstance(record, Blocker) or record.call.call_id not in self._indexes.records:
                continue  # one may have been folded by the end of another
            if stdio or record.state is State.RESERVED:
                changes += self._step(record, Event.EPOCH_ENDED, now=now, seq=seq)
        if stdio:  # blockers last, with what was folded just now
            left = self._indexes.of_epochs(server, epoch)
            for blocker in [each for each in left if isinstance(each, Blocker)]:
                changes += self._reset_blocker(blocker, epoch, now=now, seq=seq)
        return changes

    def _reset_blocker(self, blocker: Blocker, epoch: int, *, now: float, seq: int) -> list[Transition]:
        """Some calls of a blocker, or all of them, have lost their connection."""
        over = blocker.call.lease.epoch <= epoch
        holds = blocker.stays or self._settings.holds(blocker, State.CONNECTION_RESET)
        if over and not holds:
            return self._step(blocker, Event.EPOCH_ENDED, now=now, seq=seq)
        self._indexes.end(blocker)
        if not over:
            blocker.min_epoch = epoch + 1
            self._indexes.add(blocker)
        blocker.stays, blocker.was_observable = holds, blocker.was_observable and not over
        return self._noted(blocker, "hold", now=now, seq=seq)

    def expire(self, *, now: float, seq: int) -> list[Transition]:
        """End what has come to its last moment, and let go of settled calls that have been kept long enough."""
        changes: list[Transition] = []
        for record in self._indexes.pop_due(now):
            if record.state.terminal:
                if record.acknowledged < record.revision:
                    record.overdue = True
                else:
                    account = self._accounts[record.call.principal]
                    changes += self._folding.forget(account, record, now=now, seq=seq)
            elif isinstance(record, Blocker) and self._settings.holds(record, State.EXPIRED):
                record.stays, record.was_observable = True, False
                changes += self._noted(record, "hold", now=now, seq=seq)
            else:
                changes += self._step(record, Event.EXPIRE, now=now, seq=seq)
        return changes

    def next_expiry(self) -> float:
        """When `expire` has something to do, in monotonic seconds; infinite when there is nothing."""
        return self._indexes.next_due()

    def acknowledge(self, committed: Iterable[tuple[str, int]], *, now: float) -> None:
        """The store has committed these (id, revision)."""
        for call_id, revision in committed:
            record = self._indexes.records.get(call_id)
            if record is None:
                continue
            record.acknowledged = max(record.acknowledged, revision)
            if record.overdue and record.acknowledged >= record.revision:
                account = self._accounts[record.call.principal]
                self._folding.forget(account, record, now=now, seq=record.revision)
