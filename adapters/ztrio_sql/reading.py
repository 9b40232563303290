"""Questions to the tables. Each takes a connection, so that several questions can see one state of the database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import attrs
import sqlalchemy as sa

from ztrio.audit import AuditEvent
from ztrio.errors import Outcome
from ztrio.store import JobRow, SessionRow
from ztrio_sql.chain import Anchor, Link, decode_event
from ztrio_sql.tables import audit, jobs, meta, results, sessions

__all__ = [
    "JOB_COLUMNS",
    "JOB_FIELDS",
    "Wanted",
    "anchor",
    "events",
    "fact",
    "head",
    "job",
    "job_by_key",
    "job_events",
    "job_row",
    "kept_result",
    "last_end",
    "links",
    "newest_links",
    "session",
    "session_list",
    "stored_events",
    "unfinished",
]

_CHUNK: Final = 250  # rows fetched at once: what streams takes this much memory

JOB_FIELDS: Final = (
    "job_id",
    "principal",
    "tool",
    "session",
    "capability",
    "phase",
    "outcome",
    "targets",
    "created_at",
    "worker_pid",
    "worker_started_at",
    "session_version",
    "journal",
    "needs_recovery",
    "reason",
    "repeats",
    "idempotency_key",
    "idempotency_digest",
)
JOB_COLUMNS: Final = tuple(jobs.c[name] for name in JOB_FIELDS)
"""The columns of a `JobRow`, in the order of its fields."""

_SESSION: Final = sa.select(
    sessions.c.principal,
    sessions.c.name,
    sessions.c.incarnation,
    sessions.c.version,
    sessions.c.state,
    sessions.c.opened_at,
)
_ONE_SESSION: Final = _SESSION.where(
    sessions.c.principal == sa.bindparam("principal"), sessions.c.name == sa.bindparam("name")
)
_ONE_JOB: Final = sa.select(*JOB_COLUMNS).where(jobs.c.job_id == sa.bindparam("job_id"))
_BY_KEY: Final = sa.select(*JOB_COLUMNS).where(
    jobs.c.principal == sa.bindparam("principal"),
    jobs.c.tool == sa.bindparam("tool"),
    jobs.c.idempotency_key == sa.bindparam("key"),
)
_UNFINISHED: Final = sa.select(*JOB_COLUMNS).where(jobs.c.ended_pos.is_(None)).order_by(jobs.c.number)
_EVENT: Final = sa.select(audit.c.log_pos, audit.c.event)
_JOB_EVENTS: Final = _EVENT.where(audit.c.job_id == sa.bindparam("job_id")).order_by(audit.c.log_pos)
_LINK: Final = sa.select(
    audit.c.log_pos,
    audit.c.seq,
    audit.c.job_id,
    audit.c.principal,
    audit.c.time,
    audit.c.event,
    audit.c.hash,
    audit.c.total_bytes,
)


@attrs.frozen(kw_only=True)
class Wanted:
    """Which events are asked for; what is None does not matter.

    Args:
        principal: Whose.
        job_id: Of which call.
        event: Of which name.
    """

    principal: str | None = None
    job_id: str | None = None
    event: str | None = None

    def among(self, statement: sa.Select[Any]) -> sa.Select[Any]:
        """Narrow a question to these events, and to few others of which a part looks like the name."""
        if self.principal is not None:
            statement = statement.where(audit.c.principal == self.principal)
        if self.job_id is not None:
            statement = statement.where(audit.c.job_id == self.job_id)
        if self.event is not None:
            member = f'"event":{json.dumps(self.event)}'
            statement = statement.where(audit.c.event.contains(member, autoescape=True))
        return statement

    def is_named(self, facts: dict[str, Any]) -> bool:
        """Whether the event has the name."""
        return self.event is None or facts["event"] == self.event


_ALL: Final = Wanted()


def job_row(row: Any) -> JobRow:
    """A row of `JOB_COLUMNS`."""
    facts = dict(zip(JOB_FIELDS, row, strict=False))
    facts["targets"] = json.loads(facts["targets"])
    facts["outcome"] = None if facts["outcome"] is None else Outcome(facts["outcome"])
    return JobRow(**facts)


def fact(connection: sa.Connection, key: str) -> bytes | None:
    """A value of `meta`."""
    value: bytes | None = connection.scalar(sa.select(meta.c.value).where(meta.c.key == key))
    return value


def session(connection: sa.Connection, principal: str, name: str) -> SessionRow | None:
    """The session, or None."""
    row = connection.execute(_ONE_SESSION, {"principal": principal, "name": name}).one_or_none()
    return None if row is None else SessionRow(**row._mapping)


def session_list(connection: sa.Connection, principal: str) -> list[SessionRow]:
    """The principal's sessions by name."""
    rows = connection.execute(_SESSION.where(sessions.c.principal == principal))
    return sorted((SessionRow(**row._mapping) for row in rows), key=lambda row: row.name)


