"""What every store promises about idempotency keys."""

import attrs
import pytest
import trio

from tests.store.rows import Clock, OpenStore, event, job_row, log
from ztrio.errors import IdempotencyConflict, Outcome
from ztrio.store import KEY_LIFETIME, MAX_KEPT_RESULT, Claim, JobEnd, JobRow, Store, StoreConflict


def keyed(number: int, *, key: str = "k", digest: str = "d", principal: str = "ann") -> JobRow:
    """An accepted call with an idempotency key."""
    return job_row(number, principal=principal, idempotency_key=key, idempotency_digest=digest)


async def finish(store: Store, number: int, outcome: Outcome, result: bytes | None = None) -> JobRow:
    """End a call; its row then."""
    await store.finish(JobEnd(job_id=f"job_{number}", outcome=outcome, event=event("end", number), result=result))
    row = await store.job(f"job_{number}")
    assert row is not None
    return row


class KeyContract:
    """Idempotency: one call for each key, unless that changed nothing."""

    async def test_a_free_key(self, open_store: OpenStore) -> None:
        """The first call with a key has it, and is stored like any other."""
        async with open_store() as store:
            assert await store.job_by_key("ann", "export", "k") is None
            assert Claim(mine=True) == await store.claim(keyed(1))
            assert keyed(1) == await store.job("job_1")
            assert keyed(1) == await store.job_by_key("ann", "export", "k")

    async def test_keys_are_their_principals_and_tools(self, open_store: OpenStore) -> None:
        """The same key of another principal or tool is another key; calls without a key are never the same."""
        async with open_store() as store:
            rows = [keyed(1), keyed(2, key="k2"), keyed(3, principal="bob"), attrs.evolve(keyed(4), tool="other")]
            assert [Claim(mine=True)] * 4 == [await store.claim(row) for row in rows]
            for number in (5, 6):
                await store.insert_job(job_row(number))
            assert rows == [await store.job_by_key(row.principal, row.tool, row.idempotency_key or "") for row in rows]

    async def test_a_duplicate_finds_the_running_call(self, open_store: OpenStore) -> None:
        """While a call runs, one with the same key is told its id, and nothing is stored for it."""
        async with open_store() as store:
            await store.claim(keyed(1))
            await store.advance("job_1", "worker_running", worker_pid=1)
            found = await store.claim(keyed(2))
            assert (False, await store.job("job_1"), None) == (found.mine, found.earlier, found.result)
            assert await store.job("job_2") is None
            assert ["job_1"] == [row.job_id for row in await store.unfinished()]

    async def test_of_concurrent_duplicates_one_wins(self, open_store: OpenStore) -> None:
        """Of many claims at once exactly one gets the key, and all others are told of it."""
        async with open_store() as store:
            claims: dict[int, Claim] = {}

            async def claim(number: int) -> None:
                claims[number] = await store.claim(keyed(number))

            async with trio.open_nursery() as nursery:
                for number in range(1, 33):
                    nursery.start_soon(claim, number)
            [winner] = [number for number, found in claims.items() if found.mine]
            assert {f"job_{winner}"} == {found.earlier.job_id for found in claims.values() if found.earlier is not None}
            assert [f"job_{winner}"] == [row.job_id for row in await store.unfinished()]

    async def test_a_committed_call_is_answered_again(self, open_store: OpenStore, clock: Clock) -> None:
        """The kept answer of a committed call is handed out for a day after its end; then the key is free."""
        async with open_store() as store:
            await store.claim(keyed(1))
            clock.time += 7 * 24 * 3600  # it counts from the end
            first = await finish(store, 1, Outcome.COMMITTED, b"answer")
            clock.time += KEY_LIFETIME - 1
            assert Claim(mine=False, earlier=first, result=b"answer") == await store.claim(keyed(2))
            with pytest.raises(IdempotencyConflict):
                await store.claim(keyed(2, digest="other"))
            clock.time += 1
            assert Claim(mine=True) == await store.claim(keyed(2, digest="other"))
            row = await store.job_by_key("ann", "export", "k")
            assert row is not None
            assert ("job_2", None) == (row.job_id, row.repeats)
            assert first.outcome == (await store.job("job_1")).outcome  # type: ignore[union-attr]

    async def test_answers_that_are_not_kept(self, open_store: OpenStore) -> None:
        """An answer beyond the bound is not kept; that the call committed is."""
        async with open_store() as store:
            for number, result in ((1, b"x" * MAX_KEPT_RESULT), (2, b"x" * (MAX_KEPT_RESULT + 1)), (3, None)):
                await store.claim(keyed(number, key=f"k{number}"))
                first = await finish(store, number, Outcome.COMMITTED, result)
                kept = result if number == 1 else None
                assert Claim(mine=False, earlier=first, result=kept) == await store.claim(keyed(9, key=f"k{number}"))

    @pytest.mark.parametrize("outcome", [Outcome.ROLLED_BACK, Outcome.NOT_STARTED, Outcome.COMPLETED])
    async def test_a_call_that_changed_nothing_is_repeated(self, open_store: OpenStore, outcome: Outcome) -> None:
        """After a call without effects the key goes to the next one, which is linked to it."""
        async with open_store() as store:
            await store.claim(keyed(1))
            first = await finish(store, 1, outcome)
            assert Claim(mine=True, earlier=first) == await store.claim(keyed(2))
            assert attrs.evolve(keyed(2), repeats="job_1") == await store.job_by_key("ann", "export", "k")
            second = await finish(store, 2, outcome)
            assert Claim(mine=True, earlier=second) == await store.claim(keyed(3))
            third = await store.job("job_3")
            assert third is not None
            assert "job_2" == third.repeats

    async def test_an_unresolved_call_keeps_its_key(self, open_store: OpenStore, clock: Clock) -> None:
        """As long as nobody knows what became of a call, its key is not free."""
        async with open_store() as store:
            await store.claim(keyed(1))
            first = await finish(store, 1, Outcome.UNRESOLVED)
            clock.time += 2 * KEY_LIFETIME
            assert Claim(mine=False, earlier=first) == await store.claim(keyed(2))
            await store.recovered("job_1", Outcome.ROLLED_BACK, event("settled", 1))
            assert (await store.claim(keyed(2))).mine

    async def test_another_digest_is_a_conflict(self, open_store: OpenStore) -> None:
        """A key that stands for other arguments is refused, whatever became of that call, and nothing is stored."""
        async with open_store() as store:
            await store.claim(keyed(1))
            for outcome in (None, Outcome.UNRESOLVED, Outcome.ROLLED_BACK):
                if outcome is not None:
                    await store.finish(JobEnd(job_id="job_1", outcome=outcome, event=event(outcome, 1)))
                with pytest.raises(IdempotencyConflict) as caught:
                    await store.claim(keyed(2, digest="other"))
                assert "job_1" == caught.value.details["earlier_job_id"]
            assert await store.job("job_2") is None
            assert 2 == len(await log(store))

    async def test_a_known_call_cannot_claim(self, open_store: OpenStore) -> None:
        """An id that is known already is refused, and the key stays free."""
        async with open_store() as store:
            await store.insert_job(job_row(1))
            with pytest.raises(StoreConflict):
                await store.claim(keyed(1))
            assert job_row(1) == await store.job("job_1")
            assert Claim(mine=True) == await store.claim(keyed(2))
