"""Cancels in three steps, and every race with them."""

import pytest

from tests.pending.box import Box
from ztrio.pending import (
    ActorKind,
    CancelError,
    LateOutcome,
    Lease,
    Proof,
    Rejected,
    ServerPolicy,
    State,
)

CALLER = ActorKind.CALLER


def claim(box: Box, call: object) -> bool:
    """Whether this canceller won."""
    found = box.registry.claim_cancel(call.call_id, actor=CALLER, **box.tick())  # type: ignore[attr-defined]
    return found[0].changed


@pytest.mark.req("P40")
def test_a_cancel() -> None:
    """Claim, send, finish: gating stays on until the upstream was told, and `cancelled` says that it was."""
    box = Box()
    call = box.unresolved()
    (claimed,) = box.note(box.registry.claim_cancel(call.call_id, actor=CALLER, **box.tick()))
    assert (State.CANCELLING, True, CALLER, True) == (
        claimed.after,
        claimed.gating,
        claimed.actor,
        claimed.cancel_requested,
    )
    assert box.gated()
    (told,) = box.note(box.registry.finish_cancel(call.call_id, told=True, frame_sent=True, **box.tick()))
    assert (State.CANCELLED, False, "caller:cancel_told") == (told.after, told.gating, told.settled_by)
    assert not box.gated()


@pytest.mark.req("P40", "I8")
def test_twenty_cancels_at_once() -> None:
    """Of twenty cancellers one wins and sends; the others change nothing and find the same answer."""
    box = Box()
    call = box.unresolved()
    assert [True] + [False] * 19 == [claim(box, call) for _ in range(20)]
    assert State.CANCELLED == box.finish(call)
    assert [False] * 20 == [claim(box, call) for _ in range(20)]


@pytest.mark.req("P40")
def test_a_call_that_somebody_waits_for_is_not_cancelled() -> None:
    """A claim on a reserved or sent call is rejected: a client's own cancel makes it unresolved first."""
    box = Box()
    for call in (box.reserved(), box.sent()):
        with pytest.raises(Rejected, match="not_unresolved"):
            claim(box, call)
    with pytest.raises(Rejected, match="cancel_not_claimed"):
        box.finish(call)
    with pytest.raises(Rejected, match="cancel_not_claimed"):
        box.finish(box.unresolved())


@pytest.mark.req("P40")
@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_late_response_and_a_cancel(when: str, told: bool) -> None:
    """Before the claim or during the send the response wins; after it, it is noted on the cancelled call."""
    box = Box()
    call = box.unresolved()
    record = box.record(call)
    if when == "before":
        box.late(call)
        assert not claim(box, call)
        assert State.COMPLETED_LATE == box.finish(call, told=told)
        assert not record.cancel_requested
    elif when == "during":
        claim(box, call)
        (late,) = box.late(call)
        assert (State.COMPLETED_LATE, True, False) == (late.after, late.cancel_requested, late.gating)
        assert State.COMPLETED_LATE == box.finish(call, told=told)
    else:
        claim(box, call)
        state = box.finish(call, told=told)
        (late,) = box.late(call)
        assert (State.CANCELLED if told else State.UNRESOLVED) == state
        assert (State.CANCELLED if told else State.COMPLETED_LATE) == late.after
        assert LateOutcome.SUCCESS == record.late_outcome


@pytest.mark.req("P40")
@pytest.mark.parametrize("told", [False, True])
def test_expiry_during_a_cancel(told: bool) -> None:
    """A call that is being cancelled does not expire; if nothing was told it does right after."""
    box = Box()
    call = box.unresolved()
    claim(box, call)
    assert [] == box.expire(after=10_000)
    assert (State.CANCELLED if told else State.UNRESOLVED) == box.finish(call, told=told)
    assert ([] if told else [State.EXPIRED]) == [each.after for each in box.expire()]


@pytest.mark.req("P40")
def test_an_expiry_that_comes_after_a_failed_cancel() -> None:
    """A cancel that told nobody, long before the last moment, does not keep the call from expiring then."""
    box = Box()
    call = box.unresolved()
    claim(box, call)
    box.finish(call, told=False)
    assert [State.EXPIRED] == [each.after for each in box.expire(after=630)]


@pytest.mark.req("P40", "P44")
@pytest.mark.parametrize("told", [False, True])
def test_a_reset_during_a_cancel(told: bool) -> None:
    """The reset wins, carries that a cancel was asked for, and stays gating; finishing changes nothing any more."""
    box = Box()
    call = box.unresolved()
    claim(box, call)
    (reset,) = box.end_epoch()
    assert (State.CONNECTION_RESET, True, True) == (reset.after, reset.cancel_requested, reset.gating)
    assert State.CONNECTION_RESET == box.finish(call, told=told)
    assert box.record(call).gating


