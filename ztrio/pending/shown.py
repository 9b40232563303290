"""How a pending call is shown: one object with the same fields on every surface, and a text that a model can act on.

The object is made for one caller at one moment: what it can do about the call (`resolve`) is asked of its current view,
and ids of principals are for admins only. `PENDING_CALL_SCHEMA` is the contract; every surface is tested against it.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ztrio.calls import CallContext
from ztrio.pending.gate import Way, sentence, way_dict
from ztrio.pending.principals import mint_scope_handle
from ztrio.pending.reasons import ActorKind, LateOutcome, Reason, Transport
from ztrio.pending.records import Blocker, Record
from ztrio.pending.states import UNTRACKED, State
from ztrio.pending.transitions import ActivityRow

__all__ = ["PENDING_CALL_SCHEMA", "describe", "pending_call"]

_TIME: Final = {"type": ["string", "null"], "format": "date-time"}

PENDING_CALL_SCHEMA: Final[Mapping[str, Any]] = {
    "title": "pending_call",
    "type": "object",
    "additionalProperties": False,
    "required": [
        "call_id",
        "server",
        "tool",
        "state",
        "reason",
        "connection_generation",
        "transport",
        "upstream_may_still_be_running",
        "late_completion_observable",
        "sent_at",
        "unresolved_at",
        "expires_at",
        "scope",
        "resolve",
    ],
    "properties": {
        "call_id": {"type": "string", "pattern": "^pcb?_[a-z2-7]{16}$"},
        "server": {"type": "string"},
        "tool": {"type": "string"},
        "state": {"enum": [*(state.value for state in State), UNTRACKED]},
        "reason": {"enum": [*(reason.value for reason in Reason), None]},
        "connection_generation": {"type": ["integer", "null"]},
        "transport": {"enum": [*(transport.value for transport in Transport), None]},
        "upstream_may_still_be_running": {"type": "boolean"},
        "late_completion_observable": {"type": "boolean"},
        "sent_at": _TIME,
        "unresolved_at": _TIME,
        "expires_at": _TIME,
        "scope": {"type": "string"},
        "resolve": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["action"],
                "properties": {
                    "action": {"enum": ["wait", "reconcile", "cancel", "ask_operator"]},
                    "tools": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
                    "seconds": {"type": "number", "minimum": 0},
                },
            },
        },
        "gating": {"type": "boolean"},
        "count": {"type": "integer", "minimum": 0},
        "late_outcome": {"enum": [outcome.value for outcome in LateOutcome]},
        "settled_by": {"type": "string"},
        "cancel_requested": {"const": True},
        "actor": {"enum": [actor.value for actor in ActorKind]},
        "blocker": {"type": "string", "pattern": "^pcb_[a-z2-7]{16}$"},
        "principal": {"type": "string"},
    },
}
"""The JSON schema of a pending call. The first group is always there, the second where it says something."""

_ENDED: Final = frozenset({State.COMPLETED, State.NOT_SENT, State.COMPLETED_LATE, State.PROVEN})
_NOT_OURS_TO_KNOW: Final = frozenset({Reason.TERMINATION_UNCONFIRMED, Reason.COMMIT_UNCONFIRMED})


def pending_call(
    entry: Record | ActivityRow,
    *,
    context: CallContext,
    ways: Sequence[Way],
    secret: bytes,
    now: float,
    wall: float,
) -> dict[str, Any]:
    """A pending call as every surface shows it.

    Args:
        entry: The record or blocker, or the row of a call that is over and forgotten.
        context: The caller, with the current view.
        ways: What the caller can do about it now.
        secret: The store's secret, for the handle of the scope.
        now: Monotonic seconds.
        wall: The wall clock minus the monotonic one, in seconds.
    """
    if isinstance(entry, ActivityRow):
        return _of_row(entry, context, secret)
    call = entry.call
    shown: dict[str, Any] = {
        "call_id": call.call_id,
        "server": call.server,
        "tool": call.tool,
        "state": entry.state.value,
        "reason": None if entry.reason is None else entry.reason.value,
        "connection_generation": call.lease.epoch or None,
        "transport": call.transport.value,
        "upstream_may_still_be_running": may_still_run(entry),
        "late_completion_observable": entry.observable,
        "sent_at": _iso(entry.sent_at, wall),
        "unresolved_at": _iso(entry.unresolved_at, wall),
        "expires_at": _iso(entry.ends_at, wall),
        "scope": mint_scope_handle(secret, call.principal, call.gate_scope),
        "resolve": [way_dict(way, now) for way in ways],
        "gating": entry.gating,
        "count": entry.count if isinstance(entry, Blocker) else None,
        "late_outcome": None if entry.late_outcome is None else entry.late_outcome.value,
        "settled_by": entry.settled_by,
        "cancel_requested": entry.cancel_requested or None,
        "actor": None if entry.actor is None else entry.actor.value,
        "principal": call.principal if context.view.admin else None,
    }
    return _without_blanks(shown)


def _of_row(row: ActivityRow, context: CallContext, secret: bytes) -> dict[str, Any]:
    state = None if row.pending_state == UNTRACKED else State(row.pending_state)
    shown: dict[str, Any] = {
        "call_id": row.call_id,
        "server": row.server,
        "tool": row.tool,
        "state": row.pending_state,
        "reason": row.reason,
        "connection_generation": None,
        "transport": None,
        "upstream_may_still_be_running": state not in _ENDED and row.late_outcome is None,
        "late_completion_observable": False,
        "sent_at": _iso(row.sent_at, 0.0),
        "unresolved_at": _iso(row.unresolved_at, 0.0),
        "expires_at": _iso(row.expires_at, 0.0),
        "scope": mint_scope_handle(secret, row.principal, row.gate_scope),
        "resolve": [],
        "gating": False,
        "late_outcome": row.late_outcome,
        "settled_by": row.settled_by,
        "blocker": row.blocker,
        "principal": row.principal if context.view.admin else None,
    }
    return _without_blanks(shown)


def _without_blanks(shown: dict[str, Any]) -> dict[str, Any]:
    required = PENDING_CALL_SCHEMA["required"]
    return {name: value for name, value in shown.items() if value is not None or name in required}


def may_still_run(record: Record) -> bool:
    """Whether the upstream may be at work for the call even now."""
    if record.state in _ENDED or record.late_outcome is not None:
        return False
    if record.call.transport is Transport.LOCAL:  # a worker that could be proven dead does nothing any more
        return record.reason in _NOT_OURS_TO_KNOW
    return not (record.state is State.CONNECTION_RESET and record.call.transport is Transport.STDIO)


def _iso(at: float | None, wall: float) -> str | None:
    if at is None or math.isinf(at):
        return None
    return dt.datetime.fromtimestamp(at + wall, dt.UTC).isoformat(timespec="milliseconds")


_WORDS: Final[Mapping[str, str]] = {
    State.RESERVED: "is about to be sent",
    State.SENT: "was sent, and its response is waited for",
    State.UNRESOLVED: "was sent and has no response: it may have happened, may be happening, or may never happen",
    State.CANCELLING: "has no response, and its server is being told to cancel it",
    State.COMPLETED: "was answered",
    State.NOT_SENT: "was not sent: nothing happened",
    State.COMPLETED_LATE: "was answered after its caller had stopped waiting",
    State.CANCELLED: "was cancelled: its server was told, and whether it had happened is not known",
    State.CONNECTION_RESET: "lost its connection without a response: it may have happened",
    State.PROVEN: "is settled by its server's own record",
    State.RECONCILED: "is settled by a later read",
    State.RELEASED: "is settled by the operator",
    State.EXPIRED: "has no response and is not watched any more: it may have happened",
    UNTRACKED: "is not known any more: it may have happened",
}


_STOPPED: Final = "was stopped in the middle: what it does elsewhere may have happened, or not"
"""Of a call of our own tools of which nothing runs any more."""


def describe(shown: Mapping[str, Any], *, ways: Sequence[Way], now: float) -> str:
    """A pending call in words that a model can act on.

    Args:
        shown: What `pending_call` returned.
        ways: The ways out it was made with.
        now: Monotonic seconds.
    """
    what = f"A group of calls ({shown['count']} unsettled)" if "count" in shown else f"The call {shown['tool']}"
    stopped = shown["state"] == State.UNRESOLVED and shown["reason"] == Reason.EXTERNAL_EFFECTS
    text = f"{what} to {shown['server']} ({shown['call_id']}) {_STOPPED if stopped else _WORDS[shown['state']]}."
    if "late_outcome" in shown:
        text += f" The late response said: {shown['late_outcome']}."
    if shown.get("gating"):
        text += " Do not repeat it blindly."
    return f"{text} What you can do: {sentence(ways, now)}." if ways else text
