"""Keeping a server running: start, serve, bury, wait, and start again, until somebody says stop.

One task does all of it, in this order, so no two generations of a server ever overlap: the next is started when the
tree of the last is proven dead and everybody has been told. Whoever wants something of it from outside (kill, stop, try
again) leaves a word and wakes it.

    starting -> ready -> ending -> backoff -> starting …      given_up: waits for `retry`      stopping -> stopped
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

import attrs
import trio

from ztrio.errors import UpstreamUnavailable
from ztrio.upstream.process import ServerProcess
from ztrio.upstream.words import Command, Death, RestartPolicy, Timing

__all__ = ["Generation", "Keeper", "KeeperStatistics"]


class Starter(Protocol):
    """Starts one process; replaced by tests that have none."""

    async def __call__(self, command: Command, epoch: int) -> ServerProcess:
        """Start it."""


@attrs.define(eq=False)
class Generation:
    """One run of a server, for whoever serves it.

    Args:
        process: The process.
        on_ready: Told when it is ready.
    """

    process: ServerProcess
    on_ready: Callable[[], object]

    @property
    def epoch(self) -> int:
        """Its number."""
        return self.process.epoch

    def ready(self) -> None:
        """The handshake is done."""
        self.on_ready()


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
        self._on_state = on_state
        self._start = start
        self._chance = chance
        self._state = "starting"
        # Replaced at each change of state: everybody who waits looks again then.
        self._changed = trio.Event()
        self._epoch = self._starts = self._deaths = 0
        # When it died by itself, oldest first; at most `intensity` of them.
        self._died_at: deque[float] = deque(maxlen=self._policy.intensity)
        self._wait = self._policy.first
        self._next_try: float | None = None
        # Somebody wants it to be tried now, stopped, stopped at once; the last two never go back.
        self._sooner = trio.Event()
        self._stopping = trio.Event()
        self._forced = trio.Event()
        # Why the present generation is being ended by us; None while it is not.
        self._ending: str | None = None
        self._serving: trio.CancelScope | None = None

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
            pid=None if process is None else process.pid,
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
        """Kill the present generation; it starts anew at once."""
        if self.generation is not None and self._ending is None:
            self._ending = why
            self.generation.process.kill()

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
        self._stopping.set()
        self._sooner.set()
        if self._serving is not None:
            self._serving.cancel()
        while self._state != "stopped":
            await self._changed.wait()

    def force(self) -> None:
        """Do not wait for graces any more."""
        self._forced.set()

    # ---- the task

    async def run(self) -> None:
        """Keep it running until `stop`. Being cancelled kills it."""
        try:
            while not self._stopping.is_set():
                self._become("starting")
                await self._generation()
                if not self._stopping.is_set():
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
        self._ending = None
        began = trio.current_time()
        try:
            process = await self._start(self.command, epoch)
        except OSError as error:
            self._bury(_unstarted(epoch, error), began)
            return
        why: str | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(process.run)
                try:
                    await process.started.wait()
                    if process.failure is None and not process.dead.is_set():
                        why = await self._served(process)
                finally:
                    with trio.CancelScope(shield=True):  # each step of it has its bound
                        await self._put_down(process)
        finally:
            process.close()
        ours = self._stopping.is_set() or self._ending is not None
        self._bury(process.death(expected=ours, why=self._ending or why), began)

    async def _served(self, process: ServerProcess) -> str | None:
        """Serve it until its stdout ends or its tree is dead; what was wrong with the connection, or None."""
        generation = self.generation = Generation(process, self._ready)
        failure: str | None = None
        async with trio.open_nursery() as nursery:
            self._serving = nursery.cancel_scope
            nursery.start_soon(self._end_with, process, nursery.cancel_scope)
            if not self._stopping.is_set():
                try:
                    await self._serve(generation)
                except Exception as error:  # noqa: BLE001 - whatever it stumbled over, the connection is of no use
                    failure = f"was ended because its connection failed: {_words(error)}"
            nursery.cancel_scope.cancel()
        self._serving = None
        if self._state == "ready":  # whoever waits for a connection is to wait for the next one
            self._become("ending")
        return failure

    async def _end_with(self, process: ServerProcess, serving: trio.CancelScope) -> None:
        """When the tree is dead, what is left in its stdout is still read, for a moment."""
        await process.dead.wait()
        await trio.sleep(self._timing.drain)
        serving.cancel()

    def _ready(self) -> None:
        if not self._stopping.is_set():
            self._become("ready")

    async def _put_down(self, process: ServerProcess) -> None:
        """End it, and wait for the proof. In order when we are asked to stop; otherwise nothing is left to wait for."""
        timing = self._timing
        if self._stopping.is_set() and not process.dead.is_set():
            self._become("stopping")
            process.close_stdin()
            if not await self._dead(process, timing.eof_grace):
                process.terminate()
                await self._dead(process, timing.term_grace)
        if not process.dead.is_set():
            process.kill()
            await self._dead(process, timing.kill_bound, forced=False)
        process.give_up()

    async def _dead(self, process: ServerProcess, patience: float, *, forced: bool = True) -> bool:
        """Wait for its end within a bound, reading and throwing away what it writes meanwhile."""
        with trio.move_on_after(patience):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(process.discard)
                if forced:
                    nursery.start_soon(_cancel_after, self._forced, nursery.cancel_scope)
                await process.dead.wait()
                nursery.cancel_scope.cancel()
        return process.dead.is_set()

    def _bury(self, death: Death, began: float) -> None:
        self.generation = None
        now = trio.current_time()
        policy = self._policy
        if now - began >= policy.sustained:
            self._died_at.clear()
            self._wait = policy.first
        if not death.expected:
            self._deaths += 1
            self._died_at.append(now)
        self._on_death(death)
        self.last_death = death
        self._become("stopping" if self._stopping.is_set() else "backoff")

    async def _pause(self) -> None:
        """Wait as long as the policy says."""
        policy, now = self._policy, trio.current_time()
        self._sooner = trio.Event()
        if self.last_death is not None and self.last_death.expected:
            return
        if len(self._died_at) == policy.intensity and now - self._died_at[0] <= policy.period:
            self._died_at.clear()
            self._wait = policy.first
            self._become("given_up")
            await self._sooner.wait()
            return
        wait = self._wait * (1 + policy.jitter * (2 * self._chance() - 1))
        self._wait = min(self._wait * policy.factor, policy.ceiling)
        self._next_try = now + wait
        if self._stopping.is_set():
            return
        with trio.move_on_after(wait):
            await self._sooner.wait()
        self._next_try = None


async def _cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _unstarted(epoch: int, error: OSError) -> Death:
    return Death(
        epoch=epoch,
        status=None,
        how=f"could not be started: {error.strerror}",
        stderr_tail="",
        proven=True,
        proof={"rung": "none"},
    )


def _words(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return str(error) or type(error).__name__
