"""When a server is started again, and when not: the policy on a virtual clock, with processes that are none."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.upstream.fakes import Life, World, kept, lives
from ztrio.errors import UpstreamUnavailable
from ztrio.upstream import Generation, RestartPolicy

MISSING = OSError(2, "No such file or directory", "server")


async def test_it_is_started_again_with_growing_waits(autojump_clock: trio.testing.MockClock) -> None:
    """The first wait is a tenth of a second, each other twice as long; epochs count, and each death is told once."""
    async with kept(World(lives(0.0, 0.0, 0.0))) as world:
        await trio.sleep(0.05)
        assert 0.05 == pytest.approx(world.keeper.statistics().next_try)
        await trio.sleep(5)
        assert [0.0, 0.1, 0.3, 0.7] == world.starts
        assert [1, 2, 3] == [death.epoch for death in world.deaths]
        assert "ready" == world.keeper.state
        assert (4, 1004, 4, 3, None) == tuple(
            getattr(world.keeper.statistics(), name) for name in ("epoch", "pid", "starts", "deaths", "next_try")
        )


async def test_waits_are_spread(autojump_clock: trio.testing.MockClock) -> None:
    """Jitter moves a wait by its part, and no wait is longer than the ceiling."""
    policy = RestartPolicy(jitter=0.5, ceiling=0.2, intensity=100)
    async with kept(World(lives(*[0.0] * 4), policy=policy)) as world:
        await trio.sleep(5)
        assert [0.0, 0.15, 0.45, 0.75, 1.05] == world.starts


async def test_it_is_given_up_and_tried_for_whoever_asks(autojump_clock: trio.testing.MockClock) -> None:
    """Five deaths within a minute are enough; then nothing is started until somebody wants it."""
    async with kept(World([Life(error=MISSING)] * 100)) as world:
        await trio.sleep(100)
        assert 5 == len(world.starts)
        assert "given_up" == world.keeper.state
        with pytest.raises(
            UpstreamUnavailable, match=r"given up after 5 ends within 60 s: it could not be started: No "
        ):
            await world.keeper.ready()
        assert 10 == len(world.starts)
        world.keeper.retry()
        await trio.sleep(0.01)
        assert 11 == len(world.starts)


async def test_slow_deaths_are_no_reason_to_give_up(autojump_clock: trio.testing.MockClock) -> None:
    """What lives for twenty seconds each time dies at most four times a minute, and is started every time."""
    async with kept(World(lives(*[20.0] * 10))) as world:
        await trio.sleep(600)
        assert (11, "ready") == (len(world.starts), world.keeper.state)
        assert "given_up" not in world.states


async def test_a_long_life_makes_everything_good(autojump_clock: trio.testing.MockClock) -> None:
    """Half a minute of life resets the waits and the count."""
    async with kept(World(lives(0.0, 0.0, 31.0, 0.0))) as world:
        await trio.sleep(60)
        assert [0.0, 0.1, 0.3, 31.4, 31.6] == world.starts


@pytest.mark.case("R59")
async def test_what_cannot_be_started_goes_by_the_same_policy(autojump_clock: trio.testing.MockClock) -> None:
    """A program that is missing may be there a moment later; the death names it, and is nobody's."""
    async with kept(World([Life(error=MISSING), Life(failure=MISSING)])) as world:
        with trio.fail_after(1):
            assert 3 == (await world.keeper.ready()).epoch
        assert ["could not be started: No such file or directory: server"] * 2 == [each.how for each in world.deaths]
        assert [(True, False)] * 2 == [(death.proven, death.expected) for death in world.deaths]


async def test_whoever_wants_it_now_does_not_wait(autojump_clock: trio.testing.MockClock) -> None:
    """A wish ends the wait before a start, also one that is made while a death is being told."""
    world = World(lives(0.0, 0.0))
    async with kept(world):
        await trio.sleep(0.05)
        world.keeper.retry()
        world.then = lambda _death: world.keeper.retry()
        await trio.sleep(0.01)
        assert [0.0, 0.05, 0.05] == world.starts


