"""A line of calls that want workers and a small pool of ready ones, for every backend.

A worker that was handed over is replaced at once where making one takes long; where it is quick, when it has ended or
the pool is empty, because making one while the call has just begun would take the processor from it.

One task of the backend makes each worker, never the call that wants it. So a call that leaves while it waits leaves
nothing behind: what was being made for it goes to the next in line or stays in the pool.

A worker that cannot be made is not tried again and again: the failure goes to everyone who waits now, and the pool
rests until the next call asks. The same for workers that keep dying while idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

import attrs
import trio

from ztrio.errors import WorkerFailed
from ztrio.workers.backend import BackendSettings, BackendStatistics, Proof, Worker

__all__ = ["PooledWorker", "WorkerPool", "run_pool", "start_failed"]

_IDLE_DEATHS: Final = 3  # in a row, until the pool rests


class PooledWorker(Worker, Protocol):
    """What a pool needs of its workers."""

    @property
    def has_exited(self) -> bool:
        """Whether it has ended, proven or not."""

    async def watch(self) -> None:
        """Notice its end; runs beside everything else."""

    async def drain(self) -> None:
        """Read what it prints; runs beside everything else."""

    def abandon(self) -> None:
        """Let go of it although its end could not be proven."""


W = TypeVar("W", bound=PooledWorker)


@attrs.define(eq=False)
class _Waiter(Generic[W]):
    """A call in line."""

    # Set together with exactly one of the two below.
    settled: trio.Event = attrs.field(factory=trio.Event)
    worker: W | None = None
    failure: WorkerFailed | None = None


@asynccontextmanager
async def run_pool(pool: WorkerPool[Any]) -> AsyncIterator[None]:
    """Run a pool. On leaving, every worker is ended, proven or not, within a few seconds."""
    inner: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pool.run)
            try:
                # Not `nursery.start`: cancelled, it waits for `run` to end, which waits for `close`.
                with trio.CancelScope(shield=True):
                    await pool.running.wait()  # one turn of the scheduler
                yield
            except BaseException as error:
                inner = error
                raise
            finally:
                pool.close()
    except BaseExceptionGroup as group:
        # The nursery wraps what the body raised; the body's own error is what the caller is to see.
        if group.exceptions != (inner,):
            raise
    if inner is not None:
        raise inner


class WorkerPool(Generic[W]):
    """A backend without the making of workers.

    Args:
        settings: How many to keep ready, and bounds.
        end_bound: Seconds for the proof of workers that no call owns.
        max_starting: Workers made at once.
        slow_start: Whether making one takes long.
    """

    name: ClassVar[str]

    def __init__(
        self, settings: BackendSettings, *, end_bound: float, max_starting: int, slow_start: bool = False
    ) -> None:
        self._settings = settings
        self._end_bound = end_bound
        self._max_starting = max_starting
        self._slow_start = slow_start
        # Every worker whose end is not proven, whoever owns it.
        self._alive: set[W] = set()
        # Those of them whose proof was asked for and not had.
        self._unproven: set[W] = set()
        # Ready workers, oldest first; empty while anybody waits.
        self._idle: deque[W] = deque()
        # Calls in line, first come first served.
        self._waiters: deque[_Waiter[W]] = deque()
        # Grows whenever what is to be loaded changes; a worker that was begun before is not handed over.
        self._generation = 0
        # Tasks that are making a worker.
        self._starting = 0
        self._handed_over = 0
        # Idle workers that died since one was last handed over.
        self._idle_deaths = 0
        # Whether making one failed and nobody has asked since: the pool is not filled then.
        self._resting = False
        # Set once `run` can make workers.
        self.running = trio.Event()
        self._closing = trio.Event()
        # Both set while `run` runs: who watches workers, and (inside it, ended first) who makes them.
        self._watchers: trio.Nursery
        self._makers: trio.Nursery

    async def make(self) -> W:
        """Make one worker that has everything loaded; it was `adopt`ed, and is ended here if this raises.

        Raises:
            WorkerFailed: why there is none.
            OSError: the same.
        """
        raise NotImplementedError

    async def wind_up(self) -> None:
        """Called when the last worker is proven dead or abandoned."""
        await trio.lowlevel.checkpoint()

    async def acquire(self) -> W:
        """A fresh worker that has everything loaded; see `backend.Backend`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._closing.is_set():
            raise start_failed("the backend is closed", "")
        waiter: _Waiter[W] = _Waiter()
        self._waiters.append(waiter)
        self._dispatch(refill=self._slow_start)
        if waiter.settled.is_set():
            await trio.lowlevel.cancel_shielded_checkpoint()
        else:
            try:
                await waiter.settled.wait()
            except BaseException:
                self._leave(waiter)
                raise
        if waiter.worker is None:
            assert waiter.failure is not None
            raise waiter.failure
        return waiter.worker

    def _leave(self, waiter: _Waiter[W]) -> None:
        """A call leaves the line. Between its cancellation and this its turn may have come."""
        if not waiter.settled.is_set():
            self._waiters.remove(waiter)
        elif waiter.worker is not None:
            self._handed_over -= 1
            self._idle.appendleft(waiter.worker)
            if waiter.worker.has_exited:
                self.exited(waiter.worker)
            self._dispatch()

    def statistics(self) -> BackendStatistics:
        """A snapshot."""
        return BackendStatistics(
            name=self.name,
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
                    self._settle(self._waiters[0], failure=start_failed("the backend is closing", ""))
                async with trio.open_nursery() as enders:
                    for worker in self._alive:
                        enders.start_soon(self._end, worker)
                for worker in list(self._alive):
                    worker.abandon()
                await self.wind_up()
                self._watchers.cancel_scope.cancel()

    def adopt(self, worker: W) -> None:
        """Watch a worker from now on, and end it at the latest when the pool is closed."""
        self._alive.add(worker)
        self._watchers.start_soon(worker.watch)
        self._watchers.start_soon(worker.drain)

    def exited(self, worker: W) -> None:
        """A worker has ended; if nobody owns it yet, replace it."""
        if worker in self._idle:
            self._idle.remove(worker)
            self._replace(worker)
            self._dispatch()

    def ended(self, worker: W, proven: bool) -> None:
        """The proof of a worker's end was asked for, and had or not."""
        if proven:
            self._alive.discard(worker)
            self._unproven.discard(worker)
            self._dispatch()
        else:
            self._unproven.add(worker)

    def end_idle(self) -> None:
        """End the workers that nobody has asked for yet; others are made in their place."""
        self._generation += 1
        idle = list(self._idle)
        self._idle.clear()
        for worker in idle:
            self._watchers.start_soon(self._end, worker)
        self._resting = False
        self._dispatch()

    def _dispatch(self, *, refill: bool = True) -> None:
        """Give ready workers to those in line, and make as many as are missing.

        Args:
            refill: Fill the pool up; else only when it is empty.
        """
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
        wanted = len(self._waiters) - len(self._idle)
        if not self._resting and (refill or not self._idle):
            wanted += self._settings.prewarmed
        while self._starting < min(wanted, self._max_starting):
            self._starting += 1
            self._makers.start_soon(self._make)

    def _settle(self, waiter: _Waiter[W], *, worker: W | None = None, failure: WorkerFailed | None = None) -> None:
        self._waiters.remove(waiter)
        waiter.worker, waiter.failure = worker, failure
        waiter.settled.set()

    async def _make(self) -> None:  # noqa: ASYNC910 - making is one, also when it fails
        """Make one worker and put it where it is wanted."""
        worker: W | None = None
        failure: WorkerFailed | None = None
        generation = self._generation
        try:
            worker = await self.make()
        except WorkerFailed as error:
            failure = start_failed(error.details.get("reason", error.message), error.details.get("output", ""))
        except OSError as error:
            failure = start_failed(str(error), "")
        finally:
            self._starting -= 1
        if generation != self._generation:
            # What it was to load has been replaced meanwhile: neither it nor its failure means anything now.
            if worker is not None:
                self._watchers.start_soon(self._end, worker)
        elif worker is not None:
            self._resting = False
            self._idle.append(worker)
            if worker.has_exited:
                self.exited(worker)
        elif failure is not None:
            self._resting = True
            for waiter in list(self._waiters):
                # Each its own: an exception that is raised in several tasks collects all their tracebacks.
                self._settle(waiter, failure=start_failed(failure.details["reason"], failure.details["output"]))
        self._dispatch()

    def _replace(self, worker: W) -> None:
        self._watchers.start_soon(self._end, worker)
        self._idle_deaths += 1
        self._resting = self._resting or self._idle_deaths >= _IDLE_DEATHS

    async def _end(self, worker: W) -> Proof | None:
        return await worker.terminate(grace=0.0, bound=self._end_bound)


def start_failed(reason: str, output: str) -> WorkerFailed:
    """The error of a worker that could not be made.

    Args:
        reason: Why, without a full stop.
        output: What was printed meanwhile.
    """
    last = output.rstrip().rpartition("\n")[2]
    hint = f" It last printed: {last[:300]}" if last else ""
    return WorkerFailed(
        f"No worker process could be started: {reason}.{hint} Nothing ran. Mend the cause, then repeat the call.",
        code="WORKER_START_FAILED",
        reason=reason,
        output=output,
    )
