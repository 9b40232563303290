"""The way of a call: check, claim, response, and the ends of a wait."""

import ast
import inspect
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

import ztrio.pending
from tests.pending.box import Box, call_id
from ztrio.pending import (
    ActorKind,
    Call,
    LateOutcome,
    Lease,
    Reason,
    Record,
    Refusal,
    Registry,
    Rejected,
    State,
    Tier,
    Transport,
)

FOLDER = Path(ztrio.pending.__file__).parent


@pytest.mark.req("P3", "I1")
@pytest.mark.parametrize("why", ["cancelled", "deadline", "exactly at the deadline"])
def test_a_caller_who_left_before_the_claim_has_sent_nothing(why: str) -> None:
    """A claim for a caller who is cancelled, or whose time is up, is refused: the call is `not_sent` and gone."""
    box = Box()
    call = box.reserved()
    facts: dict[str, dict[str, Any]] = {
        "cancelled": {"cancelled": True},
        "deadline": {"deadline": box.now - 1},
        "exactly at the deadline": {"deadline": box.now},
    }
    assert State.NOT_SENT == box.claim(call, **facts[why])
    assert box.state(call) is None
    assert not box.gated()
    assert [] == box.registry.entries()
    assert State.NOT_SENT == box.mark(call).after, "the caller hears that nothing was sent"
    assert State.NOT_SENT == box.claim(call), "and the writer too, should it come again"


@pytest.mark.req("P3")
def test_a_wait_that_ends_before_the_claim() -> None:
    """A caller whose wait ends while its frame is queued has sent nothing, and the writer does not write it then."""
    box = Box()
    call = box.reserved()
    assert State.NOT_SENT == box.mark(call).after
    assert [] == box.registry.claim(call.call_id, wire_id=7, **box.tick())
    assert [] == box.registry.entries()
    assert box.registry.match("t1", 7) is None


@pytest.mark.req("P3", "P44")
def test_frames_behind_a_blocked_pipe() -> None:
    """Frames still queued when the connection ends are `not_sent`, and their callers hear so whenever they ask."""
    box = Box()
    calls = [box.reserved() for _ in range(3)]
    assert [State.NOT_SENT] * 3 == [each.after for each in box.end_epoch()]
    assert [State.NOT_SENT] * 3 == [box.mark(call).after for call in calls]
    assert [State.NOT_SENT] * 3 == [box.claim(call) for call in calls]
    assert 0 == box.registry.statistics().records


@pytest.mark.req("P3")
def test_callers_who_have_not_heard_are_remembered_within_bounds() -> None:
    """Of the calls that were not sent as many are remembered as can be in flight, and no more."""
    box = Box.of(in_flight=4)
    calls = []
    for _ in range(5):
        calls.append(box.reserved())
        box.note(box.registry.not_sent(calls[-1].call_id, **box.tick()))
    after = [box.mark(call).after for call in calls]
    assert [State.UNRESOLVED] + [State.NOT_SENT] * 4 == after
    assert not box.mark(calls[0]).changed


@pytest.mark.req("P3", "P8")
def test_a_call_is_claimed_once() -> None:
    """After the first byte a second claim, or word that it was not sent, raises and changes nothing."""
    box = Box()
    call = box.sent()
    before = attrs.asdict(box.record(call), recurse=False)
    with pytest.raises(Rejected, match="sent_already"):
        box.claim(call)
    with pytest.raises(Rejected, match="sent_already"):
        box.registry.not_sent(call.call_id, **box.tick())
    with pytest.raises(Rejected, match="not_unresolved"):
        box.registry.release(call.call_id, actor=ActorKind.OPERATOR, **box.tick())
    assert before == attrs.asdict(box.record(call), recurse=False)


@pytest.mark.req("P10", "P13")
def test_an_id_is_begun_once() -> None:
    """A second check of a call on the books is a mistake: it raises, and the record is what it was, whoever asks."""
    box = Box()
    call = box.sent()
    record = box.record(call)
    for again in (call, call.evolved(principal="bob")):
        with pytest.raises(Rejected, match="begun_already"):
            box.begin(again)
    assert record is box.record(call)
    assert 1 == box.registry.statistics().records


@pytest.mark.req("P4", "I1")
def test_only_sent_calls_become_unresolved() -> None:
    """A reserved call cannot become unresolved; a sent one does, with its reason and its code, and gates."""
    box = Box()
    assert State.NOT_SENT == box.mark(box.reserved()).after
    marked = box.mark(box.sent(), Reason.TRANSPORT_LOST)
    assert (State.UNRESOLVED, "CALL_UNRESOLVED", True) == (marked.after, marked.code, marked.gating)
    assert box.gated()


