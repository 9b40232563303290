"""The seam on a virtual clock, with a server that is only a wire: what ends when."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import msgspec
import pytest
import trio

from ztrio.audit import AuditBus
from ztrio.calls import LOCAL
from ztrio.errors import CallGated, NotSent, StoreUnavailable, Unresolved
from ztrio.memory_store import MemoryStore
from ztrio.pending import Lease, Mode, PendingSettings, ServerPolicy
from ztrio.tracking.desk import Desk
from ztrio.tracking.tracker import Tracker
from ztrio.upstream import Death
from ztrio_mcp.gateway.flights import Answer, Flight
from ztrio_mcp.gateway.seam import Seam
from ztrio_mcp.gateway.settings import GatewaySettings, ToolLimits
from ztrio_mcp.gateway.story import CallRequest
from ztrio_mcp.gateway.wire import decode_call
from ztrio_mcp.peer import Exchange, PeerClosed, PeerQueueFull, Response

OK = msgspec.Raw(b'{"content":[]}')


class Wire:
    """The other end: every frame is kept, and answered when a test says so."""

    def __init__(self) -> None:
        self.next_id = 1
        self.exchanges: list[Exchange] = []
        self.forgotten: list[int] = []
        self.withdrawn: list[int] = []
        self.blocked = False
        self.claims: list[Callable[[], bool]] = []
        self.refuse: Exception | None = None

    def request(
        self, method: str, _params: bytes, *, on_response: Any, on_ended: Any, on_progress: Any, claim: Any
    ) -> Exchange:
        if self.refuse is not None:
            raise self.refuse
        exchange = Exchange(
            id=self.next_id, method=method, on_response=on_response, on_ended=on_ended, on_progress=on_progress
        )
        if self.blocked:
            self.claims.append(claim)
        elif claim():
            exchange.sent = True
        self.next_id += 1
        self.exchanges.append(exchange)
        return exchange

    def answer(self, index: int = -1, result: msgspec.Raw = OK) -> None:
        exchange = self.exchanges[index]
        exchange.on_response(Response(exchange.id, result))

    def forget(self, exchange: Exchange) -> None:
        self.forgotten.append(exchange.id)

    def withdraw(self, exchange: Exchange) -> bool:
        self.withdrawn.append(exchange.id)
        return True


@attrs.define
class Link:
    """A connection."""

    epoch: int
    peer: Wire

    @property
    def lease(self) -> Lease:
        return Lease(f"s#{self.epoch}", self.epoch)


class Server:
    """What a seam needs of an upstream."""

    name = "s"

    def __init__(self) -> None:
        self.connection: Link | None = Link(1, Wire())
        self.on_death: Callable[[Death], None] = lambda _death: None

    async def ready(self) -> Link:
        while self.connection is None:
            await trio.sleep(0.1)
        return self.connection


class Hooks:
    """Nobody who has anything to say."""

    timeouts = 0

    def waits_for_human(self, _flight: Flight) -> bool:
        return False

    def timed_out(self) -> None:
        self.timeouts += 1

    def answered_in_time(self, _call_id: str, _answer: Answer) -> None:
        pass

    def kept(self, _flight: Flight, _answer: Answer) -> None:
        pass


@attrs.define
class Box:
    """A seam and what is around it."""

    seam: Seam
    server: Server
    tracker: Tracker
    audit: AuditBus

    @property
    def wire(self) -> Wire:
        assert self.server.connection is not None
        return self.server.connection.peer

    async def call(self, tool: str = "write") -> Any:
        request = CallRequest(params=decode_call(msgspec.json.encode({"name": tool})))
        return await self.seam.call(request, LOCAL)

    async def unresolved(self) -> str:
        """Make a call that becomes unresolved; its id."""
        with pytest.raises(Unresolved) as raised:
            await self.call()
        call_id = raised.value.details["call_id"]
        assert isinstance(call_id, str)
        return call_id

    def state(self, call_id: str) -> str | None:
        record = self.tracker.registry.get(call_id)
        return None if record is None else str(record.state)


@asynccontextmanager
async def box(*, sync: Any = None, policy: ServerPolicy | None = None, **settings: Any) -> AsyncIterator[Box]:
    store = MemoryStore()
    audit = AuditBus(recorder=store.record)
    pending = PendingSettings(mode=Mode.ENFORCE, servers={"s": policy or ServerPolicy()})
    tracker = Tracker(pending, audit=audit, store=store)
    tracker.registry.tiers.observe("s", {"write": None, "look": {"readOnlyHint": True}}, seq=0)
    server = Server()
    made = GatewaySettings(name="s", limits=ToolLimits(timeout=1.0), **settings)
    desk = Desk(tracker, store.secret)
    seam = Seam(
        server,  # type: ignore[arg-type]
        made,
        tracker=tracker,
        desk=desk,
        audit=audit,
        secret=store.secret,
        hooks=Hooks(),
        sync=sync,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tracker.expire)
        yield Box(seam, server, tracker, audit)
        nursery.cancel_scope.cancel()


@pytest.mark.req("P29", "P7", "I9")
async def test_nothing_is_waited_for_beyond_its_last_moment(autojump_clock: trio.testing.MockClock) -> None:
    """A call's exchange ends at its ceiling and ten minutes, and what comes then is nobody's."""
    async with box() as each:
        call_id = await each.unresolved()
        assert (0, 1) == (len(each.seam.flights), each.seam.flights.late)
        await trio.sleep(600 - 1.5)
        assert "unresolved" == each.state(call_id)
        await trio.sleep(3)
        assert "expired" == each.state(call_id)
        assert 0 == each.seam.flights.late
        assert [1] == each.wire.forgotten


@pytest.mark.req("P23", "P25")
async def test_whoever_is_first_decides(autojump_clock: trio.testing.MockClock) -> None:
    """At the same moment the answer wins; an answer after the wait has ended and before that is told is late."""
    async with box() as each, trio.open_nursery() as nursery:
        nursery.start_soon(each.call)
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(0.5)
        each.wire.answer()
        found: list[BaseException] = []

        async def second() -> None:
            try:
                await each.call()
            except Unresolved as error:
                found.append(error)

        nursery.start_soon(second)
        await trio.testing.wait_all_tasks_blocked()
        flight = each.seam.flights.get(next(iter(each.seam.flights._waiting)))
        assert flight is not None
        flight.left = True  # as its limit leaves it, before its task has run
        each.wire.answer()
        await trio.sleep(2)
        [error] = found
        assert "a moment too late (success)" in str(error)


@pytest.mark.req("P3")
async def test_a_queued_frame_is_not_sent_after_its_deadline(autojump_clock: trio.testing.MockClock) -> None:
    """Behind a blocked pipe a call ends as not sent, its frame is taken back, and a late claim does not hold."""
    async with box() as each:
        each.wire.blocked = True
        with pytest.raises(NotSent) as raised:
            await each.call()
        assert "write" == raised.value.details["phase"]
        assert [1] == each.wire.withdrawn
        assert not each.wire.claims[0]()
        assert 0 == len(each.seam.flights)


@pytest.mark.req("P31", "P44")
async def test_a_lease_that_died_gets_one_more_try(autojump_clock: trio.testing.MockClock) -> None:
    """A call whose connection ends before its claim is checked anew and sent once by the next one; a third has none."""
    async with box() as each, trio.open_nursery() as nursery:
        replies: list[Any] = []

        async def call() -> None:
            replies.append(await each.call())

        first = each.wire
        first.blocked = True
        nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        each.server.connection = Link(2, Wire())
        exchange = first.exchanges[0]
        exchange.on_ended(exchange, None)  # type: ignore[misc, arg-type]
        await trio.testing.wait_all_tasks_blocked()
        each.wire.answer()
        await trio.testing.wait_all_tasks_blocked()
        assert 1 == len(replies)
        for failure in (PeerClosed("x"), PeerQueueFull("x")):
            each.wire.refuse = failure
            with pytest.raises(NotSent):
                await each.call()


@pytest.mark.req("P60")
async def test_a_write_goes_out_only_when_it_is_noted(autojump_clock: trio.testing.MockClock) -> None:
    """With `journal_sync: power` a frame waits for the disk; if that fails, or its caller leaves, it is not sent."""
    ready, fails = trio.Event(), False

    async def sync() -> None:
        await ready.wait()
        if fails:
            raise OSError(5, "Input/output error")

    async with box(sync=sync) as each:
        with trio.move_on_after(0.1):
            await each.call()
        assert not each.wire.exchanges
        ready.set()
        fails = True
        with pytest.raises(StoreUnavailable, match="its journal cannot be written"):
            await each.call()
        assert not each.wire.exchanges
        async with trio.open_nursery() as nursery:
            nursery.start_soon(each.call, "look")
            await trio.testing.wait_all_tasks_blocked()
            each.wire.answer()
        each.audit.mark_unavailable("database", "the disk is full")
        with pytest.raises(StoreUnavailable, match="the disk is full"):
            await each.call()


@pytest.mark.req("P36")
async def test_a_write_that_waited_meets_the_gate_as_it_is(autojump_clock: trio.testing.MockClock) -> None:
    """A write queued behind one that becomes unresolved is refused when its turn has come."""
    async with box(concurrency=1) as each, trio.open_nursery() as nursery:
        nursery.start_soon(each.unresolved)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(CallGated):
            await each.call()
        assert 1 == len(each.wire.exchanges)


@pytest.mark.req("P33")
async def test_a_call_of_nobody_is_taken_for_the_worst(autojump_clock: trio.testing.MockClock) -> None:
    """Without a context even a read counts as destructive, and is refused where a gate is shut."""
    async with box() as each:
        await each.unresolved()
        with pytest.raises(CallGated):
            await each.seam.call(CallRequest(params=decode_call(b'{"name":"look"}')), None)


@pytest.mark.req("P6")
async def test_a_shutdown_makes_no_entries(autojump_clock: trio.testing.MockClock) -> None:
    """Whoever is cut off while everything ends leaves no entry; the journal has the call."""
    async with box() as each:
        each.tracker.closing = True
        with trio.move_on_after(0.5):
            await each.call()
        assert not each.tracker.registry.entries()
        assert 1 == each.tracker.registry.busy("s").sent


@pytest.mark.req("P20")
async def test_more_late_answers_than_are_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    """Calls that were folded are answered all the same; beyond the bound the oldest is let go of."""
    async with box(policy=ServerPolicy(mode=Mode.OFF)) as each:
        each.seam.flights._most = 20
        for _ in range(25):
            await each.unresolved()
        assert 20 == each.seam.flights.late
        for index in range(5, 25):
            each.wire.answer(index)
        assert 0 == each.seam.flights.late
        gating = [record for record in each.tracker.registry.entries() if record.gating]
        assert [5] == [getattr(record, "count", 1) for record in gating], "what was let go of stays unknown"
