"""The writer under any order of what is sent, taken back and read."""

from __future__ import annotations

import os
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from tests.peer.wire import CAPACITY, Recorder, Wire, messages
from ztrio_mcp.peer import Exchange, Peer

SIZES = st.sampled_from([0, 1, 4000, 4096, 5000, 60_000, CAPACITY, 150_000])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("request"), SIZES, st.booleans()),
        st.tuples(st.just("notify"), SIZES, st.booleans()),
        st.tuples(st.just("withdraw"), st.integers(0, 20)),
        st.tuples(st.just("read"), st.sampled_from([1, 100, 4096, 5000, 50_000, 500_000])),
        st.tuples(st.just("settle")),
    ),
    max_size=40,
)


@pytest.mark.req("P3", "I8")
@settings(deadline=None)  # real pipes
@given(STEPS)
def test_frames_go_out_whole_once_and_in_order(steps: list[tuple[Any, ...]]) -> None:
    """Whatever the sizes and however slow the reader: what is read is each frame that was sent, neither refused nor
    taken back, whole and once, in order except for those in front; sent are exactly the claimed ones."""
    trio.run(_frames_go_out_whole_once_and_in_order, steps)


async def _frames_go_out_whole_once_and_in_order(steps: list[tuple[Any, ...]]) -> None:
    taken, stdin = os.pipe()
    stdout, giving = os.pipe()
    peer = Peer(stdin=stdin, stdout=stdout, handler=(recorder := Recorder()), label="other")
    wire = Wire(peer, recorder, stdin=stdin, stdout=stdout, taken=taken, given=giving)
    exchanges: list[Exchange] = []
    claimed: set[str] = set()
    queued: list[str] = []
    front: list[str] = []
    unclaimed: set[str] = set()
    data = b""

    def claim(name: str, holds: bool) -> bool:
        assert name not in claimed | unclaimed
        (claimed if holds else unclaimed).add(name)
        return holds

    try:
        async with wire.running():
            for number, step in enumerate(steps):
                name = f"m{number}"
                match step:
                    case "request", size, holds:
                        exchange, _ = wire.ask(
                            name, b'"%b"' % (b"x" * size), claim=lambda name=name, holds=holds: claim(name, holds)
                        )
                        exchanges.append(exchange)
                        queued.append(name)
                    case "notify", size, first:
                        peer.notify(name, b'"%b"' % (b"x" * size), front=first)
                        (front if first else queued).append(name)
                    case "withdraw", index if index < len(exchanges):
                        if peer.withdraw(exchanges[index]):
                            queued.remove(exchanges[index].method)
                    case "read", count:
                        data += wire.take(count)
                    case _:
                        await wait_all_tasks_blocked()
            data += await wire.take_all()
            assert 0 == peer.statistics().queued
        names = [message["method"] for message in messages(data)]
        assert [name for name in queued if name not in unclaimed] == [name for name in names if name not in front]
        assert front == [name for name in names if name in front]
        assert claimed == {exchange.method for exchange in exchanges if exchange.sent}
        assert claimed <= set(names)
    finally:
        wire.close()