@pytest.mark.req("P4", "P44")
def test_a_process_that_dies() -> None:
    """Callers get `UPSTREAM_DIED` first, then the end of the epoch makes the entry `connection_reset`, still gating."""
    box = Box()
    call = box.sent()
    marked = box.mark(call, Reason.TRANSPORT_LOST, died=True)
    assert (State.UNRESOLVED, "UPSTREAM_DIED") == (marked.after, marked.code)
    (reset,) = box.end_epoch()
    assert (State.CONNECTION_RESET, True, "UPSTREAM_DIED") == (reset.after, reset.gating, reset.code)


@pytest.mark.req("P4")
def test_a_refusal_by_the_upstream_proves_that_nothing_happened() -> None:
    """A response that proves the request was not processed ends a sent call as `not_sent`, a later one as proven."""
    box = Box()
    early, late = box.sent(), box.unresolved()
    assert State.NOT_SENT == box.note(box.registry.refused(early.call_id, **box.tick()))[0].after
    assert State.PROVEN == box.note(box.registry.refused(late.call_id, **box.tick()))[0].after
    assert not box.gated()
    assert [] == box.registry.refused(early.call_id, **box.tick())
    with pytest.raises(Rejected, match="not_sent_yet"):
        box.registry.refused(box.reserved().call_id, **box.tick())


@pytest.mark.req("P5")
def test_still_running_is_told_apart() -> None:
    """A deadline becomes `still_running` when progress was seen within the last 30 s; other reasons stay."""
    box = Box()
    reasons = []
    for age, reason in ((30, Reason.DEADLINE_EXCEEDED), (31, Reason.DEADLINE_EXCEEDED), (0, Reason.CALLER_DEADLINE)):
        call = box.sent(scope=f"s{age}")
        box.registry.progress(call.call_id, now=box.now)
        box.now += age
        reasons.append(box.mark(call, reason).reason)
    assert [Reason.STILL_RUNNING, Reason.DEADLINE_EXCEEDED, Reason.CALLER_DEADLINE] == reasons
    box.registry.progress("pc_unknown", now=box.now)


@pytest.mark.req("P7")
def test_the_last_moment_is_fixed_at_the_claim() -> None:
    """`expires_at` is the claim plus the ceiling plus ten minutes, however long the wait; our own tools have none."""
    box = Box()
    call = box.reserved(ceiling=40.0)
    box.now += 5
    box.claim(call)
    box.now += 17
    box.mark(call)
    assert 1005.0 + 40 + 600 == box.record(call).expires_at == box.registry.next_expiry()
    ours = box.unresolved(server="local:boards", transport=Transport.LOCAL, lease=Lease("", 0))
    assert float("inf") == box.record(ours).expires_at
    assert [State.EXPIRED] == [each.after for each in box.expire(after=100_000)]
    assert State.UNRESOLVED == box.state(ours)


@pytest.mark.req("P7")
def test_order_is_decided_by_sequence_numbers() -> None:
    """A read reconciles by its number and not by its time, even while the clock stands still or goes back."""
    box = Box()
    call = box.unresolved(observable=False)
    box.now -= 500
    read = box.reserved(tier=Tier.READ)
    box.claim(read)
    box.complete(read)
    assert State.RECONCILED == box.state(call)


@pytest.mark.req("P8")
def test_the_core_is_plain_functions() -> None:
    """No module knows trio, a clock, chance, logging or files, and no function of the registry is a coroutine."""
    forbidden = {"trio", "time", "random", "secrets", "logging", "os", "io", "threading", "outcome", "socket", "uuid"}
    for path in FOLDER.glob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            assert not isinstance(node, ast.AsyncFunctionDef | ast.Await), path
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.partition(".")[0] not in forbidden, (path, name)
                assert not name.startswith("ztrio.") or name.startswith(
                    ("ztrio.pending", "ztrio.calls", "ztrio.errors")
                )
    for name, method in inspect.getmembers(Registry, inspect.isfunction):
        assert not inspect.iscoroutinefunction(method), name
        assert not inspect.isgeneratorfunction(method), name


