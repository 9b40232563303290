"""Each public async function is a checkpoint, also when it has nothing to do."""

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import ztrio
from tests.supervisor.support import opened

CALLS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "call": ("call", ("count",), {}),
    "call of a read": ("call", ("look",), {}),
    "outcome": ("outcome", ("job_x",), {}),
    "job": ("job", ("job_x",), {}),
    "events": ("events", (), {}),
    "aclose": ("aclose", (), {}),
}


@pytest.mark.parametrize("name", CALLS)
async def test_supervisor(tmp_path: Path, autojump_clock: trio.testing.MockClock, name: str) -> None:
    """The methods of a supervisor."""
    method, arguments, options = CALLS[name]
    async with opened(tmp_path) as (supervisor, _):
        with trio.testing.assert_checkpoints():
            await getattr(supervisor, method)(*arguments, **options)


async def test_refused_call(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A call that is refused."""
    async with opened(tmp_path) as (supervisor, _):
        with trio.testing.assert_checkpoints(), pytest.raises(ztrio.InvalidArguments):
            await supervisor.call("nothing")


async def test_closed_supervisor(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A supervisor that has ended."""
    async with opened(tmp_path) as (supervisor, _):
        await supervisor.aclose()
        with trio.testing.assert_checkpoints():
            await supervisor.aclose()
        with trio.testing.assert_checkpoints(), pytest.raises(ztrio.ShuttingDown):
            await supervisor.call("count")


async def test_audit(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Receiving events and gaps that are there, and waiting for room that is there."""
    async with opened(tmp_path) as (supervisor, _), supervisor.audit.subscribe(capacity=2) as events:
        await supervisor.call("count")
        for expected in ("allow", "start", "gap"):
            with trio.testing.assert_checkpoints():
                event = await events.receive()
            assert expected == event.event
        with trio.testing.assert_checkpoints():
            await supervisor.audit.wait_room()


async def test_opening(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Opening and leaving."""
    with trio.testing.assert_checkpoints():
        manager = opened(tmp_path)
        await manager.__aenter__()
    with trio.testing.assert_checkpoints():
        await manager.__aexit__(None, None, None)


async def test_store() -> None:
    """The memory store."""
    store = ztrio.MemoryStore()
    for call in (
        lambda: store.session("a", "b"),
        lambda: store.sessions("a"),
        lambda: store.job("x"),
        lambda: store.abort("x"),
        lambda: store.events(principal=None, after=0, limit=1),
    ):
        with trio.testing.assert_checkpoints():
            await call()
