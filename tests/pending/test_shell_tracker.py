"""The registry under trio: published in order, expired on its clock, written behind it, whatever the store does."""

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from tests.pending.box import call_id
from ztrio import AuditBus, AuditEvent
from ztrio.activity import PendingWrite
from ztrio.pending import (
    ActorKind,
    Begun,
    Bounds,
    Call,
    LateOutcome,
    Lease,
    Mode,
    PendingSettings,
    Reason,
    Refusal,
    State,
    Tier,
    Transport,
    refusal_error,
)
from ztrio.testing import FaultyStore
from ztrio.tracking.notices import Notices
from ztrio.tracking.tracker import Tracker
from ztrio.tracking.writing import RESYNC

SETTINGS = PendingSettings(principals=("ann", "bob"), mode=Mode.ENFORCE)


def call_of(number: int, **facts: Any) -> Call:
    """A write of Ann's to an upstream server."""
    known: dict[str, Any] = {
        "call_id": call_id(number),
        "server": "files",
        "transport": Transport.STDIO,
        "lease": Lease("t1", 1),
        "principal": "ann",
        "gate_scope": "ann",
        "tool": "write",
        "admission_tier": Tier.WRITE,
        "gate_tier": Tier.WRITE,
    }
    return Call(**{**known, **facts})


@attrs.define
class Under:
    """A tracker with its tasks, its store, and what it published."""

    tracker: Tracker
    store: FaultyStore
    audit: AuditBus
    events: list[AuditEvent] = attrs.field(factory=list)
    notices: list[str] = attrs.field(factory=list)

    def begin(self, number: int, **facts: Any) -> Call:
        """Have a call sent."""
        tracker, registry = self.tracker, self.tracker.registry
        call = call_of(number, **facts)
        begun = registry.check_and_begin(call, **tracker.moment())
        assert isinstance(begun, Begun)
        tracker.did(begun.transitions)
        tracker.records.journal(registry.journal_row(call.call_id, now=tracker.now, wall=tracker.wall))
        tracker.did(registry.claim(call.call_id, wire_id=number, **tracker.moment()))
        return call

    def lose(self, number: int, **facts: Any) -> Call:
        """Have a call sent, and its wait end."""
        call = self.begin(number, **facts)
        moment = self.tracker.moment()
        self.tracker.did(self.tracker.registry.mark_unresolved(call, reason=Reason.DEADLINE_EXCEEDED, **moment))
        return call

    async def row(self, number: int) -> tuple[str, int] | None:
        """What the store says: state and revision."""
        row = await FaultyStore.__mro__[1].activity(self.store, call_id(number))  # type: ignore[attr-defined]
        return None if row is None else (row.pending_state, row.revision)

    async def journal(self) -> list[str]:
        """The calls in the store's journal."""
        left = await FaultyStore.__mro__[1].left_pending(self.store)  # type: ignore[attr-defined]
        return [row.call_id for row in left.journal]


@asynccontextmanager
async def under(
    store: FaultyStore | None = None, settings: PendingSettings = SETTINGS, *, write: bool = True
) -> AsyncIterator[Under]:
    """A tracker whose tasks run."""
    store = FaultyStore() if store is None else store
    audit = AuditBus()
    events: list[AuditEvent] = []
    notices: list[str] = []
    tracker = Tracker(settings, audit=audit, store=store, notify=lambda name, **_: notices.append(name))
    audit.add_reducer(events.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tracker.expire)
        if write:
            nursery.start_soon(tracker.records.run)
        yield Under(tracker, store, audit, events, notices)
        nursery.cancel_scope.cancel()


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


