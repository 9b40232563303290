"""Lines out of a byte stream, each of bounded length."""

from __future__ import annotations

from typing import Final

import trio

__all__ = ["Lines"]

_CHUNK: Final = 64 * 1024  # bytes per read; the capacity of a Linux pipe


class Lines:
    """The lines of a byte stream, without their newlines; None stands for one over the limit.

    Args:
        stream: The bytes.
        limit: Bytes a line may have.
    """

    def __init__(self, stream: trio.abc.ReceiveStream, limit: int) -> None:
        self._stream = stream
        self._limit = limit
        # What has been received and not returned; never more than the limit and one chunk.
        self._buffer = bytearray()
        # No newline is in front of this position.
        self._scanned = 0
        # The start of the current line has been thrown away, because it was too long.
        self._discarding = False
        self._ended = False

    def __aiter__(self) -> Lines:
        return self

    async def __anext__(self) -> bytes | None:
        while True:
            end = self._buffer.find(b"\n", self._scanned)
            if end >= 0:
                return self._take(end, end + 1)
            self._scanned = len(self._buffer)
            if self._scanned > self._limit:
                self._buffer.clear()
                self._scanned = 0
                self._discarding = True
            if self._ended:
                if not self._buffer and not self._discarding:
                    raise StopAsyncIteration
                return self._take(len(self._buffer), len(self._buffer))
            chunk = await self._stream.receive_some(_CHUNK)
            self._ended = not chunk
            self._buffer += chunk

    def _take(self, end: int, following: int) -> bytes | None:
        line = None if self._discarding or end > self._limit else bytes(memoryview(self._buffer)[:end])
        del self._buffer[:following]
        self._scanned = 0
        self._discarding = False
        return line
