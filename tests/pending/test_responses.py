"""Responses: in time, late, twice, and of nobody."""

from pathlib import Path

import pytest

import ztrio.pending
from tests.pending.box import Box
from ztrio.pending import (
    LateOutcome,
    Rejected,
    State,
)

FOLDER = Path(ztrio.pending.__file__).parent


@pytest.mark.req("P24")
@pytest.mark.parametrize("outcome", list(LateOutcome))
def test_late_outcomes(outcome: LateOutcome) -> None:
    """Each kind of late response completes the call late, is noted, and opens the gate."""
    box = Box()
    call = box.unresolved()
    (resolved,) = box.late(call, outcome)
    assert (State.COMPLETED_LATE, outcome, "upstream:late_response") == (
        resolved.after,
        resolved.late_outcome,
        resolved.settled_by,
    )
    assert not box.gated()


@pytest.mark.req("P24", "P2")
@pytest.mark.parametrize("state", [State.CANCELLED, State.CONNECTION_RESET])
def test_the_first_late_outcome_stays(state: State) -> None:
    """A response after a cancel or a reset is noted once; another one changes nothing and is counted."""
    box = Box()
    call = box.unresolved()
    box.cancel(call) if state is State.CANCELLED else box.end_epoch()
    (noted,) = box.late(call, LateOutcome.TOOL_ERROR)
    assert ("annotate", state, LateOutcome.TOOL_ERROR) == (noted.event, noted.after, noted.late_outcome)
    (again,) = box.late(call)
    assert (False, LateOutcome.TOOL_ERROR) == (again.changed, box.record(call).late_outcome)
    assert 1 == box.registry.statistics().unmatched


@pytest.mark.req("P25")
def test_a_response_between_the_deadline_and_the_entry() -> None:
    """A response that comes after the wait and before its entry is made completes late, and the caller is told so."""
    box = Box()
    call = box.sent()
    (resolved,) = box.late(call)
    assert (State.COMPLETED_LATE, State.SENT, True) == (resolved.after, resolved.before, resolved.recorded)
    marked = box.mark(call)
    assert (State.COMPLETED_LATE, False, LateOutcome.SUCCESS) == (marked.after, marked.changed, marked.late_outcome)
    assert not box.gated()


@pytest.mark.req("P2", "P28")
def test_a_response_in_time() -> None:
    """A response to a waiting caller ends the call without a trace; after the end of the wait that is a mistake."""
    box = Box()
    call = box.sent()
    assert State.COMPLETED == box.complete(call)[0].after
    assert 0 == box.registry.statistics().records
    with pytest.raises(Rejected, match="wait_is_over"):
        box.complete(box.unresolved())


@pytest.mark.req("P28")
def test_responses_are_matched_by_typed_ids() -> None:
    """`7` and `"7"` are two calls; ids of other transports, of the past and of nobody match nothing and are counted."""
    box = Box()
    number, text = box.reserved(), box.reserved()
    box.claim(number, wire_id=7)
    box.claim(text, wire_id="7")
    match = box.registry.match
    assert (number.call_id, text.call_id) == (match("t1", 7), match("t1", "7"))
    box.complete(number)
    assert [None] * 3 == [match("t1", 7), match("t2", "7"), match("t1", 8)]
    box.mark(text)
    assert text.call_id == match("t1", "7"), "a late response is awaited"
    box.late(text)
    assert match("t1", "7") is None
    assert 4 == box.registry.statistics().unmatched


@pytest.mark.req("P28")
def test_an_id_that_is_used_again_belongs_to_the_newer_call() -> None:
    """When a transport uses an id twice, the end of the older call does not unhook the newer one."""
    box = Box()
    older, newer = box.reserved(), box.reserved()
    box.claim(older, wire_id=7)
    box.claim(newer, wire_id=7)
    box.complete(older)
    assert newer.call_id == box.registry.match("t1", 7)


@pytest.mark.req("P28")
def test_a_duplicate_response() -> None:
    """The second response to a call is dropped and counted."""
    box = Box()
    call = box.unresolved()
    box.late(call)
    (again,) = box.late(call, LateOutcome.TOOL_ERROR)
    assert not again.changed
    assert LateOutcome.SUCCESS == box.record(call).late_outcome
    assert [] == box.late(box.call())
    assert 2 == box.registry.statistics().unmatched
    with pytest.raises(Rejected, match="not_sent_yet"):
        box.late(box.reserved())
