"""What goes over the wire, byte by byte: a real server on pipes, a raw client."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from .conftest import Serving

IDS: list[str | int] = [1, "1", "", "é", -1, 0]
BIG = [2**31, 2**53 + 1, 2**63, 10**30, -(10**30)]


def structured(answer: dict[str, Any]) -> Any:
    """The structured content of a tool result."""
    return answer["result"]["structuredContent"]


@pytest.mark.case("R40")
async def test_concurrent_calls_keep_their_ids_apart(serving: Serving) -> None:
    """Six calls at once under ids that are easily confused get six right answers, each under its own id and type."""
    async with serving() as served:
        for request_id in IDS:
            await served.client.call(request_id, "echo", {"value": repr(request_id)})
        for request_id in IDS:
            assert {"result": repr(request_id)} == structured(await served.client.reply(request_id))
        await served.client.call(True, "echo", {"value": 1})
        refused = await served.client.reply(None)
        assert -32600 == refused["error"]["code"]


@pytest.mark.case("R41")
@pytest.mark.parametrize("tool", ["echo", "keep"])
async def test_integers_are_exact_everywhere(serving: Serving, tool: str) -> None:
    """Ids, arguments, results and progress tokens beyond 64 bits come back digit by digit, through a worker too."""
    async with serving() as served:
        for number in BIG:
            await served.client.call(number, tool, {"value": number}, meta={"progressToken": number})
            answer = await served.client.reply(number)
            assert {"result": number} == structured(answer)
            assert {"result": number} == json.loads(answer["result"]["content"][0]["text"])
        await served.client.send(
            b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"echo","arguments":{"value":1e400}}}\n'
        )
        refused = await served.client.reply(5)
        assert -32602 == refused["error"]["code"]


@pytest.mark.case("R41")
async def test_a_result_that_json_cannot_carry_is_not_committed(serving: Serving) -> None:
    """An integer with more digits than can be printed is the tool's error, and its call was rolled back."""
    async with serving() as served:
        await served.client.call(1, "huge")
        answer = await served.client.reply(1)
        error = structured(answer)["error"]
        assert ("TOOL_ERROR", "rolled_back") == (error["code"], error["outcome"])
        assert "rolled_back" == answer["result"]["_meta"]["ztrio/outcome"]


@pytest.mark.case("R35")
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
async def test_line_endings_and_bom(serving: Serving, newline: bytes, bom: bytes) -> None:
    """LF or CRLF, with or without a byte-order mark, and a last line that ends with the input: all are answered."""
    initialize = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "0"}}
    async with serving(handshake=False) as served:
        lines: list[dict[str, Any]] = [
            {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": initialize},
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "id": 2, "method": "ping"},
            {"jsonrpc": "2.0", "id": 3, "method": "tools/list"},
        ]
        await served.client.send(bom + newline.join(json.dumps(line).encode() for line in lines))
        await served.client.reply(1)
        await served.client.close_input()
        assert {"jsonrpc": "2.0", "id": 2, "result": {}} == await served.client.reply(2)
        assert "tools" in (await served.client.reply(3))["result"]
        assert 0 == await served.wait_end()
        await served.client.wait_end()
        assert b"\r" not in served.client.raw
        assert served.client.raw.endswith(b"\n")


@pytest.mark.case("R34")
async def test_invalid_text_costs_its_own_line_only(serving: Serving) -> None:
    """A line that is not UTF-8 is a parse error with id null, and the next call is answered."""
    async with serving() as served:
        await served.client.send(b"\xff\xfe\n")
        assert -32700 == (await served.client.reply(None))["error"]["code"]
        await served.client.call(1, "echo", {"value": "fine"})
        assert {"result": "fine"} == structured(await served.client.reply(1))


@pytest.mark.case("R34")
async def test_characters_split_over_chunks(serving: Serving) -> None:
    """A frame with characters of several bytes decodes right when it arrives one byte at a time."""
    async with serving() as served:
        params = {"name": "echo", "arguments": {"value": "é漢𝄞"}}
        message = {"jsonrpc": "2.0", "id": "é", "method": "tools/call", "params": params}
        for byte in json.dumps(message, ensure_ascii=False).encode() + b"\n":
            await served.client.send(bytes([byte]))
            await trio.lowlevel.checkpoint()
        assert {"result": "é漢𝄞"} == structured(await served.client.reply("é"))


@pytest.mark.case("R34")
async def test_lone_surrogates(serving: Serving) -> None:
    """A lone surrogate escape is refused as an argument and echoed as an id; neither ends the server."""
    async with serving() as served:
        await served.client.call("\ud800", "keep", {"value": "\ud800"})
        answer = await served.client.reply("\ud800")
        assert "INVALID_ARGUMENTS" == structured(answer)["error"]["code"]
        await served.client.call("\udfff", "keep", {"value": "x"})
        assert {"result": "x"} == structured(await served.client.reply("\udfff"))
        await served.client.request(1, "\ud800")
        assert -32601 == (await served.client.reply(1))["error"]["code"]
        await served.client.call(2, "\ud800")
        assert -32602 == (await served.client.reply(2))["error"]["code"]


@pytest.mark.case("R33")
async def test_frames_up_to_the_limit_and_beyond(serving: Serving) -> None:
    """Frames around 64 KiB and up to the limit work; one byte more is discarded with an error, and the next is fine."""
    limit = 1024 * 1024
    async with serving(frame_limit=limit) as served:
        empty = json.dumps(
            {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo", "arguments": {"value": ""}}}
        ).encode()
        for size in (65_535, 65_536, 65_537, limit):
            text = b"x" * (size - len(empty))
            await served.client.send(empty.replace(b'""', b'"' + text + b'"') + b"\n")
            assert {"result": text.decode()} == structured(await served.client.reply(1))
        await served.client.send(b"y" * (limit + 1) + b"\n" + b"z" * (3 * limit) + b"\n")
        for _ in range(2):
            assert -32600 == (await served.client.reply(None))["error"]["code"]
        assert {} == (await served.client.ask(2, "ping"))["result"]


@pytest.mark.case("R31")
async def test_noise_between_frames(serving: Serving) -> None:
    """Banners, blank lines, bare values, batches and half a message between frames cost nobody an answer."""
    noise = [b"Server v1 starting", b"", b"  ", b"[]", b"null", b"123", b'{"jsonrpc": "2.0", "id": 1, "met', b"{}"]
    async with serving() as served:
        for number, data in enumerate(noise):
            await served.client.send(data + b"\n")
            await served.client.call(number, "echo", {"value": number})
        for number in range(len(noise)):
            assert {"result": number} == structured(await served.client.reply(number))
        errors = [frame["error"]["code"] for frame in served.client.frames if "error" in frame]
        assert sorted(errors) == sorted([-32700, -32600, -32600, -32600, -32700, -32600])


async def test_an_id_in_flight_twice(serving: Serving) -> None:
    """The second request under an id in flight is refused under id null, and the first is answered."""
    async with serving() as served:
        await served.client.call(1, "nap", {"seconds": 0.2})
        await served.client.call(1, "echo", {"value": "second"})
        assert -32600 == (await served.client.reply(None))["error"]["code"]
        assert {"slept": 0.2} == structured(await served.client.reply(1))


async def test_a_client_that_does_not_read_is_noticed_when_it_leaves(serving: Serving) -> None:
    """Error replies that a client does not read are dropped, and the end of its input still ends the server."""
    async with serving(handshake=False) as served:
        served.client.pause()
        await served.client.send(b"junk\n" * 5000)
        await served.client.close_input()
        assert 0 == await served.wait_end(within=7)