def job(connection: sa.Connection, job_id: str) -> JobRow | None:
    """The call, or None."""
    row = connection.execute(_ONE_JOB, {"job_id": job_id}).one_or_none()
    return None if row is None else job_row(row)


def job_by_key(connection: sa.Connection, principal: str, tool: str, key: str) -> JobRow | None:
    """The newest call that claimed an idempotency key, or None."""
    row = connection.execute(_BY_KEY, {"principal": principal, "tool": tool, "key": key}).one_or_none()
    return None if row is None else job_row(row)


def kept_result(connection: sa.Connection, job_id: str) -> bytes | None:
    """The answer that was kept of a call, or None."""
    value: bytes | None = connection.scalar(sa.select(results.c.result).where(results.c.job_id == job_id))
    return value


def unfinished(connection: sa.Connection) -> list[JobRow]:
    """Calls without a final outcome, oldest first."""
    return [job_row(row) for row in connection.execute(_UNFINISHED)]


def stored_events(connection: sa.Connection, *, principal: str | None, after: int, limit: int) -> list[tuple[int, str]]:
    """Position and canonical bytes of the newest `limit` events after a position, oldest first."""
    newest = _EVENT.where(audit.c.log_pos > after).order_by(audit.c.log_pos.desc()).limit(max(0, limit))
    if principal is not None:
        newest = newest.where(audit.c.principal == principal)
    return [(row.log_pos, row.event) for row in reversed(connection.execute(newest).all())]


def events(connection: sa.Connection, *, principal: str | None, after: int, limit: int) -> list[tuple[int, AuditEvent]]:
    """The newest `limit` events after a position, oldest first."""
    found = stored_events(connection, principal=principal, after=after, limit=limit)
    return [(position, decode_event(text)) for position, text in found]


def job_events(connection: sa.Connection, job_id: str) -> list[tuple[int, AuditEvent]]:
    """The events of one call, oldest first."""
    return [(row.log_pos, decode_event(row.event)) for row in connection.execute(_JOB_EVENTS, {"job_id": job_id})]


def anchor(connection: sa.Connection) -> Anchor:
    """Where the log begins."""
    stored = fact(connection, "anchor")
    return Anchor() if stored is None else Anchor.decode(stored)


def head(connection: sa.Connection) -> Anchor:
    """Where the log ends."""
    row = connection.execute(_LINK.order_by(audit.c.log_pos.desc()).limit(1)).one_or_none()
    return anchor(connection) if row is None else Anchor(row.log_pos, row.hash, row.total_bytes)


def last_end(connection: sa.Connection) -> int:
    """The highest position at which a call is said to have ended, 0 when none is."""
    return connection.scalar(sa.select(sa.func.max(jobs.c.ended_pos))) or 0


def links(connection: sa.Connection, after: int, *, wanted: Wanted = _ALL, limit: int | None = None) -> Iterator[Link]:
    """The events after a position as they are stored, some at a time; one state as long as the connection lasts."""
    asked = wanted.among(_LINK).order_by(audit.c.log_pos)
    left = limit
    while left is None or left > 0:
        count = _CHUNK if left is None else min(_CHUNK, left)
        rows = connection.execute(asked.where(audit.c.log_pos > after).limit(count)).all()
        for row in rows:
            yield Link(*row)
        if len(rows) < count:
            return
        after = rows[-1].log_pos
        left = None if left is None else left - count


def newest_links(connection: sa.Connection, before: int | None, *, wanted: Wanted, limit: int) -> list[Link]:
    """The newest `limit` events before a position, or of all, as they are stored; newest first."""
    asked = wanted.among(_LINK).order_by(audit.c.log_pos.desc()).limit(limit)
    if before is not None:
        asked = asked.where(audit.c.log_pos < before)
    return [Link(*row) for row in connection.execute(asked)]
