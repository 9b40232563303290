"""A call in any state that there is."""

from collections.abc import Callable
from typing import Any

from tests.pending.box import Box
from ztrio.pending import ActorKind, Proof, Record, State


def in_state(box: Box, state: State) -> Record:
    """A record in this state."""
    call = box.reserved() if state is State.RESERVED else box.sent()
    if state in (State.RESERVED, State.SENT):
        return box.record(call)
    record = box.record(call)
    if state in (State.COMPLETED, State.NOT_SENT):
        box.complete(call) if state is State.COMPLETED else box.registry.refused(call.call_id, **box.tick())
        return record
    box.mark(call)
    steps: dict[Any, Callable[[], object]] = {
        State.UNRESOLVED: lambda: None,
        State.CANCELLING: lambda: box.registry.claim_cancel(call.call_id, actor=ActorKind.CALLER, **box.tick()),
        State.COMPLETED_LATE: lambda: box.late(call),
        State.CANCELLED: lambda: box.cancel(call),
        State.CONNECTION_RESET: box.end_epoch,
        State.PROVEN: lambda: box.registry.proven(call.call_id, outcome=Proof.COMMITTED, **box.tick()),
        State.RECONCILED: lambda: box.read(call.call_id),
        State.RELEASED: lambda: box.registry.release(call.call_id, actor=ActorKind.OPERATOR, **box.tick()),
        State.EXPIRED: lambda: box.expire(after=1000),
    }
    steps[state]()
    return record
