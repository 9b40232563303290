"""Gating calls fold into blockers, and blockers merge; no gate opens by that."""

from typing import Any

import pytest

from tests.pending.box import ANN, BOB, Box, settings
from ztrio.pending import (
    ActorKind,
    LateOutcome,
    Lease,
    Mode,
    Proof,
    Rejected,
    ServerPolicy,
    State,
    Tier,
    Transport,
)

HTTP: dict[str, Any] = {"transport": Transport.HTTP}


@pytest.mark.req("P14")
@pytest.mark.parametrize("cap", [1, 2, 16, 256])
def test_gating_entries_fold_beyond_the_cap(cap: int) -> None:
    """Beyond the cap the oldest entry of the scope folds into its blocker, and the gate stays shut throughout."""
    box = Box.of(gating=cap, records=1000)
    calls = []
    for _ in range(cap + 3):
        calls.append(box.unresolved())
        assert box.gated()
    assert [None] * 3 + [State.UNRESOLVED] * cap == [box.state(call) for call in calls]
    (blocker,) = box.blockers()
    assert (3, "pcb_" + calls[0].call_id[3:]) == (blocker.count, blocker.call.call_id)
    folds = [each for each in box.seen if each.event == "fold" and each.call.tool != "*"]
    assert [call.call_id for call in calls[:3]] == [each.call.call_id for each in folds]
    assert {blocker.call.call_id} == {each.blocker for each in folds}
    assert all(each.parked and each.gating and not each.observable for each in folds), "their waits are given up"
    assert cap >= box.registry.statistics().late_waits


@pytest.mark.req("P14")
def test_scopes_and_servers_fold_by_themselves() -> None:
    """A full scope folds its own entries; another scope, server and principal keep theirs."""
    box = Box.of(gating=1)
    others = [box.unresolved(scope="other"), box.unresolved(server="mail"), box.unresolved(principal=BOB)]
    first, second = box.unresolved(), box.unresolved()
    assert [State.UNRESOLVED] * 3 == [box.state(call) for call in others]
    assert (None, State.UNRESOLVED) == (box.state(first), box.state(second))


@pytest.mark.req("P14")
def test_what_folds_last() -> None:
    """Held entries fold only when no unresolved one is left, cancelling ones never: then the newest folds itself."""
    box = Box.of(gating=3)
    cancelling, held = box.unresolved(lease=Lease("t2", 2)), box.unresolved()
    box.registry.claim_cancel(cancelling.call_id, actor=ActorKind.CALLER, **box.tick())
    box.end_epoch(1)
    assert State.CONNECTION_RESET == box.state(held)
    facts = {"lease": Lease("t2", 2)}
    third, fourth = box.unresolved(**facts), box.unresolved(**facts)
    assert [State.CANCELLING, State.CONNECTION_RESET, None, State.UNRESOLVED] == [
        box.state(call) for call in (cancelling, held, third, fourth)
    ]
    box.registry.claim_cancel(fourth.call_id, actor=ActorKind.CALLER, **box.tick())
    fifth = box.unresolved(**facts)
    assert box.state(fifth) is None, "the newest was the only one unresolved"
    assert (2, False) == (box.blockers()[0].count, box.blockers()[0].stays)


@pytest.mark.req("P14", "P38")
def test_a_held_entry_folds_when_nothing_else_is_left() -> None:
    """A held entry folds for a newer held one, and its blocker stays until somebody settles it."""
    box = Box.of(gating=1)
    calls = [box.sent() for _ in range(2)]
    box.end_epoch()
    assert [None, State.CONNECTION_RESET] == [box.state(call) for call in calls]
    (blocker,) = box.blockers()
    assert blocker.stays
    box.expire(after=100_000)
    assert box.registry.gates("files", ANN, ANN)


