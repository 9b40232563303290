from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from tests.core.store_contract import OpenStore, StoreContract, end, event, job_row, log
from ztrio.errors import Outcome
from ztrio.store import JobEnd, MemoryStore, Store
from ztrio.testing import FaultyStore


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def open_store(self) -> OpenStore:
        """The store that lives and dies with the process."""

        @asynccontextmanager
        async def opened() -> AsyncIterator[Store]:
            yield MemoryStore()

        return opened


class TestFaultyStoreWithoutFaults(StoreContract):
    @pytest.fixture
    def open_store(self) -> OpenStore:
        """The store for fault injection keeps every promise while nothing fails."""

        @asynccontextmanager
        async def opened() -> AsyncIterator[Store]:
            yield FaultyStore()

        return opened


async def test_old_events_are_forgotten() -> None:
    """Memory is bounded: the newest events stay, and positions go on."""
    store = MemoryStore(max_events=3)
    for number in range(1, 6):
        store.record(event("allow", number))
    found = await store.events(principal=None, after=0, limit=10)
    assert [(3, 3), (4, 4), (5, 5)] == [(position, each.seq) for position, each in found]


async def test_old_ended_calls_are_forgotten_but_none_that_is_open() -> None:
    """Memory is bounded: the newest ended calls stay, and running and unresolved ones always do."""
    store = MemoryStore(max_jobs=2)
    await store.insert_job(job_row(1))
    await end(store, 2, Outcome.UNRESOLVED)
    for number in range(3, 8):
        await end(store, number)
    known = [number for number in range(1, 8) if await store.job(f"job_{number}") is not None]
    assert [1, 2, 6, 7] == known


async def test_a_faulty_store_fails_where_it_was_told() -> None:
    """A fault strikes the operation or the step it names, and changes nothing."""
    seen: list[str] = []
    store = FaultyStore(
        fail={"advance:preparing": OSError("no"), "finish:commit": RuntimeError("no"), "sessions": OSError("no")},
        before=seen.append,
    )
    await store.insert_job(job_row(1))
    with pytest.raises(OSError, match="no"):
        await store.advance("job_1", "preparing")
    await store.advance("job_1", "worker_running", worker_pid=1, worker_started_at=1.0)
    with pytest.raises(RuntimeError, match="no"):
        await store.finish(JobEnd(job_id="job_1", outcome=Outcome.COMMITTED, event=event("commit", 1)))
    await store.abort("job_1")
    assert await store.session("ann", "default") is None
    with pytest.raises(OSError, match="no"):
        await store.sessions("ann")
    assert [] == await log(store)
    await store.finish(JobEnd(job_id="job_1", outcome=Outcome.ROLLED_BACK, event=event("rollback", 1)))
    expected = [
        "insert_job",
        "advance:preparing",
        "advance:worker_running",
        "finish:commit",
        "abort",
        "session",
        "sessions",
        "finish:rollback",
    ]
    assert (expected, expected) == (store.calls, seen)


async def test_a_faulty_store_stalls_where_it_was_told(autojump_clock: trio.testing.MockClock) -> None:
    """A stalled operation never ends, until it is cancelled."""
    store = FaultyStore(stall=("insert_job",))
    with trio.move_on_after(1000) as scope:
        await store.insert_job(job_row(1))
    assert scope.cancelled_caught
    assert await store.job("job_1") is None
