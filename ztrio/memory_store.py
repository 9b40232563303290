"""The store that lives and dies with the process. It keeps every promise of `Store` but the durable ones."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import trio

from ztrio.activity import ActivityRow, JournalRow, LeftPending, PendingSnapshot, PendingWrite
from ztrio.audit import AuditEvent
from ztrio.calls import new_id
from ztrio.errors import Outcome
from ztrio.memory_activity import MemoryActivity
from ztrio.store import (
    KEY_LIFETIME,
    MAX_KEPT_RESULT,
    AlreadyEnded,
    Claim,
    JobEnd,
    JobRow,
    SessionRow,
    SessionWrite,
    StoreConflict,
    idempotency_conflict,
)

__all__ = ["MemoryStore"]

_FREE = (Outcome.ROLLED_BACK, Outcome.NOT_STARTED, Outcome.COMPLETED)
_MAX_RESULTS = 64 * 2**20  # bytes of all answers kept


@attrs.define
class _Call:
    row: JobRow
    # The terminal event, for a repeated `finish`; None while running.
    event: AuditEvent | None = None
    # Wall clock of the final end; None until then.
    ended_at: float | None = None
    # The answer kept for repetitions, or None.
    result: bytes | None = None


class MemoryStore:
    """The store that lives and dies with the process. See `Store`.

    Args:
        max_events: Events kept, the newest.
        max_jobs: Ended calls kept, the newest; running and unresolved ones are never dropped.
        now: The wall clock, in seconds since the epoch; for tests.
    """

    durable = False

    def __init__(
        self, *, max_events: int = 10_000, max_jobs: int = 10_000, now: Callable[[], float] = time.time
    ) -> None:
        self.store_id = new_id("st_")
        self.secret = secrets.token_bytes(32)
        self._now = now
        self._sessions: dict[tuple[str, str], SessionRow] = {}
        # Calls that have no final outcome yet, in the order of their arrival.
        self._open: dict[str, _Call] = {}
        # Calls that have, oldest first, at most `max_jobs`.
        self._ended: OrderedDict[str, _Call] = OrderedDict()
        self._max_jobs = max_jobs
        # (principal, tool, key) → the newest call that claimed it; every id is that of a call known above.
        self._keys: dict[tuple[str, str, str], str] = {}
        # Ended calls whose answer is kept, oldest first; their bytes are at most `_MAX_RESULTS`.
        self._answers: deque[_Call] = deque()
        self._answer_bytes = 0
        self._events: deque[tuple[int, AuditEvent]] = deque(maxlen=max_events)
        # Log position of the newest event.
        self._log_pos = 0
        self._pending = MemoryActivity()

    def watch(self, report: Callable[[str | None], None]) -> None:
        """Nothing to report: memory can always be written."""

    async def session(self, principal: str, name: str) -> SessionRow | None:
        await trio.lowlevel.checkpoint()
        return self._session(principal, name)

    def read_session(self, principal: str, name: str) -> SessionRow | None:
        return self._session(principal, name)

    def _session(self, principal: str, name: str) -> SessionRow | None:
        return self._sessions.get((principal, name))

    async def sessions(self, principal: str) -> list[SessionRow]:
        await trio.lowlevel.checkpoint()
        return sorted((row for row in self._sessions.values() if row.principal == principal), key=lambda row: row.name)

    async def job(self, job_id: str) -> JobRow | None:
        await trio.lowlevel.checkpoint()
        found = self._open.get(job_id) or self._ended.get(job_id)
        return None if found is None else found.row

    async def job_by_key(self, principal: str, tool: str, key: str) -> JobRow | None:
        job_id = self._keys.get((principal, tool, key))
        if job_id is None:
            await trio.lowlevel.checkpoint()
            return None
        return await self.job(job_id)

    async def unfinished(self) -> list[JobRow]:
        await trio.lowlevel.checkpoint()
        return [call.row for call in self._open.values()]

    async def events(self, *, principal: str | None, after: int, limit: int) -> list[tuple[int, AuditEvent]]:
        await trio.lowlevel.checkpoint()
        wanted = [
            (position, event)
            for position, event in self._events
            if position > after and (principal is None or event.principal == principal)
        ]
        return wanted[max(0, len(wanted) - limit) :]

    async def job_events(self, job_id: str) -> list[tuple[int, AuditEvent]]:
        await trio.lowlevel.checkpoint()
        return [(position, event) for position, event in self._events if event.execution_job_id == job_id]

    async def insert_job(self, row: JobRow) -> None:
        await trio.lowlevel.checkpoint()
        self._insert(row)

    def insert_job_nowait(self, row: JobRow) -> None:
        self._insert(row)

    async def claim(self, row: JobRow) -> Claim:
        await trio.lowlevel.checkpoint()
        assert row.idempotency_key is not None
        self._refuse_known(row)
        key = (row.principal, row.tool, row.idempotency_key)
        job_id = self._keys.get(key)
        holder = None if job_id is None else self._open.get(job_id) or self._ended[job_id]
        if holder is None:
            self._insert(row)
            self._keys[key] = row.job_id
            return Claim(mine=True)
        earlier = holder.row
        outlived = holder.ended_at is not None and self._now() >= holder.ended_at + KEY_LIFETIME
        if not outlived:
            if earlier.idempotency_digest != row.idempotency_digest:
                raise idempotency_conflict(row.idempotency_key, row.tool, earlier.job_id)
            if earlier.outcome not in _FREE:
                return Claim(mine=False, earlier=earlier, result=holder.result)
        self._insert(row if outlived else attrs.evolve(row, repeats=earlier.job_id))
        self._keys[key] = row.job_id
        holder.row = attrs.evolve(earlier, idempotency_key=None)
        return Claim(mine=True, earlier=None if outlived else earlier)

    async def advance(self, job_id: str, phase: str, **facts: Any) -> None:
        await trio.lowlevel.checkpoint()
        self._advance(job_id, phase, **facts)

    def advance_nowait(self, job_id: str, phase: str, **facts: Any) -> None:
        self._advance(job_id, phase, **facts)

    def write_intent(self, job_id: str, journal: bytes) -> None:
        self._advance(job_id, "publishing_outputs", journal=journal)

    async def finish(self, end: JobEnd) -> None:
        await trio.lowlevel.checkpoint()
        self._finish(end)

    def write_end(self, end: JobEnd) -> None:
        self._finish(end)

    def finish_nowait(self, end: JobEnd) -> None:
        assert end.outcome is not Outcome.COMMITTED and end.session is None
        self._finish(end)

    def _finish(self, end: JobEnd) -> None:
        # Whatever can fail comes before the first change.
        done = self._ended.get(end.job_id) or self._call(end.job_id)
        if done.event == end.event and done.row.outcome is end.outcome:
            return
        if done.ended_at is not None:
            assert done.row.outcome is not None
            raise AlreadyEnded(f"job {end.job_id} has ended: {done.row.outcome}", done.row.outcome)
        if done.row.phase == "aborted" and end.outcome is Outcome.COMMITTED:
            raise StoreConflict(f"job {end.job_id} was aborted and cannot be committed")
        session = None if end.session is None else self._next_session(end.session, end.event.time)
        if end.session is not None:
            key = (end.session.principal, end.session.name)
            if session is None:
                self._sessions.pop(key, None)
            else:
                self._sessions[key] = session
        self._end(end.job_id, end.outcome, end.event, end.result)

    async def abort(self, job_id: str) -> None:
        await trio.lowlevel.checkpoint()
        call = self._ended.get(job_id)
        if call is not None and call.row.outcome is Outcome.COMMITTED:
            raise AlreadyEnded(f"job {job_id} cannot be aborted, it is committed", Outcome.COMMITTED)
        if job_id in self._open:
            self._advance(job_id, "aborted")

    async def recovered(self, job_id: str, outcome: Outcome, event: AuditEvent) -> bool:
        await trio.lowlevel.checkpoint()
        if job_id not in self._open:
            return False
        self._end(job_id, outcome, event, None)
        return True

    async def need_recovery(self, job_id: str, reason: str, event: AuditEvent | None) -> bool:
        await trio.lowlevel.checkpoint()
        call = self._open.get(job_id)
        if call is None:
            return False
        call.row = attrs.evolve(call.row, outcome=Outcome.UNRESOLVED, needs_recovery=True, reason=reason)
        if event is not None:
            call.event = event
            self._append(event)
        return True

    def record(self, event: AuditEvent) -> None:
        self._append(event)

    async def write_pending(self, writes: Sequence[PendingWrite]) -> None:
        await trio.lowlevel.checkpoint()
        self._pending.write(writes)

    async def resync_pending(self, snapshot: PendingSnapshot) -> None:
        self._pending.resync(snapshot)  # at once: what is true may be another thing a moment later
        await trio.lowlevel.checkpoint()

    def append_pending_nowait(self, row: JournalRow) -> None:
        self._pending.append(row)

    async def left_pending(self) -> LeftPending:
        await trio.lowlevel.checkpoint()
        return self._pending.left()

    async def activity(self, call_id: str) -> ActivityRow | None:
        await trio.lowlevel.checkpoint()
        return self._pending.activity(call_id)

    async def activities(self, *, principal: str | None, limit: int) -> list[ActivityRow]:
        await trio.lowlevel.checkpoint()
        return self._pending.activities(principal, limit)

    def _append(self, event: AuditEvent) -> None:
        self._log_pos += 1
        self._events.append((self._log_pos, event))

    def _call(self, job_id: str) -> _Call:
        try:
            return self._open[job_id]
        except KeyError:
            raise StoreConflict(f"job {job_id} is unknown or has ended") from None

    def _refuse_known(self, row: JobRow) -> None:
        if row.job_id in self._open or row.job_id in self._ended:
            raise StoreConflict(f"job {row.job_id} is known already")

    def _insert(self, row: JobRow) -> None:
        self._refuse_known(row)
        self._open[row.job_id] = _Call(row)

    def _advance(self, job_id: str, phase: str, **facts: Any) -> None:
        call = self._call(job_id)
        known = {name: value for name, value in facts.items() if value is not None}
        call.row = attrs.evolve(call.row, phase=phase, **known)

    def _end(self, job_id: str, outcome: Outcome, event: AuditEvent, result: bytes | None) -> None:
        call = self._open[job_id]
        call.event = event
        self._append(event)
        call.row = attrs.evolve(call.row, outcome=outcome, phase="ended", needs_recovery=False, reason=None)
        if outcome is Outcome.UNRESOLVED:
            return
        call.ended_at = self._now()
        del self._open[job_id]
        self._ended[job_id] = call
        if call.row.idempotency_key is not None and result is not None and len(result) <= MAX_KEPT_RESULT:
            call.result = result
            self._answers.append(call)
            self._answer_bytes += len(result)
        while self._answer_bytes > _MAX_RESULTS:
            self._forget_answer(self._answers.popleft())
        while len(self._ended) > self._max_jobs:
            _, old = self._ended.popitem(last=False)
            row = old.row
            if (
                row.idempotency_key is not None
                and self._keys[row.principal, row.tool, row.idempotency_key] == row.job_id
            ):
                del self._keys[row.principal, row.tool, row.idempotency_key]
            if old.result is not None:
                self._answers.remove(old)
                self._forget_answer(old)

    def _forget_answer(self, call: _Call) -> None:
        assert call.result is not None
        self._answer_bytes -= len(call.result)
        call.result = None

    def _next_session(self, write: SessionWrite, now: str) -> SessionRow | None:
        found = self._sessions.get((write.principal, write.name))
        incarnation, version = (None, 0) if found is None else (found.incarnation, found.version)
        if (incarnation, version) != (write.incarnation, write.version):
            raise StoreConflict(
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
