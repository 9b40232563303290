"""The gate: whether a call may go out while others of its scope are unresolved, and what its caller can do about it.

It looks at one thing, the `gating` flag of records, through the account's own index of it. What it finds is data: a
refusal says what is in the way, and which ways out this caller has *now* is a pure function of the caller's view, so
that no refusal ever suggests what would be refused as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

import attrs

from ztrio.calls import CallContext
from ztrio.errors import CallGated, NotSent, RegistryFull, ZtrioError
from ztrio.pending.access import is_visible, may_cancel
from ztrio.pending.bounds import MAX_SHOWN
from ztrio.pending.reasons import Phase, Tier
from ztrio.pending.records import Blocker, Call, Record

__all__ = [
    "Action",
    "GateWarning",
    "Gating",
    "Refusal",
    "Way",
    "is_continuation",
    "refusal_error",
    "seen",
    "warning_meta",
    "ways_out",
]

_MAX_TOOLS: Final = 3


@attrs.frozen
class Gating:
    """One thing that is in the way.

    Args:
        call_id: Its id; `pcb_…` for several calls.
        tool: Its tool, `*` for several calls.
        unresolved_at: Monotonic seconds.
        expires_at: When it stops gating by itself, monotonic seconds; infinite for never.
        count: How many calls it stands for.
    """

    call_id: str
    tool: str
    unresolved_at: float
    expires_at: float
    count: int = 1


@attrs.frozen
class Refusal:
    """Why a call may not go out. Nothing of it was sent, and nothing was changed.

    Args:
        code: `PENDING_CALL_UNRESOLVED`, `PENDING_REGISTRY_FULL`, or `NOT_SENT` when its connection is gone.
        call: The call.
        gating: What is in the way, newest first, at most 16.
        count: How many calls that is altogether.
        retry_after: Seconds after which it makes sense to try again, for a full registry; None for a caller who has no
            books at all.
    """

    code: str
    call: Call
    gating: tuple[Gating, ...] = ()
    count: int = 0
    retry_after: float | None = None


@attrs.frozen
class GateWarning:
    """What would have refused the call, had the gate been set to `enforce`.

    Args:
        gating: What is in the way, newest first, at most 16.
        count: How many calls that is altogether.
    """

    gating: tuple[Gating, ...]
    count: int


def seen(records: Sequence[Record]) -> tuple[tuple[Gating, ...], int]:
    """What refusals and warnings say of gating records, given oldest first, and how many calls these are."""
    newest = [
        Gating(
            call_id=record.call.call_id,
            tool=record.call.tool,
            unresolved_at=0.0 if record.unresolved_at is None else record.unresolved_at,
            expires_at=record.ends_at,
            count=members(record),
        )
        for record in reversed(records[-MAX_SHOWN:])
    ]
    return tuple(newest), sum(map(members, records))


def members(record: Record) -> int:
    """How many calls a record stands for."""
    return record.count if isinstance(record, Blocker) else 1


def is_continuation(call: Call, gating: Sequence[Record]) -> bool:
    """Whether all that is in the way of `call` is the call that it continues; a blocker is the root of nothing."""
    return len(gating) == 1 and gating[0].call.root == call.lineage


class Action(StrEnum):
    """A way out."""

    WAIT = "wait"
    RECONCILE = "reconcile"
    CANCEL = "cancel"
    ASK_OPERATOR = "ask_operator"


@attrs.frozen
class Way:
    """Something that a caller can do now about an unresolved call.

    Args:
        action: What.
        tools: Reads that reconcile, at most three.
        until: When it ends by itself, monotonic seconds; None for never.
    """

    action: Action
    tools: tuple[str, ...] = ()
    until: float | None = None


def ways_out(record: Record, *, context: CallContext, read_tools: Sequence[str], reachable: bool) -> list[Way]:
    """What `context` can do now about `record`; nothing when there is nothing to be done about it.

    Args:
        record: The call or blocker.
        context: The caller, with the current view.
        read_tools: Read-tier tools of the server that this caller can call.
        reachable: Whether the transport that the call went through can still carry a cancel.
    """
    if not (record.open_end or record.held):
        return []
    ways = [Way(Action.WAIT, until=None if math.isinf(record.ends_at) else record.ends_at)]
    if read_tools and str(Tier.READ) in context.view.tiers and _is_own(context, record):
        ways.append(Way(Action.RECONCILE, tools=tuple(sorted(read_tools)[:_MAX_TOOLS])))
    tellable = not isinstance(record, Blocker) and not record.cancel_sent and not record.claimed
    if reachable and tellable and may_cancel(context, record):
        ways.append(Way(Action.CANCEL))
    if len(ways) == 1:
        ways.append(Way(Action.ASK_OPERATOR))
    return ways


def _is_own(context: CallContext, record: Record) -> bool:
    """Whether a read of this caller can be in the record's scope at all."""
    return is_visible(context, record) and record.call.principal == context.principal.id


