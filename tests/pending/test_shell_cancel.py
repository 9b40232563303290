"""Cancelling under trio: one winner, one frame, and whatever comes first wins. Each race is forced, not waited for."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from tests.pending.box import call_id
from tests.pending.test_shell_tracker import Under, settle, under
from ztrio import LOCAL, CallContext, InvalidArguments, Principal
from ztrio.pending import ActorKind, CancelError, LateOutcome, Mode, PendingSettings, Record, State, Transport
from ztrio.tracking.cancelling import Cancelled, Canceller, Line, Told
from ztrio.tracking.desk import Desk

SENT = Told(told=True, frame_sent=True, method="notification")
SETTINGS = PendingSettings(principals=("ann",), mode=Mode.ENFORCE)
ANN = CallContext(Principal("ann"))


@attrs.define
class Wire(Line):
    """A transport that tells when it is let."""

    answer: Told | Exception = SENT
    # Set when somebody is being told, and what lets that end.
    telling: trio.Event = attrs.field(factory=trio.Event)
    go: trio.Event = attrs.field(factory=trio.Event)
    frames: list[tuple[str | int, ...]] = attrs.field(factory=list)

    async def cancel(self, record: Record) -> Told:
        """Send one frame."""
        self.frames.append(record.wire_ids)
        self.telling.set()
        await self.go.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@attrs.define
class Cancelling:
    """An unresolved call, a wire, and somebody who cancels."""

    box: Under
    wire: Wire
    canceller: Canceller

    async def cancel(self) -> Cancelled:
        """Cancel the call."""
        return await self.canceller.cancel(call_id(1), ActorKind.CALLER)

    def do(self, command: Callable[..., Any], *args: Any, **facts: Any) -> None:
        """Something else that happens."""
        self.box.tracker.did(command(*args, **facts, **self.box.tracker.moment()))

    def state(self) -> State:
        """The call's state."""
        record = self.box.tracker.registry.get(call_id(1))
        assert record is not None
        return record.state


@asynccontextmanager
async def cancelling(answer: Told | Exception = SENT, **facts: Any) -> AsyncIterator[Cancelling]:
    """An unresolved call on a wire."""
    async with under(settings=SETTINGS) as box:
        box.lose(1, **facts)
        wire = Wire(answer)
        yield Cancelling(box, wire, Canceller(box.tracker, lambda _: wire))


async def in_task(nursery: trio.Nursery, cancel: Callable[[], Awaitable[Cancelled]]) -> list[Cancelled]:
    """Cancel in a task of its own; its answer, when there is one."""
    answers: list[Cancelled] = []

    async def run() -> None:
        answers.append(await cancel())

    nursery.start_soon(run)
    await settle()
    return answers


@pytest.mark.req("P40", "I8")
async def test_told(autojump_clock: trio.testing.MockClock) -> None:
    """The upstream is told once; meanwhile the gate is shut, after it open; asked again nothing more is sent."""
    async with cancelling() as the, trio.open_nursery() as nursery:
        answers = await in_task(nursery, the.cancel)
        assert (State.CANCELLING, True) == (the.state(), the.box.tracker.registry.gates("files", "ann", "ann"))
        the.wire.go.set()
        await settle()
        assert [Cancelled(State.CANCELLED, True, None, "notification")] == answers
        assert not the.box.tracker.registry.gates("files", "ann", "ann")
        assert Cancelled(State.CANCELLED, True) == await the.cancel()
        assert [(1,)] == the.wire.frames


@pytest.mark.req("P40", "I8")
async def test_twenty_at_once(autojump_clock: trio.testing.MockClock) -> None:
    """One of them tells the upstream, and all get the same answer."""
    async with cancelling() as the, trio.open_nursery() as nursery:
        answers = [await in_task(nursery, the.cancel) for _ in range(20)]
        assert [[]] * 20 == answers
        the.wire.go.set()
        await settle()
        assert [[Cancelled(State.CANCELLED, True, None, "notification")]] * 20 == answers
        assert 1 == len(the.wire.frames)


