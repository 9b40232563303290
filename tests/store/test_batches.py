"""Many writers at once: one transaction, one answer each, and whoever leaves in the middle knows what to ask."""

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.store.faults import Faults, opened, until
from tests.store.rows import commit_of, event, job_row, log
from ztrio.errors import Outcome
from ztrio.store import AlreadyEnded, JobEnd, StoreConflict
from ztrio_sql import reading
from ztrio_sql.operations import Nothing
from ztrio_sql.tables import meta
from ztrio_sql.transaction import LogEntry, Transaction


class Broken(Nothing):
    """An operation that the database itself refuses in the middle."""

    def apply(self, transaction: Transaction) -> None:
        """Change something, then violate a constraint."""
        transaction.append(LogEntry.of(event("never", 666)))
        transaction.connection.execute(meta.insert().values(key="once", value=b""))
        transaction.connection.execute(meta.insert().values(key="store_id", value=b""))


async def test_one_that_is_refused_does_not_fail_the_others(tmp_path: Path, faults: Faults) -> None:
    """In one batch, what the database refuses is undone alone, and all others are done and answered."""
    outcomes: dict[str, Any] = {}

    async def attempt(name: str, operation: Any) -> None:
        try:
            outcomes[name] = await operation()
        except Exception as error:
            outcomes[name] = type(error)

    async with opened(tmp_path, faults) as store:
        await store.insert_job(job_row(1))
        faults.gate = threading.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.insert_job, job_row(2))
            await until(faults.at_gate.is_set)  # the others come together while this one is being committed
            store.record(event("allow", 1))
            nursery.start_soon(attempt, "broken", partial(store._do, Broken("job_1")))
            nursery.start_soon(attempt, "again", partial(store.insert_job, job_row(1)))
            nursery.start_soon(attempt, "unknown", partial(store.finish, commit_of(9)))
            nursery.start_soon(attempt, "commit", partial(store.finish, commit_of(1)))
            await trio.testing.wait_all_tasks_blocked()
            store.record(event("allow", 2))
            before = faults.commits
            faults.gate.set()
            faults.gate = None
        assert {"broken": StoreConflict, "again": StoreConflict, "unknown": StoreConflict, "commit": None} == outcomes
        assert before + 1 == faults.commits
        verification = await store.verify()
        assert (3, None) == (verification.events, verification.bad)
        assert {"allow", "commit"} == {each.event for each in await log(store)}
        with store._reader._asking() as connection:
            assert reading.fact(connection, "once") is None


async def test_a_cancelled_commit_is_in_doubt_until_it_is_aborted(tmp_path: Path, faults: Faults) -> None:
    """Cancelled in the middle of its COMMIT, a call cannot tell; `abort` waits for the answer and has it."""
    async with opened(tmp_path, faults) as store:
        await store.insert_job(job_row(1))
        faults.gate = threading.Event()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.finish, commit_of(1))
                await until(faults.at_gate.is_set)
                scope.cancel()
        assert scope.cancelled_caught
        outcome: list[Outcome] = []

        async def abort() -> None:
            with pytest.raises(AlreadyEnded) as caught:
                await store.abort("job_1")
            outcome.append(caught.value.outcome)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(abort)
            await trio.testing.wait_all_tasks_blocked()
            assert [] == outcome
            faults.gate.set()
            faults.gate = None
        assert [Outcome.COMMITTED] == outcome


async def test_a_cancelled_commit_that_still_waited_never_happens(tmp_path: Path, faults: Faults) -> None:
    """Cancelled while others are being committed, a transaction is taken back."""
    async with opened(tmp_path, faults) as store:
        await store.insert_job(job_row(1))
        faults.gate = threading.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.insert_job, job_row(2))
            await until(faults.at_gate.is_set)
            with trio.move_on_after(0.01) as scope:
                await store.finish(commit_of(1))
            assert scope.cancelled_caught
            assert 0 == store.statistics().waiting
            faults.gate.set()
            faults.gate = None
        await store.abort("job_1")
        assert await store.session("ann", "default") is None