@pytest.mark.req("P8", "P9")
async def test_published_in_order_and_behind_the_registry(autojump_clock: trio.testing.MockClock) -> None:
    """Whoever sees an event finds the registry past it, and every later one of the same command as well."""
    seen = []
    bounds = Bounds(gating=1)
    async with under(settings=attrs.evolve(SETTINGS, bounds=bounds)) as box:

        def look(event: AuditEvent) -> None:
            facts = event.pending or {}
            seen.append((facts["step"], facts["state"], box.tracker.registry.statistics().blockers))

        box.audit.add_reducer(look)
        with trio.testing.assert_no_checkpoints():
            box.lose(1)
            box.lose(2, every_scope=False, gate_scope="other")
            box.begin(3, gate_scope="third")
        assert [("wait_ended", "unresolved", 0)] * 2 == seen
        with trio.testing.assert_no_checkpoints():
            one = box.begin(4, gate_scope="fourth")
            two = box.begin(5, gate_scope="fourth")
            for call in (one, two):
                moves = box.tracker.registry.mark_unresolved(
                    call, reason=Reason.CALLER_CANCELLED, **box.tracker.moment()
                )
                box.tracker.did(moves)
        assert [("wait_ended", 0), ("wait_ended", 1), ("fold", 1), ("fold", 1)] == [
            (step, blockers) for step, _, blockers in seen[2:]
        ]
        assert ["call unresolved"] * 4 == [name for name in box.notices if name == "call unresolved"]
        assert "calls folded" in box.notices
        assert [event.seq for event in box.events] == sorted(event.seq for event in box.events)


@pytest.mark.req("P7")
async def test_calls_expire_on_trios_clock(autojump_clock: trio.testing.MockClock) -> None:
    """Each at its own time, fixed when it was sent, also when an earlier one comes up while the task sleeps."""
    async with under() as box:
        box.lose(1, ceiling=100.0)
        await settle()
        assert 700.0 == box.tracker.statistics().alarm - trio.current_time()
        box.lose(2, gate_scope="other", ceiling=30.0)
        await trio.sleep(629)
        assert [State.UNRESOLVED] * 2 == [record.state for record in box.tracker.registry.entries()]
        await trio.sleep(2)
        assert {State.EXPIRED, State.UNRESOLVED} == {record.state for record in box.tracker.registry.entries()}
        await trio.sleep(70)
        assert {State.EXPIRED} == {record.state for record in box.tracker.registry.entries()}
        assert ["unresolved", "unresolved", "expired", "expired"] == [(e.pending or {})["state"] for e in box.events]
        await trio.sleep(16 * 60)
        assert ([], math.inf) == (box.tracker.registry.entries(), box.tracker.statistics().alarm)


@pytest.mark.req("P9", "P44")
async def test_facts_from_outside(autojump_clock: trio.testing.MockClock) -> None:
    """A proof, or the end of a connection, that somebody publishes reaches the registry; nonsense means nothing."""
    async with under() as box:
        box.lose(1)
        box.lose(2, gate_scope="other")
        for facts in ({}, {"call_id": call_id(9), "proof": "committed"}, {"call_id": call_id(1), "proof": "nonsense"}):
            box.audit.publish(AuditEvent(event="pending_proof", pending=facts))
            box.audit.publish(AuditEvent(event="epoch_ended", pending=facts))
        box.audit.publish(AuditEvent(event="pending_proof"))
        box.audit.publish(AuditEvent(event="pending_proof", pending={"call_id": call_id(1), "proof": "running"}))
        assert [State.UNRESOLVED] * 2 == [record.state for record in box.tracker.registry.entries()]
        box.audit.publish(AuditEvent(event="pending_proof", pending={"call_id": call_id(1), "proof": "rolled_back"}))
        box.audit.publish(
            AuditEvent(event="epoch_ended", pending={"server": "files", "epoch": 1, "transport": "stdio"})
        )
        assert [State.PROVEN, State.CONNECTION_RESET] == [each.state for each in box.tracker.registry.entries()]


@pytest.mark.req("P9", "P44")
async def test_a_session_over_http_ends(autojump_clock: trio.testing.MockClock) -> None:
    """What was not sent in a session that has ended is not sent; what was sent stays as it is."""
    http = Transport.HTTP
    async with under() as box:
        registry = box.tracker.registry
        sent = box.begin(1, transport=http)
        waiting = call_of(2, transport=http, gate_scope="other")
        box.tracker.did(registry.check_and_begin(waiting, **box.tracker.moment()).transitions)  # type: ignore[union-attr]
        box.lose(3, transport=http, gate_scope="third")
        facts = {"server": "files", "epoch": 1, "transport": "http"}
        box.audit.publish(AuditEvent(event="epoch_ended", pending=facts))
        assert [] == registry.claim(waiting.call_id, wire_id=2, **box.tracker.moment())
        assert State.SENT == registry.get(sent.call_id).state  # type: ignore[union-attr]
        assert [State.UNRESOLVED] == [each.state for each in registry.entries()]


