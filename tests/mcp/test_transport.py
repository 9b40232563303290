"""The transport by itself: claiming stdin and stdout, queueing, and what is counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import trio
import trio.testing
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCResponse

from ztrio_mcp.frames import InFlight
from ztrio_mcp.stdio import StdioTransport, open_transport


class Ends:
    """A transport on pipes and the client's descriptors."""

    def __init__(self) -> None:
        self.read_fd, self.client_out = os.pipe()
        self.client_in, self.write_fd = os.pipe()

    def close(self) -> None:
        """Close what the transport does not own."""
        os.close(self.client_out)
        os.close(self.client_in)

    def send(self, *messages: Any) -> None:
        """Write lines as the client."""
        os.write(self.client_out, b"".join(json.dumps(message).encode() + b"\n" for message in messages))

    async def received(self) -> list[dict[str, Any]]:
        """Every message written so far."""
        return [json.loads(line) for line in os.read(self.client_in, 1_000_000).splitlines()]


@pytest.fixture
def ends() -> Any:
    """Pipes."""
    pipes = Ends()
    yield pipes
    pipes.close()


def request(request_id: Any) -> dict[str, Any]:
    """A request."""
    return {"jsonrpc": "2.0", "id": request_id, "method": "ping"}


async def incoming(transport: StdioTransport) -> InFlight:
    """The next request as the SDK gets it, as its entry in the table."""
    item = await transport.read_stream.receive()
    assert isinstance(item, SessionMessage)
    entry = transport.frames.get(getattr(item.message, "id", None))
    assert entry is not None
    return entry


def result(key: int, value: Any = None) -> SessionMessage:
    """The SDK's answer."""
    return SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=key, result={"value": value}))


async def test_answers_that_are_no_json_become_errors(ends: Ends) -> None:
    """An answer that cannot be written as JSON is an error under the same id, so that the client does not wait."""
    async with open_transport(ends.read_fd, ends.write_fd) as transport, trio.open_nursery() as nursery:
        nursery.start_soon(transport.read)
        nursery.start_soon(transport.write)
        ends.send(request("a"))
        await transport.write_stream.send(result((await incoming(transport)).key, float("nan")))
        await transport.write_stream.send(
            SessionMessage(JSONRPCNotification(jsonrpc="2.0", method="x", params={"n": 10**5000}))
        )
        await transport.settled()
        (answer,) = await ends.received()
        assert ("a", -32603) == (answer["id"], answer["error"]["code"])
        nursery.cancel_scope.cancel()


async def test_what_the_client_did_not_get_is_known(ends: Ends) -> None:
    """After a write has failed, nothing more is written, and each answer that was not delivered is told."""
    told: list[tuple[Any, str]] = []
    async with open_transport(ends.read_fd, ends.write_fd) as transport, trio.open_nursery() as nursery:
        transport.on_undelivered = lambda entry, why: told.append((entry.id, why))
        nursery.start_soon(transport.read)
        nursery.start_soon(transport.write)
        ends.send(request(1), request("1"))
        first, second = await incoming(transport), await incoming(transport)
        os.close(ends.client_in)
        ends.client_in = os.open(os.devnull, os.O_RDONLY)
        await transport.write_stream.send(result(first.key))
        await transport.gone.wait()
        await transport.write_stream.send(result(second.key))
        transport.end_output()
        await trio.testing.wait_all_tasks_blocked()
        assert [(1, "the client is gone"), ("1", "the client is gone")] == told
        statistics = transport.statistics()
        assert (0, 2, True) == (statistics.written, statistics.undelivered, statistics.broken)
        nursery.cancel_scope.cancel()


async def test_a_frame_is_written_at_once_where_the_pipe_has_room(ends: Ends) -> None:
    """An answer is on the wire when it has been sent, without anybody's help."""
    async with open_transport(ends.read_fd, ends.write_fd) as transport, trio.open_nursery() as nursery:
        nursery.start_soon(transport.read)
        ends.send(request("a"))
        await transport.write_stream.send(result((await incoming(transport)).key, 1))
        assert [{"jsonrpc": "2.0", "id": "a", "result": {"value": 1}}] == await ends.received()
        assert (1, 0) == (transport.statistics().written, transport.statistics().waiting)
        nursery.cancel_scope.cancel()


