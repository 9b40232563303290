"""The one object that every surface returns."""

from typing import Any

import attrs
import jsonschema
import pytest

from tests.pending.box import ANN, SECRET, WALL, Box, call_id, context
from tests.pending.states import in_state
from ztrio.pending import (
    PENDING_CALL_SCHEMA,
    Action,
    ActivityRow,
    LateOutcome,
    Lease,
    Mode,
    Reason,
    Record,
    State,
    Tier,
    Transport,
    Way,
    activity_of,
    describe,
    open_scope_handle,
    pending_call,
    ways_out,
)


def shown(box: Box, entry: Record | ActivityRow, **view: Any) -> dict[str, Any]:
    """The object, checked against the schema."""
    caller = context(**view)
    ways = ways_out(entry, context=caller, read_tools=["look"], reachable=True) if isinstance(entry, Record) else []
    found = pending_call(entry, context=caller, ways=ways, secret=SECRET, now=box.now, wall=WALL)
    jsonschema.Draft202012Validator(PENDING_CALL_SCHEMA).validate(found)
    assert describe(found, ways=ways, now=box.now)
    return found


@pytest.mark.req("P54")
def test_a_pending_call() -> None:
    """All fields of an unresolved call, with wall times and the ways out."""
    box = Box()
    call = box.sent()
    box.now += 30
    box.mark(call)
    found = shown(box, box.record(call))
    expected = {
        "call_id": call.call_id,
        "server": "files",
        "tool": "put",
        "state": "unresolved",
        "reason": "deadline_exceeded",
        "connection_generation": 1,
        "transport": "stdio",
        "upstream_may_still_be_running": True,
        "late_completion_observable": True,
        "sent_at": "2023-11-14T22:30:00.000+00:00",
        "unresolved_at": "2023-11-14T22:30:30.000+00:00",
        "expires_at": "2023-11-14T22:40:30.000+00:00",
        "scope": found["scope"],
        "resolve": [
            {"action": "wait", "seconds": 600.0},
            {"action": "reconcile", "tools": ["look"]},
            {"action": "cancel"},
        ],
        "gating": True,
    }
    assert expected == found
    assert ANN == open_scope_handle(SECRET, ANN, found["scope"])


@pytest.mark.req("P54")
def test_the_schema_is_strict() -> None:
    """The schema is a valid one, and refuses a missing, an additional or a wrong field."""
    jsonschema.Draft202012Validator.check_schema(PENDING_CALL_SCHEMA)
    box = Box()
    good = shown(box, box.record(box.unresolved()))
    validator = jsonschema.Draft202012Validator(PENDING_CALL_SCHEMA)
    for name in PENDING_CALL_SCHEMA["required"]:
        assert not validator.is_valid({key: value for key, value in good.items() if key != name})
    assert not validator.is_valid(good | {"arguments": {}})
    assert not validator.is_valid(good | {"state": "maybe"})


MAY_RUN = {
    State.RESERVED,
    State.SENT,
    State.UNRESOLVED,
    State.CANCELLING,
    State.CANCELLED,
    State.RECONCILED,
    State.RELEASED,
    State.EXPIRED,
}


@pytest.mark.req("P54")
@pytest.mark.parametrize("state", list(State))
def test_every_state_is_shown(state: State) -> None:
    """Each state, as a record and as a row, fits the schema, has words, and says whether it may still run."""
    box = Box()
    record = in_state(box, state)
    assert state is record.state
    found = shown(box, record)
    assert (state in MAY_RUN) == found["upstream_may_still_be_running"]
    assert (state in (State.UNRESOLVED, State.CANCELLING, State.CONNECTION_RESET)) == bool(found["resolve"])
    row = shown(box, activity_of(record, wall=WALL))
    assert (found["call_id"], found["state"], found["reason"]) == (row["call_id"], row["state"], row["reason"])
    assert (found["sent_at"], found["scope"]) == (row["sent_at"], row["scope"])
    assert [] == row["resolve"]


