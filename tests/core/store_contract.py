"""What every store promises.

A store's test file says how to open one and inherits the tests:

class TestMyStore(StoreContract):
    @pytest.fixture
    def open_store(self, tmp_path):
        return lambda: my_store(tmp_path / "state.db")
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from ztrio.audit import AuditEvent
from ztrio.errors import Outcome
from ztrio.plain import decode, encode
from ztrio.store import EMPTY_STATE, JobEnd, JobRow, SessionRow, SessionWrite, Store

OpenStore = Callable[[], AbstractAsyncContextManager[Store]]


def job_row(number: int, *, principal: str = "ann", session: str = "default") -> JobRow:
    """An accepted call."""
    return JobRow(
        job_id=f"job_{number}",
        principal=principal,
        tool="export",
        session=session,
        capability="write",
        phase="queued",
        outcome=None,
        targets={"out": f"/ws/out{number}"},
        created_at="2024-01-02T03:04:05.000000+00:00",
    )


def event(name: str, number: int, *, principal: str | None = "ann", **facts: Any) -> AuditEvent:
    """A stamped event."""
    return AuditEvent(
        event=name,
        execution_job_id=f"job_{number}",
        principal=principal,
        seq=number,
        time=f"2024-01-02T03:04:{number % 60:02}.000000+00:00",
        monotonic=float(number),
        **facts,
    )


def write(
    state: Any, *, incarnation: str | None = None, version: int = 0, principal: str = "ann", name: str = "default"
) -> SessionWrite:
    """The next state of a session; None destroys it."""
    return SessionWrite(
        principal=principal,
        name=name,
        incarnation=incarnation,
        version=version,
        state=None if state is None else encode(state),
    )


async def end(
    store: Store, number: int, outcome: Outcome = Outcome.COMMITTED, session: SessionWrite | None = None
) -> AuditEvent:
    """A call that is accepted and ends at once; its terminal event."""
    principal = "ann" if session is None else session.principal
    await store.insert_job(job_row(number, principal=principal))
    terminal = event("commit", number, principal=principal, outcome=outcome)
    await store.finish(JobEnd(job_id=f"job_{number}", outcome=outcome, event=terminal, session=session))
    return terminal


async def log(store: Store, *, principal: str | None = None, after: int = 0, limit: int = 1000) -> list[AuditEvent]:
    """The events, without their positions."""
    return [found for _, found in await store.events(principal=principal, after=after, limit=limit)]


async def present(store: Store, name: str = "default", principal: str = "ann") -> SessionRow:
    """The session, which is there."""
    row = await store.session(principal, name)
    assert row is not None
    return row


class StoreContract:
    @pytest.fixture
    def open_store(self) -> OpenStore:
        """Opens a new, empty store."""
        raise NotImplementedError

    async def test_identity(self, open_store: OpenStore) -> None:
        """A store has an id and a secret of its own that do not change."""
        async with open_store() as first:
            assert (first.store_id, first.secret) == (first.store_id, first.secret)
            assert 32 == len(first.secret)
            assert isinstance(first.durable, bool)
            identity = first.store_id, first.secret
        async with open_store() as second:
            if not second.durable:
                assert identity[0] != second.store_id
                assert identity[1] != second.secret

    async def test_every_operation_is_a_checkpoint(self, open_store: OpenStore) -> None:
        """Each async operation can be cancelled and lets others run; `record` never waits."""
        async with open_store() as store:
            with trio.testing.assert_checkpoints():
                await store.insert_job(job_row(1))
            with trio.testing.assert_checkpoints():
                await store.advance("job_1", "preparing")
            with trio.testing.assert_checkpoints():
                await store.finish(JobEnd(job_id="job_1", outcome=Outcome.COMMITTED, event=event("commit", 1)))
            with trio.testing.assert_checkpoints():
                await store.abort("job_1")
            with trio.testing.assert_checkpoints():
                await store.job("job_1")
            with trio.testing.assert_checkpoints():
                await store.session("ann", "default")
            with trio.testing.assert_checkpoints():
                await store.sessions("ann")
            with trio.testing.assert_checkpoints():
                await store.events(principal=None, after=0, limit=1)
            with trio.testing.assert_no_checkpoints():
                store.record(event("allow", 1))

    async def test_a_call_from_accepted_to_ended(self, open_store: OpenStore) -> None:
        """A call is found in each of its phases, with what was noted on the way, and with its outcome at the end."""
        async with open_store() as store:
            assert await store.job("job_1") is None
            row = job_row(1)
            await store.insert_job(row)
            assert row == await store.job("job_1")
            await store.advance("job_1", "preparing")
            assert attrs.evolve(row, phase="preparing") == await store.job("job_1")
            await store.advance("job_1", "worker_running", worker_pid=4711, worker_started_at=1.5)
            running = attrs.evolve(row, phase="worker_running", worker_pid=4711, worker_started_at=1.5)
            assert running == await store.job("job_1")
            await store.advance("job_1", "publishing_outputs")
            assert attrs.evolve(running, phase="publishing_outputs") == await store.job("job_1")
            await store.finish(JobEnd(job_id="job_1", outcome=Outcome.ROLLED_BACK, event=event("rollback", 1)))
            assert attrs.evolve(running, phase="ended", outcome=Outcome.ROLLED_BACK) == await store.job("job_1")

    async def test_calls_do_not_mix(self, open_store: OpenStore) -> None:
        """What is noted for one call leaves the others alone."""
        async with open_store() as store:
            for number in (1, 2):
                await store.insert_job(job_row(number))
            await store.advance("job_1", "preparing")
            await store.finish(JobEnd(job_id="job_1", outcome=Outcome.COMMITTED, event=event("commit", 1)))
            assert job_row(2) == await store.job("job_2")

    async def test_unknown_calls_are_errors(self, open_store: OpenStore) -> None:
        """A call that was never accepted, or has ended, cannot go on or end, and nothing changes by trying."""
        async with open_store() as store:
            await end(store, 1)
            ended, events = await store.job("job_1"), await log(store)
            for job_id in ("job_1", "job_9"):
                with pytest.raises(Exception):  # noqa: B017 - the store's own
                    await store.advance(job_id, "preparing")
                with pytest.raises(Exception):  # noqa: B017 - the store's own
                    await store.finish(
                        JobEnd(
                            job_id=job_id, outcome=Outcome.ROLLED_BACK, event=event("rollback", 2), session=write({})
                        )
                    )
            assert (ended, events) == (await store.job("job_1"), await log(store))
            assert await store.session("ann", "default") is None

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
                with pytest.raises(Exception):  # noqa: B017 - the store's own
                    await store.finish(
                        JobEnd(job_id="job_2", outcome=Outcome.COMMITTED, event=event("commit", 2), session=session)
                    )
                await store.abort("job_2")
            assert (before, events) == (await present(store), await log(store))
            assert job_row(2) == await store.job("job_2")
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
            with pytest.raises(Exception):  # noqa: B017 - the store's own
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

    async def test_the_log_is_in_the_order_of_recording(self, open_store: OpenStore) -> None:
        """Events appear in the order of `record` and `finish`, with positions that grow, whatever their numbers."""
        async with open_store() as store:
            await store.insert_job(job_row(1))
            terminal = event("commit", 2, outcome=Outcome.COMMITTED)
            first, last = event("allow", 1), event("start", 5)
            later = event("deny", 3, principal="bob", code="PERMISSION_DENIED")
            store.record(first)
            store.record(last)
            await store.finish(JobEnd(job_id="job_1", outcome=Outcome.COMMITTED, event=terminal))
            store.record(later)
            found = await store.events(principal=None, after=0, limit=10)
            assert [first, last, terminal, later] == [each for _, each in found]
            positions = [position for position, _ in found]
            assert sorted(set(positions)) == positions
            assert positions[0] > 0

    async def test_the_log_can_be_cut(self, open_store: OpenStore) -> None:
        """By principal, after a position, and to the newest; always oldest first."""
        async with open_store() as store:
            events = [event("allow", number, principal="ann" if number % 2 else "bob") for number in range(1, 9)]
            for each in events:
                store.record(each)
            found = await store.events(principal=None, after=0, limit=100)
            positions = [position for position, _ in found]
            assert events == [each for _, each in found]
            assert events[::2] == await log(store, principal="ann")
            assert [] == await log(store, principal="eve")
            assert events[5:] == await log(store, after=positions[4])
            assert [] == await log(store, after=positions[-1])
            assert events[-3:] == await log(store, limit=3)
            assert events[6:7] == await log(store, principal="ann", after=positions[4], limit=1)
            assert [] == await log(store, limit=0)

    async def test_events_keep_every_fact(self, open_store: OpenStore) -> None:
        """An event comes back exactly: big integers, ids of both types, nested proofs, lists and absent facts."""
        async with open_store() as store:
            full = event(
                "commit",
                1,
                tool="export",
                session="é",
                request_id=2**63 + 1,
                surface="mcp",
                capability="write",
                timeout=30.0,
                duration=0.25,
                termination_confirmed=True,
                proof={"rung": "group", "complete": False, "pids": [1, 2], "proven_at": 1.5},
                outcome=Outcome.COMMITTED,
                targets=("/ws/a", "/ws/b"),
                argument_digest="sha256:00",
                arguments={"n": 10**30, "text": "é", "nested": [None, {"a": True}]},
                pid=4711,
                kept=("/ws/c",),
                missed=3,
            )
            for each in (full, event("allow", 2, principal=None), event("allow", 3, request_id="7")):
                store.record(each)
            found = await log(store)
            assert full == found[0]
            assert full.as_dict() == found[0].as_dict()
            assert (None, "7", str) == (found[1].principal, found[2].request_id, type(found[2].request_id))

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
            assert job_row(1) == await store.job("job_1")
            assert [] == await log(store)
            assert await store.session("ann", "default") is None
            await store.finish(JobEnd(job_id="job_1", outcome=Outcome.ROLLED_BACK, event=event("rollback", 1)))
            assert ["rollback"] == [each.event for each in await log(store)]
