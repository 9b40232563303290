"""Places on a server: first come, first served, and never more than there are."""

from pathlib import Path

import hypothesis
import pytest
import trio
import trio.testing
from hypothesis import strategies as st

from tests.gateway.box import gateway
from ztrio_mcp.gateway.turns import Turn, Turns


@pytest.mark.parametrize("places", [1, 40])
async def test_calls_of_one_chunk_run_in_their_order(tmp_path: Path, places: int) -> None:
    """Forty calls in one write reach the server in the order in which they were written, whatever trio does first."""
    async with gateway(tmp_path, concurrency=places) as box:
        calls = [
            {
                "jsonrpc": "2.0",
                "id": number,
                "method": "tools/call",
                "params": {"name": "look", "arguments": {"n": number}},
            }
            for number in range(1000, 1040)
        ]
        await box.client.send_json(*calls)
        for number in range(1000, 1040):
            await box.client.reply(number)
        received = [each["params"]["arguments"]["n"] for each in box.received("tools/call")]
        assert list(range(1000, 1040)) == received


@hypothesis.given(st.integers(1, 3), st.integers(0, 3), st.lists(st.integers(-1, 9), max_size=40))
def test_places_are_bounded_and_fair(running: int, waiting: int, moves: list[int]) -> None:
    """Whoever takes and gives back in whatever order: as many run as may, those who wait are served as they came."""
    turns = Turns(running, waiting)
    inside: list[Turn] = []
    for move in moves:
        if move < 0 or not inside:
            turn = turns.take()
            assert turn.refused == (len(inside) == running + waiting)
            inside += [turn] * (not turn.refused)
        else:
            turn = inside.pop(move % len(inside))
            turn.give_back()
            turn.give_back()
        assert [True] * min(running, len(inside)) == [each.granted for each in inside[:running]]
        assert not any(each.granted for each in inside[running:])


async def test_a_turn_is_waited_for() -> None:
    """Whoever waits goes on when a place is given back, and one that has gone meanwhile is passed over."""
    turns = Turns(1, 2)
    with turns.take() as first:
        await first.wait()
        second, third = turns.take(), turns.take()
        done: list[Turn] = []

        async def wait(turn: Turn) -> None:
            await turn.wait()
            done.append(turn)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, third)
            await trio.testing.wait_all_tasks_blocked()
            second.give_back()
            assert not done
            first.give_back()
    assert [third] == done
