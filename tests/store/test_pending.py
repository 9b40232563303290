"""Rows of pending calls: the durable store and the one in memory agree, whatever comes in whatever order."""

from pathlib import Path
from typing import Any

import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.store.contract_pending import noted, put, row
from ztrio.activity import FINAL, MAX_SEQ, OPEN, ActivityRow, BlockerWrite, PendingSnapshot, PendingWrite
from ztrio.memory_activity import MemoryActivity
from ztrio_sql import StoreReader, open_store
from ztrio_sql.chain import Anchor
from ztrio_sql.pending import ResyncPending, WritePending, activities, activity_of, left_pending
from ztrio_sql.schema import database_at, make
from ztrio_sql.tables import activity, pending_journal
from ztrio_sql.transaction import Transaction

STATES = st.sampled_from([*OPEN, *FINAL, "untracked"])
NUMBERS = st.integers(1, 4)
BLOCKERS = st.sampled_from(["pcb_1", "pcb_2"])
REVISIONS = st.integers(1, 6)
ROWS = st.builds(
    row, NUMBERS, REVISIONS, STATES, blocker=st.none() | BLOCKERS, late_outcome=st.none() | st.just("success")
)
JOURNAL = st.builds(noted, NUMBERS, seq=REVISIONS, expires_at=st.none() | st.just(5.0))
BLOCKER_WRITES = st.builds(
    BlockerWrite,
    blocker=BLOCKERS,
    revision=REVISIONS,
    pending_state=STATES,
    settled_by=st.none() | st.just("expired"),
    resolved_at=st.none() | st.just(3.0),
    into=st.none() | BLOCKERS,
)
WRITES = st.builds(
    PendingWrite,
    row=st.none() | ROWS,
    blocker=st.none() | BLOCKER_WRITES,
    put=st.none() | JOURNAL,
    drop=st.lists(NUMBERS.map("pc_{}".format), max_size=2).map(tuple),
    until=st.just(MAX_SEQ) | REVISIONS,
)
SNAPSHOTS = st.builds(
    PendingSnapshot,
    rows=st.lists(ROWS, max_size=2),
    blockers=st.lists(BLOCKER_WRITES, max_size=2),
    known=st.frozensets(NUMBERS.map("pc_{}".format) | BLOCKERS),
    journal=st.lists(JOURNAL, max_size=2, unique_by=lambda each: each.call_id),
)


@given(steps=st.lists(st.lists(WRITES, max_size=3) | SNAPSHOTS, max_size=6))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_updates_in_any_order(tmp_path: Path, steps: list[Any]) -> None:
    """Both stores say the same after any history; no revision falls, and no final state changes."""
    database = database_at(tmp_path / "state.db")
    if database.examine() is None:
        make(database)
    memory = MemoryActivity()
    with database.writer() as connection:
        for step in steps:
            before = {each.call_id: each for each in memory.activities(None, 100)}
            transaction = Transaction(connection, Anchor(), 0.0)
            if isinstance(step, PendingSnapshot):
                memory.resync(step)
                ResyncPending(step).apply(transaction)
            else:
                memory.write(step)
                WritePending(tuple(step)).apply(transaction)
            assert memory.activities(None, 100) == activities(connection, None, 100)
            assert memory.left() == left_pending(connection)
            for call_id, old in before.items():
                now = activity_of(connection, call_id)
                assert now is not None
                assert now.revision >= old.revision
                assert old.pending_state not in FINAL or old.pending_state == now.pending_state
        connection.execute(activity.delete())
        connection.execute(pending_journal.delete())
        connection.commit()


async def test_everything_survives(tmp_path: Path) -> None:
    """Rows and journal are there when the store is opened again, and for who only looks."""
    async with open_store(tmp_path / "state.db") as store:
        await store.write_pending(put(row(1, reason="external_effects")))
        await store.append_pending(noted(1), synced=True)
        await store.append_pending(noted(2))
        assert 1 <= store.statistics().synced <= 2
    expected: list[ActivityRow] = [row(1, reason="external_effects")]
    async with open_store(tmp_path / "state.db") as store:
        assert [noted(1), noted(2)] == list((await store.left_pending()).journal)
        assert expected == await store.activities(principal="ann", limit=9)
    with StoreReader.open(tmp_path / "state.db") as reader:
        assert (expected, expected[0]) == (reader.activities(principal=None, limit=9), reader.activity("pc_1"))
        assert {"pc_1": row(1, reason="external_effects")} == dict(reader.left_pending().activity)
    await trio.lowlevel.checkpoint()
