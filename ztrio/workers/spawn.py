"""Workers that are started one by one: portable, a few tenths of a second each, so a small pool is kept ready.

One task of the backend makes every worker, never the call that wants it. So a call that leaves while it waits leaves
nothing behind: what was being made for it goes to the next in line or stays in the pool.

A worker that cannot start is not tried again and again: the failure goes to everyone who waits now, and the pool
rests until the next call asks. The same for workers that keep dying while idle.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

from ztrio.errors import WorkerFailed
from ztrio.workers.backend import BackendSettings, BackendStatistics
from ztrio.workers.containment import Members, live_members
from ztrio.workers.process import WorkerProcess
from ztrio.workers.wire import Boot

__all__ = ["SpawnBackend", "open_spawn_backend"]

_END_BOUND: Final = 5.0  # seconds for the proof of workers that no call owns
_IDLE_DEATHS: Final = 3  # in a row, until the pool rests
_MAX_STARTING: Final = max(2, os.cpu_count() or 1)  # starting costs CPU; more at once only makes each of them later


@attrs.define(eq=False)
class _Waiter:
    """A call in line."""

    # Set together with exactly one of the two below.
    settled: trio.Event = attrs.field(factory=trio.Event)
    worker: WorkerProcess | None = None
    failure: WorkerFailed | None = None


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
        raise _start_failed("this process ignores SIGCHLD, so the end of a worker cannot be proven", "")
    backend = SpawnBackend(settings, members or live_members())
    inner: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(backend.run)
            try:
                # Not `nursery.start`: cancelled, it waits for `run` to end, which waits for `close`.
                with trio.CancelScope(shield=True):
                    await backend.running.wait()  # one turn of the scheduler
                yield backend
            except BaseException as error:
                inner = error
                raise
            finally:
                backend.close()
    except BaseExceptionGroup as group:
        # The nursery wraps what the body raised; the body's own error is what the caller is to see.
        if group.exceptions != (inner,):
            raise
    if inner is not None:
        raise inner


class SpawnBackend:
    """See `open_spawn_backend`."""

    def __init__(self, settings: BackendSettings, members: Members) -> None:
        self._settings = settings
        self._members = members
        self._boot = Boot(modules=list(settings.modules), functions=list(settings.functions))
        # Every worker whose end is not proven, whoever owns it.
        self._alive: set[WorkerProcess] = set()
        # Those of them whose proof was asked for and not had.
        self._unproven: set[WorkerProcess] = set()
        # Ready workers, oldest first; empty while anybody waits.
        self._idle: deque[WorkerProcess] = deque()
        # Calls in line, first come first served.
        self._waiters: deque[_Waiter] = deque()
        # Tasks that are making a worker.
        self._starting = 0
        self._handed_over = 0
        # Idle workers that died since one was last handed over.
        self._idle_deaths = 0
        # Whether starting failed and nobody has asked since: the pool is not filled then.
        self._resting = False
        # Set once `run` can start workers.
        self.running = trio.Event()
        self._closing = trio.Event()
        # Both set while `run` runs: who watches workers, and (inside it, ended first) who makes them.
        self._watchers: trio.Nursery
        self._makers: trio.Nursery

    async def acquire(self) -> WorkerProcess:
        """A fresh worker that has everything loaded; see `backend.Backend`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._closing.is_set():
            raise _start_failed("the backend is closed", "")
        waiter = _Waiter()
        self._waiters.append(waiter)
        self._dispatch()
        if waiter.settled.is_set():
            await trio.lowlevel.cancel_shielded_checkpoint()
        else:
            try:
                await waiter.settled.wait()
            except BaseException:
                # Not settled: setting the event and leaving the line are one step, and a settled wait returns.
                self._waiters.remove(waiter)
                raise
        if waiter.worker is None:
            assert waiter.failure is not None
            raise waiter.failure
        return waiter.worker

    def statistics(self) -> BackendStatistics:
        """A snapshot."""
        return BackendStatistics(
            name="spawn",
            idle=len(self._idle),
            starting=self._starting,
            handed_over=self._handed_over,
            unproven=len(self._unproven),
        )

    def close(self) -> None:
        """Let `run` end every worker and return."""
        self._closing.set()

    async def run(self) -> None:
        """Make and watch workers until `close`."""
        # Shielded, because calls that are being cancelled still need their workers watched while they end them.
        # `close` always comes, and what follows it bounds itself.
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as self._watchers:
                async with trio.open_nursery() as self._makers:
                    self._dispatch()
                    self.running.set()
                    await self._closing.wait()
                    self._makers.cancel_scope.cancel()
                while self._waiters:
                    self._settle(self._waiters[0], failure=_start_failed("the backend is closing", ""))
                async with trio.open_nursery() as enders:
                    for worker in self._alive:
                        enders.start_soon(self._end, worker)
                for worker in list(self._alive):
                    worker.abandon()
                self._watchers.cancel_scope.cancel()

    def _dispatch(self) -> None:
        """Give ready workers to those in line, and start as many as are missing."""
        while self._waiters and self._idle:
            worker = self._idle.popleft()
            if worker.has_exited:
                self._replace(worker)
                continue
            self._handed_over += 1
            self._idle_deaths = 0
            self._settle(self._waiters[0], worker=worker)
        if self._closing.is_set():
            return
        wanted = len(self._waiters) + (0 if self._resting else self._settings.prewarmed) - len(self._idle)
        while self._starting < min(wanted, _MAX_STARTING):
            self._starting += 1
            self._makers.start_soon(self._make)

    def _settle(
        self, waiter: _Waiter, *, worker: WorkerProcess | None = None, failure: WorkerFailed | None = None
    ) -> None:
        self._waiters.remove(waiter)
        waiter.worker, waiter.failure = worker, failure
        waiter.settled.set()

    async def _make(self) -> None:  # noqa: ASYNC910 - starting is one, also when it fails
        """Make one worker and put it where it is wanted."""
        worker: WorkerProcess | None = None
        ready = False
        failure: WorkerFailed | None = None
        try:
            with trio.move_on_after(self._settings.start_timeout) as scope:
                worker = await WorkerProcess.launch(
                    output_limit=self._settings.output_limit,
                    members=self._members,
                    on_exit=self._exited,
                    on_end=self._ended,
                )
                self._alive.add(worker)
                self._watchers.start_soon(worker.watch)
                self._watchers.start_soon(worker.drain)
                await worker.boot(self._boot)
                ready = True
            if scope.cancelled_caught:
                output = "" if worker is None else worker.output_tail()
                failure = _start_failed(f"it was not ready within {self._settings.start_timeout:g} s", output)
        except WorkerFailed as error:
            failure = _start_failed(error.message, error.details.get("output", ""))
        except OSError as error:
            failure = _start_failed(str(error), "")
        finally:
            self._starting -= 1
            if worker is not None and not ready:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * _END_BOUND):
                    await self._end(worker)
        if ready and worker is not None:
            self._resting = False
            self._idle.append(worker)
            if worker.has_exited:
                self._exited(worker)
        elif failure is not None:
            self._resting = True
            for waiter in list(self._waiters):
                # Each its own: an exception that is raised in several tasks collects all their tracebacks.
                self._settle(waiter, failure=_start_failed(failure.details["reason"], failure.details["output"]))
        self._dispatch()

    def _exited(self, worker: WorkerProcess) -> None:
        """A leader has ended; if nobody owns the worker yet, replace it."""
        if worker in self._idle:
            self._idle.remove(worker)
            self._replace(worker)
            self._dispatch()

    def _replace(self, worker: WorkerProcess) -> None:
        self._watchers.start_soon(self._end, worker)
        self._idle_deaths += 1
        self._resting = self._resting or self._idle_deaths >= _IDLE_DEATHS

    def _ended(self, worker: WorkerProcess, proven: bool) -> None:
        if proven:
            self._alive.discard(worker)
            self._unproven.discard(worker)
        else:
            self._unproven.add(worker)

    async def _end(self, worker: WorkerProcess) -> None:
        await worker.terminate(grace=0.0, bound=_END_BOUND)


def _start_failed(reason: str, output: str) -> WorkerFailed:
    last = output.rstrip().rpartition("\n")[2]
    hint = f" It last printed: {last[:300]}" if last else ""
    return WorkerFailed(
        f"No worker process could be started: {reason}.{hint} Nothing ran. Mend the cause, then repeat the call.",
        code="WORKER_START_FAILED",
        reason=reason,
        output=output,
    )
