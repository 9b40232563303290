"""What each event is to do in each state, written down a second time, and how to make it happen."""

from collections.abc import Callable

import pytest

from tests.pending.box import Box
from tests.pending.states import in_state
from ztrio.pending import (
    ActorKind,
    Call,
    LateOutcome,
    Lease,
    Proof,
    Rejected,
    ServerPolicy,
    State,
)
from ztrio.pending.states import HOLDABLE, Effect, Event

R, S, U, X = State.RESERVED, State.SENT, State.UNRESOLVED, State.CANCELLING
# What the words in front of the table promise, written down a second time: every move there is.
MOVES = {
    (R, Event.CLAIM): S,
    (R, Event.NOT_SENT): State.NOT_SENT,
    (R, Event.WAIT_ENDED): State.NOT_SENT,
    (R, Event.EPOCH_ENDED): State.NOT_SENT,
    (S, Event.REFUSED): State.NOT_SENT,
    (S, Event.RESPONSE): State.COMPLETED,
    (S, Event.LATE_RESPONSE): State.COMPLETED_LATE,
    (S, Event.WAIT_ENDED): U,
    (S, Event.EPOCH_ENDED): State.CONNECTION_RESET,
    (U, Event.REFUSED): State.PROVEN,
    (U, Event.LATE_RESPONSE): State.COMPLETED_LATE,
    (U, Event.CLAIM_CANCEL): X,
    (U, Event.EPOCH_ENDED): State.CONNECTION_RESET,
    (U, Event.PROOF): State.PROVEN,
    (U, Event.RECONCILE): State.RECONCILED,
    (U, Event.RELEASE): State.RELEASED,
    (U, Event.EXPIRE): State.EXPIRED,
    (X, Event.REFUSED): State.PROVEN,
    (X, Event.LATE_RESPONSE): State.COMPLETED_LATE,
    (X, Event.CANCEL_TOLD): State.CANCELLED,
    (X, Event.CANCEL_FAILED): U,
    (X, Event.EPOCH_ENDED): State.CONNECTION_RESET,
    (X, Event.PROOF): State.PROVEN,
}
# And every pair of a state that is not final in which nothing happens; all others are rejections.
NOTHING = {
    (R, Event.EXPIRE),
    (S, Event.EXPIRE),
    (U, Event.WAIT_ENDED),
    (X, Event.WAIT_ENDED),
    (X, Event.CLAIM_CANCEL),
    (X, Event.EXPIRE),
}
HELD = {
    Event.REFUSED: Effect.SETTLE,
    Event.PROOF: Effect.SETTLE,
    Event.RECONCILE: Effect.SETTLE,
    Event.RELEASE: Effect.SETTLE,
    Event.CANCEL_TOLD: Effect.SETTLE,
    Event.CLAIM_CANCEL: Effect.TAKE,
    Event.CANCEL_FAILED: Effect.GIVE_BACK,
}


def expected(state: State, event: Event) -> tuple[Effect, State | None]:
    """What the pair is to do."""
    if (state, event) in MOVES:
        return Effect.MOVE, MOVES[state, event]
    if not state.terminal:
        return (Effect.NOTHING if (state, event) in NOTHING else Effect.REJECT), None
    if event is Event.LATE_RESPONSE and state in (State.CANCELLED, State.CONNECTION_RESET):
        return Effect.ANNOTATE, None
    return (HELD.get(event, Effect.NOTHING) if state in HOLDABLE else Effect.NOTHING), None


OPERATIONS: dict[Event, Callable[[Box, Call], object]] = {
    Event.CLAIM: lambda box, call: box.registry.claim(call.call_id, wire_id=99, **box.tick()),
    Event.NOT_SENT: lambda box, call: box.registry.not_sent(call.call_id, **box.tick()),
    Event.REFUSED: lambda box, call: box.registry.refused(call.call_id, **box.tick()),
    Event.RESPONSE: lambda box, call: box.complete(call),
    Event.LATE_RESPONSE: lambda box, call: box.late(call, LateOutcome.TOOL_ERROR),
    Event.WAIT_ENDED: lambda box, call: box.mark(call),
    Event.CLAIM_CANCEL: lambda box, call: box.registry.claim_cancel(call.call_id, actor=ActorKind.CALLER, **box.tick()),
    Event.CANCEL_TOLD: lambda box, call: box.finish(call, told=True),
    Event.CANCEL_FAILED: lambda box, call: box.finish(call, told=False),
    Event.EPOCH_ENDED: lambda box, _: box.end_epoch(),
    Event.PROOF: lambda box, call: box.registry.proven(call.call_id, outcome=Proof.COMMITTED, **box.tick()),
    Event.RECONCILE: lambda box, call: box.read(call.call_id, lease=Lease("t9", 9)),
    Event.RELEASE: lambda box, call: box.registry.release(call.call_id, actor=ActorKind.OPERATOR, **box.tick()),
    Event.EXPIRE: lambda box, _: box.expire(after=700),
}
# Here an event that makes no sense is not somebody's mistake: it concerns many calls, and passes this one over.
FOR_MANY = {Event.EPOCH_ENDED, Event.RECONCILE, Event.EXPIRE}


def happens_as_the_table_says(state: State) -> None:
    """Assert it of every event in this state."""
    hold = {"files": ServerPolicy(on_expire="hold", on_reset="hold")}
    for event, operation in OPERATIONS.items():
        box = Box.of(servers=hold)
        record = in_state(box, state)
        held, revision = record.held, record.revision
        effect, to = expected(state, event)
        if effect is Effect.REJECT and event not in FOR_MANY:
            with pytest.raises(Rejected):
                operation(box, record.call)
            assert (state, revision) == (record.state, record.revision), event
            continue
        operation(box, record.call)
        assert (to or state) is record.state, event
        changes = effect not in (Effect.NOTHING, Effect.REJECT)
        takes_no_claim = event in (Event.CANCEL_TOLD, Event.CANCEL_FAILED) and state.terminal
        assert (changes and not takes_no_claim) == (record.revision > revision), event
        settles = effect is Effect.SETTLE and not takes_no_claim
        assert (held and not settles) == record.held or not held, event
        assert (effect is Effect.TAKE) == (record.claimed and state.terminal), event
        assert (effect is Effect.ANNOTATE) == (record.late_outcome is LateOutcome.TOOL_ERROR and to is None), event
