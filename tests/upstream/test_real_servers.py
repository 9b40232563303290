"""Servers that are real processes, kept by a keeper: served, stopped in order, killed, and started again."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.upstream.real import alive, written
from ztrio.errors import UpstreamUnavailable
from ztrio.upstream import Command, Death, Generation, Keeper, RestartPolicy, Timing

GRACES = Timing(eof_grace=0.3, term_grace=0.3)


class Box:
    """A keeper that hears what its server says."""

    def __init__(self, *argv: str, timing: Timing = GRACES, policy: RestartPolicy | None = None) -> None:
        self.heard = b""
        self.deaths: list[Death] = []
        # Sets the server ready at its first byte.
        self.silent = False
        self.keeper = Keeper(
            "mail",
            Command(argv),
            serve=self._serve,
            on_death=self.deaths.append,
            epochs=itertools.count(1).__next__,
            timing=timing,
            policy=policy,
        )

    async def _serve(self, generation: Generation) -> None:
        process = generation.process
        while True:
            await trio.lowlevel.wait_readable(process.stdout)
            chunk = os.read(process.stdout, 65536)
            if not chunk:
                return
            self.heard += chunk
            if not self.silent:
                generation.ready()


@asynccontextmanager
async def kept(box: Box) -> AsyncIterator[Keeper]:
    async with trio.open_nursery() as nursery:
        await nursery.start(box.keeper.run)
        with trio.fail_after(20):
            yield box.keeper
        nursery.cancel_scope.cancel()


@pytest.mark.case("R04")
@pytest.mark.parametrize(
    ("program", "how", "least", "most"),
    [
        ("echo up; cat > /dev/null; echo bye; exit 4", "exited with status 4", 0.0, 0.25),
        ("echo up; exec sleep 300", "was ended by SIGTERM", 0.29, 0.55),
        ("trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.01; done", "exited with status 5", 0.29, 0.55),
        ("trap '' TERM; echo up; while :; do sleep 300; done", "was ended by SIGKILL", 0.59, 0.9),
    ],
)
async def test_it_is_stopped_in_order(program: str, how: str, least: float, most: float) -> None:
    """End of stdin, SIGTERM, SIGKILL: each only when the one before did not do; what it still says is heard."""
    box = Box("sh", "-c", program)
    async with kept(box) as keeper:
        pid = (await keeper.ready()).process.pid
        before = trio.current_time()
        await keeper.stop()
        assert least <= trio.current_time() - before < most
        assert not alive(pid)
    assert [(how, True, True)] == [(death.how, death.proven, death.expected) for death in box.deaths]
    assert (b"up\nbye\n" if "bye" in program else b"up\n") == box.heard


@pytest.mark.case("R02", "R03")
@pytest.mark.parametrize("obeys", [True, False])
async def test_a_wrapper_that_exits_first(tmp_path: Path, obeys: bool) -> None:
    """What a wrapper left behind is served on with its pipes, and stopped with the same order and proof."""
    file = tmp_path / "pid"
    server = (
        "read line; echo got $line; cat > /dev/null; true" if obeys else "trap '' TERM; echo up; sleep 300; sleep 300"
    )
    box = Box("sh", "-c", f"echo wrapper; exec 3<&0; (exec <&3; {server}) & echo $! > {file}; exit 0")
    async with kept(box) as keeper:
        generation = await keeper.ready()
        pid = await written(file)
        await generation.process.wait()
        if obeys:
            os.write(generation.process.stdin, b"it\n")
            while b"got it" not in box.heard:
                await trio.sleep(0.01)
        assert ("ready", generation) == (keeper.state, keeper.generation)
        before = trio.current_time()
        await keeper.stop()
        assert obeys == (trio.current_time() - before < 0.29)
        assert not alive(pid)
    [death] = box.deaths
    assert ("exited with status 0", True) == (death.how, death.proven)
    assert obeys == (death.proof["seconds"] is None), "the kill is in the proof"


async def test_what_it_left_behind_goes_when_it_ends(tmp_path: Path) -> None:
    """A server that dies takes along what it has started, before the next one is started."""
    file = tmp_path / "pid"
    box = Box("sh", "-c", f"setsid sleep 300 >&2 & echo $! > {file}; echo up; sleep 0.1; exit 7")
    gone: list[bool] = []
    box.keeper._on_death = lambda _death: gone.append(not alive(int(file.read_text())))
    async with kept(box) as keeper:
        await keeper.ready()
        while len(gone) < 2:
            await trio.sleep(0.01)
    assert [True, True] == gone[:2]


@pytest.mark.case("R06")
async def test_five_stubborn_ones_take_the_time_of_one() -> None:
    """Servers that are stopped at the same time wait for their graces at the same time."""
    boxes = [Box("sh", "-c", "trap '' TERM; echo up; while :; do sleep 300; done") for _ in range(5)]
    async with trio.open_nursery() as nursery:
        for box in boxes:
            nursery.start_soon(box.keeper.run)
        with trio.fail_after(20):
            for box in boxes:
                await box.keeper.ready()
            before = trio.current_time()
            async with trio.open_nursery() as stops:
                for box in boxes:
                    stops.start_soon(box.keeper.stop)
            assert 0.59 < trio.current_time() - before < 1.2
    assert [[True]] * 5 == [[death.proven for death in box.deaths] for box in boxes]


async def test_a_kill_is_proven_and_followed_by_a_start() -> None:
    """Whoever kills it waits for milliseconds, gets the proof, and finds it started again at once."""
    box = Box("sh", "-c", "trap '' TERM; echo up; while :; do sleep 300; done")
    async with kept(box) as keeper:
        pid = (await keeper.ready()).process.pid
        death = await keeper.kill("operator")
        assert not alive(pid)
        assert ("was killed: operator", -9, True, True) == (death.how, death.status, death.proven, death.expected)
        assert death.proof["seconds"] < 0.3
        assert 2 == (await keeper.ready()).epoch


@pytest.mark.case("R59")
async def test_a_crash_at_start_is_told_and_tried_again() -> None:
    """Status and last words of a server that crashes are in its death, and in what whoever waits is told."""
    policy = RestartPolicy(first=0.01, factor=1, intensity=3)
    box = Box(sys.executable, "-I", "-S", "-c", "raise SystemExit('no configuration')", policy=policy)
    async with kept(box) as keeper:
        with pytest.raises(
            UpstreamUnavailable, match=r"mail was given up after 3 .* it exited with status 1"
        ) as caught:
            await keeper.ready()
        assert "no configuration\n" == caught.value.details["stderr"]
        assert ["no configuration\n"] * 6 == [death.stderr_tail for death in box.deaths]


@pytest.mark.case("R59")
async def test_a_program_that_is_installed_meanwhile(tmp_path: Path) -> None:
    """What is missing, then no program, then there, is served without anybody doing anything about it."""
    program = tmp_path / "server"
    box = Box(str(program), policy=RestartPolicy(first=0.05, factor=1, jitter=0))
    async with kept(box) as keeper:
        while not box.deaths:
            await trio.sleep(0.01)
        program.write_text("#!/bin/sh\necho up; exec cat\n")
        while len(box.deaths) < 2:
            await trio.sleep(0.01)
        program.chmod(0o700)
        await keeper.ready()
    assert [
        f"could not be started: No such file or directory: {program}",
        f"could not be started: Permission denied: {program}",
    ] == [death.how for death in box.deaths[:2]]


async def test_one_that_never_says_anything_is_killed() -> None:
    """Whatever is not ready in time is killed with its tree, and its stderr says what it waited for."""
    timing = Timing(start_timeout=0.5)
    box = Box("sh", "-c", "echo waiting for a lock >&2; sleep 300 & sleep 300", timing=timing)
    async with kept(box):
        while not box.deaths:
            await trio.sleep(0.01)
    assert ("did not become ready within 0.5 s", "waiting for a lock\n", True) == (
        box.deaths[0].how,
        box.deaths[0].stderr_tail,
        box.deaths[0].proven,
    )


async def test_a_server_that_closes_its_stdout_is_killed() -> None:
    """A server that can answer nothing any more is of no use, however alive it is."""
    box = Box("sh", "-c", "echo up; exec sleep 300 >&2")
    async with kept(box):
        while not box.deaths:
            await trio.sleep(0.01)
    assert ["was killed, because its connection had ended and it had not"] == [death.how for death in box.deaths[:1]]


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGTERM])
async def test_whoever_kills_it_from_outside_is_seen(number: signal.Signals) -> None:
    """The signal that ended a server is in its death, which is not expected."""
    box = Box("sh", "-c", "ulimit -c 0; echo up; exec sleep 300")
    async with kept(box) as keeper:
        os.kill((await keeper.ready()).process.pid, number)
        while not box.deaths:
            await trio.sleep(0.01)
    assert (f"was ended by {number.name}", -number, False) == (
        box.deaths[0].how,
        box.deaths[0].status,
        box.deaths[0].expected,
    )


async def test_being_cancelled_is_quick_and_proven() -> None:
    """A keeper that is cancelled does not wait for graces, and leaves nothing."""
    box = Box("sh", "-c", "trap '' TERM; echo up; setsid sleep 300 & while :; do sleep 300; done")
    async with kept(box) as keeper:
        await keeper.ready()
        before = trio.current_time()
    assert trio.current_time() - before < 0.3
    assert [True] == [death.proven for death in box.deaths]
