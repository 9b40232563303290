"""What comes back from the store after a restart."""

import attrs
import pytest

from tests.pending.box import ANN, BOB, WALL, Box, call_id
from tests.pending.tables import HTTP, Tables, again, journalled
from ztrio.pending import (
    ActorKind,
    Blocker,
    Bounds,
    JournalRow,
    LateOutcome,
    Lease,
    Mode,
    PendingSettings,
    Reason,
    Registry,
    ServerPolicy,
    State,
    Tier,
    Transport,
)


@pytest.mark.req("P60")
def test_after_a_restart() -> None:
    """HTTP calls come back unresolved and not observable, stdio ones as reset; both gate, and lists are as before."""
    box = Box.of(mode=Mode.OFF)
    sent = box.reserved(**HTTP)
    row = box.registry.journal_row(sent.call_id, wire_id=7, now=box.now, wall=WALL)
    box.claim(sent)
    waiting, piped = box.unresolved(**HTTP), box.unresolved(scope="p")
    box.cancel(waiting, told=False)
    tables = journalled(box)
    assert row is not None
    tables.journal[row.call_id] = row
    after, restored = again(tables)
    assert [] == restored.drop
    records = [after.record(call) for call in (sent, waiting, piped)]
    assert [State.UNRESOLVED, State.UNRESOLVED, State.CONNECTION_RESET] == [each.state for each in records]
    assert [(True, False)] * 3 == [(each.gating, each.observable) for each in records]
    lost, deadline = Reason.TRANSPORT_LOST, Reason.DEADLINE_EXCEEDED
    assert [lost, deadline, deadline] == [each.reason for each in records]
    assert (7,) == records[0].wire_ids
    assert after.gated()
    assert after.gated(scope="p")
    assert not after.gated(principal=BOB)
    assert box.record(waiting).expires_at + WALL == records[1].expires_at + WALL + 1000
    assert box.record(waiting).unresolved_at == (records[1].unresolved_at or 0) + 1000
    assert all(each.revision == 10_000 for each in records)
    assert [State.RECONCILED] * 2 == [each.after for each in after.read(**HTTP)]
    assert isinstance(after.registry, Registry)


@pytest.mark.req("P32", "P39", "P60")
def test_after_a_restart_somebody_can_look() -> None:
    """A gate that an earlier process shut does not make writes of the reads that a server has had all along."""
    box = Box()
    call = box.unresolved(**HTTP)
    after, _ = again(journalled(box))
    after.registry.tiers.observe("files", {"look": {"readOnlyHint": True}}, seq=after.tick()["seq"])
    assert after.gated()
    read = after.reserved(tier=None, tool="look", **HTTP)
    after.claim(read)
    assert [read.call_id, call.call_id] == [each.call.call_id for each in after.complete(read)]
    assert not after.gated()


@pytest.mark.req("P60", "P57")
def test_a_row_that_was_settled_is_not_restored() -> None:
    """Where the activity record knows the end and only the journal's row was left, the row goes and nothing gates."""
    box = Box()
    call = box.unresolved()
    journal = journalled(box).journal
    box.late(call)
    tables = Tables(journalled(box).activity, journal)
    after, restored = again(tables)
    assert ([call.call_id], []) == (restored.drop, restored.transitions)
    assert not after.gated()