@pytest.mark.req("P14", "P40")
def test_nothing_folds_that_is_being_cancelled() -> None:
    """A scope full of calls that are being cancelled may exceed its cap by those, and by nothing else."""
    box = Box.of(gating=3, mode=Mode.OFF)
    calls = [box.unresolved() for _ in range(3)]
    for call in calls[:2]:
        box.registry.claim_cancel(call.call_id, actor=ActorKind.CALLER, **box.tick())
    box.registry.configure(settings(gating=1, mode=Mode.OFF))
    newest = box.unresolved()
    assert [State.CANCELLING, State.CANCELLING, None, None] == [box.state(call) for call in (*calls, newest)]
    box.finish(calls[0], told=False)
    assert box.state(calls[0]) is None, "it may fold again, and the cap holds again"
    assert 3 == box.blockers()[0].count


@pytest.mark.req("P14", "P40")
def test_a_cap_that_is_lowered_below_what_is_being_cancelled() -> None:
    """Where every entry of a scope is being cancelled none folds, however low the cap was set meanwhile."""
    box = Box.of(gating=2, mode=Mode.OFF)
    calls = [box.unresolved() for _ in range(2)]
    box.registry.claim_cancel(calls[0].call_id, actor=ActorKind.CALLER, **box.tick())
    box.registry.configure(settings(gating=1, mode=Mode.OFF))
    box.registry.claim_cancel(calls[1].call_id, actor=ActorKind.CALLER, **box.tick())
    assert [State.CANCELLING] * 2 == [box.state(call) for call in calls]
    assert [] == box.blockers()


@pytest.mark.req("P14", "P40")
def test_a_held_record_that_is_being_cancelled_does_not_fold() -> None:
    """A held record that somebody is telling its upstream about stays, and the newer call folds itself."""
    box = Box.of(gating=1)
    first, second = box.sent(), box.sent(lease=Lease("t2", 2))
    box.end_epoch(1)
    box.registry.claim_cancel(first.call_id, actor=ActorKind.CALLER, **box.tick())
    box.mark(second)
    assert (State.CONNECTION_RESET, None) == (box.state(first), box.state(second))


@pytest.mark.req("P15")
def test_a_blocker_of_mixed_calls() -> None:
    """A blocker keeps latest number, time and epoch, all tiers, the last progress, and whether any was observable."""
    box = Box.of(gating=1, mode=Mode.OFF)
    first = box.unresolved(admission_tier=Tier.WRITE, observable=False)
    box.now += 3
    second = box.sent(lease=Lease("t2", 9), admission_tier=Tier.DESTRUCTIVE, tier=Tier.DESTRUCTIVE, ceiling=100.0)
    box.registry.progress(second.call_id, now=box.now)
    box.mark(second)
    (blocker,) = box.blockers()
    assert (1, False, 1) == (blocker.count, blocker.was_observable, blocker.call.lease.epoch)
    expires, number = box.record(second).expires_at, box.record(second).unresolved_seq
    box.unresolved(admission_tier=Tier.READ)
    assert (first.gate_scope, "*") == (blocker.call.gate_scope, blocker.call.tool)
    assert (2, True, 9) == (blocker.count, blocker.was_observable, blocker.call.lease.epoch)
    assert {Tier.WRITE, Tier.DESTRUCTIVE} == blocker.tiers
    assert (expires, number, 1003.0) == (blocker.expires_at, blocker.unresolved_seq, blocker.last_progress)
    assert (Tier.DESTRUCTIVE, Tier.DESTRUCTIVE) == (blocker.gate_tier, blocker.call.admission_tier)
    box.now += 1
    box.unresolved(admission_tier=Tier.WRITE)
    assert (frozenset(Tier), 3) == (blocker.tiers, blocker.count)
    assert 9 == blocker.call.lease.epoch


@pytest.mark.req("P15")
def test_a_blocker_shows_the_highest_tier() -> None:
    """Also of calls over one and the same connection a blocker is shown under the highest permission."""
    box = Box.of(gating=1, mode=Mode.OFF)
    for tier in (Tier.READ, Tier.DESTRUCTIVE, Tier.WRITE, Tier.WRITE):
        box.unresolved(admission_tier=tier)
    (blocker,) = box.blockers()
    assert (3, 1, Tier.DESTRUCTIVE) == (blocker.count, blocker.call.lease.epoch, blocker.call.admission_tier)


