"""What every store promises about sessions."""

import attrs
import pytest

from tests.store.rows import OpenStore, end, event, job_row, log, present, write
from ztrio.errors import Outcome
from ztrio.plain import decode, encode
from ztrio.store import EMPTY_STATE, JobEnd, SessionRow, StoreConflict


class SessionContract:
    """Sessions: opened by a commit, versioned, destroyed."""

    async def test_the_first_commit_opens_a_session(self, open_store: OpenStore) -> None:
        """A session exists from the commit that opened it, at version 1, with that commit's time."""
        async with open_store() as store:
            assert await store.session("ann", "default") is None
            terminal = await end(store, 1, session=write({"n": 1}))
            row = await present(store)
            assert row == SessionRow(
                principal="ann",
                name="default",
                incarnation=row.incarnation,
                version=1,
                state=encode({"n": 1}),
                opened_at=terminal.time,
            )
            assert row.incarnation

    async def test_versions_follow_each_other(self, open_store: OpenStore) -> None:
        """Each commit is the next version of the same life; the time of opening stays."""
        async with open_store() as store:
            await end(store, 1, session=write({"n": 1}))
            first = await present(store)
            await end(store, 2, session=write({"n": 2}, incarnation=first.incarnation, version=1))
            second = await present(store)
            assert attrs.evolve(first, version=2, state=encode({"n": 2})) == second

    async def test_a_call_without_session_leaves_it_alone(self, open_store: OpenStore) -> None:
        """A call that did not change its session does not make a version."""
        async with open_store() as store:
            await end(store, 1, session=write({"n": 1}))
            before = await present(store)
            await end(store, 2)
            await end(store, 3, Outcome.ROLLED_BACK)
            assert before == await present(store)

    async def test_a_lost_update_is_refused_whole(self, open_store: OpenStore) -> None:
        """A transaction that read another version, another life or none is refused: no outcome, no event, no state."""
        async with open_store() as store:
            await end(store, 1, session=write({"n": 1}))
            before, events = await present(store), await log(store)
            await store.insert_job(job_row(2))
            wrong = [
                write({"n": 9}, incarnation=before.incarnation, version=0),
                write({"n": 9}, incarnation=before.incarnation, version=2),
                write({"n": 9}, incarnation="si_other", version=1),
                write({"n": 9}),
                write(None, incarnation=before.incarnation, version=7),
                write({"n": 9}, name="never", incarnation="si_other", version=1),
            ]
            for session in wrong:
                with pytest.raises(StoreConflict):
                    await store.finish(
                        JobEnd(job_id="job_2", outcome=Outcome.COMMITTED, event=event("commit", 2), session=session)
                    )
                await store.abort("job_2")
            assert (before, events) == (await present(store), await log(store))
            assert attrs.evolve(job_row(2), phase="aborted") == await store.job("job_2")
            assert await store.session("ann", "never") is None
            await store.finish(JobEnd(job_id="job_2", outcome=Outcome.ROLLED_BACK, event=event("rollback", 2)))

    async def test_a_destroyed_name_starts_a_new_life(self, open_store: OpenStore) -> None:
        """Destruction removes state; the name opened again is another life at version 1, and the old one is over."""
        async with open_store() as store:
            await end(store, 1, session=write({"n": 1}))
            first = await present(store)
            await end(store, 2, session=write(None, incarnation=first.incarnation, version=1))
            assert await store.session("ann", "default") is None
            assert [] == await store.sessions("ann")
            await end(store, 3, session=write({"n": 3}))
            second = await present(store)
            assert first.incarnation != second.incarnation
            assert (1, {"n": 3}) == (second.version, decode(second.state))
            await store.insert_job(job_row(4))
            with pytest.raises(StoreConflict):
                await store.finish(
                    JobEnd(
                        job_id="job_4",
                        outcome=Outcome.COMMITTED,
                        event=event("commit", 4),
                        session=write({"n": 4}, incarnation=first.incarnation, version=1),
                    )
                )

    async def test_sessions_are_their_principals(self, open_store: OpenStore) -> None:
        """The same name of two principals is two sessions, and a list shows one's own, by name."""
        async with open_store() as store:
            for number, (principal, name) in enumerate([("ann", "b"), ("bob", "a"), ("ann", "a"), ("ann", "é")], 1):
                await end(store, number, session=write({"n": number}, principal=principal, name=name))
            assert ["a", "b", "é"] == [row.name for row in await store.sessions("ann")]
            assert [{"n": 2}] == [decode(row.state) for row in await store.sessions("bob")]
            assert [] == await store.sessions("eve")
            assert await store.session("eve", "a") is None
            assert {"n": 3} == decode((await present(store, "a")).state)

    async def test_states_come_back_byte_by_byte(self, open_store: OpenStore) -> None:
        """State is kept as it was encoded, empty and large alike."""
        async with open_store() as store:
            big = {"text": "é" * 100_000, "number": 10**30, "raw": bytes(range(256))}
            await end(store, 1, session=write({}, name="empty"))
            await end(store, 2, session=write(big, name="big"))
            assert EMPTY_STATE == (await present(store, "empty")).state
            assert encode(big) == (await present(store, "big")).state
