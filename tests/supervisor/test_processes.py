"""What is promised about processes, with real ones."""

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import ztrio
from tests.supervisor.support import job_directories, nothing_left
from tests.supervisor.tools_for_calls import toolbox
from ztrio import Outcome
from ztrio.testing.leaks import processes

# The tools here leave marks outside their staging, for the test to see.
unconfined = partial(ztrio.open_supervisor, toolbox, sandbox="off")

BOUND = 10.0  # seconds, generously; the bounds of the product are checked on a virtual clock


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    found = processes().get(pid)
    return found is not None and found.state != "Z"


async def until(condition: Callable[[], Any]) -> None:
    """Wait for something that a worker does."""
    with trio.fail_after(30):
        while not condition():
            await trio.sleep(0.01)


def pids(marks: Path) -> list[int]:
    """The pids that a tool left in a file, once they are complete."""
    return [int(word) for word in marks.read_text().split()] if marks.exists() else []


@pytest.mark.case("R30")
@pytest.mark.parametrize("end", ["timeout", "cancel", "shutdown"])
async def test_no_late_mutation(tmp_path: Path, end: str) -> None:
    """A tool that ignores SIGTERM, burns CPU and has a child that writes later: nothing of it is ever published."""
    workspace, marks = tmp_path / "workspace", tmp_path / "marks"
    workspace.mkdir()
    (workspace / "out").write_text("old")
    before = (workspace / "out").stat()
    async with unconfined(workspace=workspace) as supervisor:
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _() -> None:
                try:
                    await supervisor.call(
                        "stubborn",
                        {"out": "out", "marks": str(marks)},
                        timeout=1.5 if end == "timeout" else 60.0,
                    )
                except (ztrio.ToolTimeout, ztrio.ShuttingDown) as error:
                    assert Outcome.ROLLED_BACK == error.outcome
                else:
                    raise AssertionError("it succeeded")

            await until(lambda: len(pids(marks)) == 2)
            begin = time.monotonic()
            if end == "cancel":
                nursery.cancel_scope.cancel()
            elif end == "shutdown":
                await supervisor.aclose()
        assert time.monotonic() - begin < BOUND
        assert [False, False] == [alive(pid) for pid in pids(marks)]
        if end != "shutdown":
            await until(lambda: supervisor.statistics().calls == 0)
            await nothing_left(supervisor, workspace)
            assert 1 == (await supervisor.call("count")).value
    await trio.sleep(1.6)  # by now the child would have written
    now = (workspace / "out").stat()
    assert ("old", before.st_ino, before.st_mtime_ns) == (
        (workspace / "out").read_text(),
        now.st_ino,
        now.st_mtime_ns,
    )
    assert [] == job_directories(workspace)


@pytest.mark.case("R30")
@pytest.mark.parametrize("tool", ["burn", "block"])
async def test_slot_is_free_after_a_cancellation(tmp_path: Path, tool: str) -> None:
    """A loop or a system call that cannot be interrupted: the only slot is free soon after the cancellation."""
    marks = tmp_path / "marks"
    settings = ztrio.Settings(workers=1)
    async with unconfined(workspace=tmp_path, settings=settings) as supervisor:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.call, tool, {"marks": str(marks)})
            await until(marks.exists)
            nursery.cancel_scope.cancel()
        with trio.fail_after(BOUND):
            assert 1 == (await supervisor.call("count")).value
        (rollback,) = [event for event in await supervisor.events() if event["event"] == "rollback"]
        assert rollback["termination_confirmed"] is True
        assert -9 == rollback["proof"]["status"]
        assert not alive(rollback["proof"]["pid"])


async def test_descendants_die_on_success_too(tmp_path: Path) -> None:
    """A tool that succeeds and leaves a child: the child is dead before anything is published."""
    marks = tmp_path / "marks"
    seen: list[bool] = []
    async with unconfined(workspace=tmp_path) as supervisor:
        supervisor.audit.add_reducer(
            lambda event: seen.append(alive(pids(marks)[0])) if event.event == "commit" else None
        )
        result = await supervisor.call("leave_child", {"out": "out", "marks": str(marks)})
        assert ("done", [False]) == (result.value, seen)
        assert "done" == (tmp_path / "out").read_text()
        (commit,) = [event for event in await supervisor.events() if event["event"] == "commit"]
        assert (True, supervisor.containment.rung) == (commit["termination_confirmed"], commit["proof"]["rung"])