@pytest.mark.req("P15")
@pytest.mark.parametrize(("how", "state"), [("outcome", State.COMPLETED_LATE), ("proof", State.PROVEN)])
def test_a_blocker_resolves_with_its_last_call(how: str, state: State) -> None:
    """A call that turns out after all lowers the count, and the last one opens the gate."""
    box = Box.of(gating=1, mode=Mode.OFF)
    kept = [box.unresolved() for _ in range(3)][-1]
    (blocker,) = box.blockers()
    name = blocker.call.call_id
    facts: dict[str, object] = {"outcome": LateOutcome.SUCCESS} if how == "outcome" else {"proof": Proof.COMMITTED}
    box.late(kept)
    (lowered,) = box.registry.resolve_member(name, **box.tick(), **facts)  # type: ignore[arg-type]
    assert ("member", 1, True) == (lowered.event, lowered.members, lowered.journal_put)
    assert box.registry.gates("files", ANN, ANN)
    (resolved,) = box.registry.resolve_member(name, **box.tick(), **facts)  # type: ignore[arg-type]
    assert (state, False, (name,)) == (resolved.after, resolved.gating, resolved.journal_drop)
    assert not box.registry.gates("files", ANN, ANN)
    (over,) = box.registry.resolve_member(name, **box.tick(), **facts)  # type: ignore[arg-type]
    assert (state, False) == (over.after, over.changed)


@pytest.mark.req("P15")
def test_what_resolves_no_call_of_a_blocker() -> None:
    """An unknown blocker, a call that is none, and a proof that the call still runs change nothing."""
    box = Box.of(gating=1, mode=Mode.OFF)
    call = [box.unresolved() for _ in range(3)][-1]
    (blocker,) = box.blockers()
    for name in ("pcb_unknown", call.call_id):
        assert [] == box.registry.resolve_member(name, outcome=LateOutcome.SUCCESS, **box.tick())
    assert [] == box.registry.proven(blocker.call.call_id, outcome=Proof.RUNNING, **box.tick())
    assert 2 == blocker.count
    box.registry.proven(blocker.call.call_id, outcome=Proof.NOT_STARTED, **box.tick())
    assert 1 == blocker.count


@pytest.mark.req("P15", "P39")
def test_a_blocker_is_reconciled_by_a_read_after_its_latest_call() -> None:
    """A read sent before the latest call became unresolved settles nothing; one after it settles them all."""
    box = Box.of(gating=1, mode=Mode.OFF)
    box.unresolved(observable=False)
    early = box.sent(tier=Tier.READ)
    box.unresolved(observable=False)
    box.unresolved(observable=False)
    (blocker,) = box.blockers()
    assert [] == box.complete(early, blocker.call.call_id)[1:]
    assert blocker.gating
    assert {State.RECONCILED} == {each.after for each in box.read()}
    assert State.RECONCILED == blocker.state
    assert not box.registry.gates("files", ANN, ANN)


@pytest.mark.req("P15", "P39")
def test_a_blocker_of_one_scope_is_not_settled_from_another() -> None:
    """A read of another scope settles no blocker of this one, though it names it."""
    box = Box.of(gating=1, mode=Mode.OFF)
    for _ in range(2):
        box.unresolved(observable=False)
    (blocker,) = box.blockers()
    assert [] == box.read(blocker.call.call_id, scope="other")
    assert blocker.gating


@pytest.mark.req("P15", "P39")
@pytest.mark.parametrize("why", ["observable", "progress"])
def test_a_blocker_of_which_something_may_be_heard_has_to_be_named(why: str) -> None:
    """A blocker with a call that was observable, or with recent progress, is settled only by a read that names it."""
    box = Box.of(gating=1, mode=Mode.OFF)
    calls = [box.sent() for _ in range(2)]
    if why == "progress":
        box.registry.progress(calls[0].call_id, now=box.now)
    for call in calls:
        box.mark(call, observable=why == "observable" and call is calls[0])
    (blocker,) = box.blockers()
    box.read()
    assert [blocker] == box.blockers()
    box.read(blocker.call.call_id)
    assert State.RECONCILED == blocker.state


