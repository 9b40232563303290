from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from tests.store.contract import StoreContract
from tests.store.contract_keys import keyed
from tests.store.rows import Clock, OpenStore, end, event, job_row, log
from ztrio.errors import Outcome
from ztrio.memory_store import MemoryStore
from ztrio.store import Claim, JobEnd, Store
from ztrio.testing import FaultyStore


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def open_store(self, clock: Clock) -> OpenStore:
        """The store that lives and dies with the process."""

        @asynccontextmanager
        async def opened() -> AsyncIterator[Store]:
            yield MemoryStore(now=clock)

        return opened


class TestFaultyStoreWithoutFaults(StoreContract):
    @pytest.fixture
    def open_store(self, clock: Clock) -> OpenStore:
        """The store for fault injection keeps every promise while nothing fails."""

        @asynccontextmanager
        async def opened() -> AsyncIterator[Store]:
            yield FaultyStore(now=clock)

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


async def test_old_keys_and_answers_are_forgotten() -> None:
    """Memory is bounded: a forgotten call's key is free, and of many large answers the newest are kept."""
    store = MemoryStore(max_jobs=70)
    for number in range(1, 101):
        await store.claim(keyed(number, key=f"k{number}"))
        await store.finish(
            JobEnd(
                job_id=f"job_{number}", outcome=Outcome.COMMITTED, event=event("commit", number), result=bytes(2**20)
            )
        )
    assert [True] * 30 == [await store.job_by_key("ann", "export", f"k{number}") is None for number in range(1, 31)]
    assert Claim(mine=True) == await store.claim(keyed(200, key="k1"))
    kept = [await store.claim(keyed(300, key=f"k{number}")) for number in range(31, 101)]
    assert ([False] * 70, [False] * 6 + [True] * 64) == (
        [found.mine for found in kept],
        [found.result is not None for found in kept],
    )
    for number in range(101, 171):
        await end(store, number)
    assert await store.job_by_key("ann", "export", "k100") is None


async def test_a_faulty_store_fails_where_it_was_told() -> None:
    """A fault strikes the operation or the step it names, and changes nothing."""
    seen: list[str] = []
    store = FaultyStore(
        fail={
            "advance:preparing": OSError("no"),
            "write_intent": OSError("no"),
            "finish:commit": RuntimeError("no"),
            "sessions": OSError("no"),
            "record:start": OSError("no"),
        },
        before=seen.append,
    )
    store.insert_job_nowait(job_row(1))
    with pytest.raises(OSError, match="no"):
        await store.advance("job_1", "preparing")
    with pytest.raises(OSError, match="no"):
        store.advance_nowait("job_1", "preparing")
    await store.advance("job_1", "worker_running", worker_pid=1, worker_started_at=1.0)
    with pytest.raises(OSError, match="no"):
        store.write_intent("job_1", b"journal")
    with pytest.raises(RuntimeError, match="no"):
        await store.finish(JobEnd(job_id="job_1", outcome=Outcome.COMMITTED, event=event("commit", 1)))
    await store.abort("job_1")
    assert store.read_session("ann", "default") is None
    with pytest.raises(OSError, match="no"):
        await store.sessions("ann")
    with pytest.raises(OSError, match="no"):
        store.record(event("start", 1))
    assert [] == await log(store)
    await store.finish(JobEnd(job_id="job_1", outcome=Outcome.ROLLED_BACK, event=event("rollback", 1)))
    expected = [
        "insert_job",
        "advance:preparing",
        "advance:preparing",
        "advance:worker_running",
        "write_intent",
        "finish:commit",
        "abort",
        "session",
        "sessions",
        "finish:rollback",
    ]
    assert (expected, expected) == (store.calls, seen)


async def test_a_faulty_store_stalls_where_it_was_told(autojump_clock: trio.testing.MockClock) -> None:
    """A stalled operation never ends, until it is cancelled, or never happens; what blocks cannot stall."""
    store = FaultyStore(stall=("insert_job",))
    with trio.move_on_after(1000) as scope:
        await store.insert_job(job_row(1))
    assert scope.cancelled_caught
    store.insert_job_nowait(job_row(1))
    assert await store.job("job_1") is None
    store.stall = {"session"}
    with pytest.raises(ValueError, match="session"):
        store.read_session("ann", "default")