@pytest.mark.req("P54")
def test_rows_of_calls_that_nobody_knows_any_more() -> None:
    """An untracked call is shown from its row, and may still run unless a late outcome was noted."""
    box = Box()
    record = box.record(box.unresolved())
    row = attrs.evolve(activity_of(record, wall=WALL), pending_state="untracked", blocker="pcb_" + "a" * 16)
    found = shown(box, row)
    assert ("untracked", True, "pcb_" + "a" * 16) == (
        found["state"],
        found["upstream_may_still_be_running"],
        found["blocker"],
    )
    assert not shown(box, attrs.evolve(row, late_outcome="success"))["upstream_may_still_be_running"]


@pytest.mark.req("P54")
@pytest.mark.parametrize(
    ("reason", "runs"),
    [
        (Reason.EXTERNAL_EFFECTS, False),
        (Reason.TERMINATION_UNCONFIRMED, True),
        (Reason.COMMIT_UNCONFIRMED, True),
    ],
)
def test_our_own_tools(reason: Reason, runs: bool) -> None:
    """A worker proven dead runs no more; one of which that cannot be said may. There is no generation and no end."""
    box = Box()
    call = box.sent(server="local:boards", transport=Transport.LOCAL, lease=Lease("", 0))
    box.mark(call, reason, observable=False)
    found = shown(box, box.record(call))
    assert runs == found["upstream_may_still_be_running"]
    assert (None, None, {"action": "wait"}) == (
        found["connection_generation"],
        found["expires_at"],
        found["resolve"][0],
    )


@pytest.mark.req("P54")
def test_a_late_outcome_says_that_it_ended() -> None:
    """A cancelled call of which a response came after all does not run any more; http calls may outlive a reset."""
    box = Box()
    call = box.unresolved()
    box.cancel(call)
    box.late(call)
    found = shown(box, box.record(call))
    assert (False, "success", True, "caller:cancel_told") == (
        found["upstream_may_still_be_running"],
        found["late_outcome"],
        found["cancel_requested"],
        found["settled_by"],
    )


@pytest.mark.req("P15", "P54")
def test_a_blocker_is_shown_with_its_count() -> None:
    """Several calls are one object with a count."""
    box = Box.of(gating=1, mode=Mode.OFF)
    [box.unresolved() for _ in range(3)]
    (blocker,) = box.blockers()
    found = shown(box, blocker)
    assert (2, "*", "pcb_" + call_id(1)[3:], False) == (
        found["count"],
        found["tool"],
        found["call_id"],
        found["late_completion_observable"],
    )


@pytest.mark.req("P54")
def test_in_words() -> None:
    """The text says which call, what is known, not to repeat it, and what can be done."""
    box = Box.of(gating=1, mode=Mode.OFF)
    calls = [box.unresolved() for _ in range(3)]
    (blocker,) = box.blockers()
    ways = [Way(Action.WAIT, until=box.now + 90)]
    text = describe(shown(box, box.record(calls[2])), ways=ways, now=box.now)
    assert text == (
        f"The call put to files ({calls[2].call_id}) was sent and has no response: it may have happened, may be "
        "happening, or may never happen. Do not repeat it blindly. What you can do: wait, at most 90 s."
    )
    assert describe(shown(box, blocker), ways=[], now=box.now) == (
        f"A group of calls (2 unsettled) to files ({blocker.call.call_id}) was sent and has no response: it may have "
        "happened, may be happening, or may never happen. Do not repeat it blindly."
    )
    for _ in range(2):
        box.registry.resolve_member(blocker.call.call_id, outcome=LateOutcome.SUCCESS, **box.tick())
    assert 0 == shown(box, blocker)["count"]
    assert "(0 unsettled)" in describe(shown(box, blocker), ways=[], now=box.now)
    box.late(calls[2])
    assert describe(shown(box, box.record(calls[2])), ways=[], now=box.now).endswith("The late response said: success.")
    assert Tier.WRITE is box.record(calls[2]).gate_tier
