"""Who may see a pending call, and who may cancel it: asked of the caller's current view, each time.

An id grants nothing. Whoever may not see a call gets what an id that never was would get, byte for byte, and the same
goes for whoever may see it and not cancel it: a different answer would say that the call exists.
"""

from __future__ import annotations

from typing import Protocol

from ztrio.calls import CallContext
from ztrio.errors import UnknownCall
from ztrio.pending.records import Blocker, Record
from ztrio.pending.transitions import ActivityRow

__all__ = ["Known", "cancellable", "is_visible", "look_up", "may_cancel", "may_release", "unknown_call", "visible"]


class Known(Protocol):
    """What is asked about calls: a registry."""

    def get(self, call_id: str) -> Record | None:
        """The record of a call or a blocker."""

    def covering(self, server: str, principal: str, gate_scope: str) -> Blocker | None:
        """The blocker that stands for folded calls of this scope."""

    def entries(self, principal: str | None = None) -> list[Record]:
        """What lists show, of one principal or of all."""


def unknown_call() -> UnknownCall:
    """The one answer for every id that means nothing to a caller. It does not repeat the id."""
    return UnknownCall("There is no such pending call. Nothing was done; list the pending calls to see yours.")


def _sees(context: CallContext, principal: str, server: str) -> bool:
    view = context.view
    if view.admin:
        return True
    return principal == context.principal.id and (view.servers is None or server in view.servers)


def is_visible(context: CallContext, record: Record) -> bool:
    """Whether the caller may see a call: its own, of a server that it can see now; an admin every one."""
    return _sees(context, record.call.principal, record.call.server)


def may_cancel(context: CallContext, record: Record) -> bool:
    """Whether the caller may cancel a call: visible, and with the very permission under which it was let in.

    Permissions are exact, not ordered: who may do what destroys may not therefore do what writes. A blocker needs the
    permission of each of its calls.
    """
    needed = record.tiers if isinstance(record, Blocker) else {record.call.admission_tier}
    view = context.view
    return is_visible(context, record) and not view.read_only and all(str(tier) in view.tiers for tier in needed)


def may_release(context: CallContext) -> bool:
    """Whether the caller is an operator, whose word settles a call."""
    return context.view.admin


def visible(registry: Known, context: CallContext) -> list[Record]:
    """What a list shows the caller, oldest first."""
    entries = registry.entries(None if context.view.admin else context.principal.id)
    return [record for record in entries if is_visible(context, record)]


def look_up(
    registry: Known, context: CallContext, call_id: str, row: ActivityRow | None = None
) -> Record | ActivityRow:
    """A call, by an id that somebody gave.

    Args:
        registry: Where to look.
        context: The caller, with the current view.
        call_id: The id.
        row: What the activity record says of it, for a call that is not on the books any more.

    Returns:
        The record; for a call that was folded its blocker; for one that is over and forgotten its row.

    Raises:
        UnknownCall: there is none that this caller may see.
    """
    record = registry.get(call_id)
    if record is None and row is not None and _sees(context, row.principal, row.server):
        record = None if row.blocker is None else registry.get(row.blocker)
        if record is None and row.blocker is not None:
            merged = registry.covering(row.server, row.principal, row.gate_scope)
            record = merged if merged is not None and merged.since_seq <= row.revision else None
        if record is None:
            return row
    if record is None or not is_visible(context, record):
        raise unknown_call()
    return record


def cancellable(registry: Known, context: CallContext, call_id: str, row: ActivityRow | None = None) -> Record:
    """A call that the caller may cancel, by an id that somebody gave.

    Raises:
        UnknownCall: there is none that this caller may see and cancel; the same answer for either.
    """
    found = look_up(registry, context, call_id, row)
    if not isinstance(found, Record) or not may_cancel(context, found):
        raise unknown_call()
    return found
