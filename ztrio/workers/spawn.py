"""Workers that are started one by one: portable, a few tenths of a second each, so a small pool is kept ready."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from ztrio.workers.backend import BackendSettings
from ztrio.workers.containment import Members, live_members
from ztrio.workers.ladder import ContainmentReport
from ztrio.workers.pool import WorkerPool, run_pool, start_failed
from ztrio.workers.process import WorkerProcess
from ztrio.workers.wire import Boot

__all__ = ["SpawnBackend", "open_spawn_backend"]

_END_BOUND: Final = 5.0  # seconds for the proof of workers that no call owns
_MAX_STARTING: Final = max(2, os.cpu_count() or 1)  # starting costs CPU; more at once only makes each of them later


@asynccontextmanager
async def open_spawn_backend(
    settings: BackendSettings, *, members: Members | None = None
) -> AsyncIterator[SpawnBackend]:
    """Open the backend. On leaving, every worker is ended, proven or not, within a few seconds.

    Args:
        settings: What to load, how many to keep ready, and bounds.
        members: Reads the process table; this platform's own way when omitted.

    Raises:
        WorkerFailed: WORKER_START_FAILED, where this process ignores SIGCHLD.
    """
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        # The kernel would reap workers by itself: no leader could be held until its group is empty.
        raise start_failed("this process ignores SIGCHLD, so the end of a worker cannot be proven", "")
    backend = SpawnBackend(settings, members or live_members())
    async with run_pool(backend):
        yield backend


class SpawnBackend(WorkerPool[WorkerProcess]):
    """See `open_spawn_backend`."""

    name = "spawn"

    def __init__(self, settings: BackendSettings, members: Members) -> None:
        super().__init__(settings, end_bound=_END_BOUND, max_starting=_MAX_STARTING, slow_start=True)
        self.report = ContainmentReport(backend=self.name, rung="group", complete=False)
        self._members = members
        # What the next worker is to load.
        self._boot = Boot(modules=list(settings.modules), functions=list(settings.functions))

    async def make(self) -> WorkerProcess:
        """Start one worker and let it load everything."""
        return await self._make_with(self._boot)

    async def reload(self, settings: BackendSettings) -> None:
        """Let workers that are handed over from now on load this; see `backend.Backend`."""
        boot = Boot(modules=list(settings.modules), functions=list(settings.functions))
        worker = await self._make_with(boot)
        self._boot = boot
        self.end_idle()
        self._idle.append(worker)
        self._dispatch()

    async def _make_with(self, boot: Boot) -> WorkerProcess:
        worker: WorkerProcess | None = None
        ready = False
        try:
            with trio.move_on_after(self._settings.start_timeout):
                worker = await WorkerProcess.launch(
                    output_limit=self._settings.output_limit,
                    members=self._members,
                    on_exit=self.exited,
                    on_end=self.ended,
                )
                self.adopt(worker)
                await worker.boot(boot)
                ready = True
                return worker
        finally:
            if worker is not None and not ready:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * self._end_bound):
                    await self._end(worker)
        output = "" if worker is None else worker.output_tail()
        raise start_failed(f"it was not ready within {self._settings.start_timeout:g} s", output)