@pytest.mark.req("P25", "P40")
@pytest.mark.parametrize("told", [True, False])
async def test_a_late_answer_during_the_send(autojump_clock: trio.testing.MockClock, told: bool) -> None:
    """It wins: the call is completed late, notes that a cancel was asked for, and the canceller is told so."""
    async with cancelling(Told(told=told, frame_sent=told)) as the, trio.open_nursery() as nursery:
        answers = await in_task(nursery, the.cancel)
        registry = the.box.tracker.registry
        the.do(registry.resolve_late, call_id(1), outcome=LateOutcome.SUCCESS)
        the.wire.go.set()
        await settle()
        record = registry.get(call_id(1))
        assert record is not None
        assert (State.COMPLETED_LATE, True, LateOutcome.SUCCESS) == (
            record.state,
            record.cancel_requested,
            record.late_outcome,
        )
        assert [(State.COMPLETED_LATE, told)] == [(answer.state, answer.sent) for answer in answers]


@pytest.mark.req("P2", "P40")
async def test_a_late_answer_before_and_after(autojump_clock: trio.testing.MockClock) -> None:
    """Before the claim nothing is sent; after it the outcome is noted and the state stays."""
    async with cancelling() as the:
        the.wire.go.set()
        await the.cancel()
        the.do(the.box.tracker.registry.resolve_late, call_id(1), outcome=LateOutcome.TOOL_ERROR)
        record = the.box.tracker.registry.get(call_id(1))
        assert record is not None
        assert (State.CANCELLED, LateOutcome.TOOL_ERROR) == (record.state, record.late_outcome)
    async with cancelling() as the:
        the.do(the.box.tracker.registry.resolve_late, call_id(1), outcome=LateOutcome.SUCCESS)
        assert Cancelled(State.COMPLETED_LATE, False) == await the.cancel()
        assert [] == the.wire.frames


@pytest.mark.req("P40", "P44")
async def test_a_reset_during_the_send(autojump_clock: trio.testing.MockClock) -> None:
    """A connection that ends meanwhile is what became of the call."""
    async with cancelling() as the, trio.open_nursery() as nursery:
        answers = await in_task(nursery, the.cancel)
        the.do(the.box.tracker.registry.end_epoch, "files", 1, transport=Transport.STDIO)
        the.wire.go.set()
        await settle()
        assert [State.CONNECTION_RESET] == [answer.state for answer in answers]
        assert State.CONNECTION_RESET == the.state()


@pytest.mark.req("P40")
async def test_a_call_that_is_being_cancelled_does_not_expire(autojump_clock: trio.testing.MockClock) -> None:
    """Its time comes during the send: nothing is told, so it is unresolved again, and expires then."""
    wire = Told(told=False, error=CancelError.TRANSPORT_CLOSED)
    async with cancelling(wire) as the, trio.open_nursery() as nursery:
        await trio.sleep(629)
        answers = await in_task(nursery, the.cancel)
        await trio.sleep(3)
        assert State.CANCELLING == the.state()
        the.wire.go.set()
        await settle()
        assert [Cancelled(State.UNRESOLVED, False, CancelError.TRANSPORT_CLOSED)] == answers
        await trio.sleep(1)
        assert State.EXPIRED == the.state()


@pytest.mark.req("P40", "I8")
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Told(told=False, error=CancelError.TRANSPORT_CLOSED), CancelError.TRANSPORT_CLOSED),
        (Told(told=False, frame_sent=True, error=CancelError.SEND_FAILED), CancelError.SEND_FAILED),
        (OSError("broken"), CancelError.SEND_FAILED),
    ],
)
async def test_nothing_told(
    autojump_clock: trio.testing.MockClock, answer: Told | Exception, error: CancelError
) -> None:
    """The call is unresolved again; another cancel is sent only if not a byte of this one can have gone out."""
    async with cancelling(answer) as the:
        the.wire.go.set()
        assert Cancelled(State.UNRESOLVED, False, error) == await the.cancel()
        assert the.box.tracker.registry.gates("files", "ann", "ann")
        await the.cancel()
        assert (2 if error is CancelError.TRANSPORT_CLOSED else 1) == len(the.wire.frames)


