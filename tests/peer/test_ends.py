"""How a connection ends, and who is told."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import attrs
import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.peer.wire import CAPACITY, Recorder, Wire, answer
from ztrio_mcp.peer import Ending, Exchange, Peer

Wiring = Callable[..., Wire]


@pytest.mark.case("R35")
async def test_the_last_message_needs_no_newline(wire: Wire) -> None:
    """What stands before the end of the stream is read like any other line, and only then is the end told."""
    order: list[str] = []
    async with wire.running():
        exchange = wire.peer.request(
            "m", None, on_response=lambda _: order.append("response"), on_ended=lambda *_: order.append("ended")
        )
        wire.peer.request("m", None, on_response=lambda _: None, on_ended=lambda *_: order.append("other ended"))
        wire.peer.request("m", None, on_response=lambda _: None)
        await wire.give(answer(exchange.id).rstrip())
        wire.stop_giving()
        await wait_all_tasks_blocked()
    assert ["response", "other ended"] == order
    assert Ending("eof") == wire.ending


async def test_an_answer_that_was_given_before_the_end_is_not_lost(wire: Wire) -> None:
    """A server that answers and goes: the write that fails finds its answers first, even behind a flood."""
    async with wire.running():
        calls = [wire.ask() for _ in range(500)]
        assert wire.given is not None
        os.write(wire.given, b"".join(answer(exchange.id) for exchange, _ in calls))
        wire.stop_taking()
        _, told = wire.ask()
        wire.stop_giving()
        await wait_all_tasks_blocked()
    assert "broken" == wire.over()
    assert {b"{}"} == {told.result for _, told in calls}
    assert [(False, "broken")] == told.endings


@attrs.define
class Chatterbox(Recorder):
    """There is always something more to be read."""

    given: int = -1

    def notification(self, method: str, params: msgspec.Raw | None) -> None:
        self.chatter()

    def chatter(self) -> None:
        line = b'{"jsonrpc":"2.0","method":"n"}\n'
        try:
            os.write(self.given, line * (CAPACITY // len(line)))
        except BlockingIOError:
            pass


async def test_a_server_that_goes_on_talking_does_not_keep_the_connection(wiring: Wiring) -> None:
    """After a failed write as much is read as a pipe holds, and no more."""
    wire = wiring(handler=(handler := Chatterbox()))
    assert wire.given is not None
    handler.given = wire.given
    handler.chatter()
    wire.stop_taking()
    wire.ask()
    assert "broken" == (await wire.peer.run()).reason
    assert wire.peer.statistics().received >= CAPACITY // 31


async def test_who_is_told_of_the_end_may_forget_others(wire: Wire) -> None:
    """Each exchange that is open is told of the end once, and one that is forgotten meanwhile is not."""
    told: list[int] = []
    exchanges: list[Exchange] = []

    def ended(exchange: Exchange, _ending: Ending) -> None:
        told.append(exchange.id)
        wire.peer.forget(exchanges[1])

    async with wire.running():
        exchanges += [wire.peer.request("m", None, on_response=lambda _: None, on_ended=ended) for _ in range(3)]
        wire.stop_giving()
        await wait_all_tasks_blocked()
    assert [1, 3] == told


async def test_reading_that_fails_ends_the_connection(wire: Wire) -> None:
    """A stream that cannot be read is broken: a directory can be opened and not read."""
    fd = os.open("/", os.O_RDONLY)
    try:
        wire.peer = Peer(stdin=wire.stdin, stdout=fd, handler=wire.handler, label="other")
        _, told = wire.ask()
        ending = await wire.peer.run()
    finally:
        os.close(fd)
    assert ("broken", [(True, "broken")]) == (ending.reason, told.endings)
    assert ending.detail.startswith("reading failed: ")


async def test_a_descriptor_that_its_owner_closes_under_the_reader_ends_the_connection(wire: Wire) -> None:
    """The owner of the pipe closes it while it is waited for."""
    fd = os.dup(wire.stdout)
    wire.peer = Peer(stdin=wire.stdin, stdout=fd, handler=wire.handler, label="other")
    async with wire.running():
        trio.lowlevel.notify_closing(fd)
        os.close(fd)
        await wait_all_tasks_blocked()
    assert "broken" == wire.over()


async def test_input_may_be_a_file(wire: Wire, tmp_path: Path) -> None:
    """What is always ready, and cannot be waited for, is read to its end like a pipe: a file, or the null device."""
    path = tmp_path / "frames"
    path.write_bytes(b'{"jsonrpc":"2.0","method":"n"}\n' * 10_000)
    for name, count in ((path, 10_000), (Path(os.devnull), 0)):
        wire.handler.seen.clear()
        with path.open("rb") if name is path else name.open("rb") as file:
            peer = Peer(stdin=wire.stdin, stdout=file.fileno(), handler=wire.handler, label="other")
            assert Ending("eof") == await peer.run()
        assert count == len(wire.handler.seen)


@attrs.define
class Faulty(Recorder):
    def notification(self, method: str, params: msgspec.Raw | None) -> None:
        raise KeyError(method)


async def test_a_handler_that_fails_ends_the_connection(wiring: Wiring) -> None:
    """What a callback raises comes out of `run`, and open exchanges are told of the end before."""
    wire = wiring(handler=Faulty())
    _, told = wire.ask()
    assert wire.given is not None
    os.write(wire.given, b'{"jsonrpc":"2.0","method":"n"}\n')
    with pytest.raises(ExceptionGroup) as failure:
        await wire.peer.run()
    assert failure.group_contains(KeyError, match="n")
    assert [(True, "cancelled")] == told.endings
