"""What goes to the store: rows of the journal and of the activity record."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.pending.box import ANN, WALL, Box
from tests.pending.tables import journalled
from ztrio.pending import (
    ActivityRow,
    ActorKind,
    JournalRow,
    LateOutcome,
    Lease,
    Mode,
    Reason,
    State,
    Tier,
    Transport,
    activity_row,
)


@pytest.mark.req("P60", "P12")
def test_the_journal_row_of_a_write() -> None:
    """Before it is claimed a write has a row with its ids, server, tool, scope, number and times, and no arguments."""
    box = Box()
    call = box.reserved()
    row = box.registry.journal_row(call.call_id, wire_id="7", now=box.now, wall=WALL)
    assert row == JournalRow(
        call_id=call.call_id,
        seq=1,
        server="files",
        transport="stdio",
        epoch=1,
        principal=ANN,
        gate_scope=ANN,
        tool="put",
        gate_tier="write",
        admission_tier="write",
        wire_ids=("7",),
        sent_at=WALL + 1000,
        expires_at=WALL + 1630,
    )
    ours = box.reserved(server="local:x", transport=Transport.LOCAL)
    found = box.registry.journal_row(ours.call_id, now=box.now, wall=WALL)
    assert found is not None
    assert (None, ()) == (found.expires_at, found.wire_ids)


@pytest.mark.req("P60")
def test_what_is_not_journalled() -> None:
    """Reads, unknown calls, and calls that were sent already need no row."""
    box = Box()
    row = box.registry.journal_row
    assert row(box.reserved(tier=Tier.READ).call_id, now=box.now, wall=WALL) is None
    assert row(box.sent().call_id, now=box.now, wall=WALL) is None
    assert row("pc_x", now=box.now, wall=WALL) is None


@pytest.mark.req("P60")
@pytest.mark.parametrize("end", ["response", "not_sent", "refused", "late", "cancel", "release", "expire"])
def test_a_journal_row_goes_with_the_end(end: str) -> None:
    """Whatever ends a journalled call without leaving it gating says so of its row, once."""
    box = Box()
    call = box.reserved()
    box.registry.journal_row(call.call_id, now=box.now, wall=WALL)
    if end != "not_sent":
        box.claim(call)
    if end in ("late", "cancel", "release", "expire"):
        assert ((), False) == ((mark := box.mark(call)).journal_drop, mark.journal_put)
    steps: dict[Any, Callable[[], object]] = {
        "response": lambda: box.complete(call),
        "not_sent": lambda: box.note(box.registry.not_sent(call.call_id, **box.tick())),
        "refused": lambda: box.note(box.registry.refused(call.call_id, **box.tick())),
        "late": lambda: box.late(call),
        "cancel": lambda: box.cancel(call),
        "release": lambda: box.note(box.registry.release(call.call_id, actor=ActorKind.OPERATOR, **box.tick())),
        "expire": lambda: box.expire(after=1000),
    }
    steps[end]()
    assert [(call.call_id,)] == [each.journal_drop for each in box.seen if each.journal_drop]
    box.late(call)
    assert 1 == sum(bool(each.journal_drop) for each in box.seen)


@pytest.mark.req("P60", "P38")
def test_what_gates_is_in_the_journal_even_if_it_was_not_before() -> None:
    """A write that becomes gating without a row gets one; a held call keeps it until it is settled."""
    box = Box()
    call = box.unresolved()
    (put,) = [each for each in box.seen if each.journal_put]
    assert (State.UNRESOLVED, call.call_id) == (put.after, put.call.call_id)
    box.end_epoch()
    assert {call.call_id} == set(journalled(box).journal)
    box.registry.release(call.call_id, actor=ActorKind.OPERATOR, **box.tick())
    box.note(box.registry.mark_unresolved(call, reason=Reason.CALLER_DEADLINE, **box.tick()))
    read = box.unresolved(tier=Tier.READ, lease=Lease("t2", 2))
    assert read.call_id not in journalled(box).journal
    reset = box.sent(lease=Lease("t2", 2))
    box.end_epoch(2)
    assert reset.call_id in journalled(box).journal


@pytest.mark.req("P60")
def test_a_blocker_has_the_journal_row_of_its_calls() -> None:
    """A folded call's row gives way to its blocker's, which is kept up to date, so the journal is bounded as well."""
    box = Box.of(gating=2, blockers=1, mode=Mode.OFF)
    for _ in range(10):
        box.unresolved()
    tables = journalled(box)
    (blocker,) = box.blockers()
    assert 3 == len(tables.journal)
    row = tables.journal[blocker.call.call_id]
    assert (8, "*", "write", ()) == (row.members, row.tool, row.admission_tier, row.wire_ids)
    [box.unresolved(scope="b", admission_tier=Tier.DESTRUCTIVE) for _ in range(4)]
    tables = journalled(box)
    (merged,) = box.blockers()
    row = tables.journal[merged.call.call_id]
    assert (10, "*", "destructive write", 5) == (row.members, row.gate_scope, row.admission_tier, len(tables.journal))
    box.registry.resolve_member(merged.call.call_id, outcome=LateOutcome.SUCCESS, **box.tick())
    resync = box.registry.resync(now=box.now, wall=WALL)
    assert {each.call_id: each.members for each in resync.journal} == {
        name: 9 if name == merged.call.call_id else 1 for name in tables.journal
    }


@pytest.mark.req("P57")
def test_rows_have_what_is_known() -> None:
    """A transition's row has id, state, reason, late outcome and end, and a revision that grows with each change."""
    box = Box()
    call = box.unresolved()
    box.now += 5
    box.late(call, LateOutcome.TOOL_ERROR)
    rows = [activity_row(each, wall=WALL) for each in box.seen if each.recorded]
    assert ["unresolved", "completed_late"] == [each.pending_state for each in rows]
    assert rows[0].revision < rows[1].revision
    assert rows[1] == ActivityRow(
        call_id=call.call_id,
        principal=ANN,
        gate_scope=ANN,
        server="files",
        tool="put",
        revision=box.seq,
        pending_state="completed_late",
        reason="deadline_exceeded",
        late_outcome="tool_error",
        settled_by="upstream:late_response",
        sent_at=WALL + 1000,
        unresolved_at=WALL + 1000,
        expires_at=WALL + 1630,
        resolved_at=WALL + 1005,
    )
    assert [False, False] == [each.recorded for each in box.seen[:2]], "calls in flight have none"