@pytest.mark.req("P60", "P38")
def test_held_calls_are_held_after_a_restart() -> None:
    """A held call comes back held, with its state and reason; a settled one does not; `open` lets it go."""
    policy = ServerPolicy(on_expire="hold")
    box = Box.of(servers={"files": policy}, mode=Mode.OFF)
    expired = box.unresolved(scope="e", lease=Lease("t2", 2), **HTTP)
    reset, settled = box.unresolved(scope="r"), box.unresolved(scope="s")
    box.end_epoch()
    box.late(reset, LateOutcome.TOOL_ERROR)
    before = journalled(box).journal
    box.registry.release(settled.call_id, actor=ActorKind.OPERATOR, **box.tick())
    box.expire(after=1000)
    tables = journalled(box)
    tables.activity[settled.call_id] = attrs.evolve(tables.activity[settled.call_id], settled_by="operator:release")
    tables.journal = before | tables.journal
    after, restored = again(tables, servers={"files": policy})
    assert [settled.call_id] == restored.drop
    assert [State.EXPIRED, State.CONNECTION_RESET] == [after.state(expired), after.state(reset)]
    assert after.gated(scope="e")
    assert after.gated(scope="r")
    assert LateOutcome.TOOL_ERROR == after.record(reset).late_outcome
    assert box.record(reset).resolved_at == (after.record(reset).resolved_at or 0) + 1000
    after.expire(after=1e9)
    assert after.gated(scope="e")
    _, restored = again(tables, servers={"files": ServerPolicy(on_reset="open")})
    assert {expired.call_id, reset.call_id, settled.call_id} == set(restored.drop)


@pytest.mark.req("P60")
@pytest.mark.parametrize("state", ["untracked", "cancelling", "unresolved"])
def test_rows_that_do_not_say_how_it_ended(state: str) -> None:
    """A call whose row is open, or whose row was given up, comes back from the journal all the same."""
    box = Box()
    call = box.unresolved(**HTTP)
    tables = journalled(box)
    tables.activity[call.call_id] = attrs.evolve(
        tables.activity[call.call_id], pending_state=state, reason=None, unresolved_at=None
    )
    after, _ = again(tables)
    assert State.UNRESOLVED == after.state(call)
    assert Reason.TRANSPORT_LOST == after.record(call).reason


@pytest.mark.req("P60")
def test_our_own_tools_after_a_restart() -> None:
    """An entry of a tool of ours comes back unresolved, without end, with its reason."""
    box = Box()
    call = box.sent(server="local:boards", transport=Transport.LOCAL, lease=Lease("", 0))
    box.mark(call, Reason.EXTERNAL_EFFECTS, observable=False)
    after, _ = again(journalled(box))
    record = after.record(call)
    assert (State.UNRESOLVED, True, Reason.EXTERNAL_EFFECTS) == (record.state, record.gating, record.reason)
    after.expire(after=1e9)
    assert after.gated(server="local:boards")


@pytest.mark.req("P60", "P15")
@pytest.mark.parametrize("transport", [Transport.HTTP, Transport.STDIO])
def test_blockers_after_a_restart(transport: Transport) -> None:
    """A blocker comes back with its count, tiers and end; of a process it stays until settled, or goes if open."""
    box = Box.of(gating=1, mode=Mode.OFF)
    for tier in (Tier.WRITE, Tier.DESTRUCTIVE, Tier.WRITE):
        box.unresolved(admission_tier=tier, transport=transport)
    tables = journalled(box)
    after, _ = again(tables, gating=1)
    (blocker,) = after.blockers()
    assert (2, frozenset({Tier.WRITE, Tier.DESTRUCTIVE}), False) == (
        blocker.count,
        blocker.tiers,
        blocker.was_observable,
    )
    assert (transport is Transport.STDIO) == blocker.stays
    after.expire(after=10_000)
    assert (transport is Transport.STDIO) == after.gated()
    _, restored = again(tables, servers={"files": ServerPolicy(on_reset="open")})
    assert (2 if transport is Transport.STDIO else 0) == len(restored.drop)


@pytest.mark.req("P60", "P38")
def test_a_blocker_that_stays_does_so_after_a_restart() -> None:
    """A blocker in which a call is held comes back without an end, so that time cannot open it."""
    policies = {"files": ServerPolicy(on_expire="hold")}
    box = Box.of(gating=1, mode=Mode.OFF, servers=policies)
    for _ in range(2):
        box.unresolved(**HTTP)
    (blocker,) = box.blockers()
    assert 1630 == blocker.ends_at
    box.expire(after=630)
    assert (True, float("inf")) == (blocker.stays, blocker.ends_at)
    assert journalled(box).journal[blocker.call.call_id].expires_at is None
    after, _ = again(journalled(box), gating=1)
    (restored,) = after.blockers()
    after.expire(after=1e9)
    assert restored.gating


