"""The audit bus: one order for everybody, told losses, back-pressure on new calls only."""

import datetime as dt

import pytest
import trio
import trio.testing

from tests.core.audit_support import drain, happened
from ztrio.audit import EVENTS_PER_CALL, AuditBus, AuditEvent, AuditStatistics, Subscription, may_see
from ztrio.calls import CallContext, Principal, View
from ztrio.errors import Outcome

ANN = CallContext(Principal("ann"))
ADMIN = CallContext(Principal("root"), View(admin=True))


async def test_events_are_numbered_and_timed() -> None:
    """Each published event gets the next number and both clocks, and is returned as everyone sees it."""
    bus = AuditBus()
    before = dt.datetime.now(dt.UTC)
    stamped = [bus.publish(happened()) for _ in range(3)]
    assert [1, 2, 3] == [event.seq for event in stamped]
    for event in stamped:
        assert before <= dt.datetime.fromisoformat(event.time) <= dt.datetime.now(dt.UTC)
        assert event.time.endswith("+00:00")
        assert abs(event.monotonic - trio.current_time()) < 10


async def test_the_store_then_reducers_then_subscribers() -> None:
    """Recorder, reducers in order, then channels, in one step: a subscriber finds every reducer past the event."""
    order: list[str] = []
    bus = AuditBus(recorder=lambda event: order.append(f"store {event.seq}"))
    bus.add_reducer(lambda event: order.append(f"gate {event.seq}"))
    bus.add_reducer(lambda event: order.append(f"statistics {event.seq}"))
    async with bus.subscribe() as events, trio.open_nursery() as nursery:

        async def view() -> None:
            event = await events.receive()
            order.append(f"viewer {event.seq}")

        nursery.start_soon(view)
        await trio.testing.wait_all_tasks_blocked()
        with trio.testing.assert_no_checkpoints():
            bus.publish(happened())
            assert ["store 1", "gate 1", "statistics 1"] == order
    assert ["store 1", "gate 1", "statistics 1", "viewer 1"] == order


async def test_a_transactions_event_is_delivered_without_recording() -> None:
    """An event that a transaction has recorded takes its number first and is shown later, to everyone but the store."""
    recorded: list[int] = []
    reduced: list[int] = []
    bus = AuditBus(recorder=lambda event: recorded.append(event.seq))
    bus.add_reducer(lambda event: reduced.append(event.seq))
    async with bus.subscribe() as events:
        terminal = bus.stamp(happened("commit"))
        bus.publish(happened())
        bus.deliver(terminal)
        assert ([2], [2, 1], [2, 1]) == (recorded, reduced, [event.seq for event in drain(events)])


async def test_subscribers_see_what_is_published_while_they_listen() -> None:
    """Nothing from before, everything from then on, nothing after; each subscriber for itself."""
    bus = AuditBus()
    bus.publish(happened())
    async with bus.subscribe() as first:
        bus.publish(happened())
        async with bus.subscribe() as second:
            bus.publish(happened())
        bus.publish(happened())
        assert ([2, 3, 4], [3]) == ([event.seq for event in drain(first)], [event.seq for event in drain(second)])
        with pytest.raises(trio.EndOfChannel):
            second.receive_nowait()
        assert [] == [event async for event in second]


@pytest.mark.parametrize(
    ("context", "expected"),
    [(None, ["ann", "bob", None]), (ANN, ["ann"]), (ADMIN, ["ann", "bob", None]), (CallContext(Principal("eve")), [])],
)
async def test_a_caller_sees_its_own_events(context: CallContext | None, expected: list[str]) -> None:
    """A principal is shown its own events and an admin all."""
    bus = AuditBus()
    async with bus.subscribe(context=context) as events:
        for event in (happened(), happened(principal="bob"), AuditEvent(event="recovered")):
            bus.publish(event)
        assert expected == [event.principal for event in drain(events)]


def test_gaps_are_for_everybody() -> None:
    """That something was missed is told to whoever missed it."""
    gap = AuditEvent(event="gap", missed=3)
    assert (True, True) == (may_see(ANN, gap), may_see(ADMIN, gap))


async def test_a_durable_subscriber_presses_back_on_new_calls_only() -> None:
    """When it is behind, new calls wait; the events of every call already admitted still fit and none is lost."""
    bus = AuditBus(admitted=10)
    passed: list[int] = []

    async def new_call(number: int) -> None:
        await bus.wait_room()
        passed.append(number)
        bus.publish(happened())

    async with bus.subscribe(durable=True, capacity=4) as events, trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(new_call, number)
        await trio.testing.wait_all_tasks_blocked()
        assert 4 == len(passed)
        assert 4 == bus.statistics().durable_backlog
        with trio.testing.assert_no_checkpoints():
            for _ in range(10 * EVENTS_PER_CALL):
                bus.publish(happened())
        assert bus.unavailable is None
        found = drain(events)
        await trio.testing.wait_all_tasks_blocked()
        assert 6 == len(passed)
        found += drain(events)
    assert list(range(1, 6 + 10 * EVENTS_PER_CALL + 1)) == [event.seq for event in found]
    assert 0 == bus.statistics().missed


async def test_room_is_asked_of_every_durable_subscriber() -> None:
    """New calls wait for the slowest; a viewer that is full makes nobody wait."""
    bus = AuditBus(admitted=1)
    async with bus.subscribe(capacity=1), bus.subscribe(durable=True, capacity=3) as fast:
        async with bus.subscribe(durable=True, capacity=1) as slow, trio.open_nursery() as nursery:
            bus.publish(happened())
            nursery.start_soon(bus.wait_room)
            await trio.testing.wait_all_tasks_blocked()
            assert 1 == len(nursery.child_tasks)
            fast.receive_nowait()
            await trio.testing.wait_all_tasks_blocked()
            assert 1 == len(nursery.child_tasks)
            slow.receive_nowait()
        bus.publish(happened())
        bus.publish(happened())
        with trio.fail_after(0.5), trio.testing.assert_checkpoints():
            await bus.wait_room()


