"""What the store keeps of pending calls, and how they come back from it.

The journal says which writes may have happened, the activity record what was known of them. After a restart nobody
listens on any connection: what was sent over HTTP is unresolved and cannot be observed, what was sent to a process of
ours ended with it, and what our own tools left is as unresolved as it was. All of it comes back through the accounts,
so every cap holds from the first moment, whatever an earlier process was allowed to keep.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from ztrio.pending.bounds import Account
from ztrio.pending.reasons import LateOutcome, Reason, Tier, Transport
from ztrio.pending.records import BLOCKER_PREFIX, Blocker, Call, Lease, Record
from ztrio.pending.settling import Settling
from ztrio.pending.states import HOLDABLE, UNTRACKED, State
from ztrio.pending.tiers import CAUTION
from ztrio.pending.transitions import ActivityRow, JournalRow, Transition, activity_of, journal_of, report

__all__ = ["RESTORE", "Restored", "Restoring", "Resync"]

RESTORE: Final = "restore"


@attrs.frozen
class Resync:
    """Everything that is true now, for a store that may have missed some of it.

    Args:
        rows: The activity rows of all calls that are not in flight.
        known: Ids of calls and blockers on the books. A row that is not final and neither of a known call nor folded
            into a known blocker is untracked.
        journal: The journal, whole.
    """

    rows: list[ActivityRow]
    known: frozenset[str]
    journal: list[JournalRow]


@attrs.frozen
class Restored:
    """What came back.

    Args:
        transitions: What was done, to be published and written.
        drop: Journal rows of calls that were settled before, which are to be removed.
    """

    transitions: list[Transition]
    drop: list[str]


class Restoring(Settling):
    """What goes to the store, and comes back."""

    def journal_row(
        self, call_id: str, *, now: float, wall: float, wire_id: str | int | None = None
    ) -> JournalRow | None:
        """The journal row of a write that is reserved, to be appended before it is claimed.

        Args:
            call_id: The call.
            now: Monotonic seconds.
            wall: The wall clock minus the monotonic one, in seconds.
            wire_id: The id that it will have on the wire.

        Returns:
            None for a read, which needs none, and for what is not reserved.
        """
        record = self._indexes.records.get(call_id)
        if record is None or record.state is not State.RESERVED or record.gate_tier is Tier.READ:
            return None
        record.journaled = True
        call = record.call
        ends = None if call.transport is Transport.LOCAL else now + call.ceiling + self._settings.bounds.ttl + wall
        wire_ids = () if wire_id is None else (wire_id,)
        return attrs.evolve(_journal_of(record, now, wall), wire_ids=wire_ids, expires_at=ends)

    def resync(self, *, now: float, wall: float) -> Resync:
        """Everything that is true now.

        Args:
            now: Monotonic seconds.
            wall: The wall clock minus the monotonic one, in seconds.
        """
        rows = [activity_of(record, wall=wall) for record in self.entries() if not isinstance(record, Blocker)]
        everything = self._indexes.records
        journal = [_journal_of(record, now, wall) for record in everything.values() if record.journaled]
        return Resync(rows, frozenset(everything), journal)

    def restore(
        self, journal: Iterable[JournalRow], activity: Mapping[str, ActivityRow], *, now: float, wall: float, seq: int
    ) -> Restored:
        """Take up what an earlier process left, before the first call.

        Somebody who is not configured any more has an account for it all the same, as long as there is one to spare.

        Args:
            journal: The journal, in the order of `seq`.
            activity: The activity rows of its calls, by id.
            now: Monotonic seconds.
            wall: The wall clock minus the monotonic one, in seconds.
            seq: A sequence number above every one that the store has.
        """
        transitions: list[Transition] = []
        drop: list[str] = []
        for row in journal:
            account = self._account_of_the_past(row.principal)
            record = _back(row, activity.get(row.call_id), now=now, wall=wall, seq=seq)
            if account is None or record is None or not self._still_gates(record):
                drop.append(row.call_id)
            else:
                transitions += self._take_back(account, record, now=now, seq=seq)
        return Restored(transitions, drop)

    def _account_of_the_past(self, principal: str) -> Account | None:
        account = self._accounts.get(principal)
        if account is None and len(self._accounts) < self._settings.bounds.principals:
            account = self._accounts[principal] = Account(principal)
        return account

    def _still_gates(self, record: Record) -> bool:
        """Whether a call of the past gates, as the settings are now."""
        if isinstance(record, Blocker):
            reset = record.call.transport is Transport.STDIO and not record.stays
            return not reset or self._settings.holds(record, State.CONNECTION_RESET)
        return record.state is State.UNRESOLVED or self._settings.holds(record, record.state)

    def _take_back(self, account: Account, record: Record, *, now: float, seq: int) -> list[Transition]:
        """Put a record of the past on the books, under every cap."""
        call = record.call
        if isinstance(record, Blocker):
            record.stays = record.stays or record.call.transport is Transport.STDIO
            return self._folding.take_back(account, record, now=now, seq=seq)
        changes = self._folding.make_room_for_past(account, now=now, seq=seq)
        account.records[call.call_id] = record
        self._indexes.add(record)
        if record.state.terminal:
            self._indexes.end(record)
        account.gate(record, seq)
        self._indexes.schedule(record)
        own = self._with_caps(account, record, RESTORE, record.state, True, now=now, seq=seq, parked=False)
        return [*changes, *own]


def _journal_of(record: Record, now: float, wall: float) -> JournalRow:
    row = journal_of(report(record, RESTORE, record.state, at=now, journal_put=True), wall=wall)
    assert row is not None
    return row


def _back(row: JournalRow, known: ActivityRow | None, *, now: float, wall: float, seq: int) -> Record | None:
    """The record of a journal row, on no books yet; None for a call that was settled."""
    tiers = [Tier(each) for each in row.admission_tier.split()]
    call = Call(
        call_id=row.call_id,
        server=row.server,
        transport=Transport(row.transport),
        lease=Lease("", row.epoch),
        principal=row.principal,
        gate_scope=row.gate_scope,
        tool=row.tool,
        admission_tier=max(tiers, key=CAUTION.__getitem__),
        gate_tier=Tier(row.gate_tier),
    )
    expires_at = math.inf if row.expires_at is None else row.expires_at - wall
    if row.call_id.startswith(BLOCKER_PREFIX):
        return Blocker(
            call=call,
            gate_tier=Tier(row.gate_tier),
            begun_seq=row.seq,
            revision=seq,
            state=State.UNRESOLVED,
            unresolved_seq=seq,
            sent_at=row.sent_at - wall,
            unresolved_at=row.sent_at - wall,
            expires_at=expires_at,
            journaled=True,
            count=row.members,
            since_seq=row.seq,
            min_epoch=row.epoch,
            tiers=frozenset(tiers),
            was_observable=False,
            stays=row.expires_at is None,
        )
    state = State.CONNECTION_RESET if call.transport is Transport.STDIO else State.UNRESOLVED
    if known is not None and known.pending_state != UNTRACKED and State(known.pending_state).terminal:
        if known.settled_by is not None or State(known.pending_state) not in HOLDABLE:
            return None
        state = State(known.pending_state)
    record = Record(call, Tier(row.gate_tier), row.seq, seq, state)
    record.wire_ids = tuple(row.wire_ids)
    record.sent_at, record.sent_seq = row.sent_at - wall, row.seq
    record.unresolved_at, record.unresolved_seq = now, seq
    record.expires_at = expires_at
    record.reason = Reason.TRANSPORT_LOST
    record.resolved_at = now if state.terminal else None
    record.journaled = True
    if known is not None:
        _add_facts(record, known, wall)
    return record


def _add_facts(record: Record, known: ActivityRow, wall: float) -> None:
    """What the activity record knew of a call."""
    if known.reason is not None:
        record.reason = Reason(known.reason)
    if known.late_outcome is not None:
        record.late_outcome = LateOutcome(known.late_outcome)
    if known.unresolved_at is not None:
        record.unresolved_at = known.unresolved_at - wall
    if known.resolved_at is not None and record.resolved_at is not None:
        record.resolved_at = known.resolved_at - wall