async def test_frames_are_whole_and_in_order_when_the_pipe_is_full(ends: Ends) -> None:
    """What the pipe does not take at once follows before anything else; a cancelled sender leaves no half line."""
    long = "x" * 1_000_000
    read = bytearray()
    async with open_transport(ends.read_fd, ends.write_fd) as transport, trio.open_nursery() as nursery:
        nursery.start_soon(transport.read)
        nursery.start_soon(transport.write)
        ends.send(*(request(number) for number in range(3)))
        first, second, third = [await incoming(transport) for _ in range(3)]
        await transport.answer(second, {"result": {"value": "before"}})
        with trio.CancelScope() as scope:
            scope.cancel()
            await transport.answer(first, {"result": {"value": long}})
        await transport.answer(third, {"result": {"value": "after"}})
        assert (1, 2) == (transport.statistics().written, transport.statistics().waiting)
        client = trio.lowlevel.FdStream(os.dup(ends.client_in))
        async with client:
            while read.count(b"\n") < 3:
                read += await client.receive_some()
        await transport.settled()
        assert (3, 0) == (transport.statistics().written, transport.statistics().waiting)
        nursery.cancel_scope.cancel()
    values = [(answer["id"], answer["result"]["value"]) for answer in map(json.loads, read.splitlines())]
    assert [(1, "before"), (0, long), (2, "after")] == values


async def test_error_replies_do_not_wait_for_a_client_that_does_not_read(ends: Ends) -> None:
    """The reader goes on while nothing is written: replies beyond the queue are dropped and counted."""
    async with open_transport(ends.read_fd, ends.write_fd) as transport, trio.open_nursery() as nursery:
        nursery.start_soon(transport.read)
        ends.send(*[[]] * 200, request(7))
        assert 7 == (await incoming(transport)).id
        statistics = transport.statistics()
        assert (128, 72) == (statistics.waiting, statistics.replies_dropped)
        assert (201, 200, 1) == (statistics.frames.lines, statistics.frames.batches, statistics.frames.in_flight)
        nursery.cancel_scope.cancel()


async def test_the_end_of_input_is_the_end_of_the_stream(ends: Ends) -> None:
    """When the server has been told of the end, its stream of messages ends, and closing it stops the reader."""
    async with open_transport(ends.read_fd, ends.write_fd) as transport, trio.open_nursery() as nursery:
        nursery.start_soon(transport.read)
        transport.end_input()
        assert [] == [item async for item in transport.read_stream]
        await transport.read_stream.aclose()
        await transport.write_stream.aclose()
        ends.send(request(1))
        await transport.gone.wait()


_CLAIM = """
import os, sys
from ztrio_mcp.claimed import claimed_stdio
print("before")
with claimed_stdio() as (read_fd, write_fd):
    print("inside")
    os.write(write_fd, b"wire:" + os.read(read_fd, 100) + b"\\n")
    sys.exit(0 if sys.stdin.read() == "" and not os.get_inheritable(write_fd) else 5)
"""


def test_claiming_keeps_stray_output_off_the_wire() -> None:
    """While stdin and stdout are claimed, prints go to stderr and stdin is empty; before that they are untouched."""
    done = subprocess.run([sys.executable, "-c", _CLAIM], input=b"hi", capture_output=True, check=False)
    assert (0, b"before\nwire:hi\n", b"inside\n") == (done.returncode, done.stdout, done.stderr)


def test_claiming_without_stderr() -> None:
    """Where there is no stderr, stray prints go nowhere."""
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, _CLAIM], input=b"hi", capture_output=True, check=False
    )
    assert (0, b"before\nwire:hi\n", b"") == (done.returncode, done.stdout, done.stderr)


def test_claiming_with_a_closed_stdout_object() -> None:
    """A program that closed `sys.stdout` can still be served."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.stdout = None\n" + _CLAIM],
        input=b"hi",
        capture_output=True,
        check=False,
    )
    assert (0, b"wire:hi\n") == (done.returncode, done.stdout)
