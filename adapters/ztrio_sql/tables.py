"""The tables, as they are now. `migrations/` says how a database gets there; a test sees that both agree.

Positions and times are numbers that every database has; wall-clock times that people read are ISO 8601 text in UTC.
What is JSON is text that this package alone reads, so no database's JSON type is needed.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

__all__ = ["activity", "audit", "jobs", "meta", "metadata", "pending_journal", "results", "sessions"]

metadata: Final = sa.MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "uq": "uq_%(table_name)s_%(column_0_N_name)s"}
)

# A primary key of SQLite counts by itself, and needs no index of its own, only as INTEGER.
BIG: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

meta: Final = sa.Table(
    "meta",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.LargeBinary, nullable=False),
)
"""`store_id`; `secret`; `mark`: number of the newest transaction without events, by which one that failed is told;
`anchor`: where the audit log begins after older events were removed; `retention`: how much of it is kept."""

sessions: Final = sa.Table(
    "sessions",
    metadata,
    sa.Column("principal", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("incarnation", sa.Text, nullable=False),
    sa.Column("version", BIG, nullable=False),
    sa.Column("opened_at", sa.Text, nullable=False),
    sa.Column("state", sa.LargeBinary, nullable=False),
)

jobs: Final = sa.Table(
    "jobs",
    metadata,
    sa.Column("number", BIG, primary_key=True, autoincrement=True),
    sa.Column("job_id", sa.Text, nullable=False, unique=True),
    sa.Column("principal", sa.Text, nullable=False),
    sa.Column("tool", sa.Text, nullable=False),
    sa.Column("session", sa.Text, nullable=False),
    sa.Column("capability", sa.Text, nullable=False),
    sa.Column("phase", sa.Text, nullable=False),
    sa.Column("outcome", sa.Text),
    sa.Column("targets", sa.Text, nullable=False),
    sa.Column("created_at", sa.Text, nullable=False),
    sa.Column("worker_pid", BIG),
    sa.Column("worker_started_at", sa.Double),
    sa.Column("session_version", BIG),
    sa.Column("journal", sa.LargeBinary),
    sa.Column("needs_recovery", sa.Boolean, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("repeats", sa.Text),
    # Only on the newest call that claimed it.
    sa.Column("idempotency_key", sa.Text),
    sa.Column("idempotency_digest", sa.Text),
    # Seconds since the epoch and the log position of the final end; NULL exactly while the call is unfinished.
    sa.Column("ended_at", sa.Double),
    sa.Column("ended_pos", BIG, index=True),
    sa.UniqueConstraint("principal", "tool", "idempotency_key"),
)

results: Final = sa.Table(
    "results",
    metadata,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("expires_at", sa.Double, nullable=False, index=True),
    sa.Column("result", sa.LargeBinary, nullable=False),
)
"""Answers kept for repetitions."""

audit: Final = sa.Table(
    "audit",
    metadata,
    # Without gaps from the anchor on.
    sa.Column("log_pos", BIG, primary_key=True, autoincrement=False),
    sa.Column("seq", BIG, nullable=False),
    sa.Column("job_id", sa.Text, nullable=False),
    sa.Column("principal", sa.Text),
    sa.Column("time", sa.Text, nullable=False),
    # The canonical bytes of the event, see `ztrio_sql.chain`.
    sa.Column("event", sa.Text, nullable=False),
    sa.Column("hash", sa.LargeBinary, nullable=False),
    # Bytes of this event and all before it, since the store was made: what is kept can be measured at any position.
    sa.Column("total_bytes", BIG, nullable=False),
    sa.Index(None, "job_id", "log_pos"),
    sa.Index(None, "principal", "log_pos"),
)

activity: Final = sa.Table(
    "activity",
    metadata,
    sa.Column("number", BIG, primary_key=True, autoincrement=True),
    sa.Column("call_id", sa.Text, nullable=False, unique=True),
    sa.Column("principal", sa.Text, nullable=False),
    sa.Column("gate_scope", sa.Text, nullable=False),
    sa.Column("server", sa.Text, nullable=False),
    sa.Column("tool", sa.Text, nullable=False),
    # Grows with every update of the row, over restarts as well.
    sa.Column("revision", BIG, nullable=False),
    sa.Column("pending_state", sa.Text, nullable=False, index=True),
    sa.Column("reason", sa.Text),
    sa.Column("late_outcome", sa.Text),
    sa.Column("blocker", sa.Text),
    sa.Column("settled_by", sa.Text),
    # Seconds since the epoch.
    sa.Column("sent_at", sa.Double),
    sa.Column("unresolved_at", sa.Double),
    sa.Column("expires_at", sa.Double),
    sa.Column("resolved_at", sa.Double),
    sa.Index(None, "principal", "number"),
    sa.Index(None, "blocker"),
)
"""What became of upstream calls that nobody was sure about."""

pending_journal: Final = sa.Table(
    "pending_journal",
    metadata,
    sa.Column("call_id", sa.Text, primary_key=True),
    sa.Column("seq", BIG, nullable=False, index=True),
    sa.Column("server", sa.Text, nullable=False),
    sa.Column("transport", sa.Text, nullable=False),
    sa.Column("epoch", BIG, nullable=False),
    sa.Column("principal", sa.Text, nullable=False),
    sa.Column("gate_scope", sa.Text, nullable=False),
    sa.Column("tool", sa.Text, nullable=False),
    sa.Column("gate_tier", sa.Text, nullable=False),
    sa.Column("admission_tier", sa.Text, nullable=False),
    # JSON list of the ids on the wire, with their types.
    sa.Column("wire_ids", sa.Text, nullable=False),
    # Seconds since the epoch.
    sa.Column("sent_at", sa.Double, nullable=False),
    # NULL for never.
    sa.Column("expires_at", sa.Double),
    # How many calls it stands for.
    sa.Column("members", BIG, nullable=False),
)
"""Writes that may be on their way, or shut a gate; never with arguments."""
