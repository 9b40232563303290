"""One generation from its start to its end, on a virtual clock: who is served how long, and in which order it ends."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.upstream.fakes import Life, World, kept
from ztrio.upstream import Generation, Timing

STUBBORN = Life()
OBEDIENT = Life(obeys=frozenset({"eof", "kill"}))
UNKILLABLE = Life(obeys=frozenset())


async def test_it_has_so_long_to_become_ready(autojump_clock: trio.testing.MockClock) -> None:
    """Whatever is not ready in time is killed, and the death says for how long it was waited for."""

    async def serve(_generation: Generation) -> None:
        await trio.sleep_forever()

    async with kept(World(timing=Timing(start_timeout=60, drain=0.0), serve=serve)) as world:
        await trio.sleep(60.05)
        [death] = world.deaths
        assert ("did not become ready within 60 s", False) == (death.how, death.expected)
        assert ["starting", "ending", "backoff"] == world.states


async def test_its_start_counts_from_its_very_beginning(autojump_clock: trio.testing.MockClock) -> None:
    """Time until it is executed is a part of its start; a server that is never executed is killed as well."""

    async def serve(generation: Generation) -> None:
        await trio.sleep(3)
        generation.ready()
        await trio.sleep_forever()

    lives = [Life(starts=8), Life(starts=60)]
    async with kept(World(lives, timing=Timing(start_timeout=10, drain=0.0), serve=serve)) as world:
        await trio.sleep(21)
        assert ["did not become ready within 10 s"] * 2 == [death.how for death in world.deaths]
        assert [0.0, 10.1, 20.3] == world.starts


async def test_a_handshake_that_is_bounded_by_its_user(autojump_clock: trio.testing.MockClock) -> None:
    """Whoever serves it may bound its handshake alone; once ready, too slow is a failure like any other."""
    fail = [True, False]

    async def serve(generation: Generation) -> None:
        if not fail.pop(0):
            generation.ready()
        raise trio.TooSlowError

    async with kept(World(serve=serve)) as world:
        await trio.sleep(0.15)
        assert [
            "did not become ready in time",
            "was ended because its connection failed: TooSlowError",
        ] == [death.how for death in world.deaths]


@pytest.mark.parametrize("deep", [False, True])
async def test_a_broken_connection_ends_the_process(autojump_clock: trio.testing.MockClock, deep: bool) -> None:
    """What serving it stumbles over, however deep in groups, is said in the death."""

    async def serve(generation: Generation) -> None:
        generation.ready()
        await trio.sleep(1)
        failure = ValueError("bad words")
        raise ExceptionGroup("", [ExceptionGroup("", [failure])]) if deep else failure

    async with kept(World(serve=serve)) as world:
        await trio.sleep(1.05)
        [death] = world.deaths
        assert ["starting", "ready", "ending", "backoff"] == world.states
        assert "was ended because its connection failed: bad words" == death.how
        assert not death.expected
        assert ["discarded", "kill", "closed"] == world.processes[0].said


async def test_a_failure_while_it_is_being_cancelled(autojump_clock: trio.testing.MockClock) -> None:
    """What a user that we cancelled stumbles over ends nothing but that generation."""

    async def serve(generation: Generation) -> None:
        generation.ready()
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("while being cancelled")

    async with kept(World([Life(seconds=1.0)], serve=serve)) as world:
        await trio.sleep(1.2)
        assert 2 == (await world.keeper.ready()).epoch
        await world.keeper.stop()
    assert 2 == len(world.deaths)


@pytest.mark.parametrize(
    ("life", "how", "at"),
    [
        (Life(seconds=2.1), "ended", 2.1),
        (Life(), "was killed, because its connection had ended and it had not", 2.25),
    ],
)
async def test_the_end_of_its_stdout_comes_before_its_own(
    autojump_clock: trio.testing.MockClock, life: Life, how: str, at: float
) -> None:
    """A process whose stdout has ended may end by itself for a moment, so that its own status is known."""

    async def serve(generation: Generation) -> None:
        generation.ready()
        await trio.sleep(2)

    async with kept(World([life], serve=serve)) as world:
        await trio.sleep(at + 0.05)
        assert [how] == [death.how for death in world.deaths]
        await trio.sleep(0.06)
        assert [0.0, round(at + 0.1, 3)] == world.starts


async def test_what_is_left_in_its_stdout_is_served(autojump_clock: trio.testing.MockClock) -> None:
    """When the tree is dead its user has a second for the rest, and is cancelled then."""
    served: list[float] = []

    async def serve(generation: Generation) -> None:
        generation.ready()
        await generation.process.dead.wait()
        try:
            await trio.sleep(0.5 if generation.epoch == 1 else 5)
        finally:
            served.append(trio.current_time())

    async with kept(World([Life(seconds=1.0), Life(seconds=1.0)], timing=Timing(), serve=serve)) as world:
        await trio.sleep(5)
        assert [1.5, 3.6] == [round(each, 3) for each in served]
        assert [0.0, 1.6, 3.8] == world.starts


@pytest.mark.case("R04")
@pytest.mark.parametrize(
    ("life", "said", "seconds", "proven"),
    [
        (OBEDIENT, ["eof"], 0.0, True),
        (Life(obeys=frozenset({"term"})), ["eof", "term"], 1.5, True),
        (STUBBORN, ["eof", "term", "kill"], 3.0, True),
        (UNKILLABLE, ["eof", "term", "kill"], 4.0, False),
    ],
)
async def test_stopping_is_ordered_and_bounded(
    autojump_clock: trio.testing.MockClock, life: Life, said: list[str], seconds: float, proven: bool
) -> None:
    """End of input, SIGTERM, SIGKILL, with a grace between them; asked twice it is one stop."""
    async with kept(World([life])) as world:
        await world.keeper.ready()
        before = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.keeper.stop)
            nursery.start_soon(world.keeper.stop)
        assert seconds == trio.current_time() - before
        assert [*said, "closed"] == world.processes[0].said
        assert [(True, proven)] == [(death.expected, death.proven) for death in world.deaths]
        assert ["starting", "ready", "stopping", "stopping", "stopped"] == world.states


async def test_it_is_served_while_it_is_stopped(autojump_clock: trio.testing.MockClock) -> None:
    """What a server still answers when its input has ended reaches its user; what comes later is thrown away."""
    answered: list[float] = []

    async def serve(generation: Generation) -> None:
        generation.ready()
        await trio.sleep(11)
        answered.append(trio.current_time())

    async with kept(World(serve=serve)) as world:
        await trio.sleep(10)
        await world.keeper.stop()
        assert [11.0] == answered
        assert ["eof", "discarded", "term", "kill", "closed"] == world.processes[0].said
        assert ["starting", "ready", "stopping", "stopping", "stopped"] == world.states


@pytest.mark.parametrize("when", [0.0, 1.0])
async def test_a_forced_stop_waits_for_nothing(autojump_clock: trio.testing.MockClock, when: float) -> None:
    """Whoever does not want to wait skips the graces that are left."""
    async with kept(World()) as world:
        await world.keeper.ready()
        before = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.keeper.stop)
            await trio.sleep(when)
            world.keeper.force()
        assert before + when == trio.current_time()


async def test_a_stop_before_it_is_executed(autojump_clock: trio.testing.MockClock) -> None:
    """A server that is still being started is stopped within the same bounds, and never served."""
    served: list[Generation] = []

    async def serve(generation: Generation) -> None:
        served.append(generation)
        await trio.sleep_forever()

    async with kept(World([Life(starts=60)], serve=serve)) as world:
        await trio.sleep(1)
        await world.keeper.stop()
        assert 4.0 == trio.current_time()
        assert ["eof", "discarded", "term", "kill", "closed"] == world.processes[0].said
        assert [] == served


async def test_what_cannot_be_killed_is_said_to_be_unproven(autojump_clock: trio.testing.MockClock) -> None:
    """A kill without a proof is given up after its bound; the death says so, and nobody waits for ever."""
    async with kept(World([UNKILLABLE], timing=Timing(kill_bound=2.0))) as world:
        await world.keeper.ready()
        before = trio.current_time()
        death = await world.keeper.kill("operator")
        assert (2.0, False) == (trio.current_time() - before, death.proven)
