"""What every store promises about the audit log."""

from tests.store.rows import OpenStore, event, job_row, log
from ztrio.errors import Outcome
from ztrio.store import JobEnd


class LogContract:
    """The audit log: in order, complete, exact."""

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

    async def test_the_events_of_one_call(self, open_store: OpenStore) -> None:
        """The events of a call are found by its id, oldest first, and no others."""
        async with open_store() as store:
            own = [event("allow", 1), event("start", 1), event("deny", 1, principal=None)]
            for each in (own[0], event("allow", 2), own[1], event("allow", 11), own[2]):
                store.record(each)
            found = await store.job_events("job_1")
            assert own == [each for _, each in found]
            everything = await store.events(principal=None, after=0, limit=10)
            assert [everything[0], everything[2], everything[4]] == found
            assert [] == await store.job_events("job_9")

    async def test_text_that_is_no_utf8_is_kept(self, open_store: OpenStore) -> None:
        """A lone surrogate, as a tool's name or a path may hold, comes back as it was."""
        async with open_store() as store:
            odd = event("deny", 1, tool="\ud800", request_id="é\udfff", targets=("/ws/\udce9",))
            store.record(odd)
            assert [odd] == await log(store)
