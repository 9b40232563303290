"""Many calls at once leave no process behind, running or dead."""

import os
from pathlib import Path

import pytest
import trio

import ztrio
from tests.supervisor.support import job_directories
from tests.supervisor.tools_for_calls import toolbox
from ztrio.testing.leaks import processes

CALLS, ROUNDS = 50, 3


def descendants() -> int:
    """Processes below this one, zombies included."""
    table = processes()
    found = {os.getpid()}
    for _ in table:
        more = {pid for pid, process in table.items() if process.parent in found} - found
        if not more:
            break
        found |= more
    return len(found) - 1


@pytest.mark.case("R07")
async def test_rounds_of_calls_of_which_half_are_cancelled(tmp_path: Path) -> None:
    """Three rounds of fifty calls in sessions of their own, every second one cancelled: afterwards there is what was
    there before."""
    async with ztrio.open_supervisor(toolbox, workspace=tmp_path) as supervisor:
        await supervisor.call("count")
        with trio.fail_after(10):  # a supervisor at rest keeps two workers ready
            while (supervisor.statistics().backend.idle, supervisor.statistics().backend.starting) != (2, 0):
                await trio.sleep(0.01)
        idle = descendants()

        async def counted(number: int) -> None:
            await supervisor.call("count", session=f"s{number}", timeout=60.0)

        async def cancelled(number: int) -> None:
            running = trio.Event()
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:

                    @nursery.start_soon
                    async def _() -> None:
                        await running.wait()
                        scope.cancel()

                    await supervisor.call("linger", session=f"s{number}", on_progress=lambda *_: running.set())

        for _ in range(ROUNDS):
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    for number in range(CALLS):
                        nursery.start_soon(counted if number % 2 else cancelled, number)
        with trio.fail_after(10):
            while descendants() > idle or job_directories(tmp_path):
                await trio.sleep(0.01)
        assert 0 == supervisor.statistics().slots_in_use
        names = [event["event"] for event in await supervisor.events()]
        assert (1 + ROUNDS * CALLS // 2, ROUNDS * CALLS // 2) == (names.count("commit"), names.count("rollback"))
