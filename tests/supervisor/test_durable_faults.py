"""A call on the durable store, whatever the disk does in the middle of it."""

import threading
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

import ztrio
from tests.kit.trees import snapshot
from tests.store.faults import Faults, until
from tests.supervisor.durable import at_finish, filled, logged, nothing_left, opened
from tests.supervisor.support import SETTINGS, job_directories, play, sleep_forever, state
from ztrio import Outcome
from ztrio.testing import ScriptedCall

QUICK = attrs.evolve(SETTINGS, commit_bound=0.3)


@pytest.mark.parametrize("happened", [False, True], ids=["not committed", "committed"])
async def test_commit_fails(tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch, happened: bool) -> None:
    """COMMIT fails with EIO, and a look tells what became of it: all is rolled back, or all is committed."""
    arguments = filled(tmp_path)
    workspace = tmp_path / "workspace"
    before = snapshot(workspace)
    async with opened(tmp_path, connection=faults.factory) as (supervisor, log, store):
        at_finish(monkeypatch, store, lambda: faults.commit.append("after" if happened else "before"))
        if happened:
            result = await supervisor.call("publish", arguments)
            assert Outcome.COMMITTED == await supervisor.outcome(result.job_id)
            assert ["allow", "start", "commit"] == log.names() == await logged(supervisor, result.job_id)
            assert 1 == (await state(supervisor))[0]
            assert "new page" == (workspace / "page").read_text()
        else:
            with pytest.raises(ztrio.CommitFailed) as caught:
                await supervisor.call("publish", arguments)
            expected = ["allow", "start", "error", "worker_terminated", "rollback"]
            assert expected == log.names() == await logged(supervisor, caught.value.job_id)
            assert await state(supervisor) is None
            await nothing_left(supervisor, workspace)
            assert {**before, ".": None} == {**snapshot(workspace), ".": None}
        await until(lambda: supervisor.audit.unavailable is None)
        await supervisor.call("count")
        await nothing_left(supervisor, workspace)


@pytest.mark.parametrize("happened", [False, True], ids=["not committed", "committed"])
async def test_nobody_can_tell(tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch, happened: bool) -> None:
    """COMMIT fails and nothing answers: unresolved, locked, no new changes, reads go on; then it is settled."""
    arguments = filled(tmp_path)
    workspace = tmp_path / "workspace"
    before = snapshot(workspace)

    def fail() -> None:
        faults.commit.append("after" if happened else "before")
        faults.connect = 10**6

    async with opened(tmp_path, connection=faults.factory) as (supervisor, log, store):
        at_finish(monkeypatch, store, fail)
        with pytest.raises(ztrio.Unresolved) as caught:
            await supervisor.call("publish", arguments)
        job_id = caught.value.job_id
        assert job_id is not None
        assert "commit_unconfirmed" == caught.value.reason
        assert Outcome.UNRESOLVED == await supervisor.outcome(job_id)
        assert "new page" == (workspace / "page").read_text()
        with pytest.raises(ztrio.StoreUnavailable) as refused:
            await supervisor.call("count", session="other")
        assert ("STORE_UNAVAILABLE", Outcome.NOT_STARTED) == (refused.value.code, refused.value.outcome)
        assert {} == (await supervisor.call("look", session="other")).value
        assert (1, 1) == (supervisor.statistics().calls, supervisor.statistics().tickets.granted)

        faults.connect = 0
        await nothing_left(supervisor, workspace)
        settled = log.one("settled")
        expected = Outcome.COMMITTED if happened else Outcome.ROLLED_BACK
        assert (expected, expected) == (settled.outcome, await supervisor.outcome(job_id))
        if happened:
            assert ["allow", "start", "unresolved", "settled"] == log.names(job_id)
            assert 1 == (await state(supervisor))[0]
            assert "new page" == (workspace / "page").read_text()
        else:
            assert {**before, ".": None} == {**snapshot(workspace), ".": None}
            assert await state(supervisor) is None
        await until(lambda: supervisor.audit.unavailable is None)
        await supervisor.call("count")
        await nothing_left(supervisor, workspace)