@pytest.mark.req("P40")
def test_a_proof_during_a_cancel() -> None:
    """A proof that comes while the upstream is being told wins."""
    box = Box()
    call = box.unresolved()
    claim(box, call)
    box.registry.proven(call.call_id, outcome=Proof.ROLLED_BACK, **box.tick())
    assert State.PROVEN == box.finish(call)


@pytest.mark.req("P40")
def test_when_nothing_was_told() -> None:
    """The call is unresolved again, gating all the while, and may be cancelled once more."""
    box = Box()
    call = box.unresolved()
    assert State.UNRESOLVED == box.cancel(call, told=False)
    assert box.gated()
    assert State.CANCELLED == box.cancel(call)


@pytest.mark.req("P40", "I8")
def test_at_most_one_frame_per_call() -> None:
    """When a byte of a cancel may have gone out there is no second claim, and the call is settled otherwise."""
    box = Box()
    call = box.unresolved()
    assert State.UNRESOLVED == box.cancel(call, told=False, frame_sent=True)
    with pytest.raises(Rejected, match="already_sent"):
        claim(box, call)
    assert box.gated()
    box.end_epoch()
    with pytest.raises(Rejected, match="already_sent"):
        claim(box, call)
    box.registry.release(call.call_id, actor=ActorKind.OPERATOR, **box.tick())
    assert not claim(box, call)
    other = box.unresolved(lease=Lease("t2", 2))
    box.cancel(other)
    assert not claim(box, other), "it is over, and that is the answer"


@pytest.mark.req("P40", "I8")
@pytest.mark.parametrize(("told", "frame_sent"), [(True, False), (False, True)])
def test_a_cancel_that_went_out_while_the_connection_ended(told: bool, frame_sent: bool) -> None:
    """The call is held by the reset that came first; no second cancel goes out, whatever is said of it later."""
    box = Box()
    call = box.unresolved()
    claim(box, call)
    box.end_epoch()
    assert State.CONNECTION_RESET == box.finish(call, told=told, frame_sent=frame_sent)
    box.finish(call, told=False)
    with pytest.raises(Rejected, match="already_sent"):
        claim(box, call)
    assert box.record(call).gating


@pytest.mark.req("P40", "P38")
def test_cancelling_a_held_call() -> None:
    """A held call is claimed by one, keeps its state and gate meanwhile, and is settled only when told."""
    box = Box.of(servers={"files": ServerPolicy(on_expire="hold")})
    call = box.unresolved()
    box.expire(after=1000)
    assert [True, False] == [claim(box, call), claim(box, call)]
    assert (State.EXPIRED, True, True) == (box.state(call), box.gated(), box.record(call).cancel_requested)
    (back,) = box.registry.finish_cancel(call.call_id, told=False, frame_sent=False, **box.tick())
    assert (State.EXPIRED, True, True) == (back.after, back.changed, back.gating)
    assert not box.registry.finish_cancel(call.call_id, told=False, frame_sent=False, **box.tick())[0].changed
    assert claim(box, call)
    assert State.EXPIRED == box.finish(call)
    assert ("caller:cancel_told", False) == (box.record(call).settled_by, box.gated())
    assert box.registry.finish_cancel("pc_x", told=True, frame_sent=True, **box.tick()) == []


@pytest.mark.req("P40")
def test_a_proof_of_a_held_call_that_is_being_cancelled() -> None:
    """A proof settles it, and the canceller finds it settled."""
    box = Box()
    call = box.unresolved()
    box.end_epoch()
    claim(box, call)
    box.registry.proven(call.call_id, outcome=Proof.COMMITTED, **box.tick())
    assert ("upstream:proof", False) == (box.record(call).settled_by, box.record(call).claimed)
    box.finish(call)
    assert "upstream:proof" == box.record(call).settled_by


@pytest.mark.req("P11", "P40")
def test_what_a_cancel_goes_by() -> None:
    """The record has the transport captured at dispatch and the latest round's id with its type."""
    box = Box()
    call = box.reserved()
    box.claim(call, wire_id="7")
    box.registry.next_round(call.call_id, wire_id=8)
    box.mark(call)
    record = box.record(call)
    assert (Lease("t1", 1), 8, int) == (record.call.lease, record.wire_ids[-1], type(record.wire_ids[-1]))
    assert {"transport_closed", "unsupported_transport", "send_failed", "id_unknown"} == set(CancelError)
