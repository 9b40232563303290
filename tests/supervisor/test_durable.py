"""A call on the durable store: the order in which things reach the disk, and what a restart knows of it."""

import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
import trio

import ztrio
from tests.store.faults import Faults, until
from tests.supervisor.durable import at_finish, filled, logged, nothing_left, opened
from tests.supervisor.support import ANNA, BERT, play, sleep_forever
from tests.supervisor.tools_for_calls import toolbox
from ztrio import Outcome
from ztrio.testing import FaultyOps, FaultyStore, ScriptedBackend, ScriptedCall
from ztrio_sql import open_store


class Steps(FaultyOps):
    """Notes what is brought to the disk, and what moves, in order, with the synced transactions of a database."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []

    def _run(self, name: str, real: Any, *, undo: Any = None) -> Any:
        if name in ("sync_data", "sync_directory", "exchange", "move_new"):
            self.steps.append(name)
        return super()._run(name, real, undo=undo)

    @property
    def connection(self) -> type[sqlite3.Connection]:
        """The class of connections whose synced transactions are noted."""
        steps = self.steps

        class Connection(sqlite3.Connection):
            def commit(self) -> None:
                [(level,)] = self.execute("PRAGMA synchronous").fetchall()
                if level >= 2:
                    steps.append("COMMIT")
                super().commit()

        return Connection


async def test_order(tmp_path: Path) -> None:
    """Content is synced, then the intent, then things move, then their names are synced, then all is committed."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "out").write_text("old")
    ops = Steps()

    async def script(call: ScriptedCall) -> Any:
        ops.steps.clear()  # of preparation, and of making the database
        return await play(call)

    async with opened(tmp_path, script, connection=ops.connection, ops=ops) as (supervisor, log, _):
        result = await supervisor.call("export", {"out": "out", "text": "new"})
        answered = list(ops.steps)
        assert ["sync_data", "COMMIT", "exchange", "sync_directory", "sync_directory", "COMMIT"] == answered
        assert ["allow", "start", "commit"] == log.names() == await logged(supervisor, result.job_id)
        await nothing_left(supervisor, workspace)
    assert "new" == (workspace / "out").read_text()


async def test_two_threads_before_the_answer(tmp_path: Path) -> None:
    """A call is prepared in one thread, published and committed in another, and waits for two syncs of the store."""
    arguments = filled(tmp_path)
    workspace = tmp_path / "workspace"
    hops: list[str] = []

    async def blocking(function: Any, /, *args: Any) -> Any:
        hops.append(function.__name__)
        return await trio.to_thread.run_sync(function, *args)

    async with (
        open_store(tmp_path / "state.db") as store,
        ztrio.open_supervisor(
            toolbox,
            workspace=workspace,
            store=store,
            backend=ScriptedBackend(play).open,
            sandbox="off",
            blocking=blocking,
        ) as supervisor,
    ):
        hops.clear()  # of recovery
        before = store.statistics()
        await supervisor.call("publish", arguments)
        assert ["prepare", "_publish_and_commit"] == [name for name in hops if name != "discard"]
        assert 2 == store.statistics().synced - before.synced
        await nothing_left(supervisor, workspace)


async def test_the_row_is_there_before_the_call_is_allowed(tmp_path: Path) -> None:
    """Whoever is told of a call finds it in the store: its row is handed over first."""
    order: list[str] = []

    class Watched(FaultyStore):
        def record(self, event: ztrio.AuditEvent) -> None:
            order.append(event.event)
            super().record(event)

    store = Watched(before=order.append)
    async with ztrio.open_supervisor(
        toolbox, workspace=tmp_path, store=store, backend=ScriptedBackend(play).open, sandbox="off"
    ) as supervisor:
        for tool in ("count", "look", "session_open"):
            order.clear()
            await supervisor.call(tool)
            assert ["insert_job", "allow"] == order[:2]


