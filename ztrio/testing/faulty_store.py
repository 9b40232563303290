"""Faults on demand in the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio

from ztrio.activity import ActivityRow, LeftPending, PendingSnapshot, PendingWrite
from ztrio.audit import AuditEvent
from ztrio.errors import Outcome
from ztrio.memory_store import MemoryStore
from ztrio.store import Claim, JobEnd, JobRow, SessionRow

__all__ = ["FaultyStore"]


class FaultyStore(MemoryStore):
    """A memory store of which chosen operations fail or never end.

    Args:
        fail: Operation → what it raises: `session`, `sessions`, `job`, `unfinished`, `insert_job`, `claim`, `advance`,
            `write_intent`, `finish`, `abort`, `recovered`, `need_recovery`, `record`, `write_pending`,
            `resync_pending`, `left_pending`, `activity`. With `advance:<phase>` only that step fails, with
            `finish:<event>`, `recovered:<event>` and `record:<event>` only the one of that event. The variants that
            block or do not wait have the name of the one that does.
        stall: Operations, named the same way, that never end. What is not waited for is taken and never done; what
            blocks cannot stall.
        before: Called with the name of each operation before it runs; for what somebody else does at that instant.
        now: The wall clock.

    Attributes:
        calls: Names of the operations called, in order; not of `record`.
    """

    def __init__(
        self,
        *,
        fail: Mapping[str, BaseException] | None = None,
        stall: tuple[str, ...] = (),
        before: Callable[[str], None] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(now=now)
        self.fail = dict(fail or {})
        self.stall = set(stall)
        self._before = before
        self.calls: list[str] = []

    async def session(self, principal: str, name: str) -> SessionRow | None:
        await self._step("session")
        return await super().session(principal, name)

    def read_session(self, principal: str, name: str) -> SessionRow | None:
        self._strike("session")
        return super().read_session(principal, name)

    async def sessions(self, principal: str) -> list[SessionRow]:
        await self._step("sessions")
        return await super().sessions(principal)

    async def job(self, job_id: str) -> JobRow | None:
        await self._step("job")
        return await super().job(job_id)

    async def unfinished(self) -> list[JobRow]:
        await self._step("unfinished")
        return await super().unfinished()

    async def insert_job(self, row: JobRow) -> None:
        await self._step("insert_job")
        await super().insert_job(row)

    def insert_job_nowait(self, row: JobRow) -> None:
        if self._takes("insert_job"):
            super().insert_job_nowait(row)

    async def claim(self, row: JobRow) -> Claim:
        await self._step("claim")
        return await super().claim(row)

    async def advance(self, job_id: str, phase: str, **facts: Any) -> None:
        await self._step("advance", phase)
        await super().advance(job_id, phase, **facts)

    def advance_nowait(self, job_id: str, phase: str, **facts: Any) -> None:
        if self._takes("advance", phase):
            super().advance_nowait(job_id, phase, **facts)

    def write_intent(self, job_id: str, journal: bytes) -> None:
        self._strike("write_intent")
        super().write_intent(job_id, journal)

    async def finish(self, end: JobEnd) -> None:
        await self._step("finish", end.event.event)
        await super().finish(end)

    def write_end(self, end: JobEnd) -> None:
        self._strike("finish", end.event.event)
        super().write_end(end)

    def finish_nowait(self, end: JobEnd) -> None:
        if self._takes("finish", end.event.event):
            super().finish_nowait(end)

    async def abort(self, job_id: str) -> None:
        await self._step("abort")
        await super().abort(job_id)

    async def recovered(self, job_id: str, outcome: Outcome, event: AuditEvent) -> bool:
        await self._step("recovered", event.event)
        return await super().recovered(job_id, outcome, event)

    async def need_recovery(self, job_id: str, reason: str, event: AuditEvent | None) -> bool:
        await self._step("need_recovery")
        return await super().need_recovery(job_id, reason, event)

    def record(self, event: AuditEvent) -> None:
        for name in (f"record:{event.event}", "record"):
            if name in self.fail:
                raise self.fail[name]
        super().record(event)

    async def write_pending(self, writes: Sequence[PendingWrite]) -> None:
        await self._step("write_pending")
        await super().write_pending(writes)

    async def resync_pending(self, snapshot: PendingSnapshot) -> None:
        await self._step("resync_pending")
        await super().resync_pending(snapshot)

    async def left_pending(self) -> LeftPending:
        await self._step("left_pending")
        return await super().left_pending()

    async def activity(self, call_id: str) -> ActivityRow | None:
        await self._step("activity")
        return await super().activity(call_id)

    async def _step(self, operation: str, detail: str | None = None) -> None:
        for name in self._called(operation, detail):
            if name in self.stall:
                await trio.sleep_forever()
            if name in self.fail:
                raise self.fail[name]

    def _strike(self, operation: str, detail: str | None = None) -> None:
        for name in self._called(operation, detail):
            if name in self.stall:
                raise ValueError(f"{name} blocks, so it cannot stall")
            if name in self.fail:
                raise self.fail[name]

    def _takes(self, operation: str, detail: str | None = None) -> bool:
        """Whether an operation that nobody waits for is done."""
        for name in self._called(operation, detail):
            if name in self.stall:
                return False
            if name in self.fail:
                raise self.fail[name]
        return True

    def _called(self, operation: str, detail: str | None) -> list[str]:
        names = [operation] if detail is None else [f"{operation}:{detail}", operation]
        self.calls.append(names[0])
        if self._before is not None:
            self._before(names[0])
        return names