@pytest.mark.req("P57", "I7")
def test_a_resync_says_all_that_is_true() -> None:
    """After any losses a resync has every row, every id that is known, and the whole journal."""
    box = Box.of(gating=1, mode=Mode.OFF)
    calls = [box.unresolved() for _ in range(3)]
    read, sent = box.unresolved(tier=Tier.READ), box.sent()
    box.late(calls[2])
    pending = box.reserved()
    box.registry.journal_row(pending.call_id, now=box.now, wall=WALL)
    (blocker,) = box.blockers()
    resync = box.registry.resync(now=box.now, wall=WALL)
    assert [calls[2].call_id, read.call_id] == [row.call_id for row in resync.rows]
    assert {calls[2].call_id, read.call_id, sent.call_id, pending.call_id, blocker.call.call_id} == resync.known
    assert {blocker.call.call_id, pending.call_id} == {row.call_id for row in resync.journal}
    complete = journalled(box)
    for row in resync.rows:
        assert complete.activity[row.call_id] == row


@pytest.mark.req("P57")
def test_what_is_forgotten_is_not_known_any_more() -> None:
    """A record that was forgotten before the store had its end is in no resync, so that its row becomes untracked."""
    box = Box.of(kept=1)
    reads = [box.unresolved(tier=Tier.READ) for _ in range(2)]
    assert [True] == [each.forgotten for each in box.seen if each.event == "forget"]
    resync = box.registry.resync(now=box.now, wall=WALL)
    assert (reads[0].call_id not in resync.known, reads[1].call_id in resync.known) == (True, True)