@pytest.mark.req("P40")
async def test_a_canceller_who_leaves(autojump_clock: trio.testing.MockClock) -> None:
    """Half a frame helps nobody: the send goes on, within five seconds, and whoever else waits gets the answer."""
    async with cancelling() as the, trio.open_nursery() as nursery:
        with trio.move_on_after(1) as leaving:
            async with trio.open_nursery() as first:
                await in_task(first, the.cancel)
                answers = await in_task(nursery, the.cancel)
        assert leaving.cancel_called
        assert 5.0 == trio.current_time()
        await settle()
        assert [Cancelled(State.UNRESOLVED, False, CancelError.SEND_FAILED)] == answers
        assert 1 == len(the.wire.frames)


@pytest.mark.req("P40")
async def test_what_cannot_be_cancelled(autojump_clock: trio.testing.MockClock) -> None:
    """A call in flight is not, an unknown one neither, and one without a transport says so; nothing changes."""
    async with cancelling() as the:
        the.box.begin(2, gate_scope="other")
        assert Cancelled(State.SENT, False) == await the.canceller.cancel(call_id(2), ActorKind.CALLER)
        assert Cancelled(State.NOT_SENT, False) == await the.canceller.cancel(call_id(9), ActorKind.CALLER)
        nobody = Canceller(the.box.tracker, lambda _: None)
        expected = Cancelled(State.UNRESOLVED, False, CancelError.UNSUPPORTED_TRANSPORT)
        assert expected == await nobody.cancel(call_id(1), ActorKind.CALLER)
        assert (State.UNRESOLVED, []) == (the.state(), the.wire.frames)


@pytest.mark.req("P34", "P40", "P58")
async def test_at_the_desk(autojump_clock: trio.testing.MockClock) -> None:
    """A surface's cancel says what came of it, in the audit by whom, and is a way out only while it can be sent."""
    async with cancelling() as the:
        desk = Desk(the.box.tracker, b"s" * 32)
        desk.read_tools = lambda _context, server: ["list"] if server == "files" else []
        assert ["wait", "reconcile"] == [way["action"] for way in desk.calls(ANN)[0]["resolve"]]
        desk.line = lambda _: the.wire
        assert ["wait", "reconcile", "cancel"] == [way["action"] for way in desk.calls(ANN)[0]["resolve"]]
        the.wire.go.set()
        answer = await desk.cancel(call_id(1), ANN)
        note = answer.pop("note")
        assert {"call_id": call_id(1), "state": "cancelled", "cancel_sent": True, "method": "notification"} == answer
        assert "not known" in note
        assert ["caller", "caller"] == [(event.pending or {})["actor"] for event in the.box.events[-2:]]
        again = await desk.cancel(call_id(1), LOCAL)
        assert ("cancelled", True) == (again["state"], again["cancel_sent"])
        the.do(the.box.tracker.registry.release, call_id(1), actor=ActorKind.OPERATOR)
        the.box.lose(3, gate_scope="x")
        the.do(the.box.tracker.registry.resolve_late, call_id(3), outcome=LateOutcome.SUCCESS)
        assert "over" in (await desk.cancel(call_id(3), ANN))["note"]


@pytest.mark.req("P40")
async def test_cancelling_is_a_checkpoint(autojump_clock: trio.testing.MockClock) -> None:
    """Each way out of a cancel lets others run, and can be cancelled before anything is done."""
    async with cancelling() as the:
        the.wire.go.set()
        for number in (9, 1, 1):
            with trio.testing.assert_checkpoints():
                await the.canceller.cancel(call_id(number), ActorKind.CALLER)
        with trio.CancelScope() as scope:
            scope.cancel()
            await the.cancel()
        assert scope.cancelled_caught


@pytest.mark.req("P2", "P39")
async def test_what_cannot_be_released(autojump_clock: trio.testing.MockClock) -> None:
    """A call in flight is somebody's, and one that is being cancelled is not settled beside that; both are said."""
    async with cancelling() as the, trio.open_nursery() as nursery:
        desk = Desk(the.box.tracker, b"s" * 32)
        the.box.begin(2, gate_scope="other")
        await in_task(nursery, the.cancel)
        for number, why in ((2, "not_unresolved"), (1, "being_cancelled")):
            with pytest.raises(InvalidArguments) as caught:
                await desk.release(call_id(number), "because", LOCAL)
            assert why == caught.value.details["why"]
        assert 1 == desk.statistics().registry.in_flight
        the.wire.go.set()
