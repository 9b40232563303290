"""When the audit cannot be written: nothing new that changes anything, what runs is put back, reads go on."""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import ztrio
from tests.supervisor.support import SETTINGS, Log, fill, nothing_left, opened, play, settle, sleep_forever
from tests.supervisor.tools_for_calls import toolbox
from ztrio import Outcome
from ztrio.testing import FaultyStore, ScriptedBackend, ScriptedCall, inline


def supervisor_with_file(workspace: Path, path: Path, script: Any = play, **options: Any) -> Any:
    """A supervisor with scripted workers and an audit file, on the real clock: the file is written in a thread."""
    return ztrio.open_supervisor(
        toolbox,
        workspace=workspace,
        backend=ScriptedBackend(script).open,
        blocking=inline,
        settings=SETTINGS,
        audit_file=path,
        **options,
    )


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """Make every write to an open file of this process fail with ENOSPC, as a full disk does."""
    entries = list(Path("/proc/self/fd").iterdir())
    (number,) = [int(entry.name) for entry in entries if entry.resolve() == path.resolve()]
    kept = os.dup(number)
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        os.dup2(full, number, inheritable=False)
        yield
    finally:
        os.dup2(kept, number, inheritable=False)
        os.close(full)
        os.close(kept)


async def until(condition: Any) -> None:
    """Wait, on the real clock, for something that happens by itself."""
    with trio.fail_after(10):
        while not condition():
            await trio.sleep(0.01)


def lines(path: Path) -> list[dict[str, Any]]:
    """The audit file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_file_has_every_event(tmp_path: Path) -> None:
    """The audit file holds every event as a JSON line, readable by its owner only."""
    path = tmp_path / "log" / "audit.jsonl"
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    async with supervisor_with_file(workspace, path) as supervisor:
        result = await supervisor.call("export", {"out": "out"})
        with pytest.raises(ztrio.InvalidArguments):
            await supervisor.call("nothing")
    assert ["allow", "start", "commit", "deny"] == [line["event"] for line in lines(path)]
    assert result.job_id == lines(path)[2]["execution_job_id"]
    assert (0o600, 0o700) == (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode))


async def test_full_disk(tmp_path: Path) -> None:
    """A full disk: running calls roll back with that cause, new ones are refused, reads go on; then all recovers."""
    path = tmp_path / "audit.jsonl"
    workspace = tmp_path / "workspace"
    workspace.mkdir()

    async def script(call: ScriptedCall) -> Any:
        return await (sleep_forever(call) if call.request.session_name == "long" else play(call))

    async def run_long() -> None:
        with trio.fail_after(10), pytest.raises(ztrio.StoreUnavailable) as stopped:
            await supervisor.call("export", {"out": "out"}, session="long", timeout=99.0)
        assert Outcome.ROLLED_BACK == stopped.value.outcome
        assert not (workspace / "out").exists()

    async with supervisor_with_file(workspace, path, script) as supervisor, trio.open_nursery() as nursery:
        nursery.start_soon(run_long)
        await until(lambda: len(lines(path)) == 2)
        with full_disk(path):
            await supervisor.call("look")
            await until(lambda: supervisor.statistics().calls == 0)
            with pytest.raises(ztrio.StoreUnavailable) as refused:
                await supervisor.call("count")
            assert Outcome.NOT_STARTED == refused.value.outcome
            assert "audit file" in refused.value.message
            assert {} == (await supervisor.call("look")).value
        await until(lambda: supervisor.audit.unavailable is None)
        await supervisor.call("count")
        await nothing_left(supervisor, workspace)
    own = [line for line in lines(path) if line["session"] == "long"]
    assert ["allow", "start", "cancel", "worker_terminated", "rollback"] == [line["event"] for line in own]
    assert "audit_unavailable" == own[-1]["cause"]
    assert sorted(range(1, len(lines(path)) + 1)) == sorted(line["seq"] for line in lines(path))


async def test_file_that_is_never_written(tmp_path: Path) -> None:
    """An audit file that takes nothing does not keep the supervisor from closing."""
    with trio.fail_after(10):
        async with supervisor_with_file(tmp_path, Path("/dev/full")) as supervisor:
            await supervisor.call("look")
            await until(lambda: supervisor.audit.unavailable is not None)
            with pytest.raises(ztrio.StoreUnavailable):
                await supervisor.call("count")


async def test_file_has_the_end_of_calls_that_an_interrupt_ended(tmp_path: Path) -> None:
    """The program is interrupted inside a call: the rollback stands in the file."""
    path = tmp_path / "audit.jsonl"
    store = FaultyStore(fail={"finish:commit": KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        async with supervisor_with_file(tmp_path, path, store=store) as supervisor:
            await supervisor.call("count")
    assert ["allow", "start", "error", "worker_terminated", "rollback"] == [line["event"] for line in lines(path)]


async def test_slow_viewer_gets_a_gap(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A live viewer that falls behind loses events, is told how many, and keeps nobody waiting."""
    async with opened(tmp_path) as (supervisor, log), supervisor.audit.subscribe(capacity=2) as events:
        for _number in range(3):
            await supervisor.call("count")
        assert 9 == len(log.events)
        seen = [events.receive_nowait() for _ in range(2)]
        await supervisor.call("look")
        seen += [events.receive_nowait() for _ in range(2)]
        assert ["allow", "start", "gap", "allow"] == [event.event for event in seen]
        assert 7 == seen[2].missed
        gap = await events.receive()
        assert ("gap", 1) == (gap.event, gap.missed)