async def test_that_a_call_was_accepted_goes_with_what_follows(
    tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An accepted call costs no transaction of its own when something follows that must not wait."""
    monkeypatch.setattr("ztrio_sql.writer._LINGER", 60.0)
    async with opened(tmp_path, faults) as store:
        before = store.statistics().batches
        store.insert_job_nowait(job_row(1))
        store.record(event("allow", 1))
        store.advance_nowait("job_1", "preparing")
        assert before == store.statistics().batches
        with trio.fail_after(20):
            await store.finish(commit_of(1))
        assert (before + 1, 0) == (store.statistics().batches, store.statistics().waiting)
        assert ["allow", "commit"] == [each.event for each in await log(store)]


@pytest.mark.parametrize("end", [False, True])
async def test_what_recovery_would_miss_does_not_wait(
    tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch, end: bool
) -> None:
    """That a worker runs, or that the call has ended, is written at once, with all that came before."""
    monkeypatch.setattr("ztrio_sql.writer._LINGER", 60.0)
    async with opened(tmp_path, faults) as store:
        before = store.statistics().batches
        store.insert_job_nowait(job_row(1))
        if end:
            store.finish_nowait(JobEnd(job_id="job_1", outcome=Outcome.ROLLED_BACK, event=event("rollback", 1)))
        else:
            store.advance_nowait("job_1", "worker_running", worker_pid=1, worker_started_at=0.0)
        await until(lambda: store.statistics().batches == before + 1)


async def test_that_a_call_was_accepted_is_written_in_a_moment(tmp_path: Path, faults: Faults) -> None:
    """An accepted call is written though nothing follows."""
    async with opened(tmp_path, faults) as store:
        before = store.statistics().batches
        store.insert_job_nowait(job_row(1))
        await until(lambda: store.statistics().batches == before + 1)


async def test_many_accepted_calls_do_not_wait(tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as fit a transaction are written at once."""
    monkeypatch.setattr("ztrio_sql.writer._LINGER", 60.0)
    monkeypatch.setattr("ztrio_sql.writer._MAX_BATCH", 3)
    async with opened(tmp_path, faults) as store:
        before = store.statistics().batches
        for number in range(4):
            store.insert_job_nowait(job_row(number))
        await until(lambda: store.statistics().batches > before)


async def test_a_thread_that_waits_does_it_itself(tmp_path: Path, faults: Faults) -> None:
    """An intent is written by the thread that waits for it, while nobody else writes."""
    async with opened(tmp_path, faults) as store:
        await store.insert_job(job_row(1))
        before = faults.commits
        await until(lambda: not store._writer._turn.locked())

        def intend() -> bool:
            store.write_intent("job_1", b"journal")
            return faults.committer is threading.current_thread()

        assert await trio.to_thread.run_sync(intend)
        assert before + 1 == faults.commits


async def test_threads_that_wait_take_turns(tmp_path: Path, faults: Faults) -> None:
    """While somebody else writes, an intent waits for its turn, and what came before it is written before it."""
    async with opened(tmp_path, faults) as store:
        for number in (1, 2, 3):
            await store.insert_job(job_row(number))
        faults.gate = threading.Event()
        before = faults.commits
        async with trio.open_nursery() as nursery:
            for number in (1, 2):
                nursery.start_soon(trio.to_thread.run_sync, store.write_intent, f"job_{number}", b"journal")
            nursery.start_soon(store.finish, commit_of(3))
            await until(faults.at_gate.is_set)
            await trio.testing.wait_all_tasks_blocked()
            faults.gate.set()
            faults.gate = None
        assert before + 1 <= faults.commits <= before + 3
        row = await store.job("job_2")
        assert row is not None
        assert ("publishing_outputs", b"journal") == (row.phase, row.journal)