async def test_journal(tmp_path: Path) -> None:
    """While a tool runs, its row names its worker, the session's version it read, and what it is about to do."""
    arguments = filled(tmp_path)
    async with opened(tmp_path, sleep_forever) as (supervisor, log, store), trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.call, "publish", arguments)
        await until(lambda: "start" in [event.event for event in log.events])
        row = await store.job(log.events[0].execution_job_id)
        assert row is not None
        assert ("worker_running", log.one("start").pid, 0) == (row.phase, row.worker_pid, row.session_version)
        assert row.journal is not None
        nursery.cancel_scope.cancel()


async def test_cancelled_during_the_commit(tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the commit has begun a cancellation undoes nothing: the call ends committed, and unanswered."""
    arguments = filled(tmp_path)
    scope = trio.CancelScope()
    async with opened(tmp_path, connection=faults.factory) as (supervisor, log, store):
        at_finish(monkeypatch, store, scope.cancel)
        with scope:
            await supervisor.call("publish", arguments)
        assert scope.cancelled_caught
        job_id = log.events[0].execution_job_id
        assert ["allow", "start", "commit", "commit_unanswered"] == log.names() == await logged(supervisor, job_id)
        assert Outcome.COMMITTED == await supervisor.outcome(job_id)
        assert "new page" == (tmp_path / "workspace" / "page").read_text()
        await nothing_left(supervisor, tmp_path / "workspace")


async def test_outcomes_after_a_restart(tmp_path: Path) -> None:
    """What became of a call is known to whoever made it, and to nobody else, in the next life of the process too."""

    async def script(call: ScriptedCall) -> Any:
        if call.request.session_name == "bad":
            raise LookupError("no such board")
        return await (sleep_forever(call) if call.request.session_name == "long" else play(call))

    jobs: dict[str, Outcome] = {}
    async with opened(tmp_path, script) as (supervisor, log, _):
        for tool, arguments, session in [
            ("export", {"out": "out"}, "good"),
            ("look", {}, "good"),
            ("export", {"out": "bad"}, "bad"),
            ("export", {"out": "late"}, "long"),
        ]:
            try:
                result = await supervisor.call(tool, arguments, session=session, context=ANNA, timeout=0.2)
            except ztrio.ZtrioError as error:
                assert error.job_id is not None
                assert error.outcome is not None
                jobs[error.job_id] = error.outcome
            else:
                jobs[result.job_id] = result.outcome
        for job_id, outcome in jobs.items():
            assert outcome == await supervisor.outcome(job_id, context=ANNA)
        seen = [(event.execution_job_id, event.event) for event in log.events]
    expected = [Outcome.COMMITTED, Outcome.COMPLETED, Outcome.ROLLED_BACK, Outcome.ROLLED_BACK]
    assert expected == list(jobs.values())
    async with opened(tmp_path, script) as (supervisor, _, _):
        for job_id, outcome in jobs.items():
            assert outcome == await supervisor.outcome(job_id, context=ANNA)
            assert await supervisor.outcome(job_id, context=BERT) is None
        again = [(event["execution_job_id"], event["event"]) for event in await supervisor.events(context=ANNA)]
        assert seen == again


@pytest.mark.parametrize("tool", ["mail", "export"])
async def test_what_has_effects_elsewhere_is_written_first(tmp_path: Path, faults: Faults, tool: str) -> None:
    """A tool with effects elsewhere gets its request when the store has its row; others do not wait for that."""
    gate = threading.Event()
    async with opened(tmp_path, connection=faults.factory) as (supervisor, log, store):
        await until(lambda: store.statistics().waiting == 0)
        faults.gate = gate
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.call, tool, {"out": "out"} if tool == "export" else {})
            await until(faults.at_gate.is_set)
            if tool == "export":
                await until(lambda: "start" in log.names())
            else:
                await trio.sleep(0.1)
                assert ["allow"] == log.names()
            faults.gate = None
            gate.set()
        assert ["allow", "start", "commit"] == log.names()
