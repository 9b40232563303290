"""What comes in: each message to whom it is for, and nothing that comes ends the connection."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from tests.peer.wire import Recorder, Told, Wire, answer
from ztrio_mcp.peer import Peer, Response

Wiring = Callable[..., Wire]


@pytest.mark.case("R41")
@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
async def test_values_come_through_byte_for_byte(wire: Wire, ending: bytes) -> None:
    """Results, errors and parameters reach whoever they are for as they were written."""
    value = rb'{ "n": 1000000000000000000000000000000, "f": 1.50, "e": 1e400, "s": "\ud800", "x": [ ] }'
    async with wire.running():
        asked, told = wire.ask()
        failed, told_error = wire.ask()
        await wire.give(b'{"jsonrpc":"2.0","id":%d,"extra":1,"result":%b}%b' % (asked.id, value, ending))
        await wire.give(b'{"jsonrpc":"2.0","id":%d,"error":%b}%b' % (failed.id, value, ending))
        await wire.give(b'{"jsonrpc":"2.0","id":9007199254740993,"method":"r","params":%b}%b' % (value, ending))
        await wire.give(b'{"jsonrpc":"2.0","method":"n","params":%b}%b' % (value, ending))
        await wire.give(b'{"jsonrpc":"2.0","id":"9","method":"r","params":null}\n{"jsonrpc":"2.0","method":"n"}\n')
    assert value == told.result
    assert [Response(failed.id, None, msgspec.Raw(value))] == told_error.responses
    assert [
        ("request", 2**53 + 1, "r", value),
        ("notification", "n", value),
        ("request", "9", "r", None),
        ("notification", "n", None),
    ] == wire.handler.seen
    assert (6, 0) == (wire.peer.statistics().received, wire.peer.statistics().in_flight)


@pytest.mark.req("P28")
@pytest.mark.case("R40")
async def test_responses_are_matched_by_the_exact_id_alone(wire: Wire) -> None:
    """Answers in another order find their exchanges; a second one, one of another type or of nobody finds none."""
    async with wire.running():
        exchanges = [wire.ask() for _ in range(3)]
        for other in (b'"2"', b"2.0", b"4", b"0", b"-1", b"null", b"true", b"[2]", b'"\\ud800"', b"9" * 40):
            await wire.give(b'{"jsonrpc":"2.0","id":%b,"result":"wrong"}\n' % other)
            await wire.give(b'{"jsonrpc":"2.0","id":%b,"error":{}}\n' % other)
        assert [[], [], []] == [told.responses for _, told in exchanges]
        assert 20 == wire.peer.statistics().unknown
        for exchange, _ in reversed(exchanges):
            await wire.give(answer(exchange.id, b"%d" % exchange.id) * 2)
        assert 3 == wire.peer.statistics().stale
    assert [b"1", b"2", b"3"] == [told.result for _, told in exchanges]
    assert [] == wire.handler.seen  # so nothing is answered with an error
    assert [[], [], []] == [told.endings for _, told in exchanges]


@pytest.mark.req("P28")
async def test_a_response_to_what_was_not_written_answers_nothing(wire: Wire) -> None:
    """A server that guesses the next id does not answer a request that it has not got."""
    async with wire.running():
        wire.fill()
        exchange, told = wire.ask()
        await wire.give(answer(exchange.id, b'"guessed"'))
        assert ([], 1) == (told.responses, wire.peer.statistics().unknown)
        await wire.take_all()
        await wire.give(answer(exchange.id, b'"right"'))
    assert b'"right"' == told.result


async def test_a_forgotten_exchange_is_told_nothing(wire: Wire) -> None:
    """Its response is counted, its progress is anybody's, and the end is not told."""
    async with wire.running():
        exchange, told = wire.ask()
        wire.peer.forget(exchange)
        wire.peer.forget(exchange)
        await wire.give(answer(exchange.id))
        await wire.give(b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1}}\n')
    assert Told() == told
    assert 1 == wire.peer.statistics().stale
    assert 1 == len(wire.handler.seen)


@pytest.mark.parametrize(
    ("body", "result", "error", "malformed"),
    [
        (b'"result":null', b"null", None, ""),
        (b'"result":1,"error":null', b"1", None, ""),
        (b'"result":null,"error":null', b"null", None, ""),
        (b'"result":null,"error":{}', None, b"{}", ""),
        (b'"method":null,"error":{}', None, b"{}", ""),
        (b'"error":null', None, b"null", ""),
        (b'"result":1,"error":{}', None, None, "it has both a result and an error"),
        (b'"x":1', None, None, "it has neither a result nor an error"),
    ],
)
async def test_a_response_is_a_result_or_an_error_or_malformed(
    wire: Wire, body: bytes, result: bytes | None, error: bytes | None, malformed: str
) -> None:
    """A null beside the other one counts as absent, and `jsonrpc` is not asked for; both or neither end the wait."""
    async with wire.running():
        exchange, told = wire.ask()
        await wire.give(b'{"id":%d,%b}\n' % (exchange.id, body))
    [response] = told.responses
    found = [None if value is None else bytes(value) for value in (response.result, response.error)]
    assert [result, error, malformed] == [*found, response.malformed]


