"""What a supervisor keeps: sessions, jobs and the audit log, behind one protocol.

The protocol is small because one promise has to hold: `finish` is *the* transaction. It sets the job's outcome,
writes the session's next version and appends the terminal audit event, all or nothing. Everything before it may be
undone, nothing after it ever is.

Writes take effect in the order in which they were handed over, whichever way that was: awaited, from a worker thread
(`write_intent`, `write_end`), or not waited for at all (`record` and what ends in `_nowait`). So a call can be inserted
and moved on without waiting, and whatever is awaited for it later covers that: when it returns, everything before it is
there too, and was synced with it. What was handed over without waiting is kept and tried again while the store cannot
be written, so nothing that happened to a call meanwhile is missing from the log.

A row of a job is also its journal: recovery finds in it what was about to be done to which file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import attrs

from ztrio.activity import PendingStore
from ztrio.audit import AuditEvent
from ztrio.errors import IdempotencyConflict, Outcome
from ztrio.plain import encode

__all__ = [
    "EMPTY_STATE",
    "KEY_LIFETIME",
    "MAX_KEPT_RESULT",
    "AlreadyEnded",
    "Claim",
    "JobEnd",
    "JobRow",
    "SessionRow",
    "SessionWrite",
    "Store",
    "StoreConflict",
    "idempotency_conflict",
]

EMPTY_STATE: Final = encode({})

KEY_LIFETIME: Final = 24 * 3600.0
"""Seconds, by the wall clock, from a call's end until its idempotency key means nothing any more."""

MAX_KEPT_RESULT: Final = 2**20
"""Bytes of the largest answer that is kept for repetitions of its call."""


class StoreConflict(RuntimeError):
    """What was asked contradicts what is stored: an unknown call, a lost update. Nothing was changed; do not repeat."""


class AlreadyEnded(StoreConflict):
    """The call has its outcome already.

    Args:
        message: What was asked.
        outcome: What became of the effects. Raised by `Store.abort`, it is durable: go forward.
    """

    def __init__(self, message: str, outcome: Outcome) -> None:
        super().__init__(message)
        self.outcome = outcome


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
    state: bytes = attrs.field(repr=False)
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
    state: bytes | None = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class JobRow:
    """A call as stored.

    Args:
        job_id: The call's id.
        principal: Id of who called.
        tool: Name of the tool.
        session: The caller's name for the session.
        capability: `read`, `write` or `destructive`.
        phase: `queued`, `preparing`, `worker_running`, `publishing_outputs`, `aborted` (what it published is being put
            back; it can never be committed any more) or `ended`.
        outcome: What became of the effects; None while running, `UNRESOLVED` while nobody knows.
        targets: Parameter name → absolute path.
        created_at: Wall clock, ISO 8601 in UTC.
        worker_pid: Process id of the worker on the host.
        worker_started_at: Start time of that process, seconds since the epoch.
        session_version: The session's version that the call read, 0 when there was no session; None before.
        journal: What is about to be done to which file, encoded by whoever publishes; None before.
        needs_recovery: Whether recovery found something that it must not decide; the targets stay locked.
        reason: Why the outcome is not known, in a sentence.
        repeats: The earlier call that this one repeats under its idempotency key.
        idempotency_key: The caller's own name for the call.
        idempotency_digest: Digest of what was asked under that name.
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
    session_version: int | None = None
    journal: bytes | None = attrs.field(default=None, repr=False)
    needs_recovery: bool = False
    reason: str | None = None
    repeats: str | None = None
    idempotency_key: str | None = None
    idempotency_digest: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The call as surfaces show it: what is known, without the journal."""
        shown = attrs.asdict(self, filter=attrs.filters.exclude("journal", "idempotency_digest"))
        if self.outcome is not None:
            shown["outcome"] = str(self.outcome)
        if not self.needs_recovery:
            del shown["needs_recovery"]
        return {key: value for key, value in shown.items() if value is not None}


@attrs.frozen(kw_only=True)
class JobEnd:
    """The transaction that ends a call.

    Args:
        job_id: The call's id.
        outcome: What became of the effects.
        event: The terminal audit event, stamped.
        session: What happens to the session, or None for nothing.
        result: The encoded answer, kept for repetitions of a call that has an idempotency key, unless it is longer than
            `MAX_KEPT_RESULT` bytes.
    """

    job_id: str
    outcome: Outcome
    event: AuditEvent
    session: SessionWrite | None = None
    result: bytes | None = attrs.field(default=None, repr=False)


@attrs.frozen(kw_only=True)
class Claim:
    """What claiming an idempotency key found.

    Args:
        mine: Whether the key is the new call's, which is stored then; else it is `earlier`'s, and nothing was stored.
        earlier: The call that had the key: the one to wait for or to answer like, or, when `mine`, the one that the new
            call repeats. None when nobody had it.
        result: The answer that was kept of an earlier call that committed.
    """

    mine: bool
    earlier: JobRow | None = None
    result: bytes | None = attrs.field(default=None, repr=False)


