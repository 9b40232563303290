"""Faults on demand in the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import trio

from ztrio.store import JobEnd, JobRow, MemoryStore, SessionRow

__all__ = ["FaultyStore"]


class FaultyStore(MemoryStore):
    """A memory store of which chosen operations fail or never end.

    Args:
        fail: Operation → what it raises: `session`, `sessions`, `insert_job`, `advance`, `finish`, `abort`. With
            `advance:<phase>` only that step fails, with `finish:<event>` only the transaction of that event.
        stall: Operations, named the same way, that never end.
        before: Called with the name of each operation before it runs; for what somebody else does at that instant.

    Attributes:
        calls: Names of the operations called, in order.
    """

    def __init__(
        self,
        *,
        fail: Mapping[str, BaseException] | None = None,
        stall: tuple[str, ...] = (),
        before: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__()
        self.fail = dict(fail or {})
        self.stall = set(stall)
        self._before = before
        self.calls: list[str] = []

    async def session(self, principal: str, name: str) -> SessionRow | None:
        await self._step("session")
        return await super().session(principal, name)

    async def sessions(self, principal: str) -> list[SessionRow]:
        await self._step("sessions")
        return await super().sessions(principal)

    async def insert_job(self, row: JobRow) -> None:
        await self._step("insert_job")
        await super().insert_job(row)

    async def advance(
        self, job_id: str, phase: str, *, worker_pid: int | None = None, worker_started_at: float | None = None
    ) -> None:
        await self._step("advance", phase)
        await super().advance(job_id, phase, worker_pid=worker_pid, worker_started_at=worker_started_at)

    async def finish(self, end: JobEnd) -> None:
        await self._step("finish", end.event.event)
        await super().finish(end)

    async def abort(self, job_id: str) -> None:
        await self._step("abort")
        await super().abort(job_id)

    async def _step(self, operation: str, detail: str | None = None) -> None:
        names = [operation] if detail is None else [f"{operation}:{detail}", operation]
        self.calls.append(names[0])
        if self._before is not None:
            self._before(names[0])
        for name in names:
            if name in self.stall:
                await trio.sleep_forever()
            if name in self.fail:
                raise self.fail[name]
