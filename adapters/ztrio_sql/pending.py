"""Upstream calls that nobody is sure about: what became of them, and which writes may be on their way.

Two tables and plain functions on them, by the rules of `ztrio.activity`: an update that comes late changes nothing, and
what is final stays so, though facts may still be added to it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import attrs
import sqlalchemy as sa

from ztrio.activity import (
    FINAL,
    MAX_ACTIVITY,
    MAX_SEQ,
    OPEN,
    ActivityRow,
    BlockerWrite,
    JournalRow,
    LeftPending,
    PendingSnapshot,
    PendingWrite,
    lost_sight_of,
    untracked,
)
from ztrio_sql.prepared import Prepared
from ztrio_sql.sqlite import upsert
from ztrio_sql.tables import activity, pending_journal
from ztrio_sql.transaction import Transaction

__all__ = ["AppendPending", "ResyncPending", "WritePending", "activities", "activity_of", "left_pending"]

_FACTS: Final = (
    "reason",
    "late_outcome",
    "blocker",
    "settled_by",
    "sent_at",
    "unresolved_at",
    "expires_at",
    "resolved_at",
)


def _changes(new: Any) -> dict[str, Any]:
    """What an update of a row writes: the state unless it is final, and every fact that is new."""
    old = activity.c
    return {
        "revision": new.revision,
        "pending_state": sa.case((old.pending_state.in_(FINAL), old.pending_state), else_=new.pending_state),
        **{name: sa.func.coalesce(new[name], old[name]) for name in _FACTS},
    }


def _whole(new: Any) -> dict[str, Any]:
    return {column.name: new[column.name] for column in pending_journal.c if column.name != "call_id"}


_PUT: Final = upsert(activity, "call_id", _changes, lambda new: new.revision > activity.c.revision)
_JOURNAL: Final = Prepared(
    upsert(pending_journal, "call_id", _whole, lambda new: new.seq >= pending_journal.c.seq), pending_journal.c.keys()
)
_JOURNAL_IS: Final = upsert(pending_journal, "call_id", _whole, lambda _: sa.true())
_DROP: Final = Prepared(
    sa.delete(pending_journal).where(
        pending_journal.c.call_id == sa.bindparam("dropped"), pending_journal.c.seq <= sa.bindparam("until")
    )
)
_JOURNALLED: Final = sa.select(pending_journal.c.call_id)
_ROWS: Final = sa.select(*(activity.c[field.name] for field in attrs.fields(ActivityRow)))
_OPEN_ROWS: Final = _ROWS.where(activity.c.pending_state.in_(OPEN))
_LOSE: Final = (
    sa.update(activity)
    .where(activity.c.call_id == sa.bindparam("lost"))
    .values(pending_state=sa.bindparam("new_pending_state"))
)
_MEMBERS: Final = sa.update(activity).where(
    activity.c.blocker == sa.bindparam("of_blocker"),
    activity.c.revision < sa.bindparam("new_revision"),
    activity.c.pending_state.notin_(FINAL),
)
_SETTLED: Final = _MEMBERS.values(
    revision=sa.bindparam("new_revision"),
    pending_state=sa.bindparam("new_pending_state"),
    settled_by=sa.func.coalesce(sa.bindparam("new_settled_by"), activity.c.settled_by),
    resolved_at=sa.func.coalesce(sa.bindparam("new_resolved_at"), activity.c.resolved_at),
    blocker=sa.func.coalesce(sa.bindparam("new_blocker"), activity.c.blocker),
)
_PRINCIPALS: Final = sa.select(activity.c.principal).distinct()
_OLDEST_KEPT: Final = (
    sa.select(activity.c.number)
    .where(activity.c.principal == sa.bindparam("owner"))
    .order_by(activity.c.number.desc())
    .offset(MAX_ACTIVITY - 1)
    .limit(1)
)
_FORGET: Final = sa.delete(activity).where(
    activity.c.principal == sa.bindparam("owner"), activity.c.number < sa.bindparam("oldest")
)


@attrs.frozen
class _Base:
    job_id: ClassVar[str | None] = None
    synced: ClassVar[bool] = False
    ends: ClassVar[bool] = False
    # Never put off: a note that a write may go out is for the death of this process in the next moment, and nothing
    # that follows says more about it. What was put off before goes out together with it.
    lazy: ClassVar[bool] = False
    size: ClassVar[int] = 500


@attrs.frozen
class WritePending(_Base):
    """Writes what some steps leave in both tables."""

    writes: Sequence[PendingWrite]

    def apply(self, transaction: Transaction) -> None:
        """Write it."""
        for write in self.writes:
            if write.row is not None:
                transaction.execute(_PUT, **attrs.asdict(write.row))
            if write.blocker is not None:
                _settle(transaction, write.blocker)
            for call_id in write.drop:
                transaction.change(_DROP, dropped=call_id, until=write.until)
            if write.put is not None:
                transaction.change(_JOURNAL, **_journal_values(write.put))


@attrs.frozen
class ResyncPending(_Base):
    """Makes both tables say what is true, and forgets rows that are too many."""

    snapshot: PendingSnapshot

    def apply(self, transaction: Transaction) -> None:
        """Compare and write."""
        snapshot = self.snapshot
        for row in snapshot.rows:
            transaction.execute(_PUT, **attrs.asdict(row))
        for blocker in snapshot.blockers:
            _settle(transaction, blocker)
        for found in transaction.execute(_OPEN_ROWS).all():
            row = ActivityRow(**found._mapping)
            if lost_sight_of(row, snapshot.known):
                transaction.execute(_LOSE, lost=row.call_id, new_pending_state=untracked(row).pending_state)
        true = {row.call_id for row in snapshot.journal}
        for call_id in transaction.execute(_JOURNALLED).scalars().all():
            if call_id not in true:
                transaction.change(_DROP, dropped=call_id, until=MAX_SEQ)
        for entry in snapshot.journal:
            transaction.execute(_JOURNAL_IS, **_journal_values(entry))
        for principal in transaction.execute(_PRINCIPALS).scalars().all():
            oldest = transaction.execute(_OLDEST_KEPT, owner=principal).scalar()
            if oldest is not None:
                transaction.execute(_FORGET, owner=principal, oldest=oldest)


@attrs.frozen
class AppendPending(_Base):
    """Writes a journal row.

    Args:
        row: The row.
        synced: Whether it must survive a power cut.
    """

    row: JournalRow
    synced: bool = False  # type: ignore[misc]

    def apply(self, transaction: Transaction) -> None:
        """Write it."""
        transaction.change(_JOURNAL, **_journal_values(self.row))


def _settle(transaction: Transaction, write: BlockerWrite) -> None:
    transaction.execute(
        _SETTLED,
        of_blocker=write.blocker,
        new_revision=write.revision,
        new_pending_state=write.pending_state,
        new_settled_by=write.settled_by,
        new_resolved_at=write.resolved_at,
        new_blocker=write.into,
    )


def _journal_values(row: JournalRow) -> dict[str, Any]:
    return attrs.asdict(row) | {"wire_ids": json.dumps(row.wire_ids)}


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


def left_pending(connection: sa.Connection) -> LeftPending:
    """The journal in the order of the sequence, the rows of its calls, and the greatest revision there is."""
    found = connection.execute(
        sa.select(pending_journal).order_by(pending_journal.c.seq, pending_journal.c.call_id)
    ).all()
    journal = [JournalRow(**dict(row._mapping) | {"wire_ids": tuple(json.loads(row.wire_ids))}) for row in found]
    rows = connection.execute(_ROWS.where(activity.c.call_id.in_(_JOURNALLED)))
    newest = connection.execute(sa.select(sa.func.max(activity.c.revision))).scalar() or 0
    return LeftPending(
        journal=journal,
        activity={row.call_id: ActivityRow(**row._mapping) for row in rows},
        revision=max([newest, *(row.seq for row in journal)]),
    )