async def test_results_of_real_workers(tmp_path: Path) -> None:
    """The same promises hold with processes: updates add up, staged paths in a result are public ones."""
    async with ztrio.open_supervisor(toolbox, workspace=tmp_path) as supervisor:
        results: list[int] = []

        async def increment() -> None:
            results.append((await supervisor.call("count")).value)

        async with trio.open_nursery() as nursery:
            for _number in range(5):
                nursery.start_soon(increment)
        assert [1, 2, 3, 4, 5] == sorted(results)
        result = await supervisor.call("export", {"out": "out", "text": "x"})
        assert (str(tmp_path / "out"), {"out": str(tmp_path / "out")}) == (result.value, result.targets)
        assert "seen" == (await supervisor.call("look_apart")).value
        await until(lambda: supervisor.statistics().calls == 0)


async def test_synchronous_read(tmp_path: Path) -> None:
    """A synchronous read runs in a thread; one that runs too long is answered in time and left to end by itself."""
    flag = tmp_path / "flag"
    async with ztrio.open_supervisor(toolbox, workspace=tmp_path) as supervisor:
        with pytest.raises(ztrio.ToolTimeout):
            await supervisor.call("look_long", {"path": str(flag)})
        flag.touch()
        assert "seen" == (await supervisor.call("look_long", {"path": str(flag)})).value


async def test_reads_wait_for_a_thread(tmp_path: Path) -> None:
    """A synchronous read that gets no thread in time is told so, and never started."""
    flag = tmp_path / "flag"
    settings = ztrio.Settings(readers=1)
    async with (
        ztrio.open_supervisor(toolbox, workspace=tmp_path, settings=settings) as supervisor,
        trio.open_nursery() as nursery,
    ):
        first = partial(supervisor.call, "look_long", {"path": str(flag)})
        nursery.start_soon(partial(first, timeout=20))
        await until(lambda: supervisor._runtime.readers.borrowed_tokens == 1)
        with pytest.raises(ztrio.QueueTimeout):
            await first()
        flag.touch()


async def stall(seconds: float) -> float:
    """The longest time that the event loop did not come back for, of that many seconds."""
    longest, end = 0.0, time.monotonic() + seconds
    while (begin := time.monotonic()) < end:
        await trio.sleep(0.001)
        longest = max(longest, time.monotonic() - begin)
    return longest


@pytest.mark.case("R64")
async def test_event_loop_goes_on_while_tools_burn(tmp_path: Path) -> None:
    """Tools that burn every processor stall the event loop no more than any other busy programs would."""
    count = 2 * (os.cpu_count() or 1)
    hog = [sys.executable, "-c", "while True: pass"]
    control = 0.0
    async with trio.open_nursery() as nursery:
        for _number in range(count):
            nursery.start_soon(trio.run_process, hog)
        await trio.sleep(0.3)
        control = await stall(1.0)
        nursery.cancel_scope.cancel()

    async with unconfined(workspace=tmp_path) as supervisor, trio.open_nursery() as nursery:
        marks = [tmp_path / f"marks-{number}" for number in range(count)]
        for mark in marks:
            nursery.start_soon(partial(supervisor.call, "burn", {"marks": str(mark)}, session=mark.name))
        await until(lambda: all(mark.exists() for mark in marks))
        await trio.sleep(0.3)
        measured = await stall(1.0)
        # A read is answered meanwhile, and the tools can be stopped.
        with trio.fail_after(BOUND):
            await supervisor.call("look")
        begin = time.monotonic()
        nursery.cancel_scope.cancel()
    assert time.monotonic() - begin < BOUND
    assert measured < 10 * max(control, 0.02)


@pytest.mark.case("R59")
async def test_toolbox_that_a_worker_cannot_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call gets the one error that names the file and the reason, two at once as well; the supervisor goes on."""
    monkeypatch.setenv("ONLY_HERE", "1")
    monkeypatch.setattr(sys, "path", list(sys.path))
    source = tmp_path / "only_here_tools.py"
    source.write_text(
        "import os\nimport ztrio\n"
        "if 'ONLY_HERE' not in os.environ:\n    raise LookupError('ONLY_HERE is not set')\n"
        "toolbox = ztrio.Toolbox('only here')\n\n"
        "@toolbox.tool(capability='write')\ndef work() -> None:\n    'Work.'\n\n"
        "@toolbox.tool(capability='read')\ndef look() -> int:\n    'Look.'\n    return 1\n"
    )
    try:
        async with ztrio.open_supervisor(ztrio.load_toolbox(str(source)), workspace=tmp_path) as supervisor:
            found: list[BaseException] = []

            async def call(session: str) -> None:
                try:
                    await supervisor.call("work", session=session)
                except BaseException as error:
                    found.append(error)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, "a")
                nursery.start_soon(call, "b")
            assert 1 == (await supervisor.call("look")).value
    finally:
        sys.modules.pop("only_here_tools", None)
    for error in found:
        assert isinstance(error, ztrio.WorkerFailed)
        assert ("WORKER_START_FAILED", Outcome.NOT_STARTED) == (error.code, error.outcome)
        assert "only_here_tools" in error.message
        assert "ONLY_HERE is not set" in error.message
    assert 2 == len(found)
