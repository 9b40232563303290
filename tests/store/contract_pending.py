"""What every store promises about pending calls: two tables, written together, safe in any order."""

from typing import Any

import attrs
import pytest

from tests.store.rows import OpenStore
from ztrio.activity import (
    FINAL,
    MAX_ACTIVITY,
    ActivityRow,
    BlockerWrite,
    JournalRow,
    LeftPending,
    PendingSnapshot,
    PendingWrite,
)


def row(number: int, revision: int = 1, state: str = "unresolved", **facts: Any) -> ActivityRow:
    """A row of a pending call."""
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


def noted(number: int, **facts: Any) -> JournalRow:
    """A journal row."""
    return attrs.evolve(
        JournalRow(
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
        ),
        **facts,
    )


def put(*rows: ActivityRow) -> list[PendingWrite]:
    """Writes of rows alone."""
    return [PendingWrite(row=each) for each in rows]


class PendingContract:
    @pytest.mark.req("P57")
    async def test_activity_rows(self, open_store: OpenStore) -> None:
        """Rows are there when the write returns, are brought up to date by newer ones, and keep what was known."""
        async with open_store() as store:
            await store.write_pending(put(*(row(n, reason="deadline_exceeded", sent_at=1.0) for n in range(1, 6))))
            late = row(1, 2, "completed_late", late_outcome="success", resolved_at=2.0)
            await store.write_pending(put(late, row(6)))
            assert attrs.evolve(late, reason="deadline_exceeded", sent_at=1.0) == await store.activity("pc_1")
            assert await store.activity("pc_9") is None
            assert ["pc_5", "pc_3"] == [each.call_id for each in await store.activities(principal="ann", limit=2)]
            assert 6 == len(await store.activities(principal=None, limit=100))

    @pytest.mark.req("P57")
    async def test_an_update_that_comes_late_changes_nothing(self, open_store: OpenStore) -> None:
        """The same update again, or an older one after a newer, leaves the row as it is."""
        async with open_store() as store:
            newest = row(1, 5, "cancelling", reason="caller_cancelled")
            await store.write_pending(put(newest))
            for late in (newest, row(1, 4, "expired"), row(1, 5, "expired", late_outcome="success")):
                await store.write_pending(put(late))
                assert newest == await store.activity("pc_1")

    @pytest.mark.req("P2", "P57")
    @pytest.mark.parametrize("state", FINAL)
    async def test_a_final_state_stays(self, open_store: OpenStore, state: str) -> None:
        """A final state never changes; a late outcome, and who settled it, may still be added."""
        async with open_store() as store:
            await store.write_pending(put(row(1, 1, state, resolved_at=1.0)))
            await store.write_pending(put(row(1, 2, "unresolved", late_outcome="success", settled_by="operator")))
            expected = row(1, 2, state, resolved_at=1.0, late_outcome="success", settled_by="operator")
            assert expected == await store.activity("pc_1")
            await store.resync_pending(PendingSnapshot())
            assert expected == await store.activity("pc_1")

    @pytest.mark.req("P17", "P57")
    async def test_calls_that_were_folded_end_with_their_blocker(self, open_store: OpenStore) -> None:
        """What happens to a blocker happens to the open rows of its calls, also after it was merged into another."""
        async with open_store() as store:
            folded = [row(n, n, blocker="pcb_1") for n in (1, 3, 5)]
            await store.write_pending(put(*folded, row(7, 7)))
            await store.write_pending(put(row(3, 8, "completed_late", late_outcome="success")))
            merged = BlockerWrite(blocker="pcb_1", revision=9, pending_state="unresolved", into="pcb_2")
            ended = BlockerWrite(
                blocker="pcb_2", revision=10, pending_state="released", settled_by="released:operator", resolved_at=4.0
            )
            await store.write_pending([PendingWrite(blocker=merged), PendingWrite(blocker=ended)])
            facts = {"settled_by": "released:operator", "resolved_at": 4.0}
            assert row(1, 10, "released", blocker="pcb_2", **facts) == await store.activity("pc_1")
            assert row(5, 10, "released", blocker="pcb_2", **facts) == await store.activity("pc_5")
            assert row(7, 7) == await store.activity("pc_7")
            own = await store.activity("pc_3")
            assert own is not None
            assert ("completed_late", 8, None) == (own.pending_state, own.revision, own.settled_by)
            again = BlockerWrite(blocker="pcb_2", revision=10, pending_state="unresolved")
            await store.write_pending([PendingWrite(blocker=again), PendingWrite(blocker=merged)])
            assert row(1, 10, "released", blocker="pcb_2", **facts) == await store.activity("pc_1")

    @pytest.mark.req("P60")
    async def test_the_journal(self, open_store: OpenStore) -> None:
        """What was noted and not removed is found, in the order of the sequence, ids with their types."""
        async with open_store() as store:
            for number in (5, 3):
                store.append_pending_nowait(noted(number))
            forever = noted(1, expires_at=None, members=3, admission_tier="destructive write")
            await store.write_pending(
                [PendingWrite(put=forever, row=row(1, 6)), PendingWrite(put=noted(4), drop=("pc_3", "pc_9"))]
            )
            left = await store.left_pending()
            assert [forever, noted(4), noted(5)] == list(left.journal)
            assert ({"pc_1": row(1, 6)}, 6) == (dict(left.activity), left.revision)
            assert [int, str, int] == [type(each) for each in left.journal[0].wire_ids]
            store.append_pending_nowait(noted(4, seq=2, tool="older"))
            store.append_pending_nowait(noted(5, seq=9, tool="newer"))
            assert ["write", "write", "newer"] == [each.tool for each in (await store.left_pending()).journal]
            assert 9 == (await store.left_pending()).revision

    @pytest.mark.req("P60")
    async def test_a_removal_that_comes_late(self, open_store: OpenStore) -> None:
        """A removal takes no row that is newer than what it is about."""
        async with open_store() as store:
            store.append_pending_nowait(noted(1, seq=5))
            await store.write_pending([PendingWrite(drop=("pc_1",), until=4)])
            assert [noted(1, seq=5)] == list((await store.left_pending()).journal)
            await store.write_pending([PendingWrite(drop=("pc_1",), until=5)])
            assert [] == list((await store.left_pending()).journal)

    async def test_nothing_is_left_of_nothing(self, open_store: OpenStore) -> None:
        """A new store has neither rows nor a journal."""
        async with open_store() as store:
            left = await store.left_pending()
            assert LeftPending() == attrs.evolve(left, journal=tuple(left.journal), activity=dict(left.activity))

    @pytest.mark.req("P17", "P18", "P57")
    async def test_a_resync_makes_everything_true(self, open_store: OpenStore) -> None:
        """Rows that nobody knows any more are untracked unless they are final; the journal is what it should be."""
        async with open_store() as store:
            await store.write_pending(
                put(row(1), row(2), row(3, 1, "expired"), row(4, blocker="pcb_1"), row(5, blocker="pcb_2"))
            )
            store.append_pending_nowait(noted(1))
            store.append_pending_nowait(noted(2))
            await store.resync_pending(
                PendingSnapshot(
                    rows=[row(1, 2, "cancelling"), row(6)],
                    known=frozenset({"pc_1", "pc_6", "pcb_1"}),
                    journal=[noted(2, tool="other"), noted(8)],
                )
            )
            states = {each.call_id: each.pending_state for each in await store.activities(principal=None, limit=9)}
            assert {
                "pc_1": "cancelling",
                "pc_2": "untracked",
                "pc_3": "expired",
                "pc_4": "unresolved",
                "pc_5": "untracked",
                "pc_6": "unresolved",
            } == states
            assert [noted(2, tool="other"), noted(8)] == list((await store.left_pending()).journal)
            await store.write_pending(put(row(2, 9, "completed_late")))
            found = await store.activity("pc_2")
            assert found is not None
            assert "completed_late" == found.pending_state

    @pytest.mark.req("P17")
    async def test_old_rows_are_forgotten(self, open_store: OpenStore) -> None:
        """Of each principal the newest rows are kept, however many calls were never resolved; others' stay."""
        async with open_store() as store:
            await store.write_pending(put(row(2)))
            for start in range(0, MAX_ACTIVITY, 512):
                await store.write_pending(put(*(row(2 * n + 1) for n in range(start, start + 512))))
            await store.write_pending(put(row(2 * MAX_ACTIVITY + 1)))
            known = frozenset(f"pc_{n}" for n in range(2 * MAX_ACTIVITY + 2))
            await store.resync_pending(PendingSnapshot(known=known))
            assert await store.activity("pc_1") is None
            assert await store.activity("pc_3") is not None
            assert MAX_ACTIVITY == len(await store.activities(principal="ann", limit=2 * MAX_ACTIVITY))
            assert ["pc_2"] == [each.call_id for each in await store.activities(principal="bob", limit=9)]
