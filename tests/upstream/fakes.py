"""A keeper whose servers are no processes, for what is a matter of time and order alone."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import attrs
import trio

from ztrio.upstream import Command, Death, Generation, Keeper, RestartPolicy, Timing

COMMAND = Command(("server",))


@attrs.define(kw_only=True)
class Life:
    """What becomes of a server.

    Args:
        seconds: How long it lives by itself.
        obeys: What it ends at: any of `eof`, `term`, `kill`.
        exits: Whether its first process exits with it; otherwise its exit is never told.
        starts: Seconds until it is executed.
        error: Why it cannot even be tried.
        failure: Why it cannot be executed.
    """

    seconds: float = math.inf
    obeys: frozenset[str] = frozenset({"kill"})
    exits: bool = True
    starts: float = 0.0
    error: OSError | None = None
    failure: OSError | None = None


class Fake:
    """A process that lives as long as it is told, and keeps what was done to it, and when."""

    stdin = stdout = -1

    def __init__(self, epoch: int, life: Life) -> None:
        self.epoch = epoch
        self.pid = 1000 + epoch
        self.failure = life.failure
        self.started = trio.Event()
        self.exited = trio.Event()
        self.dead = trio.Event()
        self.said: list[str] = []
        self.proven = False
        self._life = life

    async def run(self, kill_bound: float) -> None:
        """Live."""
        try:
            await trio.sleep(self._life.starts)
            self.started.set()
            with trio.move_on_after(0 if self.failure else self._life.seconds):
                await self.dead.wait()
        finally:
            self._end(proven=True)

    def _end(self, *, proven: bool) -> None:
        self.proven |= proven and not self.dead.is_set()
        self.started.set()
        self.dead.set()
        if self._life.exits:
            self.exited.set()

    def _told(self, word: str) -> None:
        self.said.append(word)
        if word in self._life.obeys:
            self._end(proven=True)

    def kill(self) -> None:
        self._told("kill")

    def close_stdin(self) -> None:
        self._told("eof")

    def terminate(self) -> None:
        self._told("term")

    async def discard(self) -> None:
        self.said.append("discarded")
        await trio.sleep_forever()

    def give_up(self) -> None:
        self._end(proven=False)

    def close(self) -> None:
        self.said.append("closed")

    def death(self, *, expected: bool, why: str | None = None) -> Death:
        if self.failure is not None:
            return Death.unstarted(self.epoch, self.failure)
        how = why or "ended"
        return Death(epoch=self.epoch, status=1, how=how, stderr_tail="tail", proven=self.proven, expected=expected)


class World:
    """A keeper, when its server was started, and what it was told."""

    def __init__(
        self,
        lives: list[Life] | None = None,
        *,
        policy: RestartPolicy | None = None,
        timing: Timing | None = None,
        serve: Callable[[Generation], Awaitable[None]] | None = None,
    ) -> None:
        self.starts: list[float] = []
        self.deaths: list[Death] = []
        self.states: list[str] = []
        self.processes: list[Fake] = []
        # Whoever is told of a death, after it has been noted here.
        self.then: Callable[[Death], object] = bool
        self._lives = [] if lives is None else lives
        self._epoch = 0
        self.keeper = Keeper(
            "mail",
            COMMAND,
            serve=serve or self.serve,
            on_death=self._died,
            epochs=self._next,
            timing=timing or Timing(drain=0.0),
            policy=policy or RestartPolicy(jitter=0.0),
            on_state=self.states.append,
            start=self._start,  # type: ignore[arg-type]
            chance=lambda: 1.0,
        )

    def _died(self, death: Death) -> None:
        self.deaths.append(death)
        self.then(death)

    def _next(self) -> int:
        self._epoch += 1
        return self._epoch

    async def _start(self, _command: Command, epoch: int) -> Fake:
        await trio.lowlevel.checkpoint()
        self.starts.append(round(trio.current_time(), 3))
        life = self._lives.pop(0) if self._lives else Life()
        if life.error is not None:
            raise life.error
        self.processes.append(Fake(epoch, life))
        return self.processes[-1]

    @staticmethod
    async def serve(generation: Generation) -> None:
        """Serve it for ever: ready at once."""
        generation.ready()
        await trio.sleep_forever()


@asynccontextmanager
async def kept(world: World) -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        await nursery.start(world.keeper.run)
        yield world
        nursery.cancel_scope.cancel()


def lives(*seconds: float) -> list[Life]:
    return [Life(seconds=each) for each in seconds]
