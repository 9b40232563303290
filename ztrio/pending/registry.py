"""The registry of pending calls: everything that is decided about a call without waiting for anything.

Plain functions of what is known, with the time and a sequence number handed in. There is no checkpoint that could fall
between looking and booking, because there is none at all: `check_and_begin` is one step. Whoever calls brings the I/O,
the clock and the audit; every operation returns what it did as transitions, and one that refuses has changed nothing.

`Books` keeps accounts and changes states, `Settling` ends entries, `Restoring` brings back what an earlier process
left, and here is the way of a call: check, begin, claim, and one of response, refusal, and an end of the wait that
nobody can explain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from ztrio.pending.bounds import Account
from ztrio.pending.gate import GateWarning, Refusal, is_continuation, seen
from ztrio.pending.reasons import ActorKind, Mode, Reason, Tier, Transport
from ztrio.pending.records import Call, Record
from ztrio.pending.restore import Restoring
from ztrio.pending.states import Event, Rejected, State, rule
from ztrio.pending.transitions import BEGIN, Transition, report

__all__ = ["Begun", "Registry", "RegistryStatistics"]


@attrs.frozen
class Begun:
    """A call that may go out.

    Args:
        transitions: What was done.
        tracked: Whether it is on the books. If not, nothing else is to be told of it but the end of its wait.
        warning: What would have refused it, in `warn`.
    """

    transitions: list[Transition]
    tracked: bool = True
    warning: GateWarning | None = None


@attrs.frozen(kw_only=True)
class RegistryStatistics:
    """A snapshot of the registry.

    Args:
        principals: Accounts there are.
        records: Records of all kinds, with blockers.
        in_flight: Of these, reserved and sent calls.
        gating: Gating entries and blockers.
        late_waits: Late responses that are waited for.
        scopes: Scopes that are gated, and servers that are as a whole.
        blockers: Blockers.
        refused: Calls refused so far.
        untracked: Calls that went out on no books so far.
        unmatched: Responses so far that nobody waited for.
        folded: Calls folded so far.
        forgotten: Records so far that left although the store did not know how they ended.
        indexed: Sizes of the indexes: records, ids on the wire, epochs, timers.
    """

    principals: int
    records: int
    in_flight: int
    gating: int
    late_waits: int
    scopes: int
    blockers: int
    refused: int
    untracked: int
    unmatched: int
    folded: int
    forgotten: int
    indexed: tuple[int, int, int, int]


class Registry(Restoring):
    """All pending calls of a process."""

    # ---- the gate

    def check(self, call: Call) -> Refusal | None:
        """Whether `call` would be refused now: an early word, which never admits anything."""
        account = self._accounts.get(call.principal)
        return None if account is None else self._gate(account, call)[1]

    def gates(self, server: str, principal: str, gate_scope: str, *, every: bool = False) -> bool:
        """Whether anything gates writes of this scope."""
        account = self._accounts.get(principal)
        return account is not None and account.gated_since(server, gate_scope, every=every) is not None

    def _gate(self, account: Account, call: Call) -> tuple[Tier, Refusal | None, GateWarning | None]:
        """The tier of `call`, and what the gate says of it."""
        since = account.gated_since(call.server, call.gate_scope, every=call.every_scope)
        tier = call.gate_tier
        if tier is None:
            tier = self.tiers.tier(call.server, call.tool, gated_since=math.inf if since is None else since)
        if since is None or tier is Tier.READ:
            return tier, None, None
        mode = self._settings.mode_of(call.server)
        if mode is Mode.OFF:
            return tier, None, None
        gating = account.gating(call.server, call.gate_scope, every=call.every_scope)
        if is_continuation(call, gating):
            return tier, None, None
        shown, count = seen(gating)
        if mode is Mode.WARN:
            return tier, None, GateWarning(shown, count)
        return tier, Refusal("PENDING_CALL_UNRESOLVED", call, shown, count), None

    def check_and_begin(self, call: Call, *, now: float, seq: int) -> Begun | Refusal:
        """The check that counts: whether `call` may go out through its lease, and if so its record, reserved.

        Args:
            call: The call, with a lease taken just before.
            now: Monotonic seconds.
            seq: The sequence number.

        Raises:
            Rejected: there is a call of this id on the books. Nothing was changed.
        """
        known = self._indexes.records.get(call.call_id)
        if known is not None:
            raise Rejected("begun_already", known.state)
        if call.lease.epoch <= self._floor.get(call.server, -1):
            self._refused += 1
            return Refusal("NOT_SENT", call)
        account = self._accounts.get(call.principal)
        if account is None:
            return self._without_room(call, None, retry_after=None)
        tier, refusal, warning = self._gate(account, call)
        if refusal is not None:
            self._refused += 1
            return refusal
        changes = self._folding.make_room(account, now=now, seq=seq)
        if changes is None:
            return self._without_room(call, warning, retry_after=self._settings.bounds.retry_after)
        record = Record(call, tier, seq, seq)
        self._make(account, record)
        return Begun([report(record, BEGIN, None, at=now), *changes], warning=warning)

    def _without_room(self, call: Call, warning: GateWarning | None, *, retry_after: float | None) -> Begun | Refusal:
        """What becomes of a call that fits on no books: only `enforce` refuses it."""
        if self._settings.mode_of(call.server) is Mode.ENFORCE:
            self._refused += 1
            return Refusal("PENDING_REGISTRY_FULL", call, retry_after=retry_after)
        self._ever_untracked += 1
        self._untracked[call.server] = self._untracked.get(call.server, 0) + 1
        return Begun([], tracked=False, warning=warning)

    def end_untracked(self, server: str) -> None:
        """The wait of a call on no books has ended."""
        left = self._untracked.get(server, 0) - 1
        if left > 0:
            self._untracked[server] = left
        else:
            self._untracked.pop(server, None)

    # ---- the way of a call

    def claim(
        self,
        call_id: str,
        *,
        wire_id: str | int,
        now: float,
        seq: int,
        cancelled: bool = False,
        deadline: float = math.inf,
    ) -> list[Transition]:
        """The one writer is about to write the first byte of the call.

        Args:
            call_id: The call.
            wire_id: Its id on the wire, with its JSON type.
            now: Monotonic seconds.
            seq: The sequence number.
            cancelled: Whether the caller's scope is cancelled.
            deadline: When the caller's wait ends, monotonic seconds.

        Returns:
            `sent`, and only then may it be written. Otherwise `not_sent`: nothing happened, and nothing will. No
            transition for a call that is not on the books any more, which is not to be written either.

        Raises:
            Rejected: it was sent already. Nothing was changed.
        """
        record = self._indexes.records.get(call_id)
        if record is None:
            return []
        rule(record.state, Event.CLAIM)
        call = record.call
        if cancelled or now >= deadline:
            return self._step(record, Event.NOT_SENT, now=now, seq=seq)
        record.sent_at, record.sent_seq = now, seq
        if call.transport is not Transport.LOCAL:
            record.expires_at = now + call.ceiling + self._settings.bounds.ttl
        self._indexes.wire(record, wire_id)
        return self._step(record, Event.CLAIM, now=now, seq=seq)

    def next_round(self, call_id: str, *, wire_id: str | int) -> None:
        """The call goes on under another id on the wire: the response, and a cancel, have that from now on."""
        record = self._indexes.records.get(call_id)
        if record is not None and record.state is State.SENT:
            self._indexes.wire(record, wire_id)

    def not_sent(self, call_id: str, *, now: float, seq: int) -> list[Transition]:
        """The call ended before it was written.

        Raises:
            Rejected: it was sent. Nothing was changed.
        """
        record = self._indexes.records.get(call_id)
        return [] if record is None else self._step(record, Event.NOT_SENT, now=now, seq=seq)

    def complete(
        self,
        call_id: str,
        *,
        succeeded: bool,
        now: float,
        seq: int,
        reconciles: Sequence[str] = (),
        actor: ActorKind = ActorKind.CALLER,
    ) -> list[Transition]:
        """The response came while its caller waited.

        Args:
            call_id: The call.
            succeeded: Whether it is a result, and no error of the tool or the protocol.
            now: Monotonic seconds.
            seq: The sequence number.
            reconciles: Ids that the call named, as `reconcile_ids` returned them. Those that do not qualify mean
                nothing.
            actor: Who looked, for those that it settles.

        Returns:
            The end of the call, and the ends of those that it settled if it is a read that succeeded.

        Raises:
            Rejected: its wait had ended, see `resolve_late`. Nothing was changed.
        """
        record = self._indexes.records.get(call_id)
        if record is None:
            return []
        changes = self._step(record, Event.RESPONSE, now=now, seq=seq)
        if succeeded and record.gate_tier is Tier.READ and changes[0].changed:
            changes += self._reconcile(record, reconciles, now=now, seq=seq, actor=actor)
        return changes

    def mark_unresolved(
        self, call: Call, *, reason: Reason, now: float, seq: int, observable: bool = True, died: bool = False
    ) -> list[Transition]:
        """The caller's wait has ended without a response.

        Args:
            call: The call. It need not be on the books any more.
            reason: Why. `deadline_exceeded` becomes `still_running` when progress was seen shortly before.
            now: Monotonic seconds.
            seq: The sequence number.
            observable: Whether its transport can still bring a late response.
            died: Whether the upstream's process died.

        Returns:
            First what became of it: `unresolved`; `not_sent` when it had not been claimed; the state that came first,
            such as `completed_late`.
        """
        record = self._indexes.records.get(call.call_id)
        if record is None:
            return [self._of_unknown(call, now=now, seq=seq)]
        if record.state is State.SENT:
            recent = now - record.last_progress <= self._settings.bounds.progress
            still = reason is Reason.DEADLINE_EXCEEDED and recent
            record.reason, record.died = Reason.STILL_RUNNING if still else reason, died
            record.observable = observable and call.transport is not Transport.SSE
        return self._step(record, Event.WAIT_ENDED, now=now, seq=seq)

    def _of_unknown(self, call: Call, *, now: float, seq: int) -> Transition:
        """What is said of a call that is on no books any more, cautiously."""
        account = self._accounts.get(call.principal)
        if account is not None and call.call_id in account.unsent:
            del account.unsent[call.call_id]
            state = State.NOT_SENT
        elif call.lease.epoch <= self._floor.get(call.server, -1):
            state = State.CONNECTION_RESET
        else:
            state = State.UNRESOLVED
        gone = Record(call, Tier.DESTRUCTIVE, seq, seq, state)
        return report(gone, Event.WAIT_ENDED, state, at=now, changed=False)

    def statistics(self) -> RegistryStatistics:
        """A snapshot."""
        accounts = list(self._accounts.values())
        return RegistryStatistics(
            principals=len(accounts),
            records=sum(len(each.records) for each in accounts),
            in_flight=sum(each.in_flight for each in accounts),
            gating=sum(sum(each.gating_on.values()) for each in accounts),
            late_waits=sum(each.late_waits for each in accounts),
            scopes=sum(len(each.scopes) + len(each.wide) for each in accounts),
            blockers=sum(each.blockers for each in accounts),
            refused=self._refused,
            untracked=self._ever_untracked,
            unmatched=self._unmatched,
            folded=self._folding.folded,
            forgotten=self._folding.forgotten,
            indexed=self._indexes.sizes(),
        )
