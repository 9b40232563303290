"""What the registry decided, in the words of the audit, of the log and of the store."""

from __future__ import annotations

from typing import Any, Final

from ztrio.activity import BlockerWrite
from ztrio.audit import AuditEvent
from ztrio.pending import Blocker, Transition

__all__ = ["BLOCKER_PREFIX", "PENDING_CALL", "blocker_of", "blocker_write", "event_of", "line_of"]

PENDING_CALL: Final = "pending_call"
"""Name of the events that say what the registry decided."""

BLOCKER_PREFIX: Final = "pcb_"


def event_of(transition: Transition, cause: str | None) -> AuditEvent:
    """The audit event of a transition.

    Args:
        transition: What was decided.
        cause: Why, in the words of whoever gave the command.
    """
    call = transition.call
    return AuditEvent(
        event=PENDING_CALL,
        tool=call.tool,
        principal=call.principal,
        capability=str(call.admission_tier),
        code=transition.code,
        reason=None if transition.reason is None else str(transition.reason),
        cause=cause,
        pending=_facts(transition),
    )


def _facts(transition: Transition) -> dict[str, Any]:
    call = transition.call
    known = {
        "call_id": call.call_id,
        "server": call.server,
        "step": str(transition.event),
        "state": str(transition.after),
        "gating": transition.gating,
        "late_outcome": None if transition.late_outcome is None else str(transition.late_outcome),
        "blocker": transition.blocker,
        "calls": transition.members if transition.members != 1 else None,
        "settled_by": transition.settled_by,
        "cancel_requested": transition.cancel_requested or None,
        "actor": None if transition.actor is None else str(transition.actor),
    }
    return {name: value for name, value in known.items() if value is not None}


def line_of(transition: Transition) -> dict[str, Any]:
    """What the log is told of a call that has become unresolved."""
    call = transition.call
    return {
        "call_id": call.call_id,
        "server": call.server,
        "tool": call.tool,
        "reason": str(transition.reason),
        "age": None if transition.sent_at is None else round(transition.at - transition.sent_at, 3),
        "epoch": call.lease.epoch,
    }


def blocker_write(transition: Transition, *, wall: float) -> BlockerWrite:
    """What a transition of a blocker means for the rows of its calls."""
    return BlockerWrite(
        blocker=transition.call.call_id,
        revision=transition.seq,
        pending_state=str(transition.after),
        settled_by=transition.settled_by,
        resolved_at=None if transition.resolved_at is None else transition.resolved_at + wall,
        into=transition.blocker,
    )


def blocker_of(blocker: Blocker, *, wall: float) -> BlockerWrite:
    """What is true now of the rows of a blocker's calls."""
    return BlockerWrite(
        blocker=blocker.call.call_id,
        revision=blocker.revision,
        pending_state=str(blocker.state),
        settled_by=blocker.settled_by,
        resolved_at=None if blocker.resolved_at is None else blocker.resolved_at + wall,
    )
