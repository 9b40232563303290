"""The books of all principals, and the one place in which a record changes its state.

Whatever happens to a call comes through `_step`: the table says what it does, and everything that depends on the state
(quota, gate, waits, indexes, timers, journal) follows from where the call comes from and where it goes. So no operation
can forget a part of it, and each change of kind meets every cap again.
"""

from __future__ import annotations

from typing import Final

import attrs

from ztrio.pending.bounds import Account, lower
from ztrio.pending.folding import Folding
from ztrio.pending.indexes import Indexes, due
from ztrio.pending.reasons import ActorKind, Reason, Tier
from ztrio.pending.records import Blocker, Record
from ztrio.pending.settings import PendingSettings
from ztrio.pending.states import Effect, Event, Rejected, State, rule
from ztrio.pending.tiers import Tiers
from ztrio.pending.transitions import SETTLE, Transition, report

__all__ = ["Books", "Busy"]

# Who brings an event about, where the operation does not say.
_ACTORS: Final = {
    Event.REFUSED: ActorKind.UPSTREAM,
    Event.LATE_RESPONSE: ActorKind.UPSTREAM,
    Event.PROOF: ActorKind.UPSTREAM,
    Event.EPOCH_ENDED: ActorKind.GATEWAY,
    Event.EXPIRE: ActorKind.GATEWAY,
}


@attrs.frozen
class Busy:
    """What a server has to do, as its supervision asks before it stops or restarts it.

    Args:
        reserved: Calls that are checked and not sent.
        sent: Calls whose callers wait.
        late_waits: Calls whose late response is waited for.
        untracked: Calls in flight that are on no books.
    """

    reserved: int = 0
    sent: int = 0
    late_waits: int = 0
    untracked: int = 0

    def __bool__(self) -> bool:
        return bool(self.reserved or self.sent or self.late_waits or self.untracked)


