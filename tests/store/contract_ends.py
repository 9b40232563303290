"""What every store promises about how calls end."""

import attrs
import pytest
import trio

from tests.store.rows import OpenStore, end, event, job_row, log, present, write
from ztrio.errors import Outcome
from ztrio.store import AlreadyEnded, JobEnd, StoreConflict


class EndContract:
    """Ends: one for each call, never a second one, never undone."""

    async def test_an_unresolved_call_is_settled_later(self, open_store: OpenStore) -> None:
        """A call that ended unresolved stays open and ends once more, with what turned out."""
        async with open_store() as store:
            first = await end(store, 1, Outcome.UNRESOLVED)
            found = await store.job("job_1")
            assert found is not None
            assert Outcome.UNRESOLVED == found.outcome
            settled = event("settled", 2, outcome=Outcome.ROLLED_BACK)
            await store.finish(JobEnd(job_id="job_1", outcome=Outcome.ROLLED_BACK, event=settled))
            found = await store.job("job_1")
            assert found is not None
            assert Outcome.ROLLED_BACK == found.outcome
            assert [first, settled] == await log(store)

    @pytest.mark.parametrize("outcome", [Outcome.COMMITTED, Outcome.UNRESOLVED])
    async def test_an_end_may_be_repeated(self, open_store: OpenStore, outcome: Outcome) -> None:
        """Whoever does not know whether the end was written writes it again: it is there once."""
        async with open_store() as store:
            terminal = await end(store, 1, outcome, session=write({"n": 1}))
            row, session = await store.job("job_1"), await present(store)
            again = JobEnd(job_id="job_1", outcome=outcome, event=terminal, session=write({"n": 1}))
            await store.finish(again)
            assert (row, session, [terminal]) == (await store.job("job_1"), await present(store), await log(store))
            other = attrs.evolve(again, event=terminal.evolved(seq=99), session=None)
            if outcome is Outcome.COMMITTED:
                with pytest.raises(AlreadyEnded) as caught:
                    await store.finish(other)
                assert Outcome.COMMITTED == caught.value.outcome
                assert [terminal] == await log(store)

    async def test_an_end_may_be_repeated_at_once(self, open_store: OpenStore) -> None:
        """Also when the first attempt is still on its way."""
        async with open_store() as store:
            await store.insert_job(job_row(1))
            terminal = JobEnd(job_id="job_1", outcome=Outcome.NOT_STARTED, event=event("cancel", 1))
            store.finish_nowait(terminal)
            store.finish_nowait(terminal)
            await store.finish(terminal)
            assert [terminal.event] == await log(store)
            assert [] == await store.unfinished()

    async def test_an_aborted_call_is_never_committed(self, open_store: OpenStore) -> None:
        """After `abort` the call can be rolled back and nothing else; to abort again changes nothing."""
        async with open_store() as store:
            await store.insert_job(job_row(1))
            for _ in range(2):
                await store.abort("job_1")
                assert attrs.evolve(job_row(1), phase="aborted") == await store.job("job_1")
            commit = JobEnd(
                job_id="job_1", outcome=Outcome.COMMITTED, event=event("commit", 1), session=write({"n": 1})
            )
            with pytest.raises(StoreConflict):
                await store.finish(commit)
            assert await store.session("ann", "default") is None
            await store.finish(JobEnd(job_id="job_1", outcome=Outcome.ROLLED_BACK, event=event("rollback", 1)))
            await store.abort("job_1")
            found = await store.job("job_1")
            assert found is not None
            assert (Outcome.ROLLED_BACK, "ended") == (found.outcome, found.phase)
            assert ["rollback"] == [each.event for each in await log(store)]

    async def test_what_has_happened_is_not_aborted(self, open_store: OpenStore) -> None:
        """To abort a call that is committed is an error that says so, and changes nothing."""
        async with open_store() as store:
            await end(store, 1, session=write({"n": 1}))
            row, session = await store.job("job_1"), await present(store)
            with pytest.raises(AlreadyEnded) as caught:
                await store.abort("job_1")
            assert Outcome.COMMITTED == caught.value.outcome
            assert (row, session) == (await store.job("job_1"), await present(store))
            await store.abort("job_9")
            assert await store.job("job_9") is None

    async def test_a_cancelled_transaction_is_all_or_nothing(self, open_store: OpenStore) -> None:
        """Cancelled before it was made, the transaction has not happened, and `abort` agrees."""
        async with open_store() as store:
            await store.insert_job(job_row(1))
            with trio.CancelScope() as scope:
                scope.cancel()
                await store.finish(
                    JobEnd(job_id="job_1", outcome=Outcome.COMMITTED, event=event("commit", 1), session=write({"n": 1}))
                )
            assert scope.cancelled_caught
            await store.abort("job_1")
            assert attrs.evolve(job_row(1), phase="aborted") == await store.job("job_1")
            assert [] == await log(store)
            assert await store.session("ann", "default") is None
            await store.finish(JobEnd(job_id="job_1", outcome=Outcome.ROLLED_BACK, event=event("rollback", 1)))
            assert ["rollback"] == [each.event for each in await log(store)]

    async def test_recovery_ends_what_has_no_end(self, open_store: OpenStore) -> None:
        """Recovery's end is written where there is none, and nowhere else, however often it runs."""
        async with open_store() as store:
            await store.insert_job(job_row(1))
            await end(store, 2, Outcome.UNRESOLVED)
            done = await end(store, 3)
            first = [event("recovered", number, outcome=Outcome.ROLLED_BACK) for number in (1, 2, 3)]
            answers = [
                await store.recovered(each.execution_job_id, Outcome.ROLLED_BACK, each) for each in (*first, *first)
            ]
            assert [True, True, False, False, False, False] == answers
            assert not await store.recovered("job_9", Outcome.ROLLED_BACK, event("recovered", 9))
            assert [done, *first[:2]] == (await log(store))[1:]
            outcomes = [await store.job(f"job_{number}") for number in (1, 2, 3)]
            assert [("rolled_back", "ended"), ("rolled_back", "ended"), ("committed", "ended")] == [
                (row.outcome, row.phase) for row in outcomes if row is not None
            ]
            assert [] == await store.unfinished()

    async def test_what_recovery_must_not_decide(self, open_store: OpenStore) -> None:
        """A call in need of recovery is unresolved for a reason, until somebody settles it."""
        async with open_store() as store:
            await store.insert_job(job_row(1))
            await end(store, 2)
            unresolved = event("unresolved", 1, outcome=Outcome.UNRESOLVED)
            assert await store.need_recovery("job_1", "Look at it.", unresolved)
            assert await store.need_recovery("job_1", "Look at /ws/\udce9.", None)
            assert await store.need_recovery("job_1", "Look at it again.", None)
            assert not await store.need_recovery("job_2", "No.", event("unresolved", 2))
            assert not await store.need_recovery("job_9", "No.", event("unresolved", 9))
            found = await store.job("job_1")
            assert found is not None
            assert (Outcome.UNRESOLVED, True, "Look at it again.") == (
                found.outcome,
                found.needs_recovery,
                found.reason,
            )
            assert (True, "Look at it again.") == (found.as_dict()["needs_recovery"], found.as_dict()["reason"])
            assert ["commit", "unresolved"] == [each.event for each in await log(store)]
            assert await store.recovered("job_1", Outcome.COMMITTED, event("settled", 1))
            found = await store.job("job_1")
            assert found is not None
            assert (Outcome.COMMITTED, False, None) == (found.outcome, found.needs_recovery, found.reason)
