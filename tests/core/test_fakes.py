"""The fakes of `ztrio.testing` do what they say, so that tests built on them mean something."""

import os
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import ztrio
from ztrio.testing import FaultyOps, ScriptedBackend, ScriptedCall, open_scripted_supervisor

toolbox = ztrio.Toolbox("scripted")


@toolbox.tool(capability="write")
def work(value: int = 0) -> Any:
    """Is played by a script, so this never runs."""
    raise AssertionError


async def count(call: ScriptedCall) -> Any:
    """Counts in the session, slowly."""
    call.session["n"] = call.session.get("n", 0) + 1
    call.progress(1.0, 2.0, "half way")
    await trio.sleep(10)
    return {"n": call.session["n"], "value": call.arguments.get("value")}


async def test_a_script_plays_the_tool(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Arguments and session go to the script, result and session come from it, and virtual time costs nothing."""
    reports: list[Any] = []
    async with open_scripted_supervisor(toolbox, tmp_path, count) as supervisor:
        started = trio.current_time()
        for expected in (1, 2):
            result = await supervisor.call("work", {"value": 7}, on_progress=lambda *report: reports.append(report))
            assert {"n": expected, "value": 7} == result.value
        assert 20 <= trio.current_time() - started < 21
    assert [(1.0, 2.0, "half way")] * 2 == reports


async def test_a_script_without_result(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """With no script, the tool does nothing and succeeds."""
    async with open_scripted_supervisor(toolbox, tmp_path) as supervisor:
        result = await supervisor.call("work")
        assert (None, ztrio.Outcome.COMMITTED) == (result.value, result.outcome)


@pytest.mark.parametrize(
    ("raised", "kind"),
    [(ValueError("no"), ztrio.ToolError), (ztrio.WorkerFailed("It died."), ztrio.WorkerFailed)],
)
async def test_a_script_that_raises(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, raised: Exception, kind: type[ztrio.ZtrioError]
) -> None:
    """An exception is the tool's failure, one of ztrio's own stands for a worker that failed."""

    async def script(_: ScriptedCall) -> None:
        await trio.lowlevel.checkpoint()
        raise raised

    async with open_scripted_supervisor(toolbox, tmp_path, script) as supervisor:
        with pytest.raises(kind) as caught:
            await supervisor.call("work")
        assert ztrio.Outcome.ROLLED_BACK == caught.value.outcome


async def test_a_scripted_worker_dies_when_it_is_told(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A stalled worker is killed at its timeout and proven dead as long after as it takes to die."""
    backend = ScriptedBackend(stall=["receive"], dies_after=1.0)
    async with open_scripted_supervisor(toolbox, tmp_path, backend) as supervisor:
        started = trio.current_time()
        with pytest.raises(ztrio.ToolTimeout):
            await supervisor.call("work", timeout=5.0)
        assert 6.0 <= trio.current_time() - started < 6.5
        assert ([0.0], 1, 1, 0) == (
            [grace for _, grace in backend.terminations],
            backend.handed_over,
            backend.proven,
            backend.unproven,
        )
        assert ("scripted", 1) == (backend.statistics().name, backend.statistics().handed_over)


def test_faulty_operations_fail_once_and_where_told(tmp_path: Path) -> None:
    """The chosen call fails, before or after its effect; what happens at that instant is seen by it."""
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        error = OSError("struck")
        ops = FaultyOps("write_file", error, nth=2)
        ops.write_file(fd, "first", b"1")
        with pytest.raises(OSError, match="struck"):
            ops.write_file(fd, "second", b"2")
        ops.write_file(fd, "third", b"3")
        assert (["write_file"] * 3, True) == (ops.calls, ops.fired)
        assert ["first", "third"] == sorted(path.name for path in tmp_path.iterdir())

        after = FaultyOps("move_new", error, after=True, then=lambda: (tmp_path / "seen").write_text(""))  # type: ignore[arg-type]
        with pytest.raises(OSError, match="struck"):
            after.move_new(fd, "first", fd, "moved")
        assert ["moved", "seen", "third"] == sorted(path.name for path in tmp_path.iterdir())

        lost = FaultyOps("open_directory", error, after=True)
        with pytest.raises(OSError, match="struck"):
            lost.open_directory(fd, ".")

        quiet = FaultyOps("exchange", then=lambda: None)
        quiet.exchange(fd, "moved", fd, "third")
        quiet.set_mode(fd, "moved", 0o600)
        quiet.carry_metadata(fd, "moved", fd, "third")
        stat = quiet.stat(fd, "moved")
        assert stat is not None
        assert quiet.digest(fd, "moved") != quiet.digest(fd, "third")
        assert {"moved", "seen", "third"} == {name for name, _ in quiet.list_directory(fd, 10)}
        assert b"3" == (tmp_path / "moved").read_bytes()
        assert quiet.fired
    finally:
        os.close(fd)