@pytest.mark.req("P15", "P40")
def test_a_blocker_cannot_be_cancelled_by_telling_anybody() -> None:
    """To cancel a blocker sends nothing, changes nothing, and says `id_unknown`; it can be released."""
    box = Box.of(gating=1, mode=Mode.OFF)
    [box.unresolved() for _ in range(2)]
    (blocker,) = box.blockers()
    with pytest.raises(Rejected, match="id_unknown"):
        box.registry.claim_cancel(blocker.call.call_id, actor=ActorKind.CALLER, **box.tick())
    assert (State.UNRESOLVED, False) == (blocker.state, blocker.claimed)
    box.registry.release(blocker.call.call_id, actor=ActorKind.OPERATOR, **box.tick())
    assert (State.RELEASED, False, "operator:release") == (blocker.state, blocker.gating, blocker.settled_by)


@pytest.mark.req("P15", "P38")
def test_a_blocker_expires_with_its_latest_call() -> None:
    """A blocker ends when the time of its latest call is up, or stays for good with `on_expire: hold`."""
    for policy in ("open", "hold"):
        box = Box.of(gating=1, mode=Mode.OFF, servers={"files": ServerPolicy(on_expire=policy)})
        box.unresolved()
        box.now += 100
        box.unresolved()
        box.now += 100
        last = box.unresolved(observable=False)
        (blocker,) = box.blockers()
        box.late(last)
        assert 1100 + 630 == blocker.expires_at
        box.expire(after=1000 + 630 - box.now)
        assert State.UNRESOLVED == blocker.state
        box.expire(after=100)
        assert (State.UNRESOLVED if policy == "hold" else State.EXPIRED) == blocker.state
        assert (policy == "hold") == box.registry.gates("files", ANN, ANN)
        assert (policy == "hold") == blocker.stays
        box.expire(after=100_000)
        assert (policy == "hold") == box.registry.gates("files", ANN, ANN)


@pytest.mark.req("P15", "P44")
def test_a_blocker_and_the_end_of_an_epoch() -> None:
    """A blocker ends with the latest epoch of its calls where `on_reset` is open; else it stays, unobservable."""
    for policy, state in (("open", State.CONNECTION_RESET), ("hold", State.UNRESOLVED)):
        box = Box.of(gating=1, mode=Mode.OFF, servers={"files": ServerPolicy(on_reset=policy)})  # type: ignore[arg-type]
        for epoch in (1, 2, 3):
            box.unresolved(lease=Lease("t1", epoch))
        (blocker,) = box.blockers()
        box.end_epoch(1)
        assert (State.UNRESOLVED, True, policy == "hold") == (blocker.state, blocker.was_observable, blocker.stays)
        box.end_epoch(2)
        assert state == blocker.state
        assert (policy == "hold") == blocker.stays
        assert box.registry.gates("files", ANN, ANN), "the third call is of another epoch"
        box.end_epoch(3)
        assert (policy == "hold") == box.registry.gates("files", ANN, ANN)


@pytest.mark.req("P15", "P38", "P44")
def test_a_reset_does_not_open_what_was_held_before() -> None:
    """A blocker that stays because a call in it expired and is held stays, though resets open gates on this server."""
    box = Box.of(gating=1, mode=Mode.OFF, servers={"files": ServerPolicy(on_expire="hold", on_reset="open")})
    for _ in range(2):
        box.unresolved()
    (blocker,) = box.blockers()
    box.expire(after=1000)
    assert blocker.stays
    box.end_epoch()
    assert (True, State.UNRESOLVED) == (blocker.gating, blocker.state)


@pytest.mark.req("P15", "P39", "P44")
def test_a_reset_makes_nothing_observable() -> None:
    """The end of one of several epochs leaves a blocker that could not be observed as it was: a read settles it."""
    box = Box.of(gating=1, mode=Mode.OFF)
    for epoch in (1, 2, 3):
        box.unresolved(lease=Lease("t1", epoch), observable=False)
    (blocker,) = box.blockers()
    box.end_epoch(1)
    assert not blocker.was_observable
    box.read(lease=Lease("t1", 3))
    assert State.RECONCILED == blocker.state


