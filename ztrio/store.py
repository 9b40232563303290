"""What a supervisor keeps: sessions, jobs and the audit log, behind one protocol; and the store that forgets.

The protocol is small because one promise has to hold: `finish` is *the* transaction. It sets the job's outcome,
writes the session's next version and appends the terminal audit event, all or nothing. Everything before it may be
undone, nothing after it ever is. Events that are not terminal go in by `record`, which never waits: the order of the
log is the order of `record` and `finish` calls.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict, deque
from typing import Any, Final, Protocol

import attrs
import trio

from ztrio.audit import AuditEvent
from ztrio.calls import new_id
from ztrio.errors import Outcome
from ztrio.plain import encode

__all__ = ["EMPTY_STATE", "JobEnd", "JobRow", "MemoryStore", "SessionRow", "SessionWrite", "Store"]

EMPTY_STATE: Final = encode({})


@attrs.frozen(kw_only=True)
class SessionRow:
    """A session as stored.

    Args:
        principal: Id of its owner.
        name: The owner's name for it, or a minted handle.
        incarnation: Identifies this life of the name; a destroyed and reopened name has another.
        version: Number of commits so far.
        state: `plain.encode` of the state.
        opened_at: Wall clock of the commit that opened it, ISO 8601 in UTC.
    """

    principal: str
    name: str
    incarnation: str
    version: int
    state: bytes
    opened_at: str


@attrs.frozen(kw_only=True)
class SessionWrite:
    """What a transaction does to a session.

    Args:
        principal: Id of the owner.
        name: The owner's name for it.
        incarnation: The life that was read, or None when there was none.
        version: The version that was read, 0 when there was none.
        state: `plain.encode` of the next state, or None to destroy the session.
    """

    principal: str
    name: str
    incarnation: str | None
    version: int
    state: bytes | None


@attrs.frozen(kw_only=True)
class JobRow:
    """A call as stored.

    Args:
        job_id: The call's id.
        principal: Id of who called.
        tool: Name of the tool.
        session: The caller's name for the session.
        capability: `read`, `write` or `destructive`.
        phase: `queued`, `preparing`, `worker_running`, `publishing_outputs` or `ended`.
        outcome: What became of the effects; None while running.
        targets: Parameter name → absolute path.
        created_at: Wall clock, ISO 8601 in UTC.
        worker_pid: Process id of the worker on the host.
        worker_started_at: Start time of that process, seconds since the epoch.
    """

    job_id: str
    principal: str
    tool: str
    session: str
    capability: str
    phase: str
    outcome: Outcome | None
    targets: dict[str, str]
    created_at: str
    worker_pid: int | None = None
    worker_started_at: float | None = None


@attrs.frozen(kw_only=True)
class JobEnd:
    """The transaction that ends a call.

    Args:
        job_id: The call's id.
        outcome: What became of the effects.
        event: The terminal audit event, stamped.
        session: What happens to the session, or None for nothing.
    """

    job_id: str
    outcome: Outcome
    event: AuditEvent
    session: SessionWrite | None = None


class Store(Protocol):
    """Where a supervisor keeps things. Methods are called from one event loop.

    Each method that writes raises `OSError` (or the store's own error) when it cannot; a supervisor treats any
    exception as "not written", except from `finish`, see `abort`.
    """

    @property
    def store_id(self) -> str:
        """Identifies this store for ever."""

    @property
    def secret(self) -> bytes:
        """32 random bytes that live as long as the store; session handles are authenticated with them."""

    @property
    def durable(self) -> bool:
        """Whether what was finished survives the process and the machine."""

    async def session(self, principal: str, name: str) -> SessionRow | None:
        """The session, or None."""

    async def sessions(self, principal: str) -> list[SessionRow]:
        """The principal's sessions by name."""

    async def insert_job(self, row: JobRow) -> None:
        """Remember an accepted call. Not synced: no worker survives a power cut."""

    async def advance(
        self, job_id: str, phase: str, *, worker_pid: int | None = None, worker_started_at: float | None = None
    ) -> None:
        """Note how far a call is."""

    async def finish(self, end: JobEnd) -> None:
        """The transaction: outcome, session and terminal event, all or nothing."""

    async def abort(self, job_id: str) -> None:
        """After `finish` raised: make sure that it can never turn out to have happened.

        Raises:
            OSError: nobody can tell; then nothing that was published may be taken back.
        """

    def record(self, event: AuditEvent) -> None:
        """Append an event that is not part of a transaction. Never waits."""

    async def job(self, job_id: str) -> JobRow | None:
        """The call, or None."""

    async def events(self, *, principal: str | None, after: int, limit: int) -> list[tuple[int, AuditEvent]]:
        """The newest `limit` events whose log position is greater than `after`, oldest first.

        Args:
            principal: Only this principal's, or None for all.
            after: A log position, 0 for the beginning.
            limit: The most events to return.
        """


class MemoryStore:
    """The store that lives and dies with the process. See `Store`.

    Args:
        max_events: Events kept, the newest.
        max_jobs: Ended calls kept, the newest; running and unresolved ones are never dropped.
    """

    durable = False

    def __init__(self, *, max_events: int = 10_000, max_jobs: int = 10_000) -> None:
        self.store_id = new_id("st_")
        self.secret = secrets.token_bytes(32)
        self._sessions: dict[tuple[str, str], SessionRow] = {}
        # Calls that have no final outcome yet.
        self._open: dict[str, JobRow] = {}
        # Calls that have, oldest first, at most `max_jobs`.
        self._ended: OrderedDict[str, JobRow] = OrderedDict()
        self._max_jobs = max_jobs
        self._events: deque[tuple[int, AuditEvent]] = deque(maxlen=max_events)
        # Log position of the newest event.
        self._log_pos = 0

    async def session(self, principal: str, name: str) -> SessionRow | None:
        await trio.lowlevel.checkpoint()
        return self._sessions.get((principal, name))

    async def sessions(self, principal: str) -> list[SessionRow]:
        await trio.lowlevel.checkpoint()
        return sorted((row for row in self._sessions.values() if row.principal == principal), key=lambda row: row.name)

    async def insert_job(self, row: JobRow) -> None:
        await trio.lowlevel.checkpoint()
        self._open[row.job_id] = row

    async def advance(
        self, job_id: str, phase: str, *, worker_pid: int | None = None, worker_started_at: float | None = None
    ) -> None:
        await trio.lowlevel.checkpoint()
        changes: dict[str, Any] = {"phase": phase}
        if worker_pid is not None:
            changes |= {"worker_pid": worker_pid, "worker_started_at": worker_started_at}
        self._open[job_id] = attrs.evolve(self._open[job_id], **changes)

    async def finish(self, end: JobEnd) -> None:
        await trio.lowlevel.checkpoint()
        # Whatever can fail comes before the first change.
        session = None if end.session is None else self._next_session(end.session, end.event.time)
        row = attrs.evolve(self._open[end.job_id], outcome=end.outcome, phase="ended")
        if end.session is not None:
            key = (end.session.principal, end.session.name)
            if session is None:
                self._sessions.pop(key, None)
            else:
                self._sessions[key] = session
        self.record(end.event)
        if end.outcome is Outcome.UNRESOLVED:
            self._open[end.job_id] = row
            return
        del self._open[end.job_id]
        self._ended[end.job_id] = row
        while len(self._ended) > self._max_jobs:
            self._ended.popitem(last=False)

    async def abort(self, job_id: str) -> None:
        """Nothing to do: a transaction in memory that raised has changed nothing."""
        del job_id
        await trio.lowlevel.checkpoint()

    def record(self, event: AuditEvent) -> None:
        self._log_pos += 1
        self._events.append((self._log_pos, event))

    async def job(self, job_id: str) -> JobRow | None:
        await trio.lowlevel.checkpoint()
        return self._open.get(job_id) or self._ended.get(job_id)

    async def events(self, *, principal: str | None, after: int, limit: int) -> list[tuple[int, AuditEvent]]:
        await trio.lowlevel.checkpoint()
        wanted = [
            (position, event)
            for position, event in self._events
            if position > after and (principal is None or event.principal == principal)
        ]
        return wanted[max(0, len(wanted) - limit) :]

    def _next_session(self, write: SessionWrite, now: str) -> SessionRow | None:
        found = self._sessions.get((write.principal, write.name))
        incarnation, version = (None, 0) if found is None else (found.incarnation, found.version)
        if (incarnation, version) != (write.incarnation, write.version):
            raise RuntimeError(
                f"session {write.name!r} is at version {version}, not {write.version}: its ticket was not held"
            )
        if write.state is None:
            return None
        return SessionRow(
            principal=write.principal,
            name=write.name,
            incarnation=incarnation or new_id("si_"),
            version=version + 1,
            state=write.state,
            opened_at=now if found is None else found.opened_at,
        )
