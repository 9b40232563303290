"""A store with its journal in a file keeps every store's promises; a crash between the two errs on the safe side."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.pending.box import call_id
from tests.pending.test_shell_tracker import SETTINGS, call_of, under
from tests.store.contract import StoreContract
from tests.store.contract_pending import PendingContract, noted, put, row
from tests.store.rows import Clock, OpenStore
from tests.store.test_pending import SNAPSHOTS, WRITES
from ztrio.activity import LeftPending, PendingSnapshot, PendingWrite
from ztrio.audit import AuditBus
from ztrio.memory_store import MemoryStore
from ztrio.pending import Begun, State, Transport
from ztrio.store import Store
from ztrio.testing import FaultyStore
from ztrio.tracking.journal import FileJournal
from ztrio.tracking.journalled import JournalledStore, journalled
from ztrio.tracking.restoring import take_up
from ztrio.tracking.tracker import Tracker
from ztrio_sql import open_store as open_sql


class TestInMemory(StoreContract):
    @pytest.fixture
    def open_store(self, tmp_path: Path, clock: Clock) -> OpenStore:
        """A store that forgets, with a journal of its own each time."""
        opened = iter(range(100))

        @asynccontextmanager
        async def open_it() -> AsyncIterator[Store]:
            with FileJournal(tmp_path / f"sent-{next(opened)}.journal") as journal:
                yield journalled(MemoryStore(now=clock), journal)

        return open_it


class TestDurable(PendingContract):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        """The store in a file, with its journal in another."""

        @asynccontextmanager
        async def open_it() -> AsyncIterator[Store]:
            with FileJournal(tmp_path / "sent.journal") as journal:
                async with open_sql(tmp_path / "state.db") as store:
                    yield journalled(store, journal)

        return open_it


def plain(left: LeftPending) -> LeftPending:
    """What was left, to be compared."""
    return LeftPending(journal=list(left.journal), activity=dict(left.activity), revision=left.revision)


STEPS = st.lists(
    st.one_of(st.lists(WRITES, max_size=3), SNAPSHOTS, st.builds(noted, st.integers(1, 4), seq=st.integers(1, 6))),
    max_size=6,
)


@pytest.mark.req("P60", "P57")
@given(steps=STEPS)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_updates_in_any_order(tmp_path: Path, steps: list[Any]) -> None:
    """It says what the store alone would say, after any history, and so does who opens the file next."""
    path = tmp_path / "sent.journal"
    path.unlink(missing_ok=True)

    async def both() -> None:
        alone, inner = MemoryStore(), MemoryStore()
        with FileJournal(path) as journal:
            store = journalled(inner, journal)
            for step in steps:
                for each in (alone, store):
                    if isinstance(step, PendingSnapshot):
                        await each.resync_pending(step)
                    elif isinstance(step, list):
                        await each.write_pending(step)
                    else:
                        each.append_pending_nowait(step)
                assert plain(await alone.left_pending()).journal == plain(await store.left_pending()).journal
                assert await alone.activities(principal=None, limit=9) == await store.activities(
                    principal=None, limit=9
                )
                assert () == tuple((await inner.left_pending()).journal)
            left = await store.left_pending()
        with FileJournal(path) as journal:
            assert left == await journalled(inner, journal).left_pending()

    trio.run(both)


@pytest.mark.req("P60")
async def test_a_removal_waits_for_the_store(tmp_path: Path) -> None:
    """A row is there before the store has what is said of its call, and as long as it does not have it."""
    seen: list[list[str]] = []
    with FileJournal(tmp_path / "sent.journal") as journal:
        inner = FaultyStore(before=lambda _: seen.append([each.call_id for each in journal.left()]))
        store = journalled(inner, journal)
        store.append_pending_nowait(noted(1))
        await store.write_pending([PendingWrite(row=row(1), put=noted(2), drop=("pc_1",))])
        assert ([["pc_1", "pc_2"]], ["pc_2"]) == (seen, [each.call_id for each in journal.left()])
        inner.fail = dict.fromkeys(("write_pending", "resync_pending"), OSError("no"))
        with pytest.raises(OSError, match="no"):
            await store.write_pending([PendingWrite(row=row(2), drop=("pc_2",), put=noted(3))])
        with pytest.raises(OSError, match="no"):
            await store.resync_pending(PendingSnapshot(journal=[noted(4)]))
        assert ["pc_2", "pc_3", "pc_4"] == [each.call_id for each in journal.left()]
        inner.fail = {}
        await store.resync_pending(PendingSnapshot(journal=[noted(4)]))
        assert [noted(4)] == journal.left()


@pytest.mark.req("P60")
async def test_calls_that_end_do_not_wake_the_store(tmp_path: Path) -> None:
    """A call that is noted and answered costs two lines in the file, and nothing else."""
    with FileJournal(tmp_path / "sent.journal") as journal:
        inner = FaultyStore()
        store = journalled(inner, journal)
        for number in range(1, 5):
            store.append_pending_nowait(noted(number))
        with trio.testing.assert_checkpoints():
            await store.write_pending([PendingWrite(drop=(f"pc_{number}",)) for number in range(1, 5)])
        assert ([], []) == (inner.calls, journal.left())
        assert 1 + 4 + 1 == (tmp_path / "sent.journal").read_bytes().count(b"\n")


@pytest.mark.req("P60")
@pytest.mark.parametrize("resync", [False, True])
async def test_what_is_noted_meanwhile_stays(tmp_path: Path, *, resync: bool) -> None:
    """A row that is noted while the store writes was not meant by what is being written, even of a call that was."""
    with FileJournal(tmp_path / "sent.journal") as journal:
        inner = FaultyStore(before=lambda _: journal.put([noted(1, seq=10), noted(5)]))
        store = journalled(inner, journal)
        store.append_pending_nowait(noted(1))
        store.append_pending_nowait(noted(2))
        if resync:
            await store.resync_pending(PendingSnapshot(journal=[noted(2)]))
        else:
            await store.write_pending([PendingWrite(row=row(1), drop=("pc_1", "pc_5"))])
        assert [noted(2), noted(5), noted(1, seq=10)] == journal.left()


@pytest.mark.req("P60")
async def test_a_journal_that_the_store_had_moves_to_the_file(tmp_path: Path) -> None:
    """Rows of a store that kept its journal itself are found, and are in the file alone after the next comparison."""
    inner = MemoryStore()
    inner.append_pending_nowait(noted(1))
    inner.append_pending_nowait(noted(3))
    await inner.write_pending(put(row(1, 7), row(2)))
    with FileJournal(tmp_path / "sent.journal") as journal:
        store = journalled(inner, journal)
        store.append_pending_nowait(noted(2))
        left = await store.left_pending()
        expected = LeftPending(
            journal=[noted(1), noted(2), noted(3)], activity={"pc_1": row(1, 7), "pc_2": row(2)}, revision=7
        )
        assert expected == plain(left)
        await store.resync_pending(PendingSnapshot(journal=left.journal, known=frozenset({"pc_1", "pc_2"})))
        assert ([], expected.journal) == (list((await inner.left_pending()).journal), journal.left())


@pytest.mark.req("P60")
@pytest.mark.parametrize(
    ("transport", "state"), [(Transport.HTTP, State.UNRESOLVED), (Transport.STDIO, State.CONNECTION_RESET)]
)
async def test_after_the_death_of_the_process(tmp_path: Path, transport: Transport, state: State) -> None:
    """Sent over HTTP, a call comes back unresolved and not observable; a stdio server died too: its call is reset."""
    store, path = FaultyStore(), tmp_path / "sent.journal"
    with FileJournal(path) as journal:
        async with under(journalled(store, journal)) as box:  # type: ignore[arg-type]
            for number in (1, 2):
                box.begin(number, transport=transport)
            box.tracker.did(box.tracker.registry.complete(call_id(1), succeeded=True, **box.tracker.moment()))
            await trio.testing.wait_all_tasks_blocked()
    with FileJournal(path) as journal:
        after = journalled(store, journal)
        tracker = Tracker(SETTINGS, audit=AuditBus(), store=after)
        await take_up(tracker, after, "local:x")
        found = {each.call.call_id: (each.state, each.gating, each.observable) for each in tracker.registry.entries()}
        assert {call_id(2): (state, True, False)} == found
        await tracker.records.flush()
        known = await after.activity(call_id(2))
        assert (state, [call_id(2)]) == (known and known.pending_state, [each.call_id for each in journal.left()])


@pytest.mark.req("P60")
@pytest.mark.parametrize("in_file", [False, True])
async def test_a_call_that_is_sent_anew_keeps_its_row(tmp_path: Path, *, in_file: bool) -> None:
    """A call that was not sent and is reserved again under its id is in the journal, however late the first end is."""
    with FileJournal(tmp_path / "sent.journal") as journal:
        inner = FaultyStore()
        store = journalled(inner, journal) if in_file else inner
        async with under(store) as box:  # type: ignore[arg-type]
            tracker, registry, call = box.tracker, box.tracker.registry, call_of(1)
            for attempt in range(2):
                begun = registry.check_and_begin(call, **tracker.moment())
                assert isinstance(begun, Begun)
                tracker.did(begun.transitions)
                tracker.records.journal(registry.journal_row(call.call_id, now=tracker.now, wall=tracker.wall))
                if not attempt:
                    tracker.did(registry.not_sent(call.call_id, **tracker.moment()))
            tracker.did(registry.claim(call.call_id, wire_id=1, **tracker.moment()))
            await trio.testing.wait_all_tasks_blocked()
            assert [call.call_id] == [each.call_id for each in (await store.left_pending()).journal]
            tracker.did(registry.complete(call.call_id, succeeded=True, **tracker.moment()))
            await trio.testing.wait_all_tasks_blocked()
            assert [] == list((await store.left_pending()).journal)


@pytest.mark.req("P60")
async def test_what_must_survive_the_machine(tmp_path: Path) -> None:
    """Whoever asks for it waits until what was noted is on the disk."""
    with FileJournal(tmp_path / "sent.journal") as journal:
        store = JournalledStore(MemoryStore(), journal)
        store.append_pending_nowait(noted(1))
        await store.sync_pending()
        assert 1 == journal.statistics().syncs