@pytest.mark.leaves("a call of unknown outcome keeps its files for recovery")
@pytest.mark.parametrize("happened", [False, True], ids=["not committed", "committed"])
async def test_nobody_can_tell_and_it_ends(
    tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    """The process ends while a commit is in doubt: the next start finds out, and tells whoever asks."""
    arguments = filled(tmp_path)
    workspace = tmp_path / "workspace"

    def fail() -> None:
        faults.commit.append("after" if happened else "before")
        faults.connect = 10**6

    async with opened(tmp_path, connection=faults.factory) as (supervisor, _, store):
        at_finish(monkeypatch, store, fail)
        with pytest.raises(ztrio.Unresolved) as caught:
            await supervisor.call("publish", arguments)
    job_id = caught.value.job_id
    assert job_id is not None
    async with opened(tmp_path) as (supervisor, _, _):
        expected = Outcome.COMMITTED if happened else Outcome.ROLLED_BACK
        assert expected == await supervisor.outcome(job_id)
        assert ("new page" if happened else "old page") == (workspace / "page").read_text()
        assert [] == job_directories(workspace)
        await supervisor.call("publish", {**arguments, "fresh": "another"})


async def test_intent_fails(tmp_path: Path, faults: Faults) -> None:
    """An intent that cannot be written: nothing has moved, the call is rolled back, and the store works again."""
    arguments = filled(tmp_path)
    workspace = tmp_path / "workspace"
    before = snapshot(workspace)

    async def script(call: ScriptedCall) -> Any:
        if call.request.function == "publish":
            await until(lambda: store.statistics().waiting == 0)
            faults.set("query_only = ON")
        return await play(call)

    async with opened(tmp_path, script, connection=faults.factory) as (supervisor, log, store):
        with pytest.raises(ztrio.CommitFailed) as caught:
            await supervisor.call("publish", arguments)
        assert Outcome.ROLLED_BACK == caught.value.outcome
        assert caught.value.job_id is not None
        assert Outcome.ROLLED_BACK == await supervisor.outcome(caught.value.job_id)
        faults.set("query_only = OFF")
        await nothing_left(supervisor, workspace)
        assert {**before, ".": None} == {**snapshot(workspace), ".": None}
        await until(lambda: supervisor.audit.unavailable is None)
        assert log.names(caught.value.job_id) == await logged(supervisor, caught.value.job_id)
        await supervisor.call("count")


async def test_full_disk(tmp_path: Path, faults: Faults) -> None:
    """No room for the audit: what runs rolls back, nothing new may change a thing, reads go on, until there is room."""
    workspace = tmp_path / "workspace"
    stopped: list[ztrio.ZtrioError] = []

    async def script(call: ScriptedCall) -> Any:
        return await (sleep_forever(call) if call.request.session_name == "long" else play(call))

    async def run_long() -> None:
        with pytest.raises(ztrio.StoreUnavailable) as caught:
            await supervisor.call("export", {"out": "out"}, session="long", timeout=99.0)
        stopped.append(caught.value)

    async with opened(tmp_path, script, connection=faults.factory) as (supervisor, log, store):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_long)
            await until(lambda: [event.event for event in log.events][-1:] == ["start"])
            await until(lambda: store.statistics().waiting == 0)
            faults.set("max_page_count = 1")
            with trio.fail_after(20):
                while supervisor.audit.unavailable is None:
                    assert {} == (await supervisor.call("look", session="a" * 200)).value
        assert Outcome.ROLLED_BACK == stopped[0].outcome
        assert not (workspace / "out").exists()
        for _ in range(2):
            with pytest.raises(ztrio.StoreUnavailable, match="disk is full") as refused:
                await supervisor.call("count")
            assert ("STORE_UNAVAILABLE", Outcome.NOT_STARTED) == (refused.value.code, refused.value.outcome)
            assert {} == (await supervisor.call("look")).value
        assert stopped[0].job_id is not None
        assert Outcome.ROLLED_BACK == await supervisor.outcome(stopped[0].job_id)

        faults.set("max_page_count = 1000000")
        await until(lambda: supervisor.audit.unavailable is None)
        await supervisor.call("count")
        await nothing_left(supervisor, workspace)
        names = ["allow", "start", "cancel", "worker_terminated", "rollback"]
        assert names == await logged(supervisor, stopped[0].job_id)
        assert [event.seq for event in log.events] == [event["seq"] for event in await supervisor.events()]
        assert (await store.verify()).bad is None


