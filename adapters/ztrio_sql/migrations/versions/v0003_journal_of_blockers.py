"""Journal rows that never expire, or stand for several calls. Nothing has written to the table before."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the journal anew, and find open calls quickly."""
    op.drop_table("pending_journal")
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
        sa.Column("expires_at", sa.Double),
        sa.Column("members", _BIG, nullable=False),
    )
    op.create_index("ix_pending_journal_seq", "pending_journal", ["seq"])
    op.create_index("ix_activity_pending_state", "activity", ["pending_state"])