class Books:
    """Accounts, indexes and the change of states."""

    def __init__(self, settings: PendingSettings) -> None:
        self.tiers = Tiers()
        self._settings = settings
        self._accounts = {principal: Account(principal) for principal in settings.all_principals}
        self._indexes = Indexes(lambda record: due(record, self._settings.bounds.tombstone))
        self._folding = Folding(self._indexes, settings)
        # Server → the last stdio epoch that has ended; only grows.
        self._floor: dict[str, int] = {}
        # Server → its reserved and sent calls; absent when none.
        self._reserved: dict[str, int] = {}
        self._sent: dict[str, int] = {}
        # Server → calls in flight that are on no books.
        self._untracked: dict[str, int] = {}
        # How often each of these happened so far.
        self._refused = self._ever_untracked = self._unmatched = 0

    @property
    def settings(self) -> PendingSettings:
        """The settings that hold now."""
        return self._settings

    def configure(self, settings: PendingSettings) -> None:
        """Let other settings hold from the next check on; no record and no connection is touched.

        Raises:
            ValueError: with the principals that have left and still have calls on their books there are too many.
                Nothing was changed.
        """
        leaving = [name for name, each in self._accounts.items() if name not in settings.all_principals]
        staying = [name for name in leaving if self._accounts[name].records]
        if len(settings.all_principals) + len(staying) > settings.bounds.principals:
            raise ValueError(
                f"{len(staying)} principals are to leave and still have calls on their books, which count: at most "
                f"{settings.bounds.principals} principals fit. Settle or release those calls first."
            )
        for name in leaving:
            if name not in staying:
                del self._accounts[name]
        for name in settings.all_principals:
            self._accounts.setdefault(name, Account(name))
        self._settings = self._folding.settings = settings

    def busy(self, server: str) -> Busy:
        """What `server` has to do: calls, never idle streams."""
        waits = sum(account.waits.get(server, 0) for account in self._accounts.values())
        return Busy(self._reserved.get(server, 0), self._sent.get(server, 0), waits, self._untracked.get(server, 0))

    # ---- the change of states

    def _make(self, account: Account, record: Record) -> None:
        """Put a new record on the books, reserved."""
        call = record.call
        account.records[call.call_id] = record
        account.in_flight += 1
        self._reserved[call.server] = self._reserved.get(call.server, 0) + 1
        self._indexes.add(record)

    def _step(
        self, record: Record, event: Event, *, now: float, seq: int, actor: ActorKind | None = None
    ) -> list[Transition]:
        """Let `event` happen to `record`, as the table says.

        Raises:
            Rejected: it makes no sense in this state. Nothing was changed.
        """
        what = rule(record.state, event)
        if what.to is not None:
            return self._move(record, event, what.to, now=now, seq=seq, actor=actor or _ACTORS.get(event))
        if what.effect is Effect.SETTLE and record.held and (record.claimed or event is not Event.CANCEL_TOLD):
            return self._settle(record, event, now=now, seq=seq, actor=actor or _ACTORS.get(event))
        if what.effect is Effect.TAKE and record.held and not record.claimed:
            record.claimed = record.cancel_requested = True
            return self._noted(record, event, now=now, seq=seq, actor=actor)
        if what.effect is Effect.GIVE_BACK and record.held and record.claimed:
            record.claimed = False
            return self._noted(record, event, now=now, seq=seq, actor=None)
        return [report(record, event, record.state, at=now, changed=False)]

    @staticmethod
    def _noted(record: Record, event: str, *, now: float, seq: int, actor: ActorKind | None = None) -> list[Transition]:
        """Say that something about `record` changed and its state did not."""
        record.revision = seq
        record.actor = actor or record.actor
        return [report(record, event, record.state, at=now, journal_put=isinstance(record, Blocker))]

    def _move(
        self, record: Record, event: Event, to: State, *, now: float, seq: int, actor: ActorKind | None
    ) -> list[Transition]:
        before, account = record.state, self._accounts[record.call.principal]
        was_journaled, parked = record.journaled, False
        record.state, record.revision = to, seq
        record.actor = actor or record.actor
        if before is State.RESERVED or before is State.SENT:
            self._leave_flight(account, record, before, to)
        if to is State.SENT:
            return [report(record, event, before, at=now)]
        if to is State.CANCELLING:
            record.claimed = record.cancel_requested = True
        elif to is State.UNRESOLVED and before is State.CANCELLING:
            record.claimed = False
            self._indexes.schedule(record)  # its time may have come meanwhile
        elif to is State.UNRESOLVED:
            parked = self._become_unresolved(account, record, now=now, seq=seq)
        else:
            parked = self._become_final(account, record, before, event, now=now, seq=seq)
        return self._with_caps(account, record, event, before, was_journaled, now=now, seq=seq, parked=parked)

    def _leave_flight(self, account: Account, record: Record, before: State, to: State) -> None:
        server = record.call.server
        counts = self._reserved if before is State.RESERVED else self._sent
        lower(counts, server)
        if to is State.SENT:
            self._sent[server] = self._sent.get(server, 0) + 1
        else:
            account.in_flight -= 1

    def _become_unresolved(self, account: Account, record: Record, *, now: float, seq: int) -> bool:
        """The wait of a sent call has ended; whether its response stream is to be parked."""
        record.unresolved_seq, record.unresolved_at = seq, now
        wanted, record.observable = record.observable, False
        parked = wanted and not account.watch(record, self._settings.bounds, self._settings.share)
        if parked or not wanted:
            self._indexes.unwire(record)
        if record.gate_tier is Tier.READ:
            account.keep(record)
        else:
            account.gate(record, seq)
        self._indexes.schedule(record)
        return parked

    def _become_final(
        self, account: Account, record: Record, before: State, event: Event, *, now: float, seq: int
    ) -> bool:
        """The call has come to its end; whether its response stream is to be parked."""
        record.resolved_at, record.claimed = now, False
        if record.state is State.COMPLETED or record.state is State.NOT_SENT:
            del account.records[record.call.call_id]
            self._indexes.remove(record)
            if record.state is State.NOT_SENT:
                self._remember_unsent(account, record)
            return False
        parked = account.unwatch(record)
        self._indexes.end(record)
        if record.state is not State.CANCELLED:  # an answer to that is still worth a note
            self._indexes.unwire(record)
        account.unkeep(record)
        holds = not isinstance(record, Blocker) and self._settings.holds(record, record.state)
        if before is State.SENT:
            if record.state is State.CONNECTION_RESET:
                record.reason = Reason.TRANSPORT_LOST
                record.unresolved_seq, record.unresolved_at = seq, now
            if holds:
                account.gate(record, seq)
        elif record.gating and not holds:
            account.ungate(record)
            record.settled_by = f"{record.actor}:{event}"
        if not record.gating:
            account.keep(record)
            self._indexes.schedule(record)
        return parked and record.state is not State.COMPLETED_LATE

    def _remember_unsent(self, account: Account, record: Record) -> None:
        account.unsent[record.call.call_id] = None
        while len(account.unsent) > self._settings.bounds.in_flight:
            del account.unsent[next(iter(account.unsent))]

    def _settle(
        self, record: Record, event: Event, *, now: float, seq: int, actor: ActorKind | None
    ) -> list[Transition]:
        """Open the gate of a record that is held; its state stands."""
        account = self._accounts[record.call.principal]
        was_journaled = record.journaled
        record.revision, record.claimed = seq, False
        record.actor = actor or record.actor
        account.ungate(record)
        record.settled_by = f"{record.actor}:{event}"
        account.keep(record)
        # Kept from now on: whoever asks for it shortly after it was settled is to find it.
        record.resolved_at = now if record.resolved_at is None else record.resolved_at
        self._indexes.schedule(record)
        return self._with_caps(account, record, SETTLE, record.state, was_journaled, now=now, seq=seq, parked=False)

    def _with_caps(
        self,
        account: Account,
        record: Record,
        event: str,
        before: State,
        was_journaled: bool,
        *,
        now: float,
        seq: int,
        parked: bool,
    ) -> list[Transition]:
        """Apply every cap to the new kind of `record`, and report it first."""
        call, blocker, others = record.call, None, list[Transition]()
        if record.gating and not isinstance(record, Blocker):
            others = self._folding.cap_scope(account, call.server, call.gate_scope, now=now, seq=seq)
            if call.call_id not in account.records:  # it was the one to fold; that is said in one transition
                fold = next(each for each in others if each.call.call_id == call.call_id)
                blocker, parked = fold.blocker, fold.parked or parked
                others.remove(fold)
        elif call.call_id in account.records:
            others = self._folding.cap_kept(account, call.server, now=now, seq=seq)
        gates_here = record.gating and blocker is None
        put = gates_here and not was_journaled
        drop = (call.call_id,) if was_journaled and not record.gating else ()
        record.journaled = gates_here
        own = report(record, event, before, at=now, blocker=blocker, parked=parked, journal_put=put, journal_drop=drop)
        return [own, *others]

    # ---- questions

    def get(self, call_id: str) -> Record | None:
        """The record of a call or a blocker, to be looked at and never changed."""
        return self._indexes.records.get(call_id)

    def covering(self, server: str, principal: str, gate_scope: str) -> Blocker | None:
        """The blocker that stands for folded calls of this scope."""
        account = self._accounts.get(principal)
        return None if account is None else account.covering(server, gate_scope)

    def entries(self, principal: str | None = None) -> list[Record]:
        """What lists show, oldest first: everything but calls in flight. Of one principal, or of all."""
        if principal is None:
            accounts = list(self._accounts.values())
        else:
            accounts = [account] if (account := self._accounts.get(principal)) is not None else []
        found = [each for account in accounts for each in account.records.values() if not each.in_flight]
        return sorted(found, key=lambda record: record.begun_seq)

    def _find(self, call_id: str) -> Record:
        record = self._indexes.records.get(call_id)
        if record is None:
            raise Rejected("unknown", None)
        return record