def refusal_error(refusal: Refusal, *, ways: Sequence[Way], now: float) -> ZtrioError:
    """The error that says a refusal to a caller.

    Args:
        refusal: The refusal.
        ways: The ways out that the caller has now.
        now: Monotonic seconds.
    """
    call = refusal.call
    if refusal.code == "NOT_SENT":
        return NotSent(
            f"The connection to {call.server} ended before {call.tool} was sent. Nothing happened; repeat it.",
            phase=str(Phase.CONNECT),
        )
    if refusal.code == "PENDING_REGISTRY_FULL" and refusal.retry_after is None:
        return RegistryFull(
            f"{call.tool} was not sent: this caller has no books on which the call could be kept if it became "
            "unresolved. The operator can add it to the principals that are configured."
        )
    if refusal.code == "PENDING_REGISTRY_FULL":
        return RegistryFull(
            f"{call.tool} was not sent: as many calls as fit are on your books. Repeat it in "
            f"{refusal.retry_after:g} s, or settle earlier calls first.",
            retry_after=refusal.retry_after,
        )
    newest = refusal.gating[0]
    several = "calls" if refusal.count > 1 else "call"
    return CallGated(
        f"{call.tool} was not sent: {refusal.count} earlier {several} to {call.server} may or may not have happened, "
        f"last {newest.tool} ({newest.call_id}), {now - newest.unresolved_at:.0f} s ago. What you can do: "
        f"{sentence(ways, now)}.",
        server=call.server,
        tool=call.tool,
        pending=[_shown(each, now) for each in refusal.gating],
        count=refusal.count,
        resolve=[way_dict(way, now) for way in ways],
    )


def sentence(ways: Sequence[Way], now: float) -> str:
    """The ways out in words."""
    words = {
        Action.RECONCILE: "look with {tools} and name the call in ztrio/reconciles",
        Action.CANCEL: "cancel it",
        Action.ASK_OPERATOR: "ask the operator, who can look and release it",
    }
    said = []
    for way in ways:
        if way.action is Action.WAIT:
            left = None if way.until is None else max(0.0, way.until - now)
            said.append("wait until it is settled" if left is None else f"wait, at most {left:.0f} s")
        else:
            said.append(words[way.action].format(tools=" or ".join(way.tools)))
    return "; ".join(said)


def way_dict(way: Way, now: float) -> dict[str, Any]:
    """A way out as JSON."""
    found: dict[str, Any] = {"action": way.action.value}
    if way.tools:
        found["tools"] = list(way.tools)
    if way.until is not None:
        found["seconds"] = round(max(0.0, way.until - now), 3)
    return found


def _shown(gating: Gating, now: float) -> dict[str, Any]:
    left = gating.expires_at - now
    return {
        "call_id": gating.call_id,
        "tool": gating.tool,
        "age": round(now - gating.unresolved_at, 3),
        "expires_in": None if math.isinf(left) else round(max(0.0, left), 3),
        "count": gating.count,
    }


def warning_meta(warning: GateWarning, *, now: float) -> dict[str, Any]:
    """What `_meta["pending_call_warning"]` of a result says."""
    return {
        "message": "Earlier calls of this scope may or may not have happened; this one was sent all the same.",
        "pending": [_shown(each, now) for each in warning.gating],
        "count": warning.count,
    }
