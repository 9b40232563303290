"""An other side that takes nothing, and descriptors at the end."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.peer.wire import CAPACITY, LARGE, Wire, in_the_pipe, messages
from ztrio_mcp.peer import Peer, PeerClosed

Wiring = Callable[..., Wire]


@pytest.mark.case("R38")
@pytest.mark.parametrize("half", [False, True])
async def test_a_stream_that_takes_nothing_is_given_up(
    wiring: Wiring, autojump_clock: MockClock, *, half: bool
) -> None:
    """A frame that no byte is taken of for the limit ends the connection then, and the stream is not used again."""
    wire = wiring(write_stall=7.0)
    async with wire.running():
        if not half:
            wire.fill()
        _, told = wire.ask("large", LARGE)
        await trio.sleep(6.9)
        assert None is wire.over()
        await trio.sleep(0.2)
        assert "write_stalled" == wire.over()
    assert [(half, "write_stalled")] == told.endings
    held = in_the_pipe(wire.taken)
    with pytest.raises(PeerClosed, match="write_stalled"):
        wire.peer.notify("m", None)
    assert CAPACITY == held == in_the_pipe(wire.taken)


@pytest.mark.case("R38")
async def test_a_slow_reader_is_no_standstill(wiring: Wiring, autojump_clock: MockClock) -> None:
    """As long as a byte is taken now and then the connection lives, however long the frame takes."""
    wire = wiring(write_stall=7.0)
    async with wire.running():
        wire.ask("large", LARGE)
        data = b""
        while len(data) < 2 * CAPACITY:
            await trio.sleep(6)
            data += wire.take(CAPACITY // 4)
        data += await wire.take_all()
        assert None is wire.over()
        assert 1 == len(messages(data))
        await trio.sleep(100)  # nothing waits, so nothing stands still
        assert None is wire.over()


@pytest.mark.case("R38")
async def test_a_frame_waits_for_the_whole_limit(wiring: Wiring, autojump_clock: MockClock) -> None:
    """The time that another frame waited before it was taken back does not count."""
    wire = wiring(write_stall=7.0)
    async with wire.running():
        wire.fill()
        first, _ = wire.ask("first")
        await trio.sleep(5)
        assert wire.peer.withdraw(first)
        await trio.sleep(1)
        wire.ask("second")
        await trio.sleep(6.9)
        assert None is wire.over()
        await trio.sleep(0.2)
        assert "write_stalled" == wire.over()


@pytest.mark.case("R38")
async def test_an_empty_queue_is_no_standstill(wiring: Wiring, autojump_clock: MockClock) -> None:
    """A pipe that is full while nothing waits is nobody's concern, and the next frame is written when it can be."""
    wire = wiring(write_stall=7.0)
    async with wire.running():
        wire.fill()
        first, _ = wire.ask("first")
        wire.peer.withdraw(first)
        await trio.sleep(100)
        assert None is wire.over()
        second, _ = wire.ask("second")
        assert [second.id] == [message["id"] for message in messages(await wire.take_all())]


@pytest.mark.case("R38")
async def test_a_gateway_that_was_held_up_itself_blames_nobody(wiring: Wiring, mock_clock: MockClock) -> None:
    """When the limit passes while nobody looked, the pipe is tried before the stream is given up."""
    wire = wiring(write_stall=7.0)
    async with wire.running():
        wire.fill()
        wire.ask("first")
        await wait_all_tasks_blocked()
        mock_clock.jump(8)
        data = wire.take()
        data += await wire.take_all()
        assert ["first"] == [message["method"] for message in messages(data)]
        assert None is wire.over()


async def test_the_descriptors_are_left_as_they_were(wiring: Wiring) -> None:
    """While the peer lives nothing blocks, and afterwards whoever shares the descriptors finds them as before."""
    wire = wiring()
    async with wire.running() as cancel:
        assert [False, False] == [os.get_blocking(fd) for fd in (wire.stdin, wire.stdout)]
        _, told = wire.ask()
        cancel()
    assert [True, True] == [os.get_blocking(fd) for fd in (wire.stdin, wire.stdout)]
    assert [(True, "cancelled")] == told.endings
    assert wire.peer.ending is not None
    assert "cancelled" == wire.peer.ending.reason


async def test_a_descriptor_that_its_owner_closes_ends_the_connection(wire: Wire) -> None:
    """The owner of the pipe closes it under the writer: the connection is broken, and nothing else happens."""
    fd = os.dup(wire.stdin)
    wire.peer = Peer(stdin=fd, stdout=wire.stdout, handler=wire.handler, label="other")
    async with wire.running():
        wire.fill()
        _, told = wire.ask()
        await wait_all_tasks_blocked()
        trio.lowlevel.notify_closing(fd)
        os.close(fd)
        await wait_all_tasks_blocked()
    assert [(False, "broken")] == told.endings
