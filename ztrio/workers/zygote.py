"""Workers that are forked from a process which has everything loaded: a millisecond each. Linux only.

The fork server (`fork_server`, below `launcher`) is started once and preloads the toolbox; see there for how it
contains what it forks. Here is who decides: when a fork server is started, which one serves, when an old one may go.

If the fork server dies its workers die with it (the kernel sees to that), their calls roll back, and the next call
finds a new one being started. Where it cannot be used at all, because of this machine or because loading the toolbox
starts a thread, opening fails with `Refused`, and `spawn` may do instead.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio

from ztrio.errors import WorkerFailed
from ztrio.workers import cgroups
from ztrio.workers.backend import BackendSettings
from ztrio.workers.containment import Members, live_members
from ztrio.workers.forked import ForkedWorker
from ztrio.workers.ladder import RUNGS, ContainmentReport, RungTrial, complete, rungs_for
from ztrio.workers.pool import WorkerPool, run_pool, start_failed
from ztrio.workers.server import ForkServerLink, Refused, ServerGone

__all__ = ["Refused", "ZygoteBackend", "open_zygote_backend", "survey"]

_END_BOUND: Final = 5.0  # seconds for the proof of workers that no call owns
_MAX_STARTING: Final = 64  # forks asked for at once; the fork server makes one after the other
_RESTARTS: Final = 3  # fork servers that may die under one call's worker


@asynccontextmanager
async def open_zygote_backend(
    settings: BackendSettings, *, members: Members | None = None
) -> AsyncIterator[ZygoteBackend]:
    """Open the backend: choose the rung, start a fork server, preload. On leaving, everything is ended, proven or not.

    A toolbox that cannot be loaded does not keep it from opening: the calls get the error, and somebody may mend it.

    Args:
        settings: What to load, how to contain it, how many to keep ready, and bounds.
        members: Reads the process table; this platform's own way when omitted.

    Raises:
        Refused: no allowed rung works here, or loading the toolbox starts a thread.
    """
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        # The kernel would reap the launcher by itself.
        raise Refused("this process ignores SIGCHLD", code="WORKER_START_FAILED", reason="it ignores SIGCHLD")
    backend = ZygoteBackend(settings, members or live_members())
    async with run_pool(backend):
        await backend.open()
        yield backend


class ZygoteBackend(WorkerPool[ForkedWorker]):
    """See `open_zygote_backend`."""

    name = "zygote"

    def __init__(self, settings: BackendSettings, members: Members) -> None:
        super().__init__(settings, end_bound=_END_BOUND, max_starting=_MAX_STARTING)
        self._members = members
        self._rungs = rungs_for(settings.containment)
        # The fork server for new workers; None before the first and after one that could not load.
        self._link: ForkServerLink | None = None
        # Every fork server that is not closed.
        self._links: set[ForkServerLink] = set()
        # One is started at a time.
        self._changing = trio.Lock()
        # Where cgroups for jobs are made, on the rung that uses them, and their numbers.
        self._cgroup: Path | None = None
        self._numbers = itertools.count(1)
        # Final once the first fork server has tried the rungs.
        self.report = ContainmentReport(backend=self.name, rung="group", complete=False)

    async def open(self) -> None:
        """Start the first fork server.

        Raises:
            Refused: see `open_zygote_backend`.
        """
        try:
            await self._current()
        except Refused:
            raise
        except WorkerFailed:
            self._resting = True
        self._dispatch()

    async def make(self) -> ForkedWorker:
        """Have one worker forked."""
        for _ in range(_RESTARTS):
            link = await self._current()
            try:
                with trio.move_on_after(self._settings.start_timeout):
                    worker = await ForkedWorker.fork(
                        link,
                        wanted=bool(self._waiters),
                        output_limit=self._settings.output_limit,
                        cgroup=self._make_cgroup if link.rung == "cgroup" else None,
                        members=self._members,
                        on_exit=self.exited,
                        on_end=self.ended,
                    )
                    self.adopt(worker)
                    return worker
            except ServerGone:
                continue
            raise start_failed(f"it was not forked within {self._settings.start_timeout:g} s", link.output_tail())
        raise start_failed("the fork server dies again and again", link.output_tail())

    async def reload(self, settings: BackendSettings) -> None:
        """Start a fork server with fresh code; the old one ends with its last worker. See `backend.Backend`."""
        async with self._changing:
            link = await self._start(settings)
            old, self._link, self._settings = self._link, link, settings
        self.end_idle()
        if old is not None:
            old.retire()

    async def wind_up(self) -> None:
        """End the fork servers."""
        async with trio.open_nursery() as nursery:
            for link in self._links:
                nursery.start_soon(link.close)
        if self._cgroup is not None:
            cgroups.remove(self._cgroup)

    async def _current(self) -> ForkServerLink:
        """The fork server for new workers, started if there is none."""
        async with self._changing:
            if self._link is None or self._link.died.is_set():
                self._link = None
                self._link = await self._start(self._settings)
            return self._link

    async def _start(self, settings: BackendSettings) -> ForkServerLink:
        """Start a fork server and let it load everything.

        Raises:
            Refused: no rung works, or loading started a thread.
            WorkerFailed: it cannot be started, or cannot load.
        """
        link: ForkServerLink | None = None
        ready = False
        try:
            with trio.move_on_after(settings.start_timeout):
                link = await ForkServerLink.launch()
                self._links.add(link)
                self._watchers.start_soon(self._run, link)
                await self._choose(link)
                await link.preload(settings)
                ready = True
                return link
        except ServerGone:
            assert link is not None
            raise start_failed("the fork server ended while it loaded the tools", link.output_tail()) from None
        except OSError as error:
            raise start_failed(str(error), "") from error
        finally:
            if link is not None and not ready:
                link.hang_up()
        output = "" if link is None else link.output_tail()
        raise start_failed(f"it was not ready within {settings.start_timeout:g} s", output)

    async def _run(self, link: ForkServerLink) -> None:
        try:
            await link.run()
        finally:
            link.release()
            self._links.discard(link)

    async def _choose(self, link: ForkServerLink) -> None:
        """Find a rung; the first fork server's choice holds for all."""
        first = not self.report.rungs
        rungs = self._rungs if first else (self.report.rung,)
        if "cgroup" in rungs and self._cgroup is None:
            self._cgroup = _make_root()
        await link.choose(rungs, self._cgroup)
        if not first:
            return
        self.report = ContainmentReport(
            backend=self.name,
            rung=link.rung,
            complete=complete(link.rung),
            rungs=link.trials,
        )
        if link.rung != "cgroup" and self._cgroup is not None:
            cgroups.remove(self._cgroup)
            self._cgroup = None

    def _make_cgroup(self) -> Path:
        assert self._cgroup is not None
        return cgroups.make(self._cgroup, f"{next(self._numbers)}")


async def survey() -> tuple[RungTrial, ...]:
    """Try every rung of the ladder, and use none.

    Raises:
        OSError: no process could be started.
    """
    cgroup = _make_root()
    try:
        link = await ForkServerLink.launch()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            try:
                await link.choose(RUNGS, cgroup, try_all=True)
            finally:
                with trio.CancelScope(shield=True):  # `close` bounds itself
                    await link.close()
        return link.trials
    except ServerGone:
        raise OSError("the launcher ended before it had tried everything") from None
    finally:
        if cgroup is not None:
            cgroups.remove(cgroup)


def _make_root() -> Path | None:
    """A cgroup of our own, to make others in; None where that is not possible."""
    own = cgroups.find()
    if own is None:
        return None
    try:
        cgroups.sweep(own)
        return cgroups.make(own, f"{os.getpid()}-{os.urandom(4).hex()}")
    except OSError:
        return own  # the trial will find the reason
