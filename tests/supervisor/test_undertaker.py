"""A call whose worker could not be proven dead in time: unresolved, and settled when it is dead at last."""

from pathlib import Path

import pytest
import trio
import trio.testing

import ztrio
from tests.supervisor.support import SETTINGS, job_directories, nothing_left, opened, play, settle
from ztrio import Outcome
from ztrio.testing import ScriptedBackend, ScriptedCall


async def forever(call: ScriptedCall) -> None:
    """Write everything and never end."""
    await play(call)
    await trio.sleep_forever()


@pytest.mark.case("R12")
@pytest.mark.parametrize("tool", ["export", "look_apart"])
async def test_settled_when_it_is_dead_at_last(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, tool: str
) -> None:
    """Files, locks and slot stay as they are until the proof comes; then everything goes back, and it is said once."""
    (tmp_path / "out").write_text("old")
    backend = ScriptedBackend(forever, dies_after=60.0)
    arguments = {"out": "out"} if tool == "export" else {}
    settings = ztrio.Settings(workers=1, termination_bound=2.0)
    async with opened(tmp_path, backend, settings=settings) as (supervisor, log):
        with pytest.raises(ztrio.Unresolved) as caught:
            await supervisor.call(tool, arguments, timeout=1.0)
        job = caught.value.job_id
        assert job is not None
        assert (caught.value.code, caught.value.outcome) == ("TERMINATION_UNCONFIRMED", Outcome.UNRESOLVED)
        await settle()
        assert await supervisor.outcome(job) is Outcome.UNRESOLVED
        assert supervisor.statistics().slots_in_use == 1
        if tool == "export":
            assert len(job_directories(tmp_path)) == 1
            with pytest.raises(ztrio.QueueTimeout):
                await supervisor.call(tool, arguments, queue_timeout=5.0)
        await trio.sleep(70)
        expected = Outcome.ROLLED_BACK if tool == "export" else Outcome.COMPLETED
        assert await supervisor.outcome(job) is expected
        settled = log.one("settled")
        assert (settled.execution_job_id, settled.outcome, settled.termination_confirmed) == (job, expected, True)
        assert settled.proof is not None
        assert settled.proof["rung"] == "scripted"
        if tool == "export":
            assert ["allow", "start", "timeout", "unresolved", "settled"] == log.names(job)
        assert (tmp_path / "out").read_text() == "old"
        await nothing_left(supervisor, tmp_path)


async def test_a_result_that_came_before_is_not_published_later(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A tool that succeeded, but whose worker could not be proven dead, was answered as unresolved: it is undone."""
    async with opened(tmp_path, ScriptedBackend(play, dies_after=60.0)) as (supervisor, log):
        with pytest.raises(ztrio.Unresolved) as caught:
            await supervisor.call("export", {"out": "out"})
        await trio.sleep(70)
        assert log.one("settled").outcome is Outcome.ROLLED_BACK
        assert caught.value.job_id is not None
        assert await supervisor.outcome(caught.value.job_id) is Outcome.ROLLED_BACK
        assert not (tmp_path / "out").exists()
        await nothing_left(supervisor, tmp_path)


@pytest.mark.leaves("a call that was never settled")
async def test_closing_does_not_wait_for_it(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Leaving the supervisor is not kept by a process that does not die; the call stays unresolved, its files too."""
    async with opened(tmp_path, ScriptedBackend(forever, dies_after=1e9)) as (supervisor, log):
        with pytest.raises(ztrio.Unresolved) as caught:
            await supervisor.call("export", {"out": "out"}, timeout=1.0)
        start = trio.current_time()
        await supervisor.aclose()
        assert trio.current_time() - start < SETTINGS.shutdown_bound + 1
        assert caught.value.job_id is not None
        assert await supervisor.outcome(caught.value.job_id) is Outcome.UNRESOLVED
    assert "settled" not in log.names()
    assert len(job_directories(tmp_path)) == 1


@pytest.mark.leaves("the other call's worker does not die in time")
async def test_a_proof_while_closing(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A proof that comes while other calls are being stopped still settles the call."""
    async with (
        opened(tmp_path, ScriptedBackend(forever, dies_after=3.5)) as (supervisor, log),
        trio.open_nursery() as nursery,
    ):

        @nursery.start_soon
        async def _() -> None:
            with pytest.raises(ztrio.Unresolved):
                await supervisor.call("export", {"out": "out"}, timeout=1.0, session="a")

        await trio.sleep(4.5)
        nursery.start_soon(stopped, supervisor)
        await settle()
        await supervisor.aclose()
    assert [event.outcome for event in log.events if event.event == "settled"][:1] == [Outcome.ROLLED_BACK]


async def stopped(supervisor: ztrio.Supervisor) -> None:
    """A call that the closing stops."""
    with pytest.raises((ztrio.Unresolved, ztrio.ShuttingDown)):
        await supervisor.call("export", {"out": "other"}, session="b")
