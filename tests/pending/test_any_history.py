"""Any history of calls, of several principals, servers and epochs, over a scripted wire: what holds after every step.

The machine keeps its own books, from nothing but what the wire saw and what the transitions said, and compares. Beside
the registry runs a twin that is told only of what one principal does and of what happens to connections and time:
whatever the others do, that principal must see the same in both.
"""

from __future__ import annotations

import os
from collections import Counter

import attrs
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from tests.pending.box import WALL, call_id
from tests.pending.checks import check_accounts
from tests.pending.fates import CALLERS, OPEN, PRINCIPALS, SCOPES, SERVERS, WATCHED, Caller, Fate
from tests.pending.restarts import check_restart
from tests.pending.twins import Twins
from ztrio.pending import (
    ActorKind,
    Blocker,
    Call,
    LateOutcome,
    Lease,
    Mode,
    Proof,
    Reason,
    Refusal,
    Rejected,
    State,
    Tier,
)
from ztrio.pending.states import HOLDABLE

SCHEDULED = os.environ.get("ZTRIO_PENDING_PROFILE", "ci") == "scheduled"


class Histories(Twins):
    """Calls and what happens to them."""

    # ---- the way of a call

    def pick(self, data: st.DataObject, *states: State) -> str:
        """A call in one of these states; now and then any, and one that never was when there is none."""
        live = [name for name, fate in self.fates.items() if fate.state in states and fate.blocker is None]
        often: int = data.draw(st.integers(0, 9))
        pool = live if live and often else sorted(self.fates)
        return str(data.draw(st.sampled_from(pool))) if pool else ""

    @rule(who=CALLERS, data=st.data())
    def begin(self, who: Caller, data: st.DataObject) -> None:
        """A call comes to its check."""
        self.check(who, data)

    @rule(who=CALLERS, count=st.sampled_from([1, 2, 3, 5, 8]), observable=st.booleans(), data=st.data())
    def timeouts(self, who: Caller, count: int, observable: bool, data: st.DataObject) -> None:
        """Some calls are sent, and nobody answers in time."""
        for number in range(count):
            each = attrs.evolve(who, scope=SCOPES[number % 3]) if count == 8 else who
            if (name := self.check(each, data)) is not None:
                self.claim_one(name, left=False)
                self.mark_one(name, Reason.DEADLINE_EXCEEDED, observable)

    @rule(who=CALLERS, data=st.data())
    def read(self, who: Caller, data: st.DataObject) -> None:
        """A read goes out and is answered at once."""
        if (name := self.check(attrs.evolve(who, tier=Tier.READ), data)) is not None:
            self.claim_one(name, left=False)
            self.complete_one(name, succeeded=True, data=data)

    def check(self, who: Caller, data: st.DataObject) -> str | None:
        """The check; the id of a call that may go out and is on the books."""
        principal, server, scope, tier, every = attrs.astuple(who)
        self.minted += 1
        roots = [each.call.root for each in self.fates.values() if each.call.principal == principal]
        lineage = data.draw(st.sampled_from([None, None, *roots[-2:]]))
        call = Call(
            call_id=call_id(self.minted),
            server=server,
            transport=SERVERS[server],
            lease=Lease(server, self.epochs[server]),
            principal=principal,
            gate_scope=scope,
            tool="tool",
            admission_tier=tier,
            gate_tier=tier,
            every_scope=every,
            lineage=lineage,
        )
        fate = self.fates[call.call_id] = Fate(call, tier)
        in_the_way = [
            each
            for each in self.fates.values()
            if each.gates
            and (each.call.principal, each.call.server) == (principal, server)
            and (every or each.call.gate_scope == scope or self.is_wide(each))
        ]
        passes = len(in_the_way) == 1 and in_the_way[0].call.root == lineage and in_the_way[0].blocker is None
        self.do(principal, "check_and_begin", call)  # which may fold what it has just let the call pass by
        gated = bool(in_the_way) and not passes and tier is not Tier.READ
        if isinstance(self.found, Refusal):
            del self.fates[call.call_id]
            assert self.mode is Mode.ENFORCE
            assert gated == (self.found.code == "PENDING_CALL_UNRESOLVED")
            assert not gated or self.found.count == len(in_the_way)
            return None
        assert not (gated and self.mode is Mode.ENFORCE), "it passed a gate that is shut"
        assert (gated and self.mode is Mode.WARN) == (self.found.warning is not None)
        fate.tracked = self.found.tracked
        if not fate.tracked:
            fate.received = True
            return None
        for registry in (self.registry, self.twin):
            row = registry.journal_row(call.call_id, now=self.now, wall=WALL)
            if row is not None and registry is self.registry:
                self.tables.journal[row.call_id] = row
        return call.call_id

    def is_wide(self, fate: Fate) -> bool:
        blocker = None if fate.blocker is None else self.registry.get(fate.blocker)
        return isinstance(blocker, Blocker) and blocker.wide

    @rule(data=st.data(), left=st.sampled_from([False, False, False, True]))
    def claim(self, data: st.DataObject, left: bool) -> None:
        """The writer comes to it."""
        if name := self.pick(data, State.RESERVED):
            self.claim_one(name, left=left)

    def claim_one(self, name: str, *, left: bool) -> None:
        """The writer comes to this one."""
        fate = self.fates[name]
        transitions = self.do(fate.call.principal, "claim", name, wire_id=name, cancelled=left)
        if transitions and transitions[0].changed and transitions[0].after is State.SENT:
            fate.received = True

    @rule(data=st.data(), how=st.sampled_from(["not_sent", "refused"]))
    def nothing_happened(self, data: st.DataObject, how: str) -> None:
        """It ends in the queue, or the upstream proves that it did not process it."""
        if name := self.pick(data, State.RESERVED if how == "not_sent" else State.SENT, State.UNRESOLVED):
            fate = self.fates[name]
            self.do(fate.call.principal, how, name)
            fate.answered = fate.answered or (fate.received and how == "refused")

    @rule(data=st.data(), reason=st.sampled_from(Reason), observable=st.booleans())
    def mark(self, data: st.DataObject, reason: Reason, observable: bool) -> None:
        """Its caller's wait ends."""
        if name := self.pick(data, State.SENT):
            self.mark_one(name, reason, observable)

    def mark_one(self, name: str, reason: Reason, observable: bool) -> None:
        """The wait of this one ends."""
        call = self.fates[name].call
        (first, *_) = self.do(call.principal, "mark_unresolved", call, reason=reason, observable=observable)
        if self.registry.get(name) is not None:
            assert self.fates[name].state is first.after

    @rule(data=st.data(), succeeded=st.booleans())
    def respond(self, data: st.DataObject, succeeded: bool) -> None:
        """A response comes while the caller waits."""
        if name := self.pick(data, State.SENT):
            self.complete_one(name, succeeded=succeeded, data=data)

    def complete_one(self, name: str, *, succeeded: bool, data: st.DataObject) -> None:
        """The response to this one comes."""
        fate = self.fates[name]
        pool = [*sorted(self.fates), *sorted(self.members)]
        named = data.draw(st.lists(st.sampled_from(pool), max_size=3))
        self.do(fate.call.principal, "complete", name, succeeded=succeeded, reconciles=named)
        fate.answered = fate.answered or (fate.received and not isinstance(self.found, Rejected))

    @rule(data=st.data(), outcome=st.sampled_from(LateOutcome))
    def respond_late(self, data: st.DataObject, outcome: LateOutcome) -> None:
        """A response comes when nobody waits any more."""
        if name := self.pick(data, State.SENT, *OPEN, State.CANCELLED, State.CONNECTION_RESET):
            fate = self.fates[name]
            self.do(fate.call.principal, "resolve_late", name, outcome=outcome)
            fate.answered = fate.answered or (fate.received and not isinstance(self.found, Rejected))

    @rule(data=st.data())
    def member(self, data: st.DataObject) -> None:
        """A call of a blocker is answered after all."""
        if not self.members:
            return
        name = data.draw(st.sampled_from(sorted(self.members)))
        member = data.draw(st.sampled_from(sorted(self.members[name])))
        fate = self.fates[member]
        self.members[name].discard(member)
        self.do(fate.call.principal, "resolve_member", name, outcome=LateOutcome.SUCCESS)
        fate.answered = fate.settled = True
        fate.blocker = None

    @rule(data=st.data(), actor=st.sampled_from(ActorKind))
    def claim_cancel(self, data: st.DataObject, actor: ActorKind) -> None:
        """Somebody wants to cancel it."""
        if not (name := self.pick(data, *OPEN, *HOLDABLE)):
            return
        fate = self.fates[name]
        found = self.do(fate.call.principal, "claim_cancel", name, actor=actor)
        if found and found[0].changed:
            assert not fate.sending
            assert fate.frames == 0
            fate.sending = True

    @rule(data=st.data(), told=st.booleans(), frame=st.booleans())
    def finish_cancel(self, data: st.DataObject, told: bool, frame: bool) -> None:
        """The winner has told the upstream, or not."""
        sending = [name for name, fate in self.fates.items() if fate.sending]
        if sending:
            name = data.draw(st.sampled_from(sending))
            fate = self.fates[name]
            fate.sending = False
            fate.frames += told or frame
            self.do(fate.call.principal, "finish_cancel", name, told=told, frame_sent=frame)
            assert not isinstance(self.found, Rejected)

    @rule(data=st.data(), outcome=st.sampled_from(Proof))
    def proven(self, data: st.DataObject, outcome: Proof) -> None:
        """The upstream's own record says what became of it."""
        if name := self.pick(data, *OPEN, *HOLDABLE):
            self.do(self.fates[name].call.principal, "proven", name, outcome=outcome)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """The operator says that it is settled."""
        names = [*sorted(self.fates), *sorted(self.members)]
        if names:
            name = data.draw(st.sampled_from(names))
            record = self.registry.get(name)
            principal = self.fates[name].call.principal if record is None else record.call.principal
            self.do(principal, "release", name, actor=ActorKind.OPERATOR)

    @rule(data=st.data())
    def lose_sight(self, data: st.DataObject) -> None:
        """Its response stream is gone."""
        if name := self.pick(data, State.UNRESOLVED):
            self.do(self.fates[name].call.principal, "lose_sight", name)

    @rule(data=st.data())
    def progress(self, data: st.DataObject) -> None:
        """The upstream reports progress."""
        if name := self.pick(data, State.SENT, State.UNRESOLVED):
            self.registry.progress(name, now=self.now)
            if self.fates[name].call.principal == WATCHED:
                self.twin.progress(name, now=self.now)

    @rule()
    def acknowledge(self) -> None:
        """The store has what there is."""
        for registry in (self.registry, self.twin):
            registry.acknowledge([(each.call.call_id, each.revision) for each in registry.entries()], now=self.now)

    # ---- what happens to all

    @rule(server=st.sampled_from(["files", "web"]))
    def end_epoch(self, server: str) -> None:
        """A connection ends, and a new one is made."""
        self.do(None, "end_epoch", server, self.epochs[server], transport=SERVERS[server])
        self.epochs[server] += 1

    @rule(seconds=st.sampled_from([0.0, 1.0, 1.0, 40.0, 40.0, 400.0, 1000.0]))
    def time(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds
        self.do(None, "expire")

    @rule(mode=st.sampled_from([Mode.ENFORCE, Mode.WARN, Mode.OFF, Mode.OFF]))
    def configure(self, mode: Mode) -> None:
        """The operator changes the mode."""
        self.mode = mode
        for registry in (self.registry, self.twin):
            registry.configure(self.settings_of(mode))

    # ---- what holds

    @invariant()
    def only_what_was_sent_is_received(self) -> None:
        """I1: an upstream receives only what was sent; what is `not_sent` it has not received, or refused itself."""
        for fate in self.fates.values():
            if fate.state is State.RESERVED and fate.tracked:
                assert not fate.received
            if fate.state is State.NOT_SENT:
                assert not fate.received or fate.answered

    @invariant()
    def the_caps_hold(self) -> None:
        """I4: every cap, every count and every index agrees with the records."""
        check_accounts(self.registry)
        check_accounts(self.twin)

    @invariant()
    def one_principal_sees_the_same_without_the_others(self) -> None:
        """I5, I10: the watched principal sees in the twin what it sees here."""
        assert self.seen_by(self.twin, WATCHED) == self.seen_by(self.registry, WATCHED)

    @invariant()
    def a_call_is_in_one_place(self) -> None:
        """I6: what was sent and not answered is an entry, in a blocker, settled, or untracked, and in one of these."""
        for name, fate in self.fates.items():
            if not fate.received or fate.answered or not fate.tracked:
                continue
            record = self.registry.get(name)
            folded = any(name in members for members in self.members.values())
            gone = fate.settled or fate.state.terminal or fate.forgotten
            assert (record is not None) + folded <= 1
            assert (record is not None) or folded or gone
            assert record is None or record.state is fate.state
        for blocker, members in self.members.items():
            found = self.registry.get(blocker)
            assert isinstance(found, Blocker)
            assert found.count == len(members)

    @invariant()
    def gates_are_shut_for_what_gates(self) -> None:
        """I2: a scope is gated exactly when something of it gates."""
        gating = Counter(
            (fate.call.principal, fate.call.server, fate.call.gate_scope) for fate in self.fates.values() if fate.gates
        )
        wide = {
            (each.call.principal, each.call.server)
            for each in self.registry.entries()
            if isinstance(each, Blocker) and each.wide and each.gating
        }
        for principal in PRINCIPALS:
            for server in SERVERS:
                for scope in SCOPES:
                    expected = gating[principal, server, scope] > 0 or (principal, server) in wide
                    assert expected == self.registry.gates(server, principal, scope)

    def teardown(self) -> None:
        """Whenever the process ends, the next one finds the gates as they were, as far as the settings say."""
        check_restart(self)

    @invariant()
    def at_most_one_cancel_goes_out(self) -> None:
        """I8: no call is cancelled twice."""
        assert all(fate.frames <= 1 for fate in self.fates.values())


@pytest.mark.req("I1", "I2", "I3", "I4", "I5", "I6", "I8", "I10")
@pytest.mark.req("P13", "P14", "P16", "P32")
@pytest.mark.timeout(900 if SCHEDULED else 120)
def test_any_history() -> None:
    """After every step of any history the invariants hold."""
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=2000 if SCHEDULED else 100,
            stateful_step_count=150 if SCHEDULED else 80,
            deadline=None,
            derandomize=not SCHEDULED,
            suppress_health_check=list(HealthCheck),
        ),
    )
