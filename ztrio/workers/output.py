"""What a worker prints: one pipe, always drained, of which only the end is kept.

A pipe that nobody reads blocks its writer after 64 KiB, and a buffer that keeps everything lets a noisy tool fill the
server's memory. So the pipe is read whatever comes, and a ring keeps the last bytes for error messages.
"""

from __future__ import annotations

import os
from typing import Final

import trio

__all__ = ["OutputPipe", "OutputRing"]

_CHUNK: Final = 64 * 1024  # bytes; what a Linux pipe holds
_LAST_CHUNKS: Final = 32  # read without waiting at the end; an escaped process may go on writing for ever


class OutputRing:
    """Keeps the last bytes of a stream.

    Args:
        limit: Bytes kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # The end of the stream; at most twice the limit, so that cutting is rare.
        self._kept = bytearray()
        # Bytes seen so far.
        self._seen = 0

    def feed(self, chunk: bytes) -> None:
        """Add the next bytes of the stream."""
        self._seen += len(chunk)
        self._kept += chunk[-self._limit :]
        if len(self._kept) > 2 * self._limit:
            del self._kept[: -self._limit]

    @property
    def seen(self) -> int:
        """Bytes of the stream so far, kept or not."""
        return self._seen

    def tail(self) -> str:
        """The end of the stream as text; what is no UTF-8 is replaced, and a character cut in half is left out."""
        kept = bytes(self._kept[-self._limit :])
        if self._seen > len(kept):
            kept = kept.lstrip(bytes(range(0x80, 0xC0)))  # continuation bytes of a character that began before
        return kept.decode("utf-8", "replace")


class OutputPipe:
    """The read end of a worker's stdout and stderr.

    Args:
        fd: The descriptor; owned from now on.
        limit: Bytes kept.
    """

    def __init__(self, fd: int, limit: int) -> None:
        os.set_blocking(fd, False)
        self.ring = OutputRing(limit)
        # The descriptor; -1 once closed.
        self._fd = fd

    async def drain(self) -> None:
        """Read until every writer has closed its end, or the pipe is closed here."""
        chunk: bytes | None = None
        await trio.lowlevel.checkpoint()
        while self._fd >= 0 and chunk != b"":
            try:
                await trio.lowlevel.wait_readable(self._fd)
            except trio.ClosedResourceError:
                return
            chunk = self._read()

    def drain_now(self) -> None:
        """Read what is in the pipe, without waiting."""
        for _ in range(_LAST_CHUNKS):
            if not self._read():
                return

    def _read(self) -> bytes | None:
        """Read one chunk; empty at the end of the stream, None while there is nothing (`drain_now` was first)."""
        if self._fd < 0:
            return b""
        try:
            chunk = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return None
        self.ring.feed(chunk)
        return chunk

    def close(self) -> None:
        """Take what is left and close the pipe, whoever still holds the other end."""
        self.drain_now()
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            trio.lowlevel.notify_closing(fd)
            os.close(fd)
