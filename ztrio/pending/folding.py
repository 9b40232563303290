"""Making room: gating calls fold into blockers, blockers merge, and what nobody needs is forgotten.

Folding loses which call it was and keeps that it gates, so it can never open a gate. What it gives up is what each call
costs: its record, and the wait for its response. The order is the scope's own, oldest first; a call whose upstream is
about to be told is never folded, and one that is held only when there is nothing else.

Everything here works on one account. Room is made only after it is known that enough can be made, because an operation
that refuses must not have changed anything.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ztrio.pending.bounds import Account, Bounds
from ztrio.pending.indexes import Indexes
from ztrio.pending.reasons import Tier
from ztrio.pending.records import ANY_TOOL, EVERY_SCOPE, Blocker, Record, blocker_id
from ztrio.pending.settings import PendingSettings
from ztrio.pending.states import State
from ztrio.pending.tiers import CAUTION
from ztrio.pending.transitions import FOLD, FORGET, MERGE, Transition, report

__all__ = ["Folding", "Room"]


@attrs.define(eq=False)
class Folding:
    """What makes room in accounts."""

    indexes: Indexes
    settings: PendingSettings
    # Ever folded; ever forgotten although the store did not know how they ended.
    folded: int = 0
    forgotten: int = 0

    @property
    def bounds(self) -> Bounds:
        """The caps that hold now."""
        return self.settings.bounds

    def fold(self, account: Account, record: Record, *, now: float, seq: int) -> tuple[str, list[Transition]]:
        """Fold one gating entry of `account`.

        Returns:
            The blocker's id, and what happened to blockers. What happened to the record is reported by `fold_oldest`,
            or by the operation that it was made in.
        """
        call = record.call
        scope = account.scopes[call.server, call.gate_scope]
        blocker = account.covering(call.server, call.gate_scope)
        self.folded += 1
        if blocker is None:
            blocker = _blocker_of(record, scope.since_seq, seq)
            account.block(blocker)
            self.indexes.add(blocker)
        else:
            self._include(blocker, _blocker_of(record, scope.since_seq, seq), seq)
        drop = (call.call_id,) if record.journaled else ()
        account.unwatch(record)
        account.ungate(record)
        record.gating = True  # in its blocker, and in the snapshot
        del account.records[call.call_id]
        self.indexes.remove(record)
        self.indexes.schedule(blocker)
        changes = [report(blocker, FOLD, blocker.state, at=now, journal_put=True, journal_drop=drop)]
        if account.blockers > self.bounds.blockers:
            changes += self._merge(account, now=now, seq=seq)
        return self._covering_id(account, record), changes

    @staticmethod
    def _covering_id(account: Account, record: Record) -> str:
        covering = account.covering(record.call.server, record.call.gate_scope)
        assert covering is not None
        return covering.call.call_id

    def fold_oldest(self, account: Account, record: Record, *, now: float, seq: int) -> list[Transition]:
        """Fold one gating entry of `account`, and say so of the entry as well."""
        parked = record.observable
        name, changes = self.fold(account, record, now=now, seq=seq)
        record.revision = seq
        return [report(record, FOLD, record.state, at=now, blocker=name, parked=parked), *changes]

    def _include(self, blocker: Blocker, other: Blocker, seq: int) -> None:
        """Count the calls of `other` in."""
        blocker.count += other.count
        blocker.unresolved_seq = max(blocker.unresolved_seq, other.unresolved_seq)
        blocker.expires_at = max(blocker.expires_at, other.expires_at)
        blocker.last_progress = max(blocker.last_progress, other.last_progress)
        blocker.tiers |= other.tiers
        blocker.was_observable |= other.was_observable
        blocker.stays |= other.stays
        blocker.since_seq = min(blocker.since_seq, other.since_seq)
        blocker.gate_tier = max(blocker.gate_tier, other.gate_tier, key=CAUTION.__getitem__)
        blocker.revision = seq
        # What it shows of its calls: the latest epoch, the highest tier.
        old, new = blocker.call, other.call
        lease = new.lease if new.lease.epoch > old.lease.epoch else old.lease
        tier = max(old.admission_tier, new.admission_tier, key=CAUTION.__getitem__)
        if lease is not old.lease or tier is not old.admission_tier:
            blocker.call = old.evolved(lease=lease, admission_tier=tier)
        self.indexes.end(blocker)
        blocker.min_epoch = min(blocker.min_epoch, other.min_epoch)
        self.indexes.add(blocker)

    def _merge(self, account: Account, *, now: float, seq: int) -> list[Transition]:
        """Merge the blockers of the server that has most of them into one that gates all scopes there.

        With more servers than blockers allowed there may be none with two; then each of them keeps its one.
        """
        by_server: dict[str, list[Blocker]] = {}
        for (server, _), scope in account.scopes.items():
            if scope.blocker is not None:
                by_server.setdefault(server, []).append(scope.blocker)
        most = max(by_server.values(), key=len, default=[])
        if len(most) < 2:
            return []
        survivor, *others = sorted(most, key=_since)
        account.ungate(survivor)
        self.indexes.remove(survivor)
        survivor.call = survivor.call.evolved(gate_scope=EVERY_SCOPE)
        self.indexes.add(survivor)
        account.block(survivor)
        return self._absorb(account, survivor, others, now=now, seq=seq)

    def _absorb(
        self, account: Account, survivor: Blocker, others: Sequence[Blocker], *, now: float, seq: int
    ) -> list[Transition]:
        """Let one blocker stand for the calls of others as well, and those others be gone."""
        name = survivor.call.call_id
        changes = []
        for other in others:
            if other.call.call_id in account.records:  # one of an earlier process is on no books yet
                account.ungate(other)
                del account.records[other.call.call_id]
                self.indexes.remove(other)
            self._include(survivor, other, seq)
            other.revision, other.gating = seq, True
            changes.append(report(other, MERGE, other.state, at=now, blocker=name))
        self.indexes.schedule(survivor)
        drop = tuple(other.call.call_id for other in others)
        return [*changes, report(survivor, MERGE, survivor.state, at=now, journal_put=True, journal_drop=drop)]

    def cap_scope(self, account: Account, server: str, name: str, *, now: float, seq: int) -> list[Transition]:
        """Fold the oldest entries of a scope until it has as many as are allowed, or none is left that may fold."""
        changes: list[Transition] = []
        scope = account.scopes[server, name]
        while len(scope.entries) > self.bounds.gating:
            oldest = scope.oldest_foldable()
            if oldest is None:
                break
            changes += self.fold_oldest(account, oldest, now=now, seq=seq)
        return changes

    def cap_kept(self, account: Account, server: str, *, now: float, seq: int) -> list[Transition]:
        """Forget settled calls of a server, oldest first, then unresolved reads, until as many are left as allowed."""
        changes: list[Transition] = []
        while (kept := account.kept.get(server)) and len(kept.tombstones) + len(kept.reads) > self.bounds.kept:
            victim = next(iter(kept.tombstones.values()), None)
            victim = victim or next((each for each in kept.reads.values() if not each.claimed), None)
            if victim is None:
                break
            changes += self.forget(account, victim, now=now, seq=seq)
        return changes

    def forget(self, account: Account, record: Record, *, now: float, seq: int) -> list[Transition]:
        """Let go of a record that does not gate. Only what the store does not know by then is worth a word."""
        parked = account.unwatch(record)
        account.unkeep(record)
        del account.records[record.call.call_id]
        self.indexes.remove(record)
        if record.state.terminal and record.acknowledged >= record.revision:
            return []
        self.forgotten += 1
        record.revision = seq
        return [report(record, FORGET, record.state, at=now, parked=parked, forgotten=True)]

    def make_room(self, account: Account, *, now: float, seq: int) -> list[Transition] | None:
        """Make room for one more call.

        Returns:
            What was done for that; None when it does not fit, and then nothing was changed.
        """
        if account.in_flight >= self.bounds.in_flight:
            return None
        if len(account.records) < self.bounds.records:
            return []
        room = Room(account)
        victim = room.acknowledged_tombstone() or room.read()
        if victim is not None:
            return self.forget(account, victim, now=now, seq=seq)
        if account.dense() is None and not account.crowded(self.bounds.blockers):
            return None
        changes: list[Transition] = []
        while len(account.records) >= self.bounds.records:
            scope = account.dense()
            record = room.oldest_gating() if scope is None else scope.oldest_foldable()
            assert record is not None
            changes += self.fold_oldest(account, record, now=now, seq=seq)
        return changes

    # ---- what an earlier process left

    def take_back(self, account: Account, blocker: Blocker, *, now: float, seq: int) -> list[Transition]:
        """Put a blocker of an earlier process on the books, or its calls into the one that is there for its scope."""
        call = blocker.call
        there = account.covering(call.server, call.gate_scope)
        if there is not None:
            return self._absorb(account, there, [blocker], now=now, seq=seq)
        changes = self.make_room_for_past(account, now=now, seq=seq)
        own = [scope.blocker for (server, _), scope in account.scopes.items() if server == call.server]
        account.block(blocker)
        self.indexes.add(blocker)
        self.indexes.schedule(blocker)
        if blocker.wide:
            others = [each for each in own if each is not None]
            return [*changes, *self._absorb(account, blocker, others, now=now, seq=seq)]
        changes.append(report(blocker, FOLD, blocker.state, at=now))
        if account.blockers > self.bounds.blockers:
            changes += self._merge(account, now=now, seq=seq)
        return changes

    def make_room_for_past(self, account: Account, *, now: float, seq: int) -> list[Transition]:
        """Make room for something that gates and cannot be refused any more; as far as folding goes."""
        changes: list[Transition] = []
        while len(account.records) >= self.bounds.records:
            scope = account.dense()
            record = Room(account).oldest_gating() if scope is None else scope.oldest_foldable()
            if record is not None:
                changes += self.fold_oldest(account, record, now=now, seq=seq)
                continue
            merged = self._merge(account, now=now, seq=seq)
            if not merged:
                break
            changes += merged
        return changes


@attrs.frozen
class Room:
    """Looks for what may give way in an account that is full; each answer is a walk over that account alone."""

    account: Account

    def acknowledged_tombstone(self) -> Record | None:
        """The settled call that was settled first, of those that the store has."""
        found = [
            each
            for kept in self.account.kept.values()
            for each in kept.tombstones.values()
            if each.acknowledged >= each.revision
        ]
        return min(found, key=_revision, default=None)

    def read(self) -> Record | None:
        """The oldest unresolved read."""
        found = [each for kept in self.account.kept.values() for each in kept.reads.values() if not each.claimed]
        return min(found, key=_unresolved, default=None)

    def oldest_gating(self) -> Record | None:
        """The oldest entry that may fold, whatever its scope."""
        found = [each for scope in self.account.scopes.values() if (each := scope.oldest_foldable()) is not None]
        return min(found, key=_unresolved, default=None)


def _blocker_of(record: Record, since_seq: int, seq: int) -> Blocker:
    """A blocker of one call."""
    call = record.call
    return Blocker(
        call=call.evolved(call_id=blocker_id(call.call_id), tool=ANY_TOOL, gate_tier=record.gate_tier, lineage=None),
        gate_tier=record.gate_tier,
        begun_seq=record.begun_seq,
        revision=seq,
        state=State.UNRESOLVED,
        gating=True,
        unresolved_seq=record.unresolved_seq,
        sent_at=record.sent_at,
        unresolved_at=record.unresolved_at,
        expires_at=record.expires_at,
        last_progress=record.last_progress,
        reason=record.reason,
        died=record.died,
        journaled=True,
        count=1,
        since_seq=since_seq,
        min_epoch=call.lease.epoch,
        tiers=frozenset[Tier]({call.admission_tier}),
        was_observable=record.observable,
        stays=record.held,
    )


def _since(blocker: Blocker) -> int:
    return blocker.since_seq


def _revision(record: Record) -> int:
    return record.revision


def _unresolved(record: Record) -> int:
    return record.unresolved_seq
