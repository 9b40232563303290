"""The connection: what is sent, one run for reader and writer, and one end.

The end comes once, to each exchange that is open then, whoever noticed it first. When writing fails, what has arrived
is still read, so an answer that the other side gave before it went is not lost.

The descriptors stay their owner's, who keeps them open until `run` has returned.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import msgspec
import trio

from ztrio_mcp.objects import raw
from ztrio_mcp.peer.exchanges import Exchanges
from ztrio_mcp.peer.messages import Ending, Exchange, Handler, Id, Outgoing, PeerClosed, PeerStatistics, Response
from ztrio_mcp.peer.reader import Reader
from ztrio_mcp.peer.writer import Writer

__all__ = ["LINE_LIMIT", "QUEUE_LIMIT", "WRITE_STALL", "Peer"]

LINE_LIMIT: Final = 16 * 1024 * 1024
"""The longest line that is read, in bytes without its newline."""

QUEUE_LIMIT: Final = 1024
"""Frames that may wait to be written."""

WRITE_STALL: Final = 10.0
"""Seconds after which a stream that takes no byte is given up."""

Encoded = bytes | msgspec.Raw


class Peer:
    """One side of a JSON-RPC connection.

    Args:
        stdin: File descriptor that frames are written to: the stdin of a server.
        stdout: File descriptor that frames are read from: the stdout of a server. While the peer lives, neither blocks;
            after that both are as they were.
        handler: Takes what the other side sends by itself.
        line_limit: The longest line that is read, in bytes without its newline.
        queue_limit: Frames that may wait to be written, and as many again that go past those.
        write_stall: Seconds after which a stream that takes no byte is given up.
        label: A name for people, in errors.

    Attributes:
        ending: How the connection ended; None while it lives.
    """

    def __init__(
        self,
        *,
        stdin: int,
        stdout: int,
        handler: Handler,
        line_limit: int = LINE_LIMIT,
        queue_limit: int = QUEUE_LIMIT,
        write_stall: float = WRITE_STALL,
        label: str,
    ) -> None:
        self.ending: Ending | None = None
        self._label = label
        # (descriptor, whether it blocked before), to be put back.
        self._blocking = [(fd, os.get_blocking(fd)) for fd in (stdin, stdout)]
        for fd, _ in self._blocking:
            os.set_blocking(fd, False)
        self._exchanges = Exchanges(handler, line_limit=line_limit)
        self._writer = Writer(
            stdin, queue_limit=queue_limit, stall=write_stall, dropped=self._exchanges.close, broken=self._break
        )
        self._reader = Reader(stdout, line_limit=line_limit, take=self._exchanges.take, ended=self._break)
        # Cancelled when the connection has ended, by whoever notices.
        self._alive = trio.CancelScope()

    @property
    def next_id(self) -> int:
        """The id of the next request, never given before; while `request` asks a claim, the id of that one."""
        return self._exchanges.next_id

    async def run(self) -> Ending:
        """Read, and write what could not be written at once, until the other side ends or the connection breaks.

        Whatever way it ends, each exchange that is open is told, and afterwards the descriptors are not used any more.

        Returns:
            How the connection ended.
        """
        try:
            with self._alive:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._writer.run)
                    await self._reader.run()
            assert self.ending is not None
            if self.ending.reason != "eof":
                self._reader.drain()
            return self.ending
        finally:
            self._finish()

    # ---- to the other side

    def request(
        self,
        method: str,
        params: Encoded | None,
        *,
        on_response: Callable[[Response], object],
        on_ended: Callable[[Exchange, Ending], object] | None = None,
        on_progress: Callable[[msgspec.Raw], object] | None = None,
        claim: Callable[[], bool] | None = None,
    ) -> Exchange:
        """Send a request, at once or as soon as the pipe takes it; never waits.

        Args:
            method: What is asked.
            params: Encoded parameters, or None. The progress token in them, if any, is `next_id`.
            on_response: Told the response.
            on_ended: Told, once, that the connection ended while the exchange was open. `Exchange.sent` tells whether
                the other side may have got it. Not called in `request` itself.
            on_progress: Told the parameters of each of its progress notifications.
            claim: Asked just before the first byte, maybe in here, whether it is to be written; if not, the exchange is
                over and nobody is told. Must send no request itself.

        Raises:
            PeerClosed: the connection has ended.
            PeerQueueFull: too many frames wait.
        """
        exchanges = self._exchanges
        number = exchanges.next_id
        if number in exchanges.open:
            raise RuntimeError("a claim sends no requests")
        exchange = Exchange(
            id=number, method=method, on_response=on_response, on_ended=on_ended, on_progress=on_progress
        )
        head = b'{"jsonrpc":"2.0","id":%d,"method":%b' % (number, _method(method))
        exchanges.open[number] = exchange
        try:
            self._send(Outgoing(_line(head, b"params", params), claim, exchange))
        except BaseException:
            exchanges.close(exchange)
            raise
        finally:
            exchanges.next_id = number + 1
        return exchange

    def notify(self, method: str, params: Encoded | None, *, front: bool = False) -> None:
        """Send a notification, at once or as soon as the pipe takes it; never waits.

        Args:
            method: What is told.
            params: Encoded parameters, or None.
            front: Whether it goes past all that is queued: a cancel must not wait for the calls behind the one that it
                cancels (R23).

        Raises:
            PeerClosed: the connection has ended.
            PeerQueueFull: too many frames wait.
        """
        head = b'{"jsonrpc":"2.0","method":%b' % _method(method)
        self._send(Outgoing(_line(head, b"params", params)), front=front)

    def respond(self, id: Id | None, *, result: Encoded | None = None, error: Encoded | None = None) -> None:  # noqa: A002
        """Answer a request of the other side, at once or as soon as the pipe takes it; never waits.

        Args:
            id: The request's, with its JSON type; None for a line whose id cannot be told.
            result: The encoded result, or
            error: the encoded error.

        Raises:
            PeerClosed: the connection has ended.
            PeerQueueFull: too many frames wait.
        """
        if (result is None) == (error is None):
            raise ValueError("a response has either a result or an error")
        head = b'{"jsonrpc":"2.0","id":%b' % raw(id)
        self._send(
            Outgoing(_line(head, b"error" if result is None else b"result", error if result is None else result))
        )

    def forget(self, exchange: Exchange) -> None:
        """Nobody waits any more: the frame is taken back if it is queued, and a response will only be counted."""
        self.withdraw(exchange)
        self._exchanges.close(exchange)

    def withdraw(self, exchange: Exchange) -> bool:
        """Take a request back.

        Returns:
            True if nothing of it was written and nothing will be: the exchange is over and nobody is told. False if it
            has been written, dropped or taken back before: nothing changes.
        """
        if exchange.sent or not self._writer.withdraw(exchange):
            return False
        self._exchanges.close(exchange)
        return True

    def statistics(self) -> PeerStatistics:
        """A snapshot."""
        return PeerStatistics(
            received=self._exchanges.received,
            written=self._writer.written,
            queued=self._writer.queued,
            in_flight=len(self._exchanges.open),
            skipped=self._exchanges.skipped.copy(),
            unknown=self._exchanges.unknown,
            stale=self._exchanges.stale,
        )

    def _send(self, frame: Outgoing, *, front: bool = False) -> None:
        if self.ending is not None:
            raise PeerClosed(f"the connection to {self._label} has ended ({self.ending.reason})")
        self._writer.send(frame, front=front)

    # ---- the end

    def _break(self, ending: Ending) -> None:
        """The connection has ended, if it had not before."""
        if self.ending is None:
            self.ending = ending
            self._alive.cancel()

    def _finish(self) -> None:
        if self.ending is None:
            self.ending = Ending("cancelled")
        self._writer.clear()
        for fd, blocking in self._blocking:
            try:
                os.set_blocking(fd, blocking)
            except OSError:
                pass  # its owner has closed it already
        self._exchanges.end(self.ending)


@lru_cache(maxsize=256)
def _method(method: str) -> bytes:
    return bytes(raw(method))


def _line(head: bytes, key: bytes, value: Encoded | None) -> bytes:
    """A frame; a newline in the value can only be white space, and would cut the frame in two."""
    if value is None:
        return head + b"}\n"
    line = b'%b,"%b":%b}' % (head, key, value)
    return (line.replace(b"\n", b" ") if b"\n" in line else line) + b"\n"
