"""How long the audit log is kept, and what goes with it.

Events go from the oldest on, a few at a time. The position and hash of the last that went stay as the anchor, so what
is left can be verified as before. A call is known as long as its terminal event is in the log, and at least as long as
its idempotency key lives.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import ClassVar, Final

import attrs
import sqlalchemy as sa

from ztrio.store import KEY_LIFETIME
from ztrio_sql import reading
from ztrio_sql.chain import Anchor
from ztrio_sql.tables import audit, jobs, meta, results
from ztrio_sql.transaction import Transaction

__all__ = ["Retain", "Retention", "SetRetention"]

_SLICE: Final = 1000  # rows removed at once: what waits meanwhile waits milliseconds


@attrs.frozen(kw_only=True)
class Retention:
    """What is kept of the audit log. Whatever is beyond any of the bounds goes, the oldest first.

    Args:
        age: Seconds since an event, by the wall clock, or None.
        events: Number of events, or None.
        size: Bytes of events as JSON, or None; the database needs about three times that.
    """

    age: float | None = None
    events: int | None = None
    size: int | None = 2**30

    def encode(self) -> bytes:
        """The bounds as they are stored."""
        return json.dumps(attrs.asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Retention:
        """What `encode` wrote."""
        return cls(**json.loads(data))


@attrs.frozen
class SetRetention:
    """Writes down how much is kept, for whoever opens the store next and does not say."""

    retention: Retention
    job_id: ClassVar[str | None] = None
    synced: ClassVar[bool] = False
    ends: ClassVar[bool] = False
    lazy: ClassVar[bool] = False
    size: ClassVar[int] = 100

    def apply(self, transaction: Transaction) -> None:
        """Write it."""
        transaction.execute(sa.delete(meta).where(meta.c.key == "retention"))
        transaction.connection.execute(sa.insert(meta).values(key="retention", value=self.retention.encode()))


@attrs.frozen
class Retain:
    """Removes some of what is no longer kept; answers whether there is more."""

    retention: Retention
    job_id: ClassVar[str | None] = None
    synced: ClassVar[bool] = False
    ends: ClassVar[bool] = False
    lazy: ClassVar[bool] = False
    size: ClassVar[int] = _SLICE * 500

    def apply(self, transaction: Transaction) -> bool:
        """Remove a slice of events, then of what has outlived them."""
        connection = transaction.connection
        transaction.flush()
        anchor = reading.anchor(connection)
        cut = self._cut(transaction, anchor)
        if cut > anchor.log_pos:
            row = connection.execute(
                sa.select(audit.c.log_pos, audit.c.hash, audit.c.total_bytes).where(audit.c.log_pos == cut)
            ).one()
            anchor = Anchor(row.log_pos, row.hash, row.total_bytes)
            connection.execute(sa.delete(audit).where(audit.c.log_pos <= cut))
            connection.execute(sa.delete(meta).where(meta.c.key == "anchor"))
            connection.execute(sa.insert(meta).values(key="anchor", value=anchor.encode()))
            return True
        return _forget(transaction, anchor)

    def _cut(self, transaction: Transaction, anchor: Anchor) -> int:
        """Position of the last event that goes now."""
        connection, head, keep = transaction.connection, transaction.head, self.retention
        last = min(anchor.log_pos + _SLICE, head.log_pos)
        cut = anchor.log_pos
        if keep.events is not None:
            cut = max(cut, min(last, head.log_pos - keep.events))
        after = sa.select(audit.c.log_pos).where(audit.c.log_pos > cut, audit.c.log_pos <= last)
        # What is within this many bytes of the beginning of the store is beyond the bound.
        beyond = 0 if keep.size is None else head.total_bytes - keep.size
        if beyond > anchor.total_bytes:
            reaching = connection.scalar(after.where(audit.c.total_bytes >= beyond).order_by(audit.c.log_pos).limit(1))
            cut = max(cut, last if reaching is None else reaching)
        if keep.age is not None:
            oldest = dt.datetime.fromtimestamp(transaction.now - keep.age, dt.UTC).isoformat(timespec="microseconds")
            young = connection.scalar(
                after.where(audit.c.log_pos > cut, audit.c.time >= oldest).order_by(audit.c.log_pos).limit(1)
            )
            cut = max(cut, last if young is None else young - 1)
        return cut


def _forget(transaction: Transaction, anchor: Anchor) -> bool:
    """Remove answers that nobody may ask for any more, and calls whose end is no longer in the log."""
    expired = sa.select(results.c.job_id).where(results.c.expires_at <= transaction.now).limit(_SLICE)
    answers = transaction.execute(sa.delete(results).where(results.c.job_id.in_(expired))).rowcount
    over = transaction.now - KEY_LIFETIME
    gone = (
        sa.select(jobs.c.number)
        .where(
            jobs.c.ended_pos <= anchor.log_pos,
            sa.or_(jobs.c.idempotency_key.is_(None), jobs.c.ended_at <= over),
        )
        .limit(_SLICE)
    )
    calls = transaction.execute(sa.delete(jobs).where(jobs.c.number.in_(gone))).rowcount
    return max(answers, calls) == _SLICE