async def test_a_kill_is_no_death_of_its_own(autojump_clock: trio.testing.MockClock) -> None:
    """Whoever kills it gets the proof; it is started at once, and that does not count."""
    async with kept(World()) as world:
        await world.keeper.ready()
        death = await world.keeper.kill("operator")
        assert ("was killed: operator", True) == (death.how, death.expected)
        assert 2 == (await world.keeper.ready()).epoch
        assert 0 == world.keeper.statistics().deaths
        world.keeper.restart("because")
        assert "ending" == world.keeper.state, "nobody is given a connection that is being killed"
        world.keeper.restart("twice")
        assert 3 == (await world.keeper.ready()).epoch
        assert ["was killed: operator", "was killed: because"] == [each.how for each in world.deaths]


async def test_nothing_can_be_killed_that_does_not_run(autojump_clock: trio.testing.MockClock) -> None:
    """Between two generations a kill is refused, a restart does nothing, and the process that died was not killed."""
    async with kept(World(lives(0.0))) as world:
        await trio.sleep(0.05)
        world.keeper.restart("nobody")
        with pytest.raises(UpstreamUnavailable, match=r"mail does not run. Nothing was killed"):
            await world.keeper.kill("nobody")
        assert [("ended", False)] == [(death.how, death.expected) for death in world.deaths]


async def test_a_kill_of_what_is_just_dead_is_no_kill(autojump_clock: trio.testing.MockClock) -> None:
    """Whoever wants to kill what has died by itself meanwhile gets that death."""
    async with kept(World()) as world:
        generation = await world.keeper.ready()
        generation.process.give_up()
        death = await world.keeper.kill("operator")
        assert ("ended", False) == (death.how, death.expected)


async def test_a_cancelled_keeper_tells_the_death_too(autojump_clock: trio.testing.MockClock) -> None:
    """Being cancelled kills the server, and the death is told like any other."""
    async with kept(World()) as world:
        await world.keeper.ready()
    assert "stopped" == world.keeper.state
    assert [True] == [death.proven for death in world.deaths]
    await world.keeper.stop()


async def test_a_keeper_that_never_ran_is_stopped_at_once(autojump_clock: trio.testing.MockClock) -> None:
    """And starts nothing when it is run after that."""
    world = World()
    await world.keeper.stop()
    await world.keeper.run()
    assert ([], "stopped") == (world.starts, world.keeper.state)


@pytest.mark.parametrize("deaths", [3, 5])
async def test_a_stop_during_a_wait(autojump_clock: trio.testing.MockClock, deaths: int) -> None:
    """What waits to be started, or was given up, is stopped at once."""
    async with kept(World(lives(*[0.0] * deaths))) as world:
        await trio.sleep(0.5 if deaths == 3 else 20)
        before = trio.current_time()
        await world.keeper.stop()
        assert ("stopped", before) == (world.keeper.state, trio.current_time())
        with pytest.raises(UpstreamUnavailable, match="being stopped"):
            await world.keeper.ready()


async def test_a_stop_out_of_the_telling_of_a_death(autojump_clock: trio.testing.MockClock) -> None:
    """Whoever stops it because it died is obeyed before it is started again."""
    world = World(lives(0.0))
    async with trio.open_nursery() as nursery:
        world.then = lambda _death: nursery.start_soon(world.keeper.stop)
        await world.keeper.run()
    assert [0.0] == world.starts


async def test_it_may_be_ready_only_once(autojump_clock: trio.testing.MockClock) -> None:
    """A server whose end has begun is not ready any more, whatever is said of it."""

    async def serve(generation: Generation) -> None:
        generation.ready()
        await generation.process.dead.wait()
        generation.ready()

    async with kept(World(lives(1.0), serve=serve)) as world:
        await trio.sleep(1.05)
        assert ["starting", "ready", "ending", "backoff"] == world.states
