"""One transaction of the writer: what several operations do to the database, all or nothing.

Positions and hashes of the log are given out here, in the order in which the operations come, and the events are
written in one go at the end. So are the rows of new calls: what happens to a call in the transaction that inserts it
(to a read mostly everything) costs no statement of its own.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import attrs
import sqlalchemy as sa

from ztrio.audit import AuditEvent
from ztrio_sql.chain import Anchor, canonical, column, facts_of, link_hash
from ztrio_sql.prepared import Prepared
from ztrio_sql.tables import audit, jobs, meta

__all__ = ["LogEntry", "Operation", "Transaction"]

_APPEND: Final = Prepared(sa.insert(audit), audit.c.keys())
_INSERT: Final = Prepared(sa.insert(jobs).inline(), [column.name for column in jobs.c if column.name != "number"])
_TOUCH: Final = Prepared(sa.update(meta).where(meta.c.key == "store_id").values(value=meta.c.value))
_MARK: Final = Prepared(sa.update(meta).where(meta.c.key == "mark").values(value=sa.bindparam("new_mark")))


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
    # Calls that are not written yet, in their order: id → row.
    _calls: dict[str, dict[str, Any]] = attrs.field(factory=dict)

    def execute(self, statement: Any, **values: Any) -> sa.CursorResult[Any]:
        """Run a statement through Core. It finds everything that was inserted before."""
        self._insert_calls()
        return self.connection.execute(statement, values)

    def row(self, statement: Prepared, **values: Any) -> tuple[Any, ...] | None:
        """Run a question; its first row as the driver has it, or None."""
        self._insert_calls()
        found: tuple[Any, ...] | None = statement.run(self.connection, values).fetchone()
        return found

    def change(self, statement: Prepared, **values: Any) -> int:
        """Run a statement; how many rows it changed."""
        self._insert_calls()
        changed: int = statement.run(self.connection, values).rowcount
        return changed

    def insert(self, row: dict[str, Any]) -> None:
        """Insert a call, later; with another of its id, the database refuses both."""
        if row["job_id"] in self._calls:
            self._insert_calls()
        self._calls[row["job_id"]] = row

    def unwritten(self, job_id: str | None) -> dict[str, Any] | None:
        """The row of a call that is not written yet and may be changed; None when it has to be asked for."""
        return None if job_id is None else self._calls.get(job_id)

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
        _TOUCH.run(self.connection, {})

    def mark(self, number: int) -> None:
        """Leave a mark by which a transaction can be told that appends no event."""
        _MARK.run(self.connection, {"new_mark": b"%d" % number})

    def back_to(self, head: Anchor) -> None:
        """Forget calls and events since the log ended there, none of which was written."""
        self._calls.clear()
        self._entries.clear()
        self.head = head

    def flush(self) -> None:
        """Write the calls and events so far."""
        self._insert_calls()
        if self._entries:
            _APPEND.run_many(self.connection, self._entries)
            self._entries.clear()

    def _insert_calls(self) -> None:
        if self._calls:
            rows = list(self._calls.values())
            self._calls.clear()
            _INSERT.run_many(self.connection, rows)


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
