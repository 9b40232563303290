"""What the tests of calls on the durable store share: a supervisor on it, and a word with it at the right moment."""

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

import ztrio
from tests.store.faults import until
from tests.supervisor.support import SETTINGS, Log, fill, job_directories, play
from tests.supervisor.tools_for_calls import toolbox
from ztrio.publication.staging import Publisher
from ztrio.store import JobEnd
from ztrio.testing import FaultyOps, ScriptedBackend
from ztrio_sql import SqlStore, open_store


@asynccontextmanager
async def opened(
    place: Path,
    script: Any = play,
    *,
    connection: type[sqlite3.Connection] = sqlite3.Connection,
    ops: FaultyOps | None = None,
    settings: ztrio.Settings = SETTINGS,
) -> AsyncIterator[tuple[ztrio.Supervisor, Log, SqlStore]]:
    """A supervisor on a durable store and on threads; only its workers are played."""
    workspace = place / "workspace"
    workspace.mkdir(exist_ok=True)
    log = Log()
    async with (
        open_store(place / "state.db", connection_factory=connection) as store,
        ztrio.open_supervisor(
            toolbox,
            workspace=workspace,
            store=store,
            backend=ScriptedBackend(script).open,
            sandbox="off",
            settings=settings,
            publisher=Publisher(workspace, ops=ops),
        ) as supervisor,
    ):
        supervisor.audit.add_reducer(log.take)
        yield supervisor, log, store


def filled(place: Path) -> dict[str, str]:
    """Fill the workspace; the arguments of `publish`."""
    (place / "workspace").mkdir()
    return fill(place / "workspace")


def at_finish(monkeypatch: pytest.MonkeyPatch, store: SqlStore, then: Callable[[], None]) -> None:
    """Have something happen right before the next transaction that commits, wherever it is waited for."""
    finish, write_end = store.finish, store.write_end

    def happen() -> None:
        monkeypatch.setattr(store, "finish", finish)
        monkeypatch.setattr(store, "write_end", write_end)
        then()

    async def finish_then(end: JobEnd) -> None:
        happen()
        await finish(end)

    def write_end_then(end: JobEnd) -> None:
        trio.from_thread.run_sync(happen)
        write_end(end)

    monkeypatch.setattr(store, "finish", finish_then)
    monkeypatch.setattr(store, "write_end", write_end_then)


async def nothing_left(supervisor: ztrio.Supervisor, workspace: Path) -> None:
    """Wait until no call holds anything any more."""
    await until(lambda: supervisor.statistics().calls == 0 and not job_directories(workspace))
    left = supervisor.statistics()
    assert (0, 0, {}, 0) == (left.tickets.granted, left.tickets.waiting, left.tickets.keys, left.slots_in_use)
    assert len(supervisor._runtime.pins) == 0


async def logged(supervisor: ztrio.Supervisor, job_id: str | None) -> list[str]:
    """The events of a call, as the store has them."""
    return [event["event"] for event in await supervisor.events() if event["execution_job_id"] == job_id]
