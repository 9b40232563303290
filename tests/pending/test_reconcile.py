"""Reads, and the operator: who looked."""

from typing import Any

import pytest

from tests.pending.box import ANN, BOB, Box, call_id
from ztrio.errors import InvalidArguments
from ztrio.pending import (
    ActorKind,
    Lease,
    Mode,
    Rejected,
    State,
    Tier,
    Transport,
    reconcile_ids,
)

CALLER = ActorKind.CALLER


@pytest.mark.req("P39")
def test_a_later_read_reconciles() -> None:
    """A successful read of the same server and scope, sent afterwards, settles what cannot be observed any more."""
    box = Box()
    call = box.unresolved(observable=False)
    (settled,) = box.read()
    assert (call.call_id, State.RECONCILED, CALLER, "caller:reconcile") == (
        settled.call.call_id,
        settled.after,
        settled.actor,
        settled.settled_by,
    )
    assert not box.gated()


@pytest.mark.req("P39", "P58")
def test_who_looked_is_said() -> None:
    """What an operator's read settles is settled by the operator."""
    box = Box()
    call, read = box.unresolved(), box.sent(tier=Tier.READ)
    facts: dict[str, Any] = {"reconciles": [call.call_id], "actor": ActorKind.OPERATOR}
    [_, settled] = box.registry.complete(read.call_id, succeeded=True, **facts, **box.tick())
    assert (ActorKind.OPERATOR, "operator:reconcile") == (settled.actor, settled.settled_by)


@pytest.mark.req("P39")
@pytest.mark.parametrize(
    "facts",
    [
        {"succeeded": False},
        {"scope": "other"},
        {"server": "mail"},
        {"principal": BOB, "scope": ANN},
    ],
)
@pytest.mark.parametrize("named", [False, True])
def test_reads_that_settle_nothing(facts: dict[str, object], named: bool) -> None:
    """A failed read, one of another scope, server or principal settles nothing, whatever it names."""
    box = Box()
    call = box.unresolved(observable=False)
    names = [call.call_id] if named else []
    assert [] == box.read(*names, **facts)  # type: ignore[arg-type]
    assert box.gated()


@pytest.mark.req("P39")
def test_a_write_settles_nothing() -> None:
    """A call that is no read settles nothing, whatever it names."""
    box = Box.of(mode=Mode.OFF)
    call = box.unresolved(observable=False)
    assert [State.COMPLETED] == [each.after for each in box.complete(box.sent(), call.call_id)]
    assert State.UNRESOLVED == box.state(call)


@pytest.mark.req("P39", "P2")
def test_a_read_that_is_over_settles_nothing_more() -> None:
    """A read that was answered late, and is answered once more, settles nothing by that."""
    box = Box()
    call = box.unresolved(observable=False)
    read = box.sent(tier=Tier.READ)
    box.late(read)
    (again,) = box.complete(read, call.call_id)
    assert (State.COMPLETED_LATE, False) == (again.after, again.changed)
    assert box.gated()


@pytest.mark.req("P39")
def test_a_read_sent_before_settles_nothing() -> None:
    """What counts is when the read was sent, not when it was begun or answered."""
    box = Box()
    early = box.sent(tier=Tier.READ)
    begun = box.reserved(tier=Tier.READ)
    call = box.unresolved(observable=False)
    box.complete(early, call.call_id)
    assert State.UNRESOLVED == box.state(call)
    box.claim(begun)
    box.complete(begun)
    assert State.RECONCILED == box.state(call)


@pytest.mark.req("P39")
@pytest.mark.parametrize(("age", "settles"), [(0.0, False), (29.9, False), (30.0, True)])
def test_recent_progress(age: float, settles: bool) -> None:
    """Within 30 s of progress a read settles only what it names."""
    box = Box()
    call = box.unresolved(observable=False)
    box.registry.progress(call.call_id, now=box.now)
    box.now += age
    assert settles == bool(box.read())
    assert settles != bool(box.read(call.call_id))


@pytest.mark.req("P39")
def test_what_is_observable_has_to_be_named() -> None:
    """While a late response may come only a read that names the call settles it."""
    box = Box()
    call, other = box.unresolved(), box.unresolved()
    assert [] == box.read()
    assert [call.call_id] == [each.call.call_id for each in box.read(call.call_id)]
    assert [State.RECONCILED, State.UNRESOLVED] == [box.state(call), box.state(other)]
    box.registry.lose_sight(other.call_id, **box.tick())
    assert [other.call_id] == [each.call.call_id for each in box.read()]


@pytest.mark.req("P38", "P39")
@pytest.mark.parametrize("bound", [16, 1])
def test_a_call_of_our_own_has_to_be_named(bound: int) -> None:
    """A call of our own tools, or a blocker of such, is settled by a read that names it and by no other, however late.

    What it did elsewhere is nothing that a read of the toolbox happens to look at, and nothing of it is quiet or not.
    """
    box = Box.of(gating=bound)
    facts: dict[str, Any] = {"server": "local:mails", "transport": Transport.LOCAL, "lease": Lease("", 0)}
    for _ in range(2):
        box.unresolved(observable=False, **facts)
    box.now += 3600.0
    assert [] == box.read(**facts)
    assert box.gated(server="local:mails")
    names = [record.call.call_id for record in box.registry.entries(ANN) if record.gating]
    assert [State.RECONCILED] * 2 == [each.after for each in box.read(*names, **facts)]
    assert not box.gated(server="local:mails")


