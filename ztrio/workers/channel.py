"""The supervisor's end of a worker's socket.

The end of the process and the end of the stream are two different things, because a process that the worker forked
may hold the other end for ever. So waiting watches both, and what a dead worker still sent is read without waiting.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from ztrio.workers.wire import Frame, FrameDecoder

__all__ = ["WorkerChannel"]

_CHUNK: Final = 64 * 1024  # bytes

_T = TypeVar("_T")


class WorkerChannel:
    """Frames to and from one worker.

    Args:
        sock: The socket; owned from now on.
        exited: Set when the worker's leader has ended; whoever sets it calls `interrupt`.
    """

    def __init__(self, sock: socket.socket, exited: trio.Event) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._exited = exited
        self._decoder = FrameDecoder()
        # The scope of the wait that `interrupt` ends; None while nobody waits.
        self._waiting: trio.CancelScope | None = None

    def limit(self, size: int) -> None:
        """Refuse frames with a body of more than `size` bytes from now on."""
        self._decoder.limit = min(self._decoder.limit, size)

    def interrupt(self) -> None:
        """The leader has ended: nobody needs to wait any longer."""
        if self._waiting is not None:
            self._waiting.cancel()

    async def send(self, data: bytes) -> None:
        """Send everything, or as much as the worker takes before it ends; `receive` then finds the end."""
        await trio.lowlevel.checkpoint_if_cancelled()
        rest = self._send_some(memoryview(data))
        if rest:
            await self._unless_exited(self._send_all, rest)

    async def receive(self) -> Frame | None:
        """The next frame, or None where there will be none: the stream or the leader has ended.

        Raises:
            ProtocolError: the worker sent something else.
        """
        frame = await self._unless_exited(self._read)
        if frame is None and self._exited.is_set():
            frame = self._read_rest()
        return frame

    def hang_up(self) -> None:
        """Let the worker see the end of the stream; it can still send."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # its end is closed

    def close(self) -> None:
        """Close the socket, whoever holds the other end."""
        if self._sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()

    async def _unless_exited(self, function: Callable[..., Awaitable[_T]], *args: object) -> _T | None:
        """Run `function` until it ends, or until the leader does: then None."""
        if self._exited.is_set():
            await trio.lowlevel.checkpoint()
            return None
        with trio.CancelScope() as scope:
            self._waiting = scope
            try:
                return await function(*args)
            finally:
                self._waiting = None
        return None

    async def _send_all(self, rest: memoryview) -> None:  # noqa: ASYNC910 - there is something to send
        while rest:
            await trio.lowlevel.wait_writable(self._sock)
            rest = self._send_some(rest)

    def _send_some(self, data: memoryview) -> memoryview:
        """Send what there is room for; what is left, which is nothing where nobody reads any more."""
        try:
            return data[self._sock.send(data) :]
        except BlockingIOError:
            return data
        except ConnectionError:
            return data[:0]

    async def _read(self) -> Frame | None:
        while (frame := self._decoder.next_frame()) is None:
            await trio.lowlevel.wait_readable(self._sock)
            if not self._feed():
                return None
        return frame  # noqa: ASYNC910 - a frame that is already here must not be lost to a cancellation

    def _read_rest(self) -> Frame | None:
        while (frame := self._decoder.next_frame()) is None:
            if not self._feed():
                return None
        return frame

    def _feed(self) -> bool:
        """Pass what has arrived to the decoder; False when nothing has."""
        try:
            chunk = self._sock.recv(_CHUNK)
        except (BlockingIOError, ConnectionError):
            return False
        self._decoder.feed(chunk)
        return bool(chunk)
