"""What a refusal says, and the ways out that a caller has."""

import attrs
import pytest

from tests.pending.box import ANN, BOB, Box, call_id, context
from ztrio.errors import CallGated, NotSent, RegistryFull
from ztrio.pending import (
    Action,
    ActorKind,
    Lease,
    Mode,
    Refusal,
    Transport,
    Way,
    refusal_error,
    ways_out,
)

WAIT, RECONCILE, CANCEL, ASK = Action.WAIT, Action.RECONCILE, Action.CANCEL, Action.ASK_OPERATOR


@pytest.mark.req("P34")
def test_what_a_refusal_names() -> None:
    """It names the newest sixteen calls with tool, age, end and count, and how many there are altogether."""
    box = Box.of(mode=Mode.OFF, gating=20)
    for _ in range(25):
        box.unresolved()
        box.now += 1
    box.registry.configure(attrs.evolve(box.registry.settings, mode=Mode.ENFORCE))
    refusal = box.begin(box.call())
    assert isinstance(refusal, Refusal)
    assert (16, 25) == (len(refusal.gating), refusal.count)
    newest = refusal.gating[0]
    assert (call_id(25), "put", 1024.0, 1024.0 + 630, 1) == attrs.astuple(newest)
    assert isinstance(refusal_error(refusal, ways=[], now=box.now), CallGated)


@pytest.mark.req("P34")
def test_what_a_refusal_says_of_blockers_and_held_calls() -> None:
    """A blocker stands for several calls, and a held call has no end."""
    box = Box.of(gating=1)
    for _ in range(3):
        box.unresolved()
    box.end_epoch()
    refusal = box.begin(box.call(lease=Lease("t2", 2)))
    assert isinstance(refusal, Refusal)
    assert [("put", 1, float("inf")), ("*", 2, float("inf"))] == [
        (each.tool, each.count, each.expires_at) for each in refusal.gating
    ]
    assert 3 == refusal.count


@pytest.mark.req("P34")
@pytest.mark.parametrize(
    ("reads", "reachable", "permitted", "expected"),
    [
        (False, False, False, [WAIT, ASK]),
        (False, False, True, [WAIT, ASK]),
        (False, True, False, [WAIT, ASK]),
        (False, True, True, [WAIT, CANCEL]),
        (True, False, False, [WAIT, RECONCILE]),
        (True, False, True, [WAIT, RECONCILE]),
        (True, True, False, [WAIT, RECONCILE]),
        (True, True, True, [WAIT, RECONCILE, CANCEL]),
    ],
)
def test_ways_out(reads: bool, reachable: bool, permitted: bool, expected: list[Action]) -> None:
    """Each way out is named exactly when this caller can take it now; without any the operator is."""
    box = Box()
    record = box.record(box.unresolved())
    tiers = frozenset({"read", "write"} if permitted else {"read", "destructive"})
    tools = ["look", "find", "zoom", "list"] if reads else []
    ways = ways_out(record, context=context(tiers=tiers), read_tools=tools, reachable=reachable)
    assert expected == [way.action for way in ways]
    assert 1630.0 == ways[0].until
    if reads:
        assert ("find", "list", "look") == ways[1].tools


@pytest.mark.req("P34")
@pytest.mark.parametrize(
    ("view", "principal", "expected"),
    [
        ({}, ANN, [WAIT, RECONCILE, CANCEL]),
        ({"read_only": True}, ANN, [WAIT, RECONCILE]),
        ({"tiers": frozenset({"write"})}, ANN, [WAIT, CANCEL]),
        ({"servers": frozenset({"files"})}, ANN, [WAIT, RECONCILE, CANCEL]),
        ({"servers": frozenset({"mail"})}, ANN, [WAIT, ASK]),
        ({}, BOB, [WAIT, ASK]),
        ({"admin": True}, BOB, [WAIT, CANCEL]),
    ],
)
def test_ways_out_by_view(view: dict[str, object], principal: str, expected: list[Action]) -> None:
    """What is not permitted in the current view is no way out: read-only mode, other servers, other principals."""
    box = Box()
    record = box.record(box.unresolved())
    ways = ways_out(record, context=context(principal, **view), read_tools=["look"], reachable=True)
    assert expected == [way.action for way in ways]


