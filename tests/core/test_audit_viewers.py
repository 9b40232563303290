"""Slow viewers of the audit: what they miss, they are told, exactly and in its place."""

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from tests.core.audit_support import drain, happened
from ztrio.audit import AuditBus, AuditEvent, Subscription
from ztrio.calls import CallContext, Principal, View

ANN = CallContext(Principal("ann"))
ADMIN = CallContext(Principal("root"), View(admin=True))

# An event of ann, one of bob, or a look of the viewer.
steps = st.lists(st.sampled_from(["ann", "bob", "receive", "receive_nowait"]), max_size=80)


def accounted(received: list[AuditEvent]) -> int:
    """How many events a viewer knows of, those among them that it was told it has missed."""
    return sum(1 if event.missed is None else event.missed for event in received)


@given(steps, st.integers(1, 5), st.booleans())
async def test_gaps_tell_exactly_what_was_missed(taken: list[str], capacity: int, filtered: bool) -> None:
    """What a slow viewer gets, with each gap put in for what it stands for, is every event it may see, in order."""
    bus = AuditBus()
    wanted: list[int] = []
    received: list[AuditEvent] = []
    lost_while_room = []
    async with bus.subscribe(context=ANN if filtered else None, capacity=capacity) as events:
        for step in taken:
            if step in ("ann", "bob"):
                missed = bus.statistics().missed
                waiting = events.backlog
                event = bus.publish(happened(principal=step))
                if step == "ann" or not filtered:
                    wanted.append(event.seq)
                if bus.statistics().missed != missed and waiting < capacity - 1:
                    lost_while_room.append(event.seq)
                continue
            if accounted(received) == len(wanted):
                with pytest.raises(trio.WouldBlock):
                    events.receive_nowait()
            elif step == "receive":
                received.append(await events.receive())  # something is owed, so this does not wait
            else:
                received.append(events.receive_nowait())
        received += drain(events)
    for index, event in enumerate(received):
        if event.event != "gap":
            assert wanted[accounted(received[:index])] == event.seq
    assert len(wanted) == accounted(received)
    assert [] == lost_while_room
    gaps = [event.missed or 0 for event in received if event.event == "gap"]
    assert sum(gaps) == bus.statistics().missed
    assert 0 not in gaps


async def test_a_gap_stands_where_the_events_would_have_stood() -> None:
    """First what fitted, then the gap, then what came when there was room again; its number is the last one lost."""
    bus = AuditBus()
    async with bus.subscribe(capacity=2) as events:
        for _ in range(5):
            bus.publish(happened())
        assert [1, 2] == [events.receive_nowait().seq for _ in range(2)]
        bus.publish(happened())
        gap, last = drain(events)
        assert ("gap", 3, 6) == (gap.event, gap.missed, last.seq)
        assert {"seq", "event", "execution_job_id", "time", "monotonic", "missed"} == set(gap.as_dict())
        assert 3 == bus.statistics().missed


async def test_a_loss_at_the_end_is_told_without_a_further_event() -> None:
    """A viewer that has caught up learns of its loss at once, by either way of receiving."""
    for waiting in (True, False):
        bus = AuditBus()
        async with bus.subscribe(capacity=1) as events:
            for _ in range(3):
                bus.publish(happened())
            assert 1 == (await events.receive()).seq
            gap = await events.receive() if waiting else events.receive_nowait()
            assert ("gap", 2) == (gap.event, gap.missed)
            with pytest.raises(trio.WouldBlock):
                events.receive_nowait()


async def test_an_event_that_comes_while_a_gap_is_fetched() -> None:
    """The gap comes once, whole, and before the event that came meanwhile."""
    for _ in range(20):  # trio shuffles who runs first; one of the two orders is the one meant
        bus = AuditBus()
        received: list[AuditEvent] = []
        async with bus.subscribe(capacity=2) as events, trio.open_nursery() as nursery:
            for _ in range(4):
                bus.publish(happened())
            assert [1, 2] == [events.receive_nowait().seq for _ in range(2)]

            async def fetch(events: Subscription, received: list[AuditEvent]) -> None:
                received.append(await events.receive())

            nursery.start_soon(fetch, events, received)
            for _ in range(2):
                await trio.lowlevel.checkpoint()
            bus.publish(happened())
            await trio.testing.wait_all_tasks_blocked()
            received += drain(events)
        assert [("gap", 2), ("allow", None)] == [(event.event, event.missed) for event in received]


async def test_a_cancelled_receive_loses_nothing() -> None:
    """Neither an event nor a gap goes with a receiver that is cancelled."""
    bus = AuditBus()
    async with bus.subscribe(capacity=1) as events:
        for _ in range(3):
            bus.publish(happened())
        for _ in range(2):
            with trio.move_on_after(0):
                await events.receive()
        assert [1, None] == [event.seq if event.event == "allow" else None for event in drain(events)]
        bus.publish(happened())
        for _ in range(2):
            bus.publish(happened())
        assert 4 == events.receive_nowait().seq
        with trio.move_on_after(0):
            await events.receive()
        assert 2 == events.receive_nowait().missed


async def test_receiving_is_a_checkpoint() -> None:
    """Also when something is there already, and when it is a gap."""
    bus = AuditBus()
    async with bus.subscribe(capacity=1) as events:
        for _ in range(2):
            bus.publish(happened())
        for expected in ("allow", "gap"):
            with trio.testing.assert_checkpoints():
                event = await events.receive()
            assert expected == event.event
