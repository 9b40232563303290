"""Floods, and lines of any length."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import trio

from tests.peer.wire import CAPACITY, LARGE, Wire, answer

Wiring = Callable[..., Wire]


async def test_a_flood_leaves_others_their_turn(wire: Wire) -> None:
    """While thousands of messages come, other tasks run in between."""
    turns = [0]

    async def other() -> None:
        while True:
            turns.append(len(wire.handler.seen))
            await trio.lowlevel.checkpoint()

    async with wire.running(), trio.open_nursery() as nursery:
        nursery.start_soon(other)
        assert wire.given is not None
        line = b'{"jsonrpc":"2.0","method":"n"}\n'
        count = CAPACITY // len(line)
        os.write(wire.given, line * count)
        while len(wire.handler.seen) < count:
            await trio.lowlevel.checkpoint()
        turns.append(len(wire.handler.seen))
        nursery.cancel_scope.cancel()
    assert (
        max(after - before for before, after in pairwise(turns)) <= 2 * 64
    )  # the scheduler may give the reader two turns in a row


@pytest.mark.case("R33")
@pytest.mark.parametrize("size", [CAPACITY - 1, CAPACITY, CAPACITY + 1, 1 << 20, (1 << 21) - 1, 1 << 21])
async def test_lines_up_to_the_limit_are_read(wiring: Wiring, size: int) -> None:
    """A response of any length up to the limit comes through whole, and so does the next one."""
    wire = wiring(line_limit=1 << 21)
    async with wire.running():
        exchange, told = wire.ask()
        following, told_following = wire.ask()
        frame = answer(exchange.id, b'"%b"')[:-1]
        await wire.give(frame % (b"x" * (size - len(frame) + 2)) + b"\n" + answer(following.id))
    assert size == len(told.result) - 4 + len(frame)
    assert b"{}" == told_following.result


@pytest.mark.case("R33")
async def test_a_response_that_is_too_long_ends_the_wait(wiring: Wiring) -> None:
    """One byte over the limit: its caller learns that at once where its id is certain, and the next line is fine."""
    wire = wiring(line_limit=CAPACITY)
    async with wire.running():
        calls = [wire.ask() for _ in range(4)]
        frame = answer(1, b'"%b"')[:-1]
        await wire.give(frame % (b"x" * (CAPACITY - len(frame) + 3)) + b"\n")
        await wire.give(b'{"result":%b,"jsonrpc":"2.0","id":2}\n' % LARGE)
        await wire.give(b'{"jsonrpc":"2.0","method":"m","params":%b,"id":3}\n' % LARGE + answer(4))
    assert ["it is longer than 65536 bytes"] * 2 == [told.malformed for _, told in calls[:2]]
    assert [[], b"{}"] == [calls[2][1].responses, calls[3][1].result]
    assert {"oversized": 3} == wire.peer.statistics().skipped
    assert [("skipped", "oversized", 256)] * 3 == [(kind, why, len(head)) for kind, why, head in wire.handler.seen]


@pytest.mark.case("R31", "R34")
@pytest.mark.parametrize(
    ("value", "malformed"), [(b'{"x":NaN}', "it is not JSON"), (b'{"x":"\xff"}', "it is not UTF-8")]
)
async def test_a_response_that_cannot_be_read_ends_the_wait(wire: Wire, value: bytes, malformed: str) -> None:
    """Not a number and wrong bytes do turn up in what servers return; who waits for it need not wait on."""
    async with wire.running():
        exchange, told = wire.ask()
        await wire.give(answer(exchange.id, value))
    assert malformed == told.malformed
    assert 1 == len(wire.handler.seen)


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.case("R33")
async def test_memory_is_bounded_whatever_comes(wiring: Wiring) -> None:
    """100 MiB without a newline, and lines of the greatest length, cost less than twice the limit."""
    limit = 8 << 20
    wire = wiring(line_limit=limit)
    chunk = b"x" * CAPACITY
    async with wire.running():
        exchange, told = wire.ask()
        before = most = resident()
        for _ in range(100 * 16):
            await wire.give(chunk)
            most = max(most, resident())
        await wire.give(b"\n")
        head, tail = answer(exchange.id, b'"%b"')[:-1].split(b"%b")
        text = left = limit - len(head) - len(tail)
        await wire.give(head)
        while left:
            await wire.give(chunk[:left])
            left -= len(chunk[:left])
        await wire.give(tail + b"\n")
        most = max(most, resident())
    assert text + 2 == len(told.result)
    assert {"oversized": 1} == wire.peer.statistics().skipped
    assert most - before < 2 * limit


async def test_a_message_costs_no_turn_of_its_own(wire: Wire) -> None:
    """All that has come is given away in one go: a response and what came with it are there at the same moment."""
    seen: list[int] = []
    async with wire.running():
        exchange, told = wire.ask()
        assert wire.given is not None
        os.write(wire.given, b'{"jsonrpc":"2.0","method":"n"}\n' * 30 + answer(exchange.id))
        while not told.responses:
            seen.append(len(wire.handler.seen))
            await trio.lowlevel.checkpoint()
    assert {0} == set(seen)
    assert 30 == len(wire.handler.seen)
    assert b"{}" == told.result
