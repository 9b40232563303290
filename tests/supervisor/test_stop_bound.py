"""Leaving a supervisor takes a bounded time, whatever its tools do."""

import time
from pathlib import Path

import pytest
import trio

import ztrio
from tests.supervisor.support import job_directories
from tests.supervisor.tools_for_calls import toolbox
from ztrio import AuditEvent, Outcome

SETTINGS = ztrio.Settings(shutdown_bound=5.0, shutdown_grace=0.5)


@pytest.mark.case("R04")
async def test_a_tool_that_ignores_sigterm_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """SIGTERM first, for at most `shutdown_grace` although the tool asks for 30 s, then SIGKILL, then rolled back."""
    events: list[AuditEvent] = []
    running = trio.Event()
    raised: list[ztrio.ZtrioError] = []

    async def call(supervisor: ztrio.Supervisor) -> None:
        try:
            await supervisor.call("deaf", on_progress=lambda *_: running.set())
        except ztrio.ZtrioError as error:
            raised.append(error)

    async with trio.open_nursery() as nursery:
        async with ztrio.open_supervisor(toolbox, workspace=tmp_path, settings=SETTINGS) as supervisor:
            supervisor.audit.add_reducer(events.append)
            nursery.start_soon(call, supervisor)
            await running.wait()
            begin = time.monotonic()
        took = time.monotonic() - begin
    assert took < SETTINGS.shutdown_bound + 1.0
    (error,) = raised
    assert (ztrio.ShuttingDown, Outcome.ROLLED_BACK) == (type(error), error.outcome)
    assert ["allow", "start", "cancel", "worker_terminated", "rollback"] == [event.event for event in events]
    proof = events[-1].proof
    assert proof is not None
    assert (True, -9) == (proof["escalated"], proof["status"])
    assert [] == job_directories(tmp_path)
