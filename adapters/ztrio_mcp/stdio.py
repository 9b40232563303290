"""Our own stdio transport: lines over file descriptors, on trio, cancellable, without a thread.

The SDK's stdio server reads stdin in a thread that cannot be cancelled, so a signal would hang until the client closes
its end. Here both ends are `trio.lowlevel.FdStream`s over private duplicates of fds 0 and 1. While serving, fd 0 is
the null device and fd 1 is stderr: a stray `print` of a tool or a library never reaches the wire.

The wire, in short: UTF-8, one JSON-RPC message per line. On input a line may end in LF or CRLF, may begin with a
byte-order mark, and the last one may end with the input; a line over the frame limit is discarded up to its newline and
answered with an error. Output lines end in LF and hold no other.

A frame that fits into the pipe is written at once, by whoever has it. What does not is left to one task, which writes
whole frames only: an answer whose handler is cancelled in the middle of a write would otherwise leave half a line on
the wire. The reader never waits for the writer, so the end of input is noticed while the client does not read: an
error reply that does not fit into the queue is dropped and counted.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import attrs
import trio
from mcp.shared.message import ServerMessageMetadata, SessionMessage

from ztrio_mcp import jsonrpc
from ztrio_mcp.frames import Call, Forward, FrameFilter, FrameStatistics, InFlight
from ztrio_mcp.lines import Lines

__all__ = ["FRAME_LIMIT", "StdioTransport", "TransportStatistics", "open_transport"]

FRAME_LIMIT: Final = 16 * 1024 * 1024
"""The longest line accepted, in bytes without its newline."""

_QUEUE: Final = 128  # frames that may wait for the writer


@attrs.frozen
class _Outgoing:
    """A frame, or what is left of it, on its way to the writer, and the request that it answers."""

    data: bytes
    request: InFlight | None


@attrs.frozen
class TransportStatistics:
    """A snapshot of a transport.

    Args:
        frames: What came in, and what it was.
        written: Frames written.
        undelivered: Frames that could not be written because the client is gone.
        replies_dropped: Error replies dropped because the client does not read.
        waiting: Frames waiting for the writer.
        broken: Whether a write has failed.
    """

    frames: FrameStatistics
    written: int
    undelivered: int
    replies_dropped: int
    waiting: int
    broken: bool


class StdioTransport:
    """One client on a pair of byte streams. Made by `open_transport`; `read` and `write` are its two tasks.

    Args:
        incoming: Bytes from the client.
        outgoing: Bytes to the client.
        frame_limit: Bytes a line may have.

    Attributes:
        frames: The filter and its requests in flight.
        gone: Set at the end of input and at the first write that fails.
        read_stream: What `mcp.server.lowlevel.Server.run` reads from.
        write_stream: What it writes to.
    """

    def __init__(self, incoming: trio.abc.ReceiveStream, outgoing: trio.lowlevel.FdStream, *, frame_limit: int) -> None:
        self.frames = FrameFilter()
        self.gone = trio.Event()
        self._lines = Lines(incoming, frame_limit)
        self._outgoing = outgoing
        self._frame_limit = frame_limit
        self._inbox, inbox = trio.open_memory_channel[SessionMessage](0)
        self._queue, self._queued = trio.open_memory_channel[_Outgoing](_QUEUE)
        self.read_stream = _ReadStream(inbox)
        self.write_stream = _WriteStream(self)
        # Told about each request whose answer was not delivered; set by the server before the tasks start.
        self.on_undelivered: Callable[[InFlight, str], None] = _ignore
        # Starts a call that is served beside the SDK; set by the server before the tasks start, never called unless
        # it has named tools to the filter.
        self.on_call: Callable[[Call], None] = _nobody
        # Frames on their way through the queue, the one being written included. While there are any, nothing is
        # written past them.
        self._waiting = 0
        # A write has failed: nothing more is written, what comes is counted as undelivered. Never cleared.
        self._broken = False
        self._written = self._undelivered = self._replies_dropped = 0
        # Set, and replaced by whoever waits, when a request settles or a frame leaves the queue.
        self._moved = trio.Event()

    def statistics(self) -> TransportStatistics:
        """A snapshot."""
        return TransportStatistics(
            frames=self.frames.statistics(),
            written=self._written,
            undelivered=self._undelivered,
            replies_dropped=self._replies_dropped,
            waiting=self._waiting,
            broken=self._broken,
        )

    async def read(self) -> None:
        """Read lines until the input ends, handing requests on and answering what is none."""
        try:
            async for line in self._lines:
                decision = self.frames.oversized(self._frame_limit) if line is None else self.frames.receive(line)
                if isinstance(decision, Call):
                    self.on_call(decision)
                elif isinstance(decision, Forward):
                    await self._inbox.send(SessionMessage(decision.message, self._metadata(decision.request)))
                elif decision is not None:
                    self._reply(decision.reply)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # a terminal that hung up, or the server stopped listening: the same as the end of input
        finally:
            self.gone.set()

    async def write(self) -> None:
        """Write queued frames until `end_output`; after the first failed write, only count them."""
        async for frame in self._queued:
            try:
                if not self._broken:
                    await self._outgoing.send_all(frame.data)
                    self._written += 1
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self._broken = True
                self.gone.set()
            finally:
                self._waiting -= 1
            if self._broken:
                self._lost(frame.request, "the client is gone")
            self._moved.set()

    async def send(self, message: SessionMessage) -> None:
        """Write or queue a message of the SDK; waits while the queue is full."""
        sent = self.frames.send(message.message)
        self._moved.set()
        if sent is not None:
            await self._send(*sent)
        await trio.lowlevel.checkpoint()

    async def answer(self, request: InFlight, outcome: dict[str, Any]) -> None:
        """Write or queue the answer to a call that was served beside the SDK; waits while the queue is full.

        Args:
            request: What it answers.
            outcome: `{"result": …}` or `{"error": …}`.
        """
        self.frames.settle(request.key)
        self._moved.set()
        body = {"jsonrpc": "2.0", "id": request.id, **outcome}
        await self._send(body, request, encode=jsonrpc.encode_plain)  # what tools return is plain

    async def report(self, request: InFlight, progress: float, total: float | None, message: str | None) -> None:
        """Write or queue a progress notification of a call that is served beside the SDK."""
        told = {"progressToken": request.token, "progress": progress, "total": total, "message": message}
        params = {name: value for name, value in told.items() if value is not None}
        await self._send({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}, None)

    async def tell(self, method: str) -> None:
        """Write or queue a notification that belongs to no request, if the client is of the era that has such."""
        if self.frames.shaken_hands:
            with suppress(trio.ClosedResourceError):  # the end has come meanwhile
                await self._send({"jsonrpc": "2.0", "method": method}, None)

    async def _send(
        self,
        body: dict[str, Any],
        request: InFlight | None,
        *,
        encode: Callable[[dict[str, Any]], bytes] = jsonrpc.encode,
    ) -> None:
        try:
            data = encode(body)
        except (ValueError, TypeError) as error:
            if request is None:
                return  # a notification that cannot be told; nobody waits for it
            reply = jsonrpc.error_reply(request.id, jsonrpc.INTERNAL_ERROR, f"the answer is not JSON: {error}")
            data = jsonrpc.encode(reply)
        if not self._waiting and not self._broken:
            written = self._write_some(data)
            if written == len(data):
                self._written += 1
            else:
                # Without a checkpoint, since a cancel here would leave half a line on the wire. There is room, because
                # nothing waits.
                self._queue.send_nowait(_Outgoing(data[written:], request))
                self._waiting += 1
            return
        self._waiting += 1
        try:
            await self._queue.send(_Outgoing(data, request))
        except BaseException:
            self._waiting -= 1
            raise

    def _write_some(self, data: bytes) -> int:
        """How many bytes the pipe takes at once; the writer finds out what is wrong where it takes none."""
        try:
            return os.write(self._outgoing.fileno(), data)
        except OSError:
            return 0

    async def settled(self) -> None:
        """Wait until every request is answered and every answer is written, or cannot be."""
        while not self._broken and (self.frames.in_flight() or self.statistics().waiting):
            self._moved = trio.Event()
            await self._moved.wait()

    def end_input(self) -> None:
        """Tell the SDK that the input has ended."""
        self._inbox.close()

    def end_output(self) -> None:
        """Let `write` return once the queue is empty."""
        self._queue.close()

    def _reply(self, reply: dict[str, Any]) -> None:
        try:
            self._queue.send_nowait(_Outgoing(jsonrpc.encode(reply), None))
        except (trio.WouldBlock, trio.ClosedResourceError):
            self._replies_dropped += 1
        else:
            self._waiting += 1

    def _metadata(self, request: InFlight | None) -> ServerMessageMetadata | None:
        if request is None:
            return None
        return ServerMessageMetadata(on_request_unanswered=partial(self._unanswered, request.key))

    async def _unanswered(self, key: int) -> None:
        await trio.lowlevel.checkpoint()
        self.unanswered(key)

    def unanswered(self, key: int) -> None:
        """This request will not be answered: its client cancelled it."""
        request = self.frames.settle(key)
        self._moved.set()
        if request is not None:
            self.on_undelivered(request, request.cause.text or "the client cancelled the call")

    def _lost(self, request: InFlight | None, why: str) -> None:
        self._undelivered += 1
        if request is not None:
            self.on_undelivered(request, why)


def _ignore(_request: InFlight, _why: str) -> None:
    return


def _nobody(_call: Call) -> None:
    raise AssertionError("a call is to be served that nobody serves")


@asynccontextmanager
async def open_transport(
    read_fd: int, write_fd: int, *, frame_limit: int = FRAME_LIMIT
) -> AsyncIterator[StdioTransport]:
    """Serve one client over two file descriptors, which are closed at the end.

    Args:
        read_fd: Where the client's bytes come from.
        write_fd: Where bytes for the client go.
        frame_limit: Bytes a line may have.
    """
    incoming, outgoing = trio.lowlevel.FdStream(read_fd), trio.lowlevel.FdStream(write_fd)
    try:
        yield StdioTransport(incoming, outgoing, frame_limit=frame_limit)
    finally:
        incoming.close()
        outgoing.close()


class _ReadStream:
    """The SDK's view of the input (`mcp.shared._stream_protocols.ReadStream`)."""

    def __init__(self, channel: trio.MemoryReceiveChannel[SessionMessage]) -> None:
        self._channel = channel

    def __aiter__(self) -> _ReadStream:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self._channel.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise StopAsyncIteration from None

    async def receive(self) -> SessionMessage | Exception:
        return await self._channel.receive()

    async def aclose(self) -> None:
        await self._channel.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        self._channel.close()


class _WriteStream:
    """The SDK's view of the output (`mcp.shared._stream_protocols.WriteStream`); the transport outlives it."""

    def __init__(self, transport: StdioTransport) -> None:
        self._transport = transport

    async def send(self, item: SessionMessage, /) -> None:
        await self._transport.send(item)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        return