@pytest.mark.parametrize("where", ["intent", "commit"])
async def test_commit_overdue(tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """A disk that hangs in the middle of the commit: the answer comes within its bound, the commit goes on."""
    arguments = filled(tmp_path)
    workspace = tmp_path / "workspace"
    gate = threading.Event()

    def hang() -> None:
        faults.gate = gate

    async with opened(tmp_path, connection=faults.factory, settings=QUICK) as (supervisor, log, store):
        if where == "commit":
            at_finish(monkeypatch, store, hang)
        else:
            real = store.write_intent

            def write_intent(job_id: str, journal: bytes) -> None:
                hang()
                real(job_id, journal)

            monkeypatch.setattr(store, "write_intent", write_intent)
        with pytest.raises(ztrio.Unresolved) as caught:
            await supervisor.call("publish", arguments)
        job_id = caught.value.job_id
        assert job_id is not None
        assert "commit_unconfirmed" == caught.value.reason
        assert 1 == supervisor.statistics().calls
        assert ("old page" if where == "intent" else "new page") == (workspace / "page").read_text()
        with pytest.raises(ztrio.QueueTimeout):
            await supervisor.call("count", queue_timeout=0.1)
        faults.gate = None
        gate.set()
        await nothing_left(supervisor, workspace)
        assert ["allow", "start", "unresolved", "settled"] == log.names(job_id)
        assert Outcome.COMMITTED == log.one("settled").outcome
        # Overdue in the middle of its own transaction, it is there under the name that it had before.
        stored = ["settled", "unresolved"] if where == "intent" else ["commit", "unresolved"]
        assert {"allow", "start", *stored} == set(await logged(supervisor, job_id))
        assert Outcome.COMMITTED == await supervisor.outcome(job_id)
        assert "new page" == (workspace / "page").read_text()


@pytest.mark.parametrize("tool", ["session_open", "session_destroy"])
async def test_session_tool_overdue(tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch, tool: str) -> None:
    """A session tool whose transaction hangs is unresolved, keeps its lock, and is settled as what it turns out."""
    monkeypatch.setattr("ztrio.session_tools._ABORT_BOUND", 0.1)
    gate = threading.Event()

    def hang() -> None:
        faults.gate = gate

    async with opened(tmp_path, connection=faults.factory, settings=QUICK) as (supervisor, log, store):
        await supervisor.call("count")
        await nothing_left(supervisor, tmp_path / "workspace")
        at_finish(monkeypatch, store, hang)
        with pytest.raises(ztrio.Unresolved) as caught:
            await supervisor.call(tool)
        job_id = caught.value.job_id
        assert job_id is not None
        with pytest.raises(ztrio.StoreUnavailable):
            await supervisor.call("count")
        faults.gate = None
        gate.set()
        await nothing_left(supervisor, tmp_path / "workspace")
        assert ["allow", "start", "unresolved", "settled"] == log.names(job_id)
        assert Outcome.COMMITTED == await supervisor.outcome(job_id)
        rows = (await supervisor.call("session_list")).value["sessions"]
        assert (2 if tool == "session_open" else 0) == len(rows)