async def test_whoever_waits_for_room_goes_on_when_the_slow_one_leaves() -> None:
    """Unsubscribing and closing make room too."""
    for close in (False, True):
        bus = AuditBus(admitted=1)
        async with trio.open_nursery() as nursery, bus.subscribe(durable=True, capacity=1):
            bus.publish(happened())
            nursery.start_soon(bus.wait_room)
            await trio.testing.wait_all_tasks_blocked()
            if close:
                bus.close()
        assert AuditStatistics(published=1, viewers=0, durable=0, durable_backlog=0, missed=0) == bus.statistics()


async def test_an_overflow_of_a_durable_subscriber_is_an_outage() -> None:
    """Should a durable channel ever be full, mutating calls are refused from then on: a loss is never silent."""
    bus = AuditBus(admitted=1)
    async with bus.subscribe(durable=True, capacity=1):
        for _ in range(EVENTS_PER_CALL + 1):
            bus.publish(happened())
        assert bus.unavailable is None
        bus.publish(happened())
        assert "a durable audit subscriber is full" == bus.unavailable


async def test_closing_ends_subscriptions_after_what_they_hold() -> None:
    """Everything published before the end arrives, a loss is told, then iteration stops; later events go nowhere."""
    bus = AuditBus()
    async with bus.subscribe(capacity=2) as events:
        for _ in range(4):
            bus.publish(happened())
        bus.close()
        bus.publish(happened())
        found = [event async for event in events]
        assert [(1, None), (2, None), (5, 2)] == [(event.seq, event.missed) for event in found]
        with pytest.raises(trio.EndOfChannel):
            await events.receive()


async def test_a_waiting_viewer_ends_with_the_bus_and_with_its_subscription() -> None:
    """A task that iterates does not outlive what it listens to."""
    for close in (False, True):
        bus = AuditBus()
        async with trio.open_nursery() as nursery, bus.subscribe() as events:

            async def listen(events: Subscription) -> None:
                async for _ in events:
                    pass

            nursery.start_soon(listen, events)
            await trio.testing.wait_all_tasks_blocked()
            if close:
                bus.close()


def trouble(bus: AuditBus) -> str | None:
    """What is wrong now, for a type checker that takes a property for a constant."""
    return bus.unavailable


async def test_unavailable_is_what_any_source_says() -> None:
    """As long as one source cannot write, the bus is unavailable; it is available when all can again."""
    bus = AuditBus()
    assert trouble(bus) is None
    bus.mark_available("store")
    with trio.fail_after(1):
        await bus.wait_available()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bus.wait_unavailable)
            await trio.testing.wait_all_tasks_blocked()
            bus.mark_unavailable("store", "the disk is full")
        await bus.wait_unavailable()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bus.wait_available)
            bus.mark_unavailable("audit file", "it is gone")
            assert ("the disk is full", True) == (trouble(bus), bus.failing("store"))
            bus.mark_available("store")
            assert ("it is gone", False) == (trouble(bus), bus.failing("store"))
            await bus.wait_unavailable()
            await trio.testing.wait_all_tasks_blocked()
            assert 1 == len(nursery.child_tasks)
            bus.mark_available("audit file")
        await bus.wait_available()
    assert trouble(bus) is None
    with trio.move_on_after(0.01) as scope:
        await bus.wait_unavailable()
    assert scope.cancelled_caught


async def test_a_log_that_fails_is_an_outage_and_no_exception() -> None:
    """When the store's log cannot take an event, everyone else still gets it; the next success ends the outage."""
    failures = [OSError("the disk is full")]

    def record(_: AuditEvent) -> None:
        if failures:
            raise failures[0]

    bus = AuditBus(recorder=record)
    async with bus.subscribe() as events:
        bus.publish(happened())
        assert "the audit log cannot be written: OSError: the disk is full" == trouble(bus)
        failures.clear()
        bus.publish(happened())
        assert trouble(bus) is None
        assert [1, 2] == [event.seq for event in drain(events)]


async def test_a_closed_bus_has_nothing_to_show() -> None:
    """Whoever subscribes after the end finds the end at once."""
    bus = AuditBus()
    bus.close()
    async with bus.subscribe() as events:
        bus.publish(happened())
        assert [] == [event async for event in events]


async def test_statistics_count_both_kinds() -> None:
    """Viewers and durable subscribers, and how far the slowest durable one is behind."""
    bus = AuditBus()
    async with bus.subscribe(), bus.subscribe(durable=True) as fast, bus.subscribe(durable=True):
        for _ in range(3):
            bus.publish(happened())
        fast.receive_nowait()
        assert AuditStatistics(published=3, viewers=1, durable=2, durable_backlog=3, missed=0) == bus.statistics()


def test_the_json_form_has_what_is_known() -> None:
    """`seq` and `event` come first, absent facts are left out, tuples are lists, the outcome is plain text."""
    event = happened("commit", outcome=Outcome.COMMITTED, targets=("/ws/a",), kept=(), request_id=2**63 + 1, tool="t")
    found = event.evolved(seq=7).as_dict()
    assert ["seq", "event"] == list(found)[:2]
    assert {
        "seq": 7,
        "event": "commit",
        "execution_job_id": "",
        "tool": "t",
        "principal": "ann",
        "request_id": 2**63 + 1,
        "time": "",
        "monotonic": 0.0,
        "outcome": "committed",
        "targets": ["/ws/a"],
        "kept": [],
    } == found
    assert type(found["outcome"]) is str
