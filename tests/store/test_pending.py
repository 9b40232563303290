"""Rows of upstream calls: idempotent, safe in any order, and never back from a terminal state."""

from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ztrio_sql import ActivityRow, PendingRow, StoreReader, open_store
from ztrio_sql.pending import TERMINAL
from ztrio_sql.schema import database_at, make
from ztrio_sql.tables import activity
from ztrio_sql.transaction import Transaction


def row(number: int, revision: int = 1, state: str = "unresolved", **facts: Any) -> ActivityRow:
    """A row of an upstream call."""
    return attrs.evolve(
        ActivityRow(
            call_id=f"pc_{number}",
            principal="ann" if number % 2 else "bob",
            gate_scope="ann",
            server="files",
            tool="write",
            revision=revision,
            pending_state=state,
        ),
        **facts,
    )


def sent(number: int) -> PendingRow:
    """A write that is about to be sent."""
    return PendingRow(
        call_id=f"pc_{number}",
        seq=number,
        server="files",
        transport="stdio",
        epoch=3,
        principal="ann",
        gate_scope="ann",
        tool="write",
        gate_tier="write",
        admission_tier="write",
        wire_ids=(7, "7", number),
        sent_at=1.5,
        expires_at=601.5,
    )


async def test_activity_rows(tmp_path: Path) -> None:
    """Rows are there when the write returns, are brought up to date by newer ones, and keep what was known."""
    async with open_store(tmp_path / "state.db") as store:
        await store.put_activity([row(number, reason="deadline_exceeded", sent_at=1.0) for number in range(1, 6)])
        await store.put_activity([row(1, 2, "completed_late", late_outcome="success", resolved_at=2.0), row(6)])
        expected = row(
            1, 2, "completed_late", reason="deadline_exceeded", sent_at=1.0, late_outcome="success", resolved_at=2.0
        )
        assert expected == await store.activity("pc_1")
        assert await store.activity("pc_9") is None
        assert ["pc_5", "pc_3"] == [each.call_id for each in await store.activities(principal="ann", limit=2)]
        assert 6 == len(await store.activities(principal=None, limit=100))
    with StoreReader.open(tmp_path / "state.db") as reader:
        assert expected == reader.activity("pc_1")
        assert 3 == len(reader.activities(principal="bob", limit=100))


async def test_an_update_that_comes_late_changes_nothing(tmp_path: Path) -> None:
    """The same update again, or an older one after a newer, leaves the row as it is."""
    async with open_store(tmp_path / "state.db") as store:
        newest = row(1, 5, "cancelling", reason="caller_cancelled")
        await store.put_activity([newest])
        for late in (newest, row(1, 4, "expired"), row(1, 5, "expired", late_outcome="success")):
            await store.put_activity([late])
            assert newest == await store.activity("pc_1")


@pytest.mark.parametrize("state", TERMINAL)
async def test_a_terminal_state_stays(tmp_path: Path, state: str) -> None:
    """A terminal state never changes; a late outcome, and who settled it, may still be added."""
    async with open_store(tmp_path / "state.db") as store:
        await store.put_activity([row(1, 1, state, resolved_at=1.0)])
        await store.put_activity([row(1, 2, "unresolved", late_outcome="success", settled_by="operator")])
        expected = row(1, 2, state, resolved_at=1.0, late_outcome="success", settled_by="operator")
        assert expected == await store.activity("pc_1")


@given(
    updates=st.lists(
        st.tuples(st.integers(1, 6), st.sampled_from(["unresolved", "cancelling", "untracked", *TERMINAL])), max_size=12
    )
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_updates_in_any_order(tmp_path: Path, updates: list[tuple[int, str]]) -> None:
    """Whatever comes in whatever order, the revision never falls and a terminal state never changes."""
    from ztrio_sql.chain import Anchor
    from ztrio_sql.pending import PutActivity, activity_of

    database = database_at(tmp_path / "state.db")
    if database.examine() is None:
        make(database)
    with database.writer() as connection:
        before: ActivityRow | None = None
        for revision, state in updates:
            PutActivity((row(1, revision, state),)).apply(Transaction(connection, Anchor(), 0.0))
            now = activity_of(connection, "pc_1")
            assert now is not None
            if before is not None:
                assert now.revision == max(before.revision, revision)
                if before.pending_state in TERMINAL or revision <= before.revision:
                    assert before.pending_state == now.pending_state
            before = now
        connection.execute(activity.delete())
        connection.commit()


async def test_the_journal_of_sent_writes(tmp_path: Path) -> None:
    """What was noted and not removed is found after a restart, in the order of sending, ids with their types."""
    async with open_store(tmp_path / "state.db") as store:
        for number in (5, 3):
            store.append_pending_nowait(sent(number))
        await store.append_pending(sent(1), synced=True)
        await store.append_pending(sent(4))
        store.remove_pending_nowait(["pc_3", "pc_9"])
        expected = [sent(1), sent(4), sent(5)]
        assert expected == await store.pending()
        assert 1 <= store.statistics().synced <= 2
    with StoreReader.open(tmp_path / "state.db") as reader:
        assert expected == reader.pending()
        assert [int, str, int] == [type(each) for each in reader.pending()[0].wire_ids]