@pytest.mark.req("P57", "P60")
async def test_written_behind(autojump_clock: trio.testing.MockClock) -> None:
    """Rows and journal follow, and what was committed is acknowledged; a call that was answered leaves nothing."""
    async with under() as box:
        done = box.begin(1)
        box.lose(2)
        await settle()
        assert [call_id(1), call_id(2)] == await box.journal()
        registry, tracker = box.tracker.registry, box.tracker
        tracker.did(registry.complete(done.call_id, succeeded=True, **tracker.moment()))
        await settle()
        record = registry.get(call_id(2))
        assert record is not None
        assert ([call_id(2)], record.revision) == (await box.journal(), record.acknowledged)
        assert ("unresolved", record.revision) == await box.row(2)
        assert await box.row(1) is None
        tracker.did(registry.resolve_late(call_id(2), outcome=LateOutcome.SUCCESS, **tracker.moment()))
        await settle()
        assert ([], "completed_late") == (await box.journal(), ((await box.row(2)) or ("",))[0])


@pytest.mark.req("P57", "I7")
async def test_a_store_that_fails(autojump_clock: trio.testing.MockClock) -> None:
    """Nothing is acknowledged that was not written; it is written, in order, when the store works again."""
    async with under(FaultyStore(fail={"write_pending": OSError("no"), "resync_pending": OSError("no")})) as box:
        box.lose(1)
        moment = box.tracker.moment()
        box.tracker.did(box.tracker.registry.release(call_id(1), actor=ActorKind.OPERATOR, **moment))
        await trio.sleep(5)
        record = box.tracker.registry.get(call_id(1))
        assert record is not None
        assert (0, True, 2) == (
            record.acknowledged,
            box.tracker.statistics().writer.failing,
            box.tracker.statistics().writer.waiting,
        )
        assert await box.row(1) is None
        await trio.sleep(RESYNC)
        box.store.fail.clear()
        await trio.sleep(1)
        assert ("released", record.revision) == await box.row(1)
        assert (record.revision, False) == (record.acknowledged, box.tracker.statistics().writer.failing)


@pytest.mark.req("P18", "P57")
async def test_more_than_fits_while_the_store_is_paused(autojump_clock: trio.testing.MockClock) -> None:
    """The queue is bounded; what did not fit is read off the registry when the store answers again."""
    box: Under
    async with under(FaultyStore(stall=("write_pending",)), attrs.evolve(SETTINGS, mode=Mode.WARN)) as box:
        box.lose(1)
        await settle()
        for number in range(2, 1500):
            box.lose(number, gate_scope=f"s{number % 40}")
        writer = box.tracker.statistics().writer
        assert writer.overflowed >= 1
        assert writer.waiting <= 1024
    box.store.stall.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(box.tracker.records.run)
        await trio.sleep(RESYNC + 1)
        entries = box.tracker.registry.entries()
        assert len(entries) > 40
        for record in entries:
            if record.call.call_id.startswith("pc_"):
                row = await box.store.activity(record.call.call_id)
                assert row is not None
                assert (str(record.state), record.revision) == (row.pending_state, row.revision)
                assert record.acknowledged == record.revision
        assert sorted(await box.journal()) == sorted(record.call.call_id for record in entries if record.gating)
        nursery.cancel_scope.cancel()


@pytest.mark.req("P57", "I7")
async def test_everything_is_compared_half_a_minute_after_a_change(autojump_clock: trio.testing.MockClock) -> None:
    """What somebody broke meanwhile is put right then; while nothing changes, nothing is done."""
    async with under() as box:
        box.lose(1)
        await settle()
        row = await box.store.activity(call_id(1))
        assert row is not None
        stray = attrs.evolve(row, call_id=call_id(8))
        await box.store.write_pending([PendingWrite(row=stray, drop=(call_id(1),))])
        await trio.sleep(RESYNC + 1)
        assert ([call_id(1)], 1) == (await box.journal(), box.tracker.statistics().writer.resyncs)
        assert ("untracked", stray.revision) == await box.row(8)
        calls = list(box.store.calls)
        await trio.sleep(20 * RESYNC - 100)
        assert calls == box.store.calls


