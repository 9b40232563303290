"""What every store promises.

A store's test file says how to open one and inherits the tests:

class TestMyStore(StoreContract):
    @pytest.fixture
    def open_store(self, tmp_path, clock):
        return lambda: my_store(tmp_path / "state.db", now=clock)

Opened again, a durable store is the same one, another one is new and empty.
"""

from collections.abc import Callable

import attrs
import pytest
import trio
import trio.testing

from tests.store.contract_ends import EndContract
from tests.store.contract_keys import KeyContract
from tests.store.contract_log import LogContract
from tests.store.contract_pending import PendingContract, noted
from tests.store.contract_pending import row as row_of
from tests.store.contract_sessions import SessionContract
from tests.store.rows import Clock, OpenStore, end, event, job_row, log, write
from ztrio.activity import PendingSnapshot, PendingWrite
from ztrio.errors import Outcome
from ztrio.store import JobEnd, JobRow, StoreConflict


class StoreContract(EndContract, KeyContract, LogContract, PendingContract, SessionContract):
    @pytest.fixture
    def clock(self) -> Clock:
        """The store's wall clock."""
        return Clock()

    @pytest.fixture
    def open_store(self) -> OpenStore:
        """Opens the store."""
        raise NotImplementedError

    async def test_identity(self, open_store: OpenStore) -> None:
        """A store has an id and a secret of its own that live as long as it does."""
        async with open_store() as first:
            assert (first.store_id, first.secret) == (first.store_id, first.secret)
            assert 32 == len(first.secret)
            assert isinstance(first.durable, bool)
            identity = first.store_id, first.secret
        async with open_store() as second:
            assert (second.durable, second.durable) == (
                identity[0] == second.store_id,
                identity[1] == second.secret,
            )

    async def test_every_operation_is_a_checkpoint(self, open_store: OpenStore) -> None:
        """Each async operation can be cancelled and lets others run; what does not wait has no checkpoint."""
        async with open_store() as store:
            row = job_row(2, idempotency_key="k", idempotency_digest="d")
            terminal = event("commit", 1)
            with trio.testing.assert_no_checkpoints():
                store.record(event("allow", 1))
                store.insert_job_nowait(job_row(3))
                store.advance_nowait("job_3", "preparing")
                store.append_pending_nowait(noted(1))
            for operation in (
                lambda: store.insert_job(job_row(1)),
                lambda: store.claim(row),
                lambda: store.advance("job_1", "preparing"),
                lambda: store.abort("job_3"),
                lambda: store.finish(JobEnd(job_id="job_1", outcome=Outcome.COMMITTED, event=terminal)),
                lambda: store.need_recovery("job_2", "no", None),
                lambda: store.recovered("job_2", Outcome.ROLLED_BACK, event("recovered", 2)),
                lambda: store.job("job_1"),
                lambda: store.job_by_key("ann", "export", "k"),
                lambda: store.job_by_key("ann", "export", "no"),
                store.unfinished,
                lambda: store.session("ann", "default"),
                lambda: store.sessions("ann"),
                lambda: store.events(principal=None, after=0, limit=1),
                lambda: store.job_events("job_1"),
                lambda: store.write_pending([PendingWrite(row=row_of(1))]),
                lambda: store.resync_pending(PendingSnapshot()),
                store.left_pending,
                lambda: store.activity("pc_1"),
                lambda: store.activities(principal=None, limit=1),
            ):
                with trio.testing.assert_checkpoints():
                    await operation()
                if "finish" not in getattr(operation, "__code__", trio.sleep.__code__).co_names:
                    with trio.CancelScope() as scope:
                        scope.cancel()
                        await operation()
                    assert scope.cancelled_caught

    async def test_a_call_from_accepted_to_ended(self, open_store: OpenStore) -> None:
        """A call is found in each of its phases, with what was noted on the way, and with its outcome at the end."""
        async with open_store() as store:
            assert await store.job("job_1") is None
            row = job_row(1)
            await store.insert_job(row)
            assert row == await store.job("job_1")
            await store.advance("job_1", "preparing", session_version=3)
            row = attrs.evolve(row, phase="preparing", session_version=3)
            assert row == await store.job("job_1")
            await store.advance("job_1", "worker_running", worker_pid=4711, worker_started_at=1.5, journal=b"early")
            row = attrs.evolve(row, phase="worker_running", worker_pid=4711, worker_started_at=1.5, journal=b"early")
            assert row == await store.job("job_1")
            await trio.to_thread.run_sync(store.write_intent, "job_1", b"\0journal")
            row = attrs.evolve(row, phase="publishing_outputs", journal=b"\0journal")
            assert row == await store.job("job_1")
            await store.advance("job_1", "committing_state")
            assert attrs.evolve(row, phase="committing_state") == await store.job("job_1")
            await store.finish(JobEnd(job_id="job_1", outcome=Outcome.ROLLED_BACK, event=event("rollback", 1)))
            assert attrs.evolve(row, phase="ended", outcome=Outcome.ROLLED_BACK) == await store.job("job_1")

    async def test_a_row_keeps_every_fact(self, open_store: OpenStore) -> None:
        """A call comes back exactly as it was inserted, and is shown without its journal."""
        async with open_store() as store:
            full = JobRow(
                job_id="job_1",
                principal="é",
                tool="export",
                session="s p a c e",
                capability="destructive",
                phase="queued",
                outcome=None,
                targets={"a": "/ws/\udce9", "b": "/ws/b"},
                created_at="2024-01-02T03:04:05.000000+00:00",
                worker_pid=1,
                worker_started_at=0.5,
                session_version=0,
                journal=b"",
                repeats="job_0",
                idempotency_key="key",
                idempotency_digest="sha256:1",
            )
            await store.insert_job(full)
            found = await store.job("job_1")
            assert full == found
            assert found is not None
            shown = found.as_dict()
            assert {"journal", "idempotency_digest", "outcome", "needs_recovery", "reason"}.isdisjoint(shown)
            assert ("job_0", 0, "key") == (shown["repeats"], shown["session_version"], shown["idempotency_key"])

    async def test_calls_do_not_mix(self, open_store: OpenStore) -> None:
        """What is noted for one call leaves the others alone."""
        async with open_store() as store:
            for number in (1, 2):
                await store.insert_job(job_row(number))
            await store.advance("job_1", "preparing")
            await store.finish(JobEnd(job_id="job_1", outcome=Outcome.COMMITTED, event=event("commit", 1)))
            assert job_row(2) == await store.job("job_2")

    async def test_what_was_not_waited_for_is_covered(self, open_store: OpenStore) -> None:
        """A call can be inserted and moved on without waiting: whatever is asked or awaited later finds it there."""
        async with open_store() as store:
            for number in range(1, 20):
                store.insert_job_nowait(job_row(number))
                store.record(event("allow", number))
                store.advance_nowait(f"job_{number}", "preparing", session_version=number)
            found = await store.job("job_19")
            assert attrs.evolve(job_row(19), phase="preparing", session_version=19) == found
            assert 19 == len(await log(store))
            store.advance_nowait("job_1", "worker_running", worker_pid=7)
            await trio.to_thread.run_sync(store.write_intent, "job_1", b"journal")
            found = await store.job("job_1")
            assert found is not None
            assert (7, 1, b"journal") == (found.worker_pid, found.session_version, found.journal)

    async def test_unknown_calls_are_errors(self, open_store: OpenStore) -> None:
        """A call that was never accepted, or has ended, cannot go on or end, and nothing changes by trying."""
        async with open_store() as store:
            await end(store, 1)
            ended, events = await store.job("job_1"), await log(store)
            for job_id in ("job_1", "job_9"):
                with pytest.raises(StoreConflict):
                    await store.advance(job_id, "preparing")
                with pytest.raises(StoreConflict):
                    await trio.to_thread.run_sync(store.write_intent, job_id, b"journal")
                with pytest.raises(StoreConflict):
                    await store.finish(
                        JobEnd(
                            job_id=job_id, outcome=Outcome.ROLLED_BACK, event=event("rollback", 2), session=write({})
                        )
                    )
            with pytest.raises(StoreConflict):
                await store.insert_job(job_row(1))
            assert (ended, events) == (await store.job("job_1"), await log(store))
            assert await store.session("ann", "default") is None
            await end(store, 2)

    async def test_unfinished_calls(self, open_store: OpenStore) -> None:
        """Running, unresolved and unrecovered calls are listed in the order of their arrival, and no others."""
        async with open_store() as store:
            for number in (5, 3, 4, 1, 2):
                store.insert_job_nowait(job_row(number))
            await store.advance("job_4", "worker_running", worker_pid=4, journal=b"4")
            for number, outcome in ((3, Outcome.COMMITTED), (1, Outcome.UNRESOLVED)):
                await store.finish(JobEnd(job_id=f"job_{number}", outcome=outcome, event=event("end", number)))
            await store.need_recovery("job_2", "Look.", event("unresolved", 2))
            found = await store.unfinished()
            assert ["job_5", "job_4", "job_1", "job_2"] == [row.job_id for row in found]
            assert [await store.job(row.job_id) for row in found] == found
            assert [(None, b"4"), (Outcome.UNRESOLVED, None)] == [(row.outcome, row.journal) for row in found[1:3]]

    async def test_a_watcher_can_be_set(self, open_store: OpenStore) -> None:
        """A store that works has nothing to report."""
        reports: list[str | None] = []
        watcher: Callable[[str | None], None] = reports.append
        async with open_store() as store:
            store.watch(watcher)
            await end(store, 1)
        assert [] == reports
