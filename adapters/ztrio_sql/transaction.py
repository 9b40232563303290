"""One transaction of the writer: what several operations do to the database, all or nothing.

Positions and hashes of the log are given out here, in the order in which the operations come, and the events are
written in one go at the end.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import attrs
import sqlalchemy as sa

from ztrio.audit import AuditEvent
from ztrio_sql.chain import Anchor, canonical, column, facts_of, link_hash
from ztrio_sql.tables import audit, meta

__all__ = ["LogEntry", "Operation", "Transaction"]

_APPEND: Final = sa.insert(audit)
_TOUCH: Final = sa.update(meta).where(meta.c.key == "store_id").values(value=meta.c.value)
_MARK: Final = sa.update(meta).where(meta.c.key == "mark").values(value=sa.bindparam("new_mark"))


@attrs.frozen
class LogEntry:
    """An event on its way into the log, encoded already, so that writing it cannot fail because of what it is."""

    seq: int
    job_id: str
    principal: str | None
    time: str
    facts: str

    @classmethod
    def of(cls, event: AuditEvent) -> LogEntry:
        """Encode an event.

        Raises:
            TypeError, ValueError: it holds what is no JSON.
        """
        job_id = column(event.execution_job_id)
        assert job_id is not None
        return cls(event.seq, job_id, column(event.principal), event.time, facts_of(event))


@attrs.define
class Transaction:
    """What the operations of one batch work on.

    Args:
        connection: The writing connection, in a transaction.
        head: Where the log ends before it.
        now: Wall clock, seconds since the epoch.
    """

    connection: sa.Connection
    head: Anchor
    now: float
    # Events that are not written yet; `head` is past them.
    _entries: list[dict[str, Any]] = attrs.field(factory=list)

    def execute(self, statement: Any, **values: Any) -> sa.CursorResult[Any]:
        """Run a statement."""
        return self.connection.execute(statement, values)

    def changed(self, statement: Any, **values: Any) -> int:
        """Run a statement; how many rows it changed."""
        return self.connection.execute(statement, values).rowcount

    def append(self, entry: LogEntry) -> int:
        """Append an event to the log; its position."""
        position = self.head.log_pos + 1
        text = canonical(position, entry.facts)
        total = self.head.total_bytes + len(text)
        link = link_hash(self.head.hash, text)
        self._entries.append(
            {
                "log_pos": position,
                "seq": entry.seq,
                "job_id": entry.job_id,
                "principal": entry.principal,
                "time": entry.time,
                "event": text,
                "hash": link,
                "total_bytes": total,
            }
        )
        self.head = Anchor(position, link, total)
        return position

    def touch(self) -> None:
        """Change something, so that there is a COMMIT to be synced."""
        self.connection.execute(_TOUCH)

    def mark(self, number: int) -> None:
        """Leave a mark by which a transaction can be told that appends no event."""
        self.connection.execute(_MARK, {"new_mark": b"%d" % number})

    def back_to(self, head: Anchor) -> None:
        """Forget the events appended since the log ended there, none of which was written."""
        self._entries.clear()
        self.head = head

    def flush(self) -> None:
        """Write the events appended so far."""
        if self._entries:
            self.connection.execute(_APPEND, self._entries)
            self._entries.clear()


class Operation(Protocol):
    """Something to be done in a transaction."""

    @property
    def job_id(self) -> str | None:
        """The call that it is about, or None."""

    @property
    def synced(self) -> bool:
        """Whether it must survive a power cut."""

    @property
    def ends(self) -> bool:
        """Whether it ends the call, so that nobody must be in doubt about it."""

    @property
    def lazy(self) -> bool:
        """Whether it may wait for a moment, where nobody waits for it: what follows says more about the call."""

    @property
    def size(self) -> int:
        """Bytes that it writes, roughly."""

    def apply(self, transaction: Transaction) -> Any:
        """Do it, and return the answer. Whoever refuses it by an exception of ztrio's has changed nothing."""