async def test_progress_goes_to_the_exchange_of_its_token(wire: Wire) -> None:
    """Progress finds its exchange by the token, which is the exchange's id; any other goes to the handler."""
    async with wire.running():
        _, first = wire.ask()
        second, told = wire.ask()
        _, silent = wire.ask(on_progress=None)
        others = [b'{"progressToken":"2"}', b'{"progressToken":3}', b'{"progressToken":true}', b"{}", b"[2]", b"null"]
        others.append(b'{"progressToken":' + b"9" * 30 + b"}")
        for params in (b'{ "progressToken" : 2, "progress": 1.50 }', *others):
            await wire.give(b'{"jsonrpc":"2.0","method":"notifications/progress","params":%b}\n' % params)
        await wire.give(answer(second.id) + b'{"jsonrpc":"2.0","method":"notifications/progress"}\n')
    assert [b'{ "progressToken" : 2, "progress": 1.50 }'] == told.progress
    assert ([], []) == (first.progress, silent.progress)
    expected = [None if params == b"null" else params for params in others] + [None]
    assert expected == [params for _, _, params in wire.handler.seen]


# ---- R31


GARBAGE = [
    (b"Server running on stdio", "not_json"),
    (b"", "blank"),
    (b"[]", "batch"),
    (b"null", "not_object"),
    (b"123", "not_object"),
    (b'{"jsonrpc":"2.0","id":1,"res', "not_json"),
    (b'{"jsonrpc":"2.0","id":1,"result":{"half":', "not_json"),
    (b'{"jsonrpc":"2.0","id":true,"method":"m"}', "invalid_id"),
    (b'{"jsonrpc":"2.0","id":null,"method":"m"}', "invalid_id"),
    (b'{"level":"info","method":"GET"}', "not_message"),
    (b'{"jsonrpc":2.0,"id":5,"method":"GET"}', "not_message"),
    (b"{}", "not_message"),
    (b'{"jsonrpc":"2.0","id":99}', "not_message"),
    (b"\xff\xfe", "not_utf8"),
    (b'{"jsonrpc":"2.0","method":"m","params":"\xff"}', "not_utf8"),
    (b"x" * 300, "not_json"),
]


@pytest.mark.case("R31", "R34")
async def test_what_is_no_message_ends_nothing(wire: Wire) -> None:
    """Banners, blank lines, batches, half messages and wrong bytes are skipped and counted, and all calls answered."""
    async with wire.running():
        calls = [wire.ask() for _ in GARBAGE]
        for (exchange, _), (line, _) in zip(calls, GARBAGE, strict=True):
            await wire.give(line + b"\n" + answer(exchange.id, b"%d" % exchange.id))
    assert [b"%d" % exchange.id for exchange, _ in calls] == [told.result for _, told in calls]
    assert [("skipped", why, line[:256]) for line, why in GARBAGE] == wire.handler.seen
    assert len(GARBAGE) == sum(wire.peer.statistics().skipped.values())
    assert 4 == wire.peer.statistics().skipped["not_message"]
    assert len(GARBAGE) == wire.peer.statistics().received


FRAMES = [
    '{"jsonrpc":"2.0","method":"n","params":"é😀"}'.encode(),
    rb'{"jsonrpc":"2.0","method":"n","params":"\ud800"}',
    b'\xef\xbb\xbf{"jsonrpc":"2.0","id":"\xc3\xa9","method":"r"}\r',
    b'{"jsonrpc":"2.0","id":1,"result":[1]}',
    b'{"jsonrpc":"2.0","id":2,"result":[2]}',
    *(line for line, _ in GARBAGE),
    b"y" * 201,
]


@pytest.mark.case("R31", "R34", "R35")
@settings(deadline=None, max_examples=50)  # byte by byte, each with a turn of its own
@given(st.lists(st.sampled_from(FRAMES), max_size=6), st.lists(st.integers(1, 700), min_size=1), st.booleans())
def test_messages_do_not_depend_on_how_the_bytes_arrive(lines: list[bytes], cuts: list[int], ended: bool) -> None:
    """Whole, cut anywhere or byte by byte, with or without a last newline: the same messages and the same skips."""
    data = b"\n".join(lines) + (b"\n" if ended else b"")
    pieces: list[bytes] = []
    at = 0
    while at < len(data):
        pieces.append(data[at : at + cuts[len(pieces) % len(cuts)]])
        at += len(pieces[-1])
    seen = [trio.run(_received, cut) for cut in ([data], pieces, [data[at : at + 1] for at in range(len(data))])]
    assert seen[0] == seen[1] == seen[2]
    assert (ended and bool(lines)) <= (len(lines) == sum(seen[0][1]))


async def _received(pieces: list[bytes]) -> tuple[object, list[int]]:
    taken, stdin = os.pipe()
    stdout, giving = os.pipe()
    recorder = Recorder()
    peer = Peer(stdin=stdin, stdout=stdout, handler=recorder, line_limit=200, label="other")
    wire = Wire(peer, recorder, stdin=stdin, stdout=stdout, taken=taken, given=giving)
    try:
        async with wire.running():
            _, told = wire.ask()
            for piece in pieces:
                await wire.give(piece)
            wire.stop_giving()
            await wait_all_tasks_blocked()
        statistics = peer.statistics()
        results = [None if each.result is None else bytes(each.result) for each in told.responses]
        counts = [statistics.received, *statistics.skipped.values()]
        return (recorder.seen, results, told.endings, statistics), counts
    finally:
        wire.close()
