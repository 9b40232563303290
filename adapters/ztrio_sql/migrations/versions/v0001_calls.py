"""Sessions, jobs and the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the tables of calls."""
    op.create_table(
        "meta",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("value", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "sessions",
        sa.Column("principal", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("incarnation", sa.Text, nullable=False),
        sa.Column("version", _BIG, nullable=False),
        sa.Column("opened_at", sa.Text, nullable=False),
        sa.Column("state", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "jobs",
        sa.Column("number", _BIG, primary_key=True, autoincrement=True),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("principal", sa.Text, nullable=False),
        sa.Column("tool", sa.Text, nullable=False),
        sa.Column("session", sa.Text, nullable=False),
        sa.Column("capability", sa.Text, nullable=False),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text),
        sa.Column("targets", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("worker_pid", _BIG),
        sa.Column("worker_started_at", sa.Double),
        sa.Column("session_version", _BIG),
        sa.Column("journal", sa.LargeBinary),
        sa.Column("needs_recovery", sa.Boolean, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("repeats", sa.Text),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("idempotency_digest", sa.Text),
        sa.Column("ended_at", sa.Double),
        sa.Column("ended_pos", _BIG),
        sa.UniqueConstraint("job_id", name="uq_jobs_job_id"),
        sa.UniqueConstraint("principal", "tool", "idempotency_key", name="uq_jobs_principal_tool_idempotency_key"),
    )
    op.create_index("ix_jobs_ended_pos", "jobs", ["ended_pos"])
    op.create_table(
        "results",
        sa.Column("job_id", sa.Text, primary_key=True),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("result", sa.LargeBinary, nullable=False),
    )
    op.create_index("ix_results_expires_at", "results", ["expires_at"])
    op.create_table(
        "audit",
        sa.Column("log_pos", _BIG, primary_key=True, autoincrement=False),
        sa.Column("seq", _BIG, nullable=False),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("principal", sa.Text),
        sa.Column("time", sa.Text, nullable=False),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.Column("total_bytes", _BIG, nullable=False),
    )
    op.create_index("ix_audit_job_id_log_pos", "audit", ["job_id", "log_pos"])
    op.create_index("ix_audit_principal_log_pos", "audit", ["principal", "log_pos"])