@pytest.mark.req("P14", "P38", "P44")
def test_a_call_that_is_folded_by_the_end_of_its_own_epoch() -> None:
    """A reset that folds another call of the same epoch leaves nothing behind that time would open."""
    box = Box.of(gating=1, mode=Mode.OFF)
    first, second = box.sent(), box.unresolved()
    box.end_epoch()
    assert (State.CONNECTION_RESET, None) == (box.state(first), box.state(second))
    (blocker,) = box.blockers()
    assert (1, True, False) == (blocker.count, blocker.stays, blocker.was_observable)
    box.registry.release(first.call_id, actor=ActorKind.OPERATOR, **box.tick())
    box.expire(after=100_000)
    assert box.registry.gates("files", ANN, ANN)


@pytest.mark.req("P15")
def test_the_end_of_a_connection_over_http_leaves_blockers() -> None:
    """A blocker of calls over HTTP survives a reconnect as they would."""
    box = Box.of(gating=1, mode=Mode.OFF)
    [box.unresolved(**HTTP) for _ in range(2)]
    assert [] == box.end_epoch(1, transport=Transport.HTTP)
    assert [False] == [each.stays for each in box.blockers()]


@pytest.mark.req("P16")
def test_blockers_merge_beyond_the_cap() -> None:
    """The 65th blocker makes those of a server one, which gates all scopes of this principal there, and only its."""
    box = Box.of(gating=1, blockers=4, mode=Mode.OFF)
    box.unresolved(server="mail", scope="m")
    box.unresolved(server="mail", scope="m")
    for number in range(3):
        [box.unresolved(scope=f"s{number}") for _ in range(2)]
    assert 4 == len(box.blockers())
    names = [each.call.call_id for each in box.blockers() if each.call.server == "files"]
    [box.unresolved(scope="s3") for _ in range(2)]
    kept, merged = box.blockers()
    assert (("mail", "m"), ("files", "*")) == (
        (kept.call.server, kept.call.gate_scope),
        (merged.call.server, merged.call.gate_scope),
    )
    assert (4, names[0]) == (merged.count, merged.call.call_id)
    merges = [each for each in box.seen if each.event == "merge"]
    assert set(names[1:]) < {each.call.call_id for each in merges if each.blocker == names[0]}
    (own,) = [each for each in merges if each.blocker is None]
    assert (names[0], True) == (own.call.call_id, own.journal_put)
    assert set(names[1:]) < set(own.journal_drop)
    gates = box.registry.gates
    assert gates("files", ANN, "never seen")
    assert not gates("mail", ANN, "never seen")
    assert not gates("files", BOB, "never seen")
    assert merged is box.registry.covering("files", ANN, "s0")
    (fold,) = [
        each for each in box.seen if each.event == "fold" and (each.call.gate_scope, each.call.tool) == ("s3", "put")
    ]
    assert names[0] == fold.blocker, "it is told where the call is now"


@pytest.mark.req("P16")
def test_what_folds_later_goes_into_the_merged_blocker() -> None:
    """While a server has its one blocker no scope there gets its own, and the merged one can be reconciled."""
    box = Box.of(gating=1, blockers=1, mode=Mode.OFF)
    for scope in ("a", "b", "c"):
        [box.unresolved(scope=scope, observable=False) for _ in range(2)]
    (merged,) = box.blockers()
    assert (3, "*") == (merged.count, merged.call.gate_scope)
    before = merged.unresolved_seq
    box.unresolved(scope="c", observable=False)
    assert (4, True) == (merged.count, merged.unresolved_seq > before)
    ended = box.read(scope="a")
    assert merged.call.call_id in {each.call.call_id for each in ended}
    assert not box.registry.gates("files", ANN, "never seen")
    assert box.registry.gates("files", ANN, "b"), "its entry is its own"


@pytest.mark.req("P16")
def test_more_servers_than_blockers() -> None:
    """With one scope on each of more servers than blockers, each keeps its one: nothing merges across servers."""
    box = Box.of(gating=1, blockers=2, mode=Mode.OFF)
    for number in range(4):
        [box.unresolved(server=f"s{number}") for _ in range(2)]
    assert [f"s{number}" for number in range(4)] == [each.call.server for each in box.blockers()]
