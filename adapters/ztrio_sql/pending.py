"""Upstream calls that nobody is sure about: what became of them, and which writes may be on their way.

Two tables and plain functions on them. An activity row is written with every transition of its call; an update that
comes late changes nothing, and what is terminal stays so, though facts may still be added to it. A journal row is
written before its call is sent and removed when it has its answer, so what a dead process leaves there may have
happened.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import attrs
import sqlalchemy as sa

from ztrio_sql.sqlite import upsert
from ztrio_sql.tables import activity, pending_journal
from ztrio_sql.transaction import Transaction

__all__ = [
    "TERMINAL",
    "ActivityRow",
    "AppendPending",
    "PendingRow",
    "PutActivity",
    "RemovePending",
    "activities",
    "activity_of",
    "pending",
]

TERMINAL: Final = (
    "completed",
    "not_sent",
    "completed_late",
    "cancelled",
    "connection_reset",
    "proven",
    "reconciled",
    "released",
    "expired",
)
"""States that never change."""


@attrs.frozen(kw_only=True)
class ActivityRow:
    """What is known of an upstream call.

    Args:
        call_id: Its id.
        principal: Id of who called.
        gate_scope: What the gate is keyed on.
        server: The upstream server's name.
        tool: The tool's name.
        revision: Grows with every update of the row, over restarts as well.
        pending_state: Its state.
        reason: Why it is not known what became of it.
        late_outcome: What a response said that came after all.
        blocker: Id of the record that it was folded into.
        settled_by: Who settled it, and how.
        sent_at: When it was sent; this and the other times in seconds since the epoch.
        unresolved_at: When its wait ended.
        expires_at: When it stops gating by itself.
        resolved_at: When its state became terminal.
    """

    call_id: str
    principal: str
    gate_scope: str
    server: str
    tool: str
    revision: int
    pending_state: str
    reason: str | None = None
    late_outcome: str | None = None
    blocker: str | None = None
    settled_by: str | None = None
    sent_at: float | None = None
    unresolved_at: float | None = None
    expires_at: float | None = None
    resolved_at: float | None = None


@attrs.frozen(kw_only=True)
class PendingRow:
    """An upstream write that may be on its way.

    Args:
        call_id: Its id.
        seq: Position in the process-wide sequence.
        server: The upstream server's name.
        transport: `stdio`, `http`, …
        epoch: The connection generation that it was sent on.
        principal: Id of who called.
        gate_scope: What the gate is keyed on.
        tool: The tool's name.
        gate_tier: The tier for the gate.
        admission_tier: The tier under which the caller was let in.
        wire_ids: Its ids on the wire, with their types, in the order of rounds.
        sent_at: Seconds since the epoch.
        expires_at: When it stops gating by itself, seconds since the epoch.
    """

    call_id: str
    seq: int
    server: str
    transport: str
    epoch: int
    principal: str
    gate_scope: str
    tool: str
    gate_tier: str
    admission_tier: str
    wire_ids: tuple[str | int, ...]
    sent_at: float
    expires_at: float


def _changes(new: Any) -> dict[str, Any]:
    """What an update of a row writes: the state unless it is terminal, and every fact that is new."""
    old = activity.c
    known = ("reason", "late_outcome", "blocker", "settled_by", "sent_at", "unresolved_at", "expires_at", "resolved_at")
    return {
        "revision": new.revision,
        "pending_state": sa.case((old.pending_state.in_(TERMINAL), old.pending_state), else_=new.pending_state),
        **{name: sa.func.coalesce(new[name], old[name]) for name in known},
    }


_PUT: Final = upsert(activity, "call_id", _changes, lambda new: new.revision > activity.c.revision)
_APPEND: Final = sa.insert(pending_journal)
_ROWS: Final = sa.select(*(activity.c[field.name] for field in attrs.fields(ActivityRow)))


@attrs.frozen
class _Base:
    job_id: ClassVar[str | None] = None
    synced: ClassVar[bool] = False
    ends: ClassVar[bool] = False
    lazy: ClassVar[bool] = False
    size: ClassVar[int] = 500


@attrs.frozen
class PutActivity(_Base):
    """Writes activity rows, or brings them up to date."""

    rows: Sequence[ActivityRow]

    def apply(self, transaction: Transaction) -> None:
        """Write them."""
        for row in self.rows:
            transaction.execute(_PUT, **attrs.asdict(row))


@attrs.frozen
class AppendPending(_Base):
    """Writes a journal row.

    Args:
        row: The row.
        synced: Whether it must survive a power cut.
    """

    row: PendingRow
    synced: bool = False  # type: ignore[misc]

    def apply(self, transaction: Transaction) -> None:
        """Write it."""
        transaction.execute(_APPEND, **attrs.asdict(self.row) | {"wire_ids": json.dumps(self.row.wire_ids)})


@attrs.frozen
class RemovePending(_Base):
    """Removes journal rows."""

    call_ids: Sequence[str]

    def apply(self, transaction: Transaction) -> None:
        """Remove them."""
        for call_id in self.call_ids:
            transaction.execute(sa.delete(pending_journal).where(pending_journal.c.call_id == call_id))


def activity_of(connection: sa.Connection, call_id: str) -> ActivityRow | None:
    """The row of a call, or None."""
    row = connection.execute(_ROWS.where(activity.c.call_id == call_id)).one_or_none()
    return None if row is None else ActivityRow(**row._mapping)


def activities(connection: sa.Connection, principal: str | None, limit: int) -> list[ActivityRow]:
    """The newest `limit` rows of a principal, or of all, newest first."""
    rows = _ROWS.order_by(activity.c.number.desc()).limit(limit)
    if principal is not None:
        rows = rows.where(activity.c.principal == principal)
    return [ActivityRow(**row._mapping) for row in connection.execute(rows)]


def pending(connection: sa.Connection) -> list[PendingRow]:
    """Every journal row, in the order of sending."""
    rows = connection.execute(sa.select(pending_journal).order_by(pending_journal.c.seq))
    return [PendingRow(**dict(row._mapping) | {"wire_ids": tuple(json.loads(row.wire_ids))}) for row in rows]