@pytest.mark.req("P57")
async def test_a_last_flush(autojump_clock: trio.testing.MockClock) -> None:
    """What waits when the tasks have ended is written by a flush; a store that fails then is no error."""
    async with under(write=False) as box:
        box.lose(1)
    await box.tracker.records.flush()
    assert "unresolved" == ((await box.row(1)) or ("",))[0]
    box.store.fail["write_pending"] = OSError("no")
    moment = box.tracker.moment()
    box.tracker.did(box.tracker.registry.release(call_id(1), actor=ActorKind.OPERATOR, **moment))
    await box.tracker.records.flush()
    assert "unresolved" == ((await box.row(1)) or ("",))[0]


@pytest.mark.req("P13")
async def test_principals_that_come_up(autojump_clock: trio.testing.MockClock) -> None:
    """Where nobody is configured, books are made for callers as they come up, as long as there is room."""
    async with under(settings=PendingSettings(mode=Mode.ENFORCE)) as box:
        box.tracker.callers.know(["p0"])
        box.lose(1, principal="p0", gate_scope="p0")
        box.tracker.callers.know([f"p{number}" for number in range(100)])
        assert {"local", "p99"} < box.tracker.callers.settings.all_principals
        assert [State.UNRESOLVED] == [record.state for record in box.tracker.registry.entries("p0")]
        box.tracker.callers.know(["p0"])
        box.lose(2, principal="p0", gate_scope="other")
        for number in range(100, 170):
            box.tracker.callers.know([f"p{number}"])
            moment = box.tracker.moment()
            box.tracker.registry.check_and_begin(call_of(number, principal=f"p{number}", gate_scope="x"), **moment)
        counted = box.tracker.registry.statistics()
        assert (64, 62) == (counted.principals, counted.in_flight)
        assert counted.refused == 8


@pytest.mark.req("P13", "I5")
async def test_principals_that_are_configured(autojump_clock: trio.testing.MockClock) -> None:
    """Where somebody is configured, whoever is not takes no room; too many are refused at start and at a reload."""
    names = tuple(f"p{number}" for number in range(64))
    async with under() as box:
        box.tracker.callers.know(["mallory"])
        assert {"ann", "bob", "local"} == box.tracker.callers.settings.all_principals
        call = call_of(1, principal="mallory", gate_scope="m")
        refused = box.tracker.registry.check_and_begin(call, **box.tracker.moment())
        assert isinstance(refused, Refusal)
        error = refusal_error(refused, ways=[], now=box.tracker.now)
        assert ("PENDING_REGISTRY_FULL", {}) == (error.code, error.details)
        assert "has no books" in error.message
        with pytest.raises(ValueError, match="at most 64"):
            attrs.evolve(SETTINGS, principals=names)
        for number in range(2):
            box.lose(number + 2, principal=("ann", "bob")[number], gate_scope="s")
        with pytest.raises(ValueError, match="at most 64"):
            box.tracker.callers.configure(attrs.evolve(SETTINGS, principals=names[:62]))
        box.tracker.callers.configure(attrs.evolve(SETTINGS, principals=names[:61]))
        assert 64 == box.tracker.registry.statistics().principals


@pytest.mark.parametrize(("set_by", "same"), [(0.2, True), (3600.0, False)])
def test_a_moment_is_always_shown_alike(set_by: float, same: bool) -> None:
    """Two clocks that run are not compared anew each time; one that is set is noticed."""
    now: Callable[[], float] = lambda: 1000.0 + shift  # noqa: E731 - what it shows changes

    shift = 0.0

    async def main() -> None:
        nonlocal shift
        tracker = Tracker(SETTINGS, audit=AuditBus(), store=FaultyStore(), wall=now)
        before = tracker.wall
        shift = set_by
        assert same == (before == tracker.wall)
        await trio.lowlevel.checkpoint()

    trio.run(main, clock=trio.testing.MockClock())


def test_a_log_that_is_told_of_everybody_stays_small() -> None:
    """Of how many callers ever something was said, only the last few hundred are remembered."""
    told: list[str] = []
    notices = Notices(lambda _, **facts: told.append(facts["principal"]))
    for number in range(1000):
        notices.say_rarely("x", server="files", principal=f"p{number}", now=0.0)
    assert (1000, 256) == (len(told), len(notices._last))
    notices.say_rarely("x", server="files", principal="p999", now=9.0)
    assert 1000 == len(told)
    Notices(None).say("to nobody")