class Store(PendingStore, Protocol):
    """Where a supervisor keeps things. Methods are called from one event loop, except the two that block.

    Each method that writes raises `StoreUnavailable` (or an OSError) when the store cannot be written, and
    `StoreConflict` when it makes no sense. A supervisor treats any exception as "not written", except from `finish`,
    see `abort`; a write that was cancelled may have happened.
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

    def watch(self, report: Callable[[str | None], None]) -> None:
        """Call `report` on the event loop with a reason when the store cannot be written, with None when it can again.

        It tries by itself, so that it finds out. There is one watcher; a later one replaces it.
        """

    # ---- questions

    async def session(self, principal: str, name: str) -> SessionRow | None:
        """The session, or None."""

    def read_session(self, principal: str, name: str) -> SessionRow | None:
        """The same, blocking: for a worker thread that is at work for the call anyway."""

    async def sessions(self, principal: str) -> list[SessionRow]:
        """The principal's sessions by name."""

    async def job(self, job_id: str) -> JobRow | None:
        """The call, or None."""

    async def job_by_key(self, principal: str, tool: str, key: str) -> JobRow | None:
        """The newest call that claimed this idempotency key, or None."""

    async def unfinished(self) -> list[JobRow]:
        """Calls without a final outcome, oldest first: running, unresolved, in need of recovery."""

    async def events(self, *, principal: str | None, after: int, limit: int) -> list[tuple[int, AuditEvent]]:
        """The newest `limit` events whose log position is greater than `after`, oldest first.

        Args:
            principal: Only this principal's, or None for all.
            after: A log position, 0 for the beginning.
            limit: The most events to return.
        """

    async def job_events(self, job_id: str) -> list[tuple[int, AuditEvent]]:
        """The events of one call with their log positions, oldest first."""

    # ---- a call on its way; none of this is synced, except the intent: no worker survives a power cut

    async def insert_job(self, row: JobRow) -> None:
        """Remember an accepted call."""

    def insert_job_nowait(self, row: JobRow) -> None:
        """Remember an accepted call without waiting; whatever is awaited for it later fails when that failed."""

    async def claim(self, row: JobRow) -> Claim:
        """Remember an accepted call that has an idempotency key, if the key is free.

        A key is free when nobody had it, when its last call was rolled back, never started or only read, and
        `KEY_LIFETIME` after its last call ended. Where that call is remembered and its key not outlived, the new row
        `repeats` it.

        Raises:
            IdempotencyConflict: the key stands for a call with another digest.
        """

    async def advance(
        self,
        job_id: str,
        phase: str,
        *,
        worker_pid: int | None = None,
        worker_started_at: float | None = None,
        session_version: int | None = None,
        journal: bytes | None = None,
    ) -> None:
        """Note how far a call is, and what is known by now; what is None stays as it was."""

    def advance_nowait(
        self,
        job_id: str,
        phase: str,
        *,
        worker_pid: int | None = None,
        worker_started_at: float | None = None,
        session_version: int | None = None,
        journal: bytes | None = None,
    ) -> None:
        """The same without waiting."""

    def write_intent(self, job_id: str, journal: bytes) -> None:
        """Note what is about to be published (phase `publishing_outputs`). Blocks until it is synced.

        For a worker thread, never for the event loop.
        """

    # ---- how it ends

    async def finish(self, end: JobEnd) -> None:
        """The transaction: outcome, session and terminal event, all or nothing; synced if anything is committed by it.

        An unresolved call stays open and is finished once more when it is settled. To finish with the same outcome and
        event again is no error and changes nothing, so whoever is in doubt may repeat it.

        Raises:
            AlreadyEnded: the call has another end.
            StoreConflict: there is no such call, its session is at another version, or it was aborted and cannot be
                committed.
        """

    def write_end(self, end: JobEnd) -> None:
        """The same, blocking. For a worker thread, never for the event loop."""

    def finish_nowait(self, end: JobEnd) -> None:
        """End a call that committed nothing, without waiting: the end is written as soon as the store can be."""

    async def abort(self, job_id: str) -> None:
        """After `finish` raised or was cancelled: make sure that it can never turn out to have happened.

        When nobody can tell whether a COMMIT that failed took effect, this opens a new connection, looks at the call
        again and has a transaction of its own synced. May be repeated until it succeeds.

        Raises:
            AlreadyEnded: it *has* happened, durably.
            StoreUnavailable: nobody can tell; then nothing that was published may be taken back.
        """

    async def recovered(self, job_id: str, outcome: Outcome, event: AuditEvent) -> bool:
        """Recovery's end of a call: outcome and event in one synced transaction, if it has no final outcome yet.

        Returns:
            Whether it had none; if not, nothing was changed.
        """

    async def need_recovery(self, job_id: str, reason: str, event: AuditEvent | None) -> bool:
        """Recovery must not decide about this call: it is unresolved and needs recovery, for this reason; synced.

        `recovered` or `finish` settles it later.

        Args:
            job_id: The call's id.
            reason: Why, in a sentence that says what to do.
            event: Its terminal event `unresolved`; None when it has one.

        Returns:
            Whether the call had no final outcome; if not, nothing was changed.
        """

    def record(self, event: AuditEvent) -> None:
        """Append an event that is not part of a transaction. Never waits.

        Raises:
            StoreUnavailable: the log cannot be written now. The event is kept and written later, unless so many wait
                already that it is lost; then a `gap` event says how many were.
        """


def idempotency_conflict(key: str | None, tool: str, earlier_id: str) -> IdempotencyConflict:
    """The refusal of a call whose idempotency key stands for another one."""
    return IdempotencyConflict(
        f"The idempotency key {key!r} was used for another call of {tool} ({earlier_id}) with "
        "other arguments or another session. Nothing ran; use a new key for a new call.",
        earlier_job_id=earlier_id,
    )
