"""Upstream calls that nobody is sure about."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the tables of pending calls."""
    op.create_table(
        "activity",
        sa.Column("number", _BIG, primary_key=True, autoincrement=True),
        sa.Column("call_id", sa.Text, nullable=False),
        sa.Column("principal", sa.Text, nullable=False),
        sa.Column("gate_scope", sa.Text, nullable=False),
        sa.Column("server", sa.Text, nullable=False),
        sa.Column("tool", sa.Text, nullable=False),
        sa.Column("revision", _BIG, nullable=False),
        sa.Column("pending_state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("late_outcome", sa.Text),
        sa.Column("blocker", sa.Text),
        sa.Column("settled_by", sa.Text),
        sa.Column("sent_at", sa.Double),
        sa.Column("unresolved_at", sa.Double),
        sa.Column("expires_at", sa.Double),
        sa.Column("resolved_at", sa.Double),
        sa.UniqueConstraint("call_id", name="uq_activity_call_id"),
    )
    op.create_index("ix_activity_principal_number", "activity", ["principal", "number"])
    op.create_index("ix_activity_blocker", "activity", ["blocker"])
    op.create_table(
        "pending_journal",
        sa.Column("call_id", sa.Text, primary_key=True),
        sa.Column("seq", _BIG, nullable=False),
        sa.Column("server", sa.Text, nullable=False),
        sa.Column("transport", sa.Text, nullable=False),
        sa.Column("epoch", _BIG, nullable=False),
        sa.Column("principal", sa.Text, nullable=False),
        sa.Column("gate_scope", sa.Text, nullable=False),
        sa.Column("tool", sa.Text, nullable=False),
        sa.Column("gate_tier", sa.Text, nullable=False),
        sa.Column("admission_tier", sa.Text, nullable=False),
        sa.Column("wire_ids", sa.Text, nullable=False),
        sa.Column("sent_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
    )
    op.create_index("ix_pending_journal_seq", "pending_journal", ["seq"])
