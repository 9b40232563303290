"""What goes out: whole frames, claimed just before their first byte."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
import trio
from trio.testing import assert_no_checkpoints, wait_all_tasks_blocked

from tests.peer.wire import CAPACITY, LARGE, Wire, answer, in_the_pipe, messages
from ztrio_mcp.peer import PeerClosed, PeerQueueFull

Wiring = Callable[..., Wire]


@pytest.mark.case("R35", "R41")
async def test_frames_are_written_at_once(wire: Wire) -> None:
    """As long as the pipe takes it, each frame goes out before the call returns, with its values byte for byte."""
    value = rb'{ "n": 1000000000000000000000000000000, "f": 1.50, "s": "\ud800\r\n" }'
    with assert_no_checkpoints():
        exchange, _ = wire.ask("tools/call", value)
        assert b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":%b}\n' % value == wire.take()
        wire.ask("ping")
        assert b'{"jsonrpc":"2.0","id":2,"method":"ping"}\n' == wire.take()
        wire.peer.notify("a/é\ud800", msgspec.Raw(value))
        assert b'{"jsonrpc":"2.0","method":"a/\\u00e9\\ud800","params":%b}\n' % value == wire.take()
        wire.peer.respond("\ud800", result=msgspec.Raw(value))
        assert b'{"jsonrpc":"2.0","id":"\\ud800","result":%b}\n' % value == wire.take()
        wire.peer.respond(10**30, error=b"{}")
        assert b'{"jsonrpc":"2.0","id":1000000000000000000000000000000,"error":{}}\n' == wire.take()
        wire.peer.respond(None, error=b"{}")
        assert b'{"jsonrpc":"2.0","id":null,"error":{}}\n' == wire.take()
    assert exchange.sent
    assert (6, 0, 2) == (
        wire.peer.statistics().written,
        wire.peer.statistics().queued,
        wire.peer.statistics().in_flight,
    )


async def test_a_frame_is_one_line(wire: Wire) -> None:
    """Values that were written over several lines go out on one."""
    wire.peer.notify("m", b'{\n"a": 1\n}')
    assert b'{"jsonrpc":"2.0","method":"m","params":{ "a": 1 }}\n' == wire.take()


@pytest.mark.parametrize("given", [{}, {"result": b"1", "error": b"2"}])
async def test_a_response_says_one_thing(wire: Wire, given: dict[str, bytes]) -> None:
    """A response with neither or both is refused before anything is written."""
    with pytest.raises(ValueError, match="either"):
        wire.peer.respond(1, **given)
    assert b"" == wire.take()


async def test_ids_are_never_used_again(wire: Wire) -> None:
    """Ids count up from 1, whatever became of the requests before, and the next one is known beforehand."""
    ids = []
    for claim in (None, lambda: False, None):
        expected = wire.peer.next_id
        exchange, _ = wire.ask(claim=claim)
        assert expected == exchange.id
        wire.peer.forget(exchange)
        ids.append(exchange.id)
    assert [1, 2, 3] == ids


# ---- P3


@pytest.mark.req("P3")
async def test_the_claim_comes_just_before_the_first_byte(wire: Wire) -> None:
    """The claim is asked once, with nothing written, while the id is the next one, and then everything is written."""
    asked = []

    def claim() -> bool:
        asked.append((in_the_pipe(wire.taken), wire.peer.next_id))
        return True

    exchange, _ = wire.ask(claim=claim)
    assert [(0, exchange.id)] == asked
    assert [exchange.id] == [message["id"] for message in wire.taken_messages()]
    assert exchange.sent


@pytest.mark.req("P3")
@pytest.mark.parametrize("full", [False, True])
async def test_a_frame_whose_claim_does_not_hold_is_not_written(wire: Wire, *, full: bool) -> None:
    """Not a byte of it goes out, its exchange is over without a word, and what follows is written."""
    async with wire.running():
        if full:
            wire.fill()
        exchange, told = wire.ask("refused", claim=lambda: False)
        following, _ = wire.ask("following", claim=lambda: True)
        assert (full, not full) == (wire.peer.statistics().queued == 2, following.sent)
        assert ["following"] == [message["method"] for message in messages(await wire.take_all())]
        assert (False, True) == (exchange.sent, following.sent)
        assert not wire.peer.withdraw(exchange)
        assert 1 == wire.peer.statistics().in_flight
    assert ([], []) == (told.responses, told.endings)


@pytest.mark.req("P3")
async def test_a_frame_behind_a_full_pipe_is_not_claimed_and_can_be_taken_back(wire: Wire) -> None:
    """While the pipe takes nothing the claim is not asked; a frame that is taken back then is never written."""
    asked = []

    def claim(name: str) -> Callable[[], bool]:
        def asking() -> bool:
            asked.append(name)
            return True

        return asking

    async with wire.running():
        wire.fill()
        first, told = wire.ask("first", claim=claim("first"))
        second, _ = wire.ask("second", claim=claim("second"))
        await wait_all_tasks_blocked()
        assert ([], False, False) == (asked, first.sent, second.sent)
        assert wire.peer.withdraw(first)
        assert not wire.peer.withdraw(first)
        assert ["second"] == [message["method"] for message in messages(await wire.take_all())]
        assert ["second"] == asked
        assert not wire.peer.withdraw(second)
    assert ([], []) == (told.responses, told.endings)


@pytest.mark.req("P3")
async def test_no_cancellation_leaves_half_a_frame(wire: Wire) -> None:
    """Whoever sent a frame may be cancelled while it is half written: all of it is written all the same."""
    async with wire.running():
        with trio.CancelScope() as scope:
            exchange, _ = wire.ask("large", LARGE)
            behind, _ = wire.ask("behind", claim=lambda: not scope.cancel_called)
            scope.cancel()
            await trio.sleep_forever()
        assert (True, False) == (exchange.sent, behind.sent)
        assert not wire.peer.withdraw(exchange)
        [message] = messages(await wire.take_all())
        assert 3 * CAPACITY == len(message["params"])
        assert (True, 0) == (exchange.sent, wire.peer.statistics().queued)


@pytest.mark.req("P3")
async def test_frames_that_were_not_claimed_when_the_connection_ended_were_not_sent(wire: Wire) -> None:
    """The end tells each open exchange once whether the other side may have got it: also half a frame counts."""
    async with wire.running():
        answered, _ = wire.ask()
        whole, whole_told = wire.ask()
        half, half_told = wire.ask("large", LARGE)
        waiting, waiting_told = wire.ask(claim=lambda: True)
        await wire.give(answer(answered.id))
        wire.stop_giving()
        await wait_all_tasks_blocked()
    assert wire.ending is not None
    assert "eof" == wire.ending.reason
    assert [True, True, False] == [exchange.sent for exchange in (whole, half, waiting)]
    assert [[(True, "eof")], [(True, "eof")], [(False, "eof")]] == [
        told.endings for told in (whole_told, half_told, waiting_told)
    ]
    assert (0, 0) == (wire.peer.statistics().queued, wire.peer.statistics().in_flight)


@pytest.mark.req("P3")
async def test_nothing_is_claimed_for_a_reader_that_is_gone(wire: Wire) -> None:
    """When the other side has closed its end, a frame is known not to have been sent, and the connection ends."""
    async with wire.running():
        wire.stop_taking()
        exchange, told = wire.ask(claim=lambda: pytest.fail("claimed"))
        assert not told.endings
        with pytest.raises(PeerClosed, match="other"):
            wire.peer.notify("m", None)
        await wait_all_tasks_blocked()
    assert [(False, "broken")] == told.endings
    assert wire.ending is not None
    assert "Broken pipe" in wire.ending.detail
    with pytest.raises(PeerClosed):
        wire.ask()
    assert not exchange.sent


@pytest.mark.req("P3")
async def test_a_write_that_fails_after_the_claim_counts_as_sent(wire: Wire) -> None:
    """The reader leaves between claim and write: the frame may have gone out as far as anybody can tell."""

    def claim() -> bool:
        wire.stop_taking()
        return True

    async with wire.running():
        _, told = wire.ask(claim=claim)
    assert [(True, "broken")] == told.endings


async def test_a_frame_that_is_claimed_and_not_taken_waits(wire: Wire) -> None:
    """Somebody else fills the pipe between claim and write: the frame stays sent, in front, and goes out later."""

    def claim() -> bool:
        wire.fill()
        return True

    async with wire.running():
        first, _ = wire.ask("first", claim=claim)
        wire.peer.notify("second", None, front=True)
        assert (True, 2) == (first.sent, wire.peer.statistics().queued)
        assert not wire.peer.withdraw(first)
        assert ["first", "second"] == [message["method"] for message in messages(await wire.take_all())]


async def test_a_claim_that_fails_fails_its_request_alone(wire: Wire) -> None:
    """An error of the claim, even one of the system, comes out of `request`; the connection goes on."""

    def claim() -> bool:
        raise OSError("disk full")

    async with wire.running():
        with pytest.raises(OSError, match="disk full"):
            wire.ask("first", claim=claim)
        assert 0 == wire.peer.statistics().in_flight
        wire.ask("second")
        assert ["second"] == [message["method"] for message in wire.taken_messages()]


async def test_a_claim_may_tell_but_not_ask(wire: Wire) -> None:
    """What a claim sends follows the frame that it claims; a request it cannot send, for ids would be confused."""

    def claim() -> bool:
        wire.peer.notify("told", None)
        with pytest.raises(RuntimeError):
            wire.ask("asked")
        return True

    wire.ask("first", claim=claim)
    assert ["first", "told"] == [message["method"] for message in wire.taken_messages()]
    assert 0 == wire.peer.statistics().queued


# ---- the queue


@pytest.mark.req("I8")
async def test_a_frame_in_front_passes_all_that_waits_and_goes_out_once(wire: Wire) -> None:
    """A cancel goes out after the frame that is half written, before all others, in order, and exactly once."""
    async with wire.running():
        wire.ask("half", LARGE)
        for name in ("a", "b"):
            wire.ask(name)
        for name in ("cancel 1", "cancel 2"):
            wire.peer.notify(name, None, front=True)
        names = [message["method"] for message in messages(await wire.take_all())]
    assert ["half", "cancel 1", "cancel 2", "a", "b"] == names


async def test_the_queue_is_bounded_and_leaves_room_in_front(wiring: Wiring) -> None:
    """One frame too many is refused without a trace, and what goes past the queue still finds room, up to a bound."""
    wire = wiring(queue_limit=2)
    async with wire.running():
        wire.fill()
        wire.ask("a")
        wire.peer.respond(1, result=b"{}")
        before = wire.peer.statistics()
        for send in (
            lambda: wire.ask("c", claim=lambda: pytest.fail("claimed")),
            lambda: wire.peer.notify("c", None),
            lambda: wire.peer.respond(2, result=b"{}"),
        ):
            with pytest.raises(PeerQueueFull):
                send()
        assert before == wire.peer.statistics()
        for name in ("d", "e"):
            wire.peer.notify(name, None, front=True)
        with pytest.raises(PeerQueueFull):
            wire.peer.notify("f", None, front=True)
        await wait_all_tasks_blocked()
        assert ["d", "e", "a", None] == [m.get("method") for m in messages(await wire.take_all())]


async def test_a_queue_is_worked_off_in_turns(wire: Wire) -> None:
    """What has waited goes out in order, however much it is, and what comes meanwhile comes after it."""
    async with wire.running():
        wire.fill()
        for number in range(300):
            wire.ask(f"m{number}")
        assert 300 == wire.peer.statistics().queued
        data = wire.take()
        await trio.lowlevel.checkpoint()
        wire.ask("late")
        names = [message["method"] for message in messages(data + await wire.take_all())]
    assert [*(f"m{number}" for number in range(300)), "late"] == names


async def test_forgetting_takes_a_frame_back(wire: Wire) -> None:
    """Nobody wants the response of a request that still waits: it is not sent."""
    async with wire.running():
        wire.fill()
        exchange, _ = wire.ask("forgotten")
        wire.peer.forget(exchange)
        assert (0, 0) == (wire.peer.statistics().queued, wire.peer.statistics().in_flight)
        assert [] == messages(await wire.take_all())
