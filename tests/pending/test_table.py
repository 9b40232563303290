"""The table of states and events, and what is made of it."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.pending.box import Box
from tests.pending.pairs import MOVES, expected, happens_as_the_table_says
from ztrio.pending import (
    ActorKind,
    LateOutcome,
    Lease,
    Phase,
    Proof,
    Reason,
    Rejected,
    ServerPolicy,
    State,
    Transition,
    code_of,
)
from ztrio.pending.reasons import CODES, REASONS, STATES
from ztrio.pending.states import HOLDABLE, TABLE, UNTRACKED, Effect, Event, Rule, diagram, rule


@pytest.mark.req("P1")
def test_every_pair_is_in_the_table() -> None:
    """Each state has exactly one rule for each event: a move, nothing, or a rejection that says why."""
    assert set(itertools.product(State, Event)) == set(TABLE)
    for each in TABLE.values():
        assert (each.to is not None) == (each.effect is Effect.MOVE)
        assert (each.why is not None) == (each.effect is Effect.REJECT)


@pytest.mark.req("P1")
def test_only_these_moves_exist() -> None:
    """The table is what the words promise, pair by pair."""
    assert {pair: expected(*pair) for pair in TABLE} == {pair: (each.effect, each.to) for pair, each in TABLE.items()}


@pytest.mark.req("P2", "I3")
def test_no_event_leads_out_of_a_final_state() -> None:
    """A final state has no move, and only the states that can be held can be settled."""
    final = {pair: each for pair, each in TABLE.items() if pair[0].terminal}
    assert not [pair for pair, each in final.items() if each.to is not None or each.effect is Effect.REJECT]
    assert HOLDABLE == {state for (state, _), each in final.items() if each.effect is Effect.SETTLE}


@pytest.mark.req("P1")
def test_a_rejection_raises_and_says_why() -> None:
    """An event that makes no sense raises with a stable word and the state."""
    with pytest.raises(Rejected) as caught:
        rule(State.SENT, Event.CLAIM_CANCEL)
    assert ("not_unresolved", State.SENT) == (caught.value.why, caught.value.state)
    assert "not_unresolved: the call is sent" == str(caught.value)
    assert "unknown: the call is unknown" == str(Rejected("unknown", None))
    assert Rule(Effect.MOVE, to=State.SENT) == rule(State.RESERVED, Event.CLAIM)


@pytest.mark.req("P1")
def test_the_diagram_has_every_move() -> None:
    """The diagram is drawn from the table: each move with its events, and the end of each final state."""
    lines = [line.strip() for line in diagram().splitlines()]
    assert ["stateDiagram-v2", "[*] --> reserved: begin"] == lines[:2]
    drawn = set()
    for line in lines[2:]:
        state, _, rest = line.partition(" --> ")
        to, _, events = rest.partition(": ")
        drawn |= {(state, to, event) for event in events.split(", ")}
    ends = {(state.value, "[*]", "") for state in State if state.terminal}
    assert {(state, to, event) for (state, event), to in MOVES.items()} | ends == drawn


@pytest.mark.req("P5")
def test_one_table_maps_reason_code_and_state() -> None:
    """Each reason has a code that the table of codes knows, each state a meaning; a death changes the code."""
    assert set(Reason) == set(REASONS)
    assert {State(state) for state in STATES if state != UNTRACKED} == set(State)
    assert {code_of(reason) for reason in Reason} <= set(CODES)
    assert "UPSTREAM_DIED" == code_of(Reason.TRANSPORT_LOST, died=True)
    assert "CALL_UNRESOLVED" == code_of(Reason.TRANSPORT_LOST) == code_of(Reason.DEADLINE_EXCEEDED, died=True)
    assert "TERMINATION_UNCONFIRMED" == code_of(Reason.TERMINATION_UNCONFIRMED)
    assert "COMMIT_UNCONFIRMED" == code_of(Reason.COMMIT_UNCONFIRMED)
    assert {"queue", "admission", "connect", "gate", "write"} == set(Phase)


@pytest.mark.req("P1", "P2", "I3")
@pytest.mark.parametrize("state", [state for state in State if state not in (State.COMPLETED, State.NOT_SENT)])
def test_every_pair_happens_as_the_table_says(state: State) -> None:
    """Each operation on a call in each state moves, settles, notes, refuses or does nothing, as promised."""
    happens_as_the_table_says(state)


def settled(box: Box, state: State) -> str:
    """A call that is in this final state, on the books."""
    call = box.unresolved()
    steps: dict[Any, Callable[[], object]] = {
        State.COMPLETED_LATE: lambda: box.late(call),
        State.CANCELLED: lambda: box.cancel(call),
        State.CONNECTION_RESET: box.end_epoch,
        State.PROVEN: lambda: box.registry.proven(call.call_id, outcome=Proof.COMMITTED, **box.tick()),
        State.RECONCILED: lambda: box.read(call.call_id),
        State.RELEASED: lambda: box.registry.release(call.call_id, actor=ActorKind.OPERATOR, **box.tick()),
        State.EXPIRED: lambda: box.expire(after=10_000),
    }
    steps[state]()
    assert state == box.state(call)
    return call.call_id


@pytest.mark.req("P2", "I3")
@pytest.mark.parametrize("policy", ["open", "hold"])
@pytest.mark.parametrize(
    "state",
    [
        State.COMPLETED_LATE,
        State.CANCELLED,
        State.CONNECTION_RESET,
        State.PROVEN,
        State.RECONCILED,
        State.RELEASED,
        State.EXPIRED,
    ],
)
def test_whatever_comes_later_leaves_a_final_state(state: State, policy: str) -> None:
    """After the end every operation is answered with the state, and changes at most what may still be noted."""
    box = Box.of(servers={"files": ServerPolicy(on_expire=policy, on_reset=policy)})  # type: ignore[arg-type]
    call_id = settled(box, state)
    registry = box.registry
    record = registry.get(call_id)
    assert record is not None
    held = record.gating
    assert held == (policy == "hold" and state in HOLDABLE)
    call = record.call
    operations: list[Callable[[], list[Transition]]] = [
        lambda: registry.mark_unresolved(call, reason=Reason.CALLER_DEADLINE, **box.tick()),
        lambda: registry.claim(call_id, wire_id=1, **box.tick()),
        lambda: registry.not_sent(call_id, **box.tick()),
        lambda: registry.complete(call_id, succeeded=True, **box.tick()),
        lambda: registry.resolve_late(call_id, outcome=LateOutcome.TOOL_ERROR, **box.tick()),
        lambda: registry.finish_cancel(call_id, told=True, frame_sent=True, **box.tick()),
        lambda: registry.end_epoch("files", 1, transport=call.transport, **box.tick()),
        lambda: registry.proven(call_id, outcome=Proof.RUNNING, **box.tick()),
        lambda: registry.proven(call_id, outcome=Proof.COMMITTED, **box.tick()),
        lambda: registry.refused(call_id, **box.tick()),
        lambda: registry.release(call_id, actor=ActorKind.OPERATOR, **box.tick()),
    ]
    changed = []
    for operation in operations:
        for transition in operation():
            assert state is transition.after
            changed += [transition.event] if transition.changed else []
        assert state is record.state
    annotated = ["annotate"] if state in (State.CANCELLED, State.CONNECTION_RESET) else []
    assert annotated + (["settle"] if held else []) == changed
    assert not record.gating


@pytest.mark.req("P2")
@pytest.mark.parametrize("by", ["reconcile", "release", "proof", "refused", "cancel"])
def test_settling_a_held_record_keeps_its_state(by: str) -> None:
    """Whoever settles a record that is held opens its gate and is noted; the state stays what it was."""
    box = Box()
    call = box.unresolved()
    box.end_epoch()
    assert box.gated()
    settle: dict[str, Callable[[], object]] = {
        "reconcile": lambda: box.read(lease=Lease("t2", 2)),
        "release": lambda: box.registry.release(call.call_id, actor=ActorKind.OPERATOR, **box.tick()),
        "proof": lambda: box.registry.proven(call.call_id, outcome=Proof.ROLLED_BACK, **box.tick()),
        "refused": lambda: box.registry.refused(call.call_id, **box.tick()),
        "cancel": lambda: box.cancel(call),
    }
    settle[by]()
    record = box.record(call)
    who = {
        "reconcile": "caller:reconcile",
        "release": "operator:release",
        "proof": "upstream:proof",
        "refused": "upstream:refused",
        "cancel": "caller:cancel_told",
    }
    assert (State.CONNECTION_RESET, False, who[by]) == (record.state, record.gating, record.settled_by)
    assert not box.registry.gates("files", "ann", "ann")
