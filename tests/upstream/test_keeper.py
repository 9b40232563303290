"""When a server is started again, and when not: the policy on a virtual clock, with processes that are none."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from ztrio.errors import UpstreamUnavailable
from ztrio.upstream import Command, Death, Generation, Keeper, RestartPolicy, Timing

COMMAND = Command(("server",))


class Fake:
    """A process that lives as long as it is told."""

    def __init__(self, epoch: int, life: float) -> None:
        self.epoch = epoch
        self.pid = 1000 + epoch
        self.stdin = self.stdout = -1
        self.failure: OSError | None = None
        self.started = trio.Event()
        self.dead = trio.Event()
        self._life = life
        self.said: list[str] = []

    async def run(self) -> None:
        """Live."""
        self.started.set()
        with trio.move_on_after(self._life):
            await self.dead.wait()
        self.dead.set()

    def kill(self) -> None:
        self.said.append("kill")
        self.dead.set()

    def close_stdin(self) -> None:
        self.said.append("eof")

    def terminate(self) -> None:
        self.said.append("term")

    async def discard(self) -> None:
        await trio.sleep_forever()

    def give_up(self) -> None:
        self.dead.set()

    def close(self) -> None:
        self.said.append("closed")

    def death(self, *, expected: bool, why: str | None = None) -> Death:
        return Death(epoch=self.epoch, status=1, how=why or "ended", stderr_tail="tail", proven=True, expected=expected)


class World:
    """A keeper, when its server was started, and what it was told."""

    def __init__(self, lives: list[float | OSError], policy: RestartPolicy | None = None) -> None:
        self.starts: list[float] = []
        self.deaths: list[Death] = []
        self.states: list[str] = []
        self.processes: list[Fake] = []
        self.fail: Exception | None = None
        self._lives = lives
        self._epoch = 0
        self.keeper = Keeper(
            "mail",
            COMMAND,
            serve=self._serve,
            on_death=self.deaths.append,
            epochs=self._next,
            timing=Timing(drain=0.0),
            policy=policy or RestartPolicy(jitter=0.0),
            on_state=self.states.append,
            start=self._start,  # type: ignore[arg-type]
            chance=lambda: 1.0,
        )

    def _next(self) -> int:
        self._epoch += 1
        return self._epoch

    async def _start(self, _command: Command, epoch: int) -> Fake:
        await trio.lowlevel.checkpoint()
        self.starts.append(round(trio.current_time(), 3))
        life = self._lives.pop(0) if self._lives else math.inf
        if isinstance(life, OSError):
            raise life
        self.processes.append(Fake(epoch, life))
        return self.processes[-1]

    async def _serve(self, generation: Generation) -> None:
        generation.ready()
        if self.fail is not None:
            failure, self.fail = self.fail, None
            raise failure
        await trio.sleep_forever()


@asynccontextmanager
async def kept(world: World) -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.keeper.run)
        yield world
        nursery.cancel_scope.cancel()


async def test_it_is_started_again_with_growing_waits(autojump_clock: trio.testing.MockClock) -> None:
    """The first wait is a tenth of a second, each other twice as long; epochs count, and each death is told once."""
    async with kept(World([0.0, 0.0, 0.0])) as world:
        await trio.sleep(5)
        assert [0.0, 0.1, 0.3, 0.7] == world.starts
        assert [1, 2, 3] == [death.epoch for death in world.deaths]
        assert "ready" == world.keeper.state
        assert (4, 4, 3) == tuple(getattr(world.keeper.statistics(), name) for name in ("epoch", "starts", "deaths"))


async def test_waits_are_spread(autojump_clock: trio.testing.MockClock) -> None:
    """Jitter moves a wait by its part, and no wait is longer than the ceiling."""
    policy = RestartPolicy(jitter=0.5, ceiling=0.2, intensity=100)
    async with kept(World([0.0] * 4, policy)) as world:
        await trio.sleep(5)
        assert [0.0, 0.15, 0.45, 0.75, 1.05] == world.starts


async def test_it_is_given_up_and_tried_for_whoever_asks(autojump_clock: trio.testing.MockClock) -> None:
    """Five deaths within a minute are enough; then nothing is started until somebody wants it."""
    async with kept(World([OSError(2, "gone")] * 100)) as world:
        await trio.sleep(100)
        assert 5 == len(world.starts)
        assert "given_up" == world.keeper.state
        with pytest.raises(
            UpstreamUnavailable, match="given up after 5 ends within 60 s: it could not be started: gone"
        ):
            await world.keeper.ready()
        assert 10 == len(world.starts)
        world.keeper.retry()
        await trio.sleep(0.01)
        assert 11 == len(world.starts)


async def test_a_long_life_makes_everything_good(autojump_clock: trio.testing.MockClock) -> None:
    """Half a minute of life resets the waits and the count."""
    async with kept(World([0.0, 0.0, 31.0, 0.0])) as world:
        await trio.sleep(60)
        assert [0.0, 0.1, 0.3, 31.4, 31.6] == world.starts


async def test_what_cannot_be_started_goes_by_the_same_policy(autojump_clock: trio.testing.MockClock) -> None:
    """A program that is missing may be there a moment later."""
    async with kept(World([OSError(2, "No such file"), OSError(2, "No such file")])) as world:
        with trio.fail_after(1):
            assert 3 == (await world.keeper.ready()).epoch
        assert ["could not be started: No such file"] * 2 == [death.how for death in world.deaths]


async def test_a_kill_is_no_death_of_its_own(autojump_clock: trio.testing.MockClock) -> None:
    """Whoever kills it gets the proof; it is started at once, and that does not count."""
    async with kept(World([])) as world:
        await world.keeper.ready()
        death = await world.keeper.kill("operator")
        assert ("operator", True) == (death.how, death.expected)
        assert 2 == (await world.keeper.ready()).epoch
        assert 0 == world.keeper.statistics().deaths
        world.keeper.restart("because")
        world.keeper.restart("twice")
        await trio.sleep(0.01)
        assert ["operator", "because"] == [each.how for each in world.deaths]


async def test_a_broken_connection_ends_the_process(autojump_clock: trio.testing.MockClock) -> None:
    """What serving it stumbles over is said in the death."""
    world = World([])
    world.fail = ValueError("bad words")
    async with kept(world):
        await trio.sleep(1)
        [death] = world.deaths
        assert ["starting", "ready", "ending", "backoff", "starting", "ready"] == world.states
        assert "was ended because its connection failed: bad words" == death.how
        assert not death.expected


async def test_stopping_is_ordered_and_bounded(autojump_clock: trio.testing.MockClock) -> None:
    """End of input, SIGTERM, SIGKILL, with a grace between them; asked twice it is one stop."""
    async with kept(World([])) as world:
        await world.keeper.ready()
        before = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.keeper.stop)
            nursery.start_soon(world.keeper.stop)
        assert 3.0 == trio.current_time() - before
        assert ["eof", "term", "kill", "closed"] == world.processes[0].said
        assert "stopped" == world.keeper.state
        with pytest.raises(UpstreamUnavailable, match="being stopped"):
            await world.keeper.ready()
        with pytest.raises(UpstreamUnavailable, match="does not run"):
            await world.keeper.kill("x")


async def test_a_forced_stop_waits_for_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """Whoever does not want to wait skips the graces."""
    async with kept(World([])) as world:
        await world.keeper.ready()
        before = trio.current_time()
        world.keeper.force()
        await world.keeper.stop()
        assert before == trio.current_time()


async def test_a_stop_during_a_wait(autojump_clock: trio.testing.MockClock) -> None:
    """What waits to be started, or was given up, is stopped at once."""
    for deaths in (3, 5):
        async with kept(World([0.0] * deaths)) as world:
            await trio.sleep(0.75 if deaths == 3 else 20)
            await world.keeper.stop()
            assert "stopped" == world.keeper.state