@pytest.mark.req("P34", "P40")
def test_ways_out_by_state() -> None:
    """A call that is being cancelled, or was told once, is not cancelled again; what is over has no way out."""
    box = Box.of(gating=1, mode=Mode.OFF)

    def actions() -> list[Action]:
        return [way.action for way in ways_out(record, context=context(), read_tools=[], reachable=True)]

    call = box.unresolved(scope="a")
    record = box.record(call)
    box.registry.claim_cancel(call.call_id, actor=ActorKind.CALLER, **box.tick())
    assert [WAIT, ASK] == actions()
    box.finish(call, told=False)
    assert [WAIT, CANCEL] == actions()
    box.cancel(call, told=False, frame_sent=True)
    assert [WAIT, ASK] == actions()
    box.late(call)
    assert [] == actions()
    [box.unresolved() for _ in range(2)]
    (record,) = box.blockers()
    assert [WAIT, ASK] == actions()
    held = box.unresolved(scope="b", lease=Lease("t2", 2))
    box.end_epoch(2)
    record = box.record(held)
    assert [WAIT, CANCEL] == actions()
    ways = ways_out(record, context=context(), read_tools=["look"], reachable=False)
    assert [Way(WAIT), Way(RECONCILE, tools=("look",))] == ways
    ours = box.unresolved(server="local:x", transport=Transport.LOCAL)
    record = box.record(ours)
    assert ways_out(record, context=context(), read_tools=[], reachable=False)[0].until is None


@pytest.mark.req("P34")
def test_refusals_in_words() -> None:
    """Each refusal is an error with its code, a sentence about what happened, and the ways out."""
    box = Box.of(in_flight=2)
    box.unresolved()
    box.now += 7
    refusal = box.begin(box.call())
    assert isinstance(refusal, Refusal)
    ways = [Way(WAIT, until=1630.0), Way(RECONCILE, tools=("look", "list")), Way(CANCEL)]
    error = refusal_error(refusal, ways=ways, now=box.now)
    assert isinstance(error, CallGated)
    assert (
        "PENDING_CALL_UNRESOLVED: put was not sent: 1 earlier call to files may or may not have happened, last put "
        f"({call_id(1)}), 7 s ago. What you can do: wait, at most 623 s; look with look or list and name the call in "
        "ztrio/reconciles; cancel it."
    ) == str(error)
    assert {
        "server": "files",
        "tool": "put",
        "pending": [{"call_id": call_id(1), "tool": "put", "age": 7.0, "expires_in": 623.0, "count": 1}],
        "count": 1,
        "resolve": [
            {"action": "wait", "seconds": 623.0},
            {"action": "reconcile", "tools": ["look", "list"]},
            {"action": "cancel"},
        ],
    } == error.details
    box.unresolved()
    again = box.begin(box.call())
    assert isinstance(again, Refusal)
    said = str(refusal_error(again, ways=[Way(WAIT), Way(ASK)], now=box.now))
    assert "2 earlier calls to files" in said
    assert said.endswith("What you can do: wait until it is settled; ask the operator, who can look and release it.")
    gone = refusal_error(Refusal("NOT_SENT", box.call()), ways=[], now=0.0)
    assert isinstance(gone, NotSent)
    assert {"phase": "connect"} == gone.details
    full = refusal_error(Refusal("PENDING_REGISTRY_FULL", box.call(), retry_after=1.0), ways=[], now=0.0)
    assert isinstance(full, RegistryFull)
    assert {"retry_after": 1.0} == full.details
    assert "Repeat it in 1 s" in str(full)
    nobody = refusal_error(Refusal("PENDING_REGISTRY_FULL", box.call()), ways=[], now=0.0)
    assert isinstance(nobody, RegistryFull)
    assert (True, {}) == ("no books" in str(nobody), nobody.details)