@pytest.mark.req("P60", "P14")
def test_the_caps_hold_after_a_restart() -> None:
    """With smaller caps than before everything still gates, folded as far as needed."""
    box = Box.of(mode=Mode.OFF)
    for scope in ("a", "b", "c"):
        [box.unresolved(scope=scope, **HTTP) for _ in range(16)]
    after, restored = again(journalled(box), gating=2, records=6, blockers=2)
    assert [] == restored.drop
    assert 6 >= after.registry.statistics().records
    for scope in ("a", "b", "c"):
        assert after.registry.gates("files", ANN, scope)
    counts = [each.count if isinstance(each, Blocker) else 1 for each in after.registry.entries(ANN)]
    assert 48 == sum(counts)


@pytest.mark.req("P60", "P14")
def test_what_cannot_be_folded_is_kept_beyond_the_cap() -> None:
    """One call on each of more servers than records fit comes back whole: what gates is never dropped."""
    box = Box.of(mode=Mode.OFF)
    for number in range(6):
        box.unresolved(server=f"s{number}", **HTTP)
    after, restored = again(journalled(box), records=3, blockers=2)
    assert [] == restored.drop
    assert all(after.registry.gates(f"s{number}", ANN, ANN) for number in range(6))


@pytest.mark.req("P60", "P16")
def test_blockers_that_meet_after_a_restart() -> None:
    """A blocker of all scopes takes those of single scopes in, whichever comes back first, and nothing is lost."""

    def row(number: int, scope: str, members: int) -> JournalRow:
        return JournalRow(
            call_id=call_id(number).replace("pc_", "pcb_"),
            seq=number,
            server="files",
            transport="http",
            epoch=number,
            principal=ANN,
            gate_scope=scope,
            tool="*",
            gate_tier="write",
            admission_tier="write",
            wire_ids=(),
            sent_at=WALL,
            expires_at=WALL + 5000,
            members=members,
        )

    first = Tables(
        journal={str(each.seq): each for each in (row(1, "a", 2), row(2, "b", 3), row(3, "*", 5), row(4, "c", 7))}
    )
    box, _ = again(first)
    (wide,) = box.blockers()
    assert (17, "*", 4) == (wide.count, wide.call.gate_scope, wide.call.lease.epoch)
    assert {call_id(number).replace("pc_", "pcb_") for number in (1, 2, 4)} == {
        name for each in box.seen for name in each.journal_drop
    }
    twice = Tables(journal={"1": row(1, "a", 2), "2": row(2, "a", 3)})
    box, _ = again(twice)
    assert [5] == [each.count for each in box.blockers()]
    many = Tables(journal={str(number): row(number, f"s{number}", 1) for number in range(1, 6)})
    box, _ = again(many, blockers=2, records=3)
    assert 5 == sum(each.count for each in box.blockers())
    assert 3 >= box.registry.statistics().records
    assert box.registry.gates("files", ANN, "s1")
    box, _ = again(many, blockers=2)
    assert [(5, "*")] == [(each.count, each.call.gate_scope) for each in box.blockers()]
    box, _ = again(many, blockers=9, records=3)
    assert 5 == sum(each.count for each in box.blockers())
    assert 3 >= box.registry.statistics().records


@pytest.mark.req("P60", "P13")
def test_somebody_who_is_not_configured_any_more() -> None:
    """Its calls come back while there is an account to spare, and are given up when there is none."""
    box = Box()
    call = box.unresolved(principal=BOB, **HTTP)
    tables = journalled(box)
    registry = Registry(PendingSettings(principals=(ANN,), bounds=Bounds(principals=3)))
    registry.restore(tables.journal.values(), tables.activity, now=0.0, wall=WALL, seq=99)
    assert registry.gates("files", BOB, BOB)
    registry = Registry(PendingSettings(principals=(ANN,), bounds=Bounds(principals=2)))
    restored = registry.restore(tables.journal.values(), tables.activity, now=0.0, wall=WALL, seq=99)
    assert [call.call_id] == restored.drop