async def test_durable_subscriber_presses_back(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """New calls wait for a durable subscriber that is behind; the end of those in flight does not."""
    arguments = fill(tmp_path)
    async with (
        opened(tmp_path, sleep_forever) as (supervisor, log),
        supervisor.audit.subscribe(durable=True, capacity=3) as events,
        trio.open_nursery() as nursery,
    ):
        with trio.move_on_after(1):
            await supervisor.call("publish", arguments)
        assert "rollback" == log.names()[-1]
        await nothing_left(supervisor, tmp_path)
        assert 5 == supervisor.audit.statistics().durable_backlog

        answered = trio.Event()

        @nursery.start_soon
        async def _() -> None:
            await supervisor.call("look")
            answered.set()

        await trio.sleep(100)
        assert (False, 5) == (answered.is_set(), len(log.events))
        seen = [(await events.receive()).event for _ in range(3)]
        await settle()
        assert answered.is_set()
        seen += [(await events.receive()).event for _ in range(4)]
        assert [event.event for event in log.events] == seen


async def test_caller_that_waits_for_room_may_leave(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A caller that waits for a durable subscriber leaves at once, and its call was never made."""
    async with opened(tmp_path) as (supervisor, log), supervisor.audit.subscribe(durable=True, capacity=1):
        await supervisor.call("look")
        with trio.move_on_after(1) as scope:
            await supervisor.call("count")
        assert scope.cancelled_caught
        assert ["allow", "completed"] == [event.event for event in log.events]


async def test_reads_go_on_without_a_store(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A store that can be read and not written: reads are answered, mutating calls refused, until it works again."""
    store = FaultyStore()
    async with opened(tmp_path, store=store) as (supervisor, _):
        await supervisor.call("count")
        store.fail = {"insert_job": OSError("full"), "advance": OSError("full"), "finish": OSError("full")}
        for _number in range(2):
            result = await supervisor.call("look")
            assert (Outcome.COMPLETED, {"count": 1}) == (result.outcome, result.value)
        with pytest.raises(ztrio.StoreUnavailable):
            await supervisor.call("count")
        store.fail.clear()
        await trio.sleep(1)
        assert 2 == (await supervisor.call("count")).value


async def test_arguments_only_on_request(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Arguments stand in the audit as a digest, equal for equal ones; as values only where the operator asked."""
    logs: list[Log] = []
    for asked in (False, True):
        settings = ztrio.Settings(audit_arguments=asked)
        async with opened(tmp_path, settings=settings) as (supervisor, log):
            await supervisor.call("export", {"text": "s3cret", "out": "out"})
            logs.append(log)
            assert asked is ("s3cret" in repr([event.as_dict() for event in log.events]))
    assert logs[0].one("allow").argument_digest == logs[1].one("allow").argument_digest
