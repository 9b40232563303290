"""A store that is only looked at: by another process than the one that works with it, or when none does.

Nothing is locked and nothing is written, so it works beside a running server and on what one left behind. Every
question sees one state; those that take long (`export`) see a newer one for each piece, so that they hold nothing up.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import attrs
import sqlalchemy as sa

from ztrio.activity import ActivityRow, LeftPending
from ztrio.audit import AuditEvent
from ztrio.errors import StoreUnavailable
from ztrio.store import JobRow, SessionRow
from ztrio_sql import pending, reading
from ztrio_sql.chain import Link, Verification, verify
from ztrio_sql.retention import Retention
from ztrio_sql.schema import FORMAT, database_at
from ztrio_sql.sqlite import SqliteDatabase

__all__ = ["StoreReader"]

_CHUNK: Final = 250  # events of an export at once


class StoreReader:
    """Answers questions about a store; from any thread.

    Args:
        database: The database, examined.
    """

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._engine = database.readers()
        # Set once; a question that is being answered then closes its connection itself.
        self._closed = False

    @classmethod
    def open(cls, path: str | Path) -> StoreReader:
        """Open a store for looking at it.

        Raises:
            StoreRefused: it is not ours, of another format, or damaged.
            StoreUnavailable: there is none, or it cannot be read.
        """
        database = database_at(path)
        written = database.examine()
        if written is None:
            raise StoreUnavailable(f"There is no store {path}.")
        if written < FORMAT:
            raise StoreUnavailable(
                f"The store {path} is of an older format ({written}, now {FORMAT}). It is brought up to date when a "
                "server opens it."
            )
        database.inspect(complete=True)
        return cls(database)

    def close(self) -> None:
        """Let go of it. Idempotent; what is asked later is refused."""
        self._closed = True
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _asking(self) -> Iterator[sa.Connection]:
        if self._closed:
            raise StoreUnavailable("The store is closed.")
        try:
            with self._engine.connect() as connection:
                yield connection
                self._let_go(connection)
        except (sa.exc.DBAPIError, sqlite3.Error) as error:
            raise self._database.unreadable(error) from error

    def _let_go(self, connection: sa.Connection) -> None:
        if self._closed:
            connection.invalidate()

    @property
    def store_id(self) -> str:
        """The store's id."""
        return self._fact("store_id").decode()

    @property
    def secret(self) -> bytes:
        """The store's secret."""
        return self._fact("secret")

    def _fact(self, key: str) -> bytes:
        with self._asking() as connection:
            value = reading.fact(connection, key)
        if value is None:
            raise self._database.damaged(f"it has no {key}")
        return value

    def session(self, principal: str, name: str) -> SessionRow | None:
        """The session, or None."""
        with self._asking() as connection:
            return reading.session(connection, principal, name)

    def sessions(self, principal: str) -> list[SessionRow]:
        """The principal's sessions by name."""
        with self._asking() as connection:
            return reading.session_list(connection, principal)

    def job(self, job_id: str) -> JobRow | None:
        """The call, or None."""
        with self._asking() as connection:
            return reading.job(connection, job_id)

    def job_by_key(self, principal: str, tool: str, key: str) -> JobRow | None:
        """The newest call that claimed an idempotency key, or None."""
        with self._asking() as connection:
            return reading.job_by_key(connection, principal, tool, key)

    def unfinished(self) -> list[JobRow]:
        """Calls without a final outcome, oldest first."""
        with self._asking() as connection:
            return reading.unfinished(connection)

    def events(
        self, *, principal: str | None = None, after: int = 0, limit: int = 10_000
    ) -> list[tuple[int, AuditEvent]]:
        """The newest `limit` events after a position, oldest first."""
        with self._asking() as connection:
            return reading.events(connection, principal=principal, after=after, limit=limit)

    def job_events(self, job_id: str) -> list[tuple[int, AuditEvent]]:
        """The events of one call, oldest first."""
        with self._asking() as connection:
            return reading.job_events(connection, job_id)

    def export(
        self, *, principal: str | None = None, job_id: str | None = None, event: str | None = None, after: int = 0
    ) -> Iterator[dict[str, Any]]:
        """Every event after a position as its JSON object, with `log_pos` and `hash`, oldest first.

        Args:
            principal: Only this principal's, or None for all.
            job_id: Only those of this call, or None for all.
            event: Only those of this name, or None for all.
            after: A log position, 0 for the beginning.
        """
        wanted = reading.Wanted(principal=principal, job_id=job_id, event=event)
        while True:
            with self._asking() as connection:
                links = list(reading.links(connection, after, wanted=wanted, limit=_CHUNK))
            yield from _objects(links, wanted)
            if len(links) < _CHUNK:
                return
            after = links[-1].log_pos

    def newest(
        self, *, principal: str | None = None, job_id: str | None = None, event: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """The same events as `export`, newest first."""
        wanted = reading.Wanted(principal=principal, job_id=job_id, event=event)
        before: int | None = None
        while True:
            with self._asking() as connection:
                links = reading.newest_links(connection, before, wanted=wanted, limit=_CHUNK)
            yield from _objects(links, wanted)
            if len(links) < _CHUNK:
                return
            before = links[-1].log_pos

    def last_position(self) -> int:
        """Position of the newest event, also of one that is kept no longer; 0 when there was none."""
        with self._asking() as connection:
            return reading.head(connection).log_pos

    def retention(self) -> Retention:
        """How much of the audit log is kept."""
        with self._asking() as connection:
            stored = reading.fact(connection, "retention")
        return Retention() if stored is None else Retention.decode(stored)

    def verify(self) -> Verification:
        """Follow the hash chain from its beginning to its end, or to its first bad link.

        The chain cannot tell that its newest events were removed; calls that ended there can.
        """
        with self._asking() as connection:
            found = verify(reading.anchor(connection), reading.links(connection, 0))
            missing, ended = reading.head(connection).log_pos + 1, reading.last_end(connection)
        if found.bad is None and ended >= missing:
            problem = f"event {missing} is missing: a call ended at {ended}"
            return attrs.evolve(found, bad=missing, problem=problem)
        return found

    def activity(self, call_id: str) -> ActivityRow | None:
        """What is known of a pending call, or None."""
        with self._asking() as connection:
            return pending.activity_of(connection, call_id)

    def activities(self, *, principal: str | None, limit: int) -> list[ActivityRow]:
        """The newest calls that somebody was not sure about, newest first."""
        with self._asking() as connection:
            return pending.activities(connection, principal, limit)

    def left_pending(self) -> LeftPending:
        """Writes that may be on their way or shut a gate, and what is known of them."""
        with self._asking() as connection:
            return pending.left_pending(connection)


def _objects(links: Iterable[Link], wanted: reading.Wanted) -> Iterator[dict[str, Any]]:
    for link in links:
        facts = json.loads(link.event)
        if wanted.is_named(facts):
            yield facts | {"hash": link.hash.hex()}