@pytest.mark.req("P39")
def test_ids_that_do_not_qualify_mean_nothing() -> None:
    """Unknown, foreign, settled and reserved ids among those named change nothing and are not told apart."""
    box = Box.of(mode=Mode.OFF)
    mine, foreign, over = box.unresolved(), box.unresolved(principal=BOB), box.unresolved()
    box.late(over)
    reserved = box.reserved()
    before = box.listed(BOB)
    names = [call_id(999), foreign.call_id, over.call_id, reserved.call_id, mine.call_id, mine.call_id]
    settled = box.unresolved(lease=Lease("t0", 0), observable=False)
    box.end_epoch(0)
    box.registry.release(settled.call_id, actor=ActorKind.OPERATOR, **box.tick())
    names.append(settled.call_id)
    assert [mine.call_id] == [each.call.call_id for each in box.read(*names)]
    assert before == box.listed(BOB)
    assert [State.COMPLETED_LATE, State.RESERVED] == [box.state(over), box.state(reserved)]


@pytest.mark.req("P39", "P40")
def test_a_call_that_is_being_cancelled_is_not_reconciled() -> None:
    """While somebody tells the upstream a read settles nothing, neither an open call nor a held one."""
    box = Box()
    call, held = box.unresolved(observable=False), box.sent(scope="h", lease=Lease("t2", 2))
    box.end_epoch(2)
    for each in (call, held):
        box.registry.claim_cancel(each.call_id, actor=CALLER, **box.tick())
    facts: dict[str, Any] = {"lease": Lease("t3", 3)}
    assert [] == box.read(call.call_id, **facts) + box.read(held.call_id, scope="h", **facts)
    with pytest.raises(Rejected, match="being_cancelled"):
        box.registry.release(call.call_id, actor=ActorKind.OPERATOR, **box.tick())
    with pytest.raises(Rejected, match="being_cancelled"):
        box.registry.release(held.call_id, actor=ActorKind.OPERATOR, **box.tick())


@pytest.mark.req("P39", "P38")
def test_a_read_settles_held_calls() -> None:
    """A later read, over whatever connection, settles a call whose process died in the middle of it."""
    box = Box()
    call = box.unresolved()
    box.end_epoch()
    (settled,) = box.read(lease=Lease("t2", 2))
    assert ("settle", State.CONNECTION_RESET, False) == (settled.event, settled.after, settled.gating)
    assert call.call_id == settled.call.call_id


@pytest.mark.req("P39")
def test_reads_that_nobody_tracks_settle_nothing() -> None:
    """An unresolved read may be named, too; it gated nothing."""
    box = Box()
    read = box.unresolved(tier=Tier.READ)
    assert [] == box.read()
    assert [State.RECONCILED] == [each.after for each in box.read(read.call_id)]


@pytest.mark.req("P39")
@pytest.mark.parametrize(
    "value",
    [
        None,
        "pc_aaaaaaaaaaaaaaaa",
        {"pc_aaaaaaaaaaaaaaaa": 1},
        ["pc_aaaaaaaaaaaaaaa"],
        ["pc_aaaaaaaaaaaaaaaaa"],
        ["pc_aaaaaaaaaaaaaaa1"],
        ["PC_AAAAAAAAAAAAAAAA"],
        ["job_aaaaaaaaaaaaaaaa"],
        ["pc_aaaaaaaaaaaaaaaa\n"],
        [7],
        [call_id(number) for number in range(17)],
    ],
)
def test_ids_are_checked(value: object) -> None:
    """What is no list of at most 16 ids of the right shape is an invalid argument."""
    with pytest.raises(InvalidArguments, match="at most 16 ids"):
        reconcile_ids(value)


@pytest.mark.req("P39")
def test_ids_of_calls_and_blockers() -> None:
    """Up to 16 ids of calls and blockers are taken as they are, none included."""
    names = [call_id(number) for number in range(15)] + ["pcb_aaaaaaaaaaaaaaaa"]
    assert tuple(names) == reconcile_ids(names) == reconcile_ids(tuple(names))
    assert () == reconcile_ids([])


@pytest.mark.req("P38", "P39")
def test_the_operators_word() -> None:
    """A release settles an unresolved call, gating or not, with its actor; what is over stays as it is."""
    box = Box()
    call, read = box.unresolved(), box.unresolved(tier=Tier.READ)
    for each in (call, read):
        (released,) = box.registry.release(each.call_id, actor=ActorKind.OPERATOR, **box.tick())
        assert (State.RELEASED, ActorKind.OPERATOR, True) == (released.after, released.actor, released.changed)
    assert not box.gated()
    assert not box.registry.release(call.call_id, actor=ActorKind.OPERATOR, **box.tick())[0].changed