@pytest.mark.req("P8")
def test_a_refusal_changes_nothing() -> None:
    """A call that the gate or a quota refuses leaves every list, count and index as it was, but for the count of it."""
    box = Box.of(in_flight=2)
    box.unresolved()
    box.reserved(tier=Tier.READ)
    box.reserved(tier=Tier.READ)
    before = (box.listed(), attrs.evolve(box.registry.statistics(), refused=0))
    gated, full = box.begin(box.call()), box.begin(box.call(tier=Tier.READ))
    assert isinstance(gated, Refusal)
    assert isinstance(full, Refusal)
    assert ("PENDING_CALL_UNRESOLVED", "PENDING_REGISTRY_FULL") == (gated.code, full.code)
    assert before == (box.listed(), attrs.evolve(box.registry.statistics(), refused=0))
    assert 2 == box.registry.statistics().refused


@pytest.mark.req("P10")
def test_records_are_made_by_the_check_alone() -> None:
    """Whatever is told of a call that no check has begun, nothing is made of it."""
    box = Box()
    stranger, registry = box.call(), box.registry
    name = stranger.call_id
    assert State.UNRESOLVED == box.mark(stranger).after
    assert [] == registry.claim(name, wire_id=1, **box.tick())
    assert [] == registry.complete(name, succeeded=True, **box.tick())
    assert [] == registry.resolve_late(name, outcome=LateOutcome.SUCCESS, **box.tick())
    assert [] == registry.not_sent(name, **box.tick())
    assert [] == registry.finish_cancel(name, told=True, frame_sent=True, **box.tick())
    assert [] == registry.lose_sight(name, **box.tick())
    registry.next_round(name, wire_id=3)
    registry.acknowledge([(name, 5)], now=box.now)
    for operation in (registry.claim_cancel, registry.release):
        with pytest.raises(Rejected, match="unknown"):
            operation(name, actor=ActorKind.OPERATOR, **box.tick())
    assert 0 == registry.statistics().records
    assert [] == box.seen


@pytest.mark.req("P10", "P12")
def test_a_transition_rewrites_its_record_in_place() -> None:
    """From the check to the end a call is one object."""
    box = Box()
    call = box.reserved()
    record = box.record(call)
    box.claim(call)
    box.mark(call)
    box.cancel(call)
    assert record is box.record(call)


@pytest.mark.req("P11")
def test_what_a_record_knows() -> None:
    """Call, lease with epoch, principal, scope, tool, tiers, typed ids, numbers, times, reason, outcome, lineage."""
    box = Box()
    call = box.reserved(lineage=call_id(99), admission_tier=Tier.DESTRUCTIVE)
    box.claim(call, wire_id="7")
    box.registry.next_round(call.call_id, wire_id=7)
    box.mark(call)
    box.late(call, LateOutcome.TOOL_ERROR)
    record = box.record(call)
    assert (call, Tier.WRITE, Tier.DESTRUCTIVE) == (record.call, record.gate_tier, record.call.admission_tier)
    assert (1, 2, 3, 4) == (record.begun_seq, record.sent_seq, record.unresolved_seq, record.revision)
    assert ("7", 7) == record.wire_ids
    assert [str, int] == [type(each) for each in record.wire_ids]
    assert (ActorKind.UPSTREAM, LateOutcome.TOOL_ERROR) == (record.actor, record.late_outcome)
    assert call_id(99) == record.call.root
    assert call.call_id == call.evolved(lineage=None).root


@pytest.mark.req("P11")
def test_rounds_are_bounded() -> None:
    """Of the ids that a call had on the wire the newest eight are kept."""
    box = Box()
    call = box.sent()
    for number in range(100, 120):
        box.registry.next_round(call.call_id, wire_id=number)
    assert tuple(range(112, 120)) == box.record(call).wire_ids
    assert call.call_id == box.registry.match("t1", 119)
    assert box.registry.match("t1", 118) is None
    box.mark(call)
    box.registry.next_round(call.call_id, wire_id=120)
    assert 119 == box.record(call).wire_ids[-1], "no round begins after the wait"


@pytest.mark.req("P12")
def test_there_is_no_place_for_arguments() -> None:
    """Neither a call, a record nor a transition has a field for arguments or results, and all fields are known."""
    for kind in (Call, Record, ztrio.pending.Transition, ztrio.pending.ActivityRow, ztrio.pending.JournalRow):
        names = set(kind.__annotations__)
        assert not {name for name in names if "arg" in name or "result" in name or "content" in name or "value" in name}
        assert hasattr(kind, "__slots__"), "nothing can be hung on it either"


def test_the_core_loads_without_an_event_loop() -> None:
    """Whoever imports the library does not import trio."""
    import subprocess

    code = "import sys, ztrio.pending; sys.exit('trio' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=FOLDER.parent.parent)
