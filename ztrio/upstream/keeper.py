"""Keeping a server running: start, serve, bury, wait, and start again, until somebody says stop.

One task does all of it, in this order, so no two generations of a server ever overlap: the next is started when the
tree of the last is proven dead and everybody has been told. Whoever wants something of it from outside (kill, stop, try
again) leaves a word and wakes it.

    starting -> ready -> ending -> backoff -> starting …      given_up: waits for `retry`      stopping -> stopped
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import attrs
import trio

from ztrio.errors import UpstreamUnavailable
from ztrio.upstream.generation import Generation, Wishes, any_of
from ztrio.upstream.process import ServerProcess
from ztrio.upstream.restarts import Restarts
from ztrio.upstream.words import Command, Death, RestartPolicy, Timing

__all__ = ["Keeper", "KeeperStatistics"]

# A generation says where it has come to; it comes from one of these, or that is past already.
_BEFORE: Final = {"ready": {"starting"}, "ending": {"starting", "ready"}, "stopping": {"starting", "ready", "ending"}}


class Starter(Protocol):
    """Starts one process; replaced by tests that have none."""

    async def __call__(self, command: Command, epoch: int) -> ServerProcess:
        """Start it."""


@attrs.frozen(kw_only=True)
class KeeperStatistics:
    """A snapshot.

    Args:
        state: `starting`, `ready`, `ending`, `backoff`, `given_up`, `stopping` or `stopped`.
        epoch: Number of the newest generation; 0 before the first.
        pid: Process id of the server's program; None while none runs.
        starts: Generations so far.
        deaths: Ends so far that we did not cause.
        next_try: Seconds until it is started again; None when it is not waiting for that.
    """

    state: str
    epoch: int
    pid: int | None
    starts: int
    deaths: int
    next_try: float | None


class Keeper:
    """Keeps one server running.

    Args:
        name: The server's name, for people.
        command: What is started.
        serve: Serves one generation until the end of its stdout. If it raises, or returns while the process lives, the
            connection is broken: the process is killed and started again.
        on_death: Told of each proven death, before anything else is started.
        epochs: Gives each generation its number.
        timing: How long things may take.
        policy: When it is started again.
        on_state: Told of each change of state.
        start: Starts a process.
        chance: Gives numbers from 0 to 1, for jitter.
    """

    def __init__(
        self,
        name: str,
        command: Command,
        *,
        serve: Callable[[Generation], Awaitable[None]],
        on_death: Callable[[Death], object],
        epochs: Callable[[], int],
        timing: Timing | None = None,
        policy: RestartPolicy | None = None,
        on_state: Callable[[str], object] | None = None,
        start: Starter = ServerProcess.start,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.name = name
        self.command = command
        self.last_death: Death | None = None
        self.generation: Generation | None = None
        self._serve = serve
        self._on_death = on_death
        self._epochs = epochs
        self._timing = Timing() if timing is None else timing
        self._policy = RestartPolicy() if policy is None else policy
        self._restarts = Restarts(self._policy, chance)
        self._on_state = on_state
        self._start = start
        self._running = False
        self._state = "starting"
        # Replaced at each change of state: everybody who waits looks again then.
        self._changed = trio.Event()
        self._epoch = self._starts = self._deaths = 0
        self._next_try: float | None = None
        # Somebody wants it to be tried now. Made anew when a generation has ended, before anybody is told.
        self._sooner = trio.Event()
        self._wishes = Wishes()

    # ---- what it is

    @property
    def state(self) -> str:
        """`starting`, `ready`, `ending`, `backoff`, `given_up`, `stopping` or `stopped`."""
        return self._state

    def statistics(self) -> KeeperStatistics:
        """A snapshot."""
        process = None if self.generation is None else self.generation.process
        return KeeperStatistics(
            state=self._state,
            epoch=self._epoch,
            pid=None if process is None else process.pid or None,
            starts=self._starts,
            deaths=self._deaths,
            next_try=None if self._next_try is None else max(0.0, self._next_try - trio.current_time()),
        )

    async def ready(self) -> Generation:
        """Wait until it is ready. A server that was given up is tried once more for whoever asks.

        Raises:
            UpstreamUnavailable: it is given up, or stopped; the message says how it ended last.
        """
        await trio.lowlevel.checkpoint()
        tried = False
        while self._state != "ready" or self.generation is None:
            if self._state in {"stopping", "stopped"} or (self._state == "given_up" and tried):
                raise self._unavailable()
            if self._state == "given_up":
                tried = True
                self.retry()
            changed = self._changed
            await changed.wait()
        return self.generation

    def _unavailable(self) -> UpstreamUnavailable:
        if self._state in {"stopping", "stopped"}:
            return UpstreamUnavailable(f"{self.name} is being stopped. Nothing was sent.")
        death = self.last_death
        how = "it could not be started" if death is None else f"it {death.how}"
        return UpstreamUnavailable(
            f"{self.name} was given up after {self._policy.intensity} ends within {self._policy.period:g} s: {how}. "
            "Nothing was sent. Look at its stderr (`ztrio pending status`), then call again.",
            stderr="" if death is None else death.stderr_tail,
        )

    # ---- what others want of it

    def retry(self) -> None:
        """Try now what would be tried later, or not any more."""
        self._sooner.set()

    def restart(self, why: str) -> None:
        """Kill the present generation; it starts anew at once.

        Args:
            why: What somebody will read after "was killed: ".
        """
        if self.generation is not None:
            self.generation.kill(why)

    async def kill(self, why: str) -> Death:
        """Kill the present generation and wait until that is proven; it starts anew at once.

        Raises:
            UpstreamUnavailable: none runs.
        """
        generation = self.generation
        if generation is None:
            await trio.lowlevel.checkpoint()
            raise UpstreamUnavailable(f"{self.name} does not run. Nothing was killed.")
        self.restart(why)
        while self.last_death is None or self.last_death.epoch < generation.epoch:
            await self._changed.wait()
        return self.last_death

    async def stop(self) -> None:
        """Stop it for good, in order, and wait until that is done. Bounded; may be called again."""
        self._wishes.stop.set()
        self._sooner.set()
        await trio.lowlevel.checkpoint()
        while self._running and self._state != "stopped":
            await self._changed.wait()

    def force(self) -> None:
        """Do not wait for graces any more."""
        self._wishes.force.set()

    # ---- the task

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep it running until `stop`. Being cancelled kills it."""
        self._running = True
        task_status.started()
        try:
            while not self._wishes.stop.is_set():
                self._become("starting")
                await self._generation()
                if not self._wishes.stop.is_set():
                    await self._pause()
        finally:
            self._become("stopped")

    def _become(self, state: str) -> None:
        self._state = state
        changed, self._changed = self._changed, trio.Event()
        changed.set()
        if self._on_state is not None:
            self._on_state(state)

    async def _generation(self) -> None:
        self._epoch = epoch = self._epochs()
        self._starts += 1
        began = trio.current_time()
        try:
            process = await self._start(self.command, epoch)
        except OSError as error:
            self._bury(Death.unstarted(epoch, error), began)
            return
        generation = Generation(process, self._serve, self._timing, self._wishes, self._moved)
        try:
            self.generation = generation
            await generation.conduct()
        finally:
            self._bury(generation.death(), began)

    def _moved(self, state: str) -> None:
        if self._state in _BEFORE[state]:
            self._become(state)

    def _bury(self, death: Death, began: float) -> None:
        self.generation = None
        now = trio.current_time()
        self._restarts.ended(now, lived=now - began, expected=death.expected)
        self._deaths += not death.expected
        self._sooner = trio.Event()
        self._on_death(death)
        self.last_death = death
        self._become("stopping" if self._wishes.stop.is_set() else "backoff")

    async def _pause(self) -> None:
        """Wait as long as the policy says."""
        if self.last_death is not None and self.last_death.expected:
            return
        now = trio.current_time()
        wait = self._restarts.wait(now)
        if wait is None:
            self._become("given_up")
            await self._sooner.wait()
            return
        self._next_try = now + wait
        await any_of(self._sooner, self._wishes.stop, patience=wait)
        self._next_try = None
