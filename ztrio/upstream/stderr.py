"""What a server writes to stderr: always read, so that it is never stuck in that, and only its end kept."""

from __future__ import annotations

import os
from typing import Final

import trio

__all__ = ["STDERR_KEPT", "Tail"]

STDERR_KEPT: Final = 64 * 1024
"""Bytes of stderr that are kept, the last ones."""

_CHUNK: Final = 65536
_BURST: Final = 16  # chunks that are read before others have their turn


class Tail:
    """The end of what comes out of a pipe.

    Args:
        fd: The end of the pipe to read from, which does not block; its owner closes it.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._kept = bytearray()

    async def drain(self) -> None:
        """Read until its end."""
        await trio.lowlevel.checkpoint()
        while self.drain_now():
            await trio.lowlevel.wait_readable(self._fd)

    def drain_now(self) -> bool:
        """Read what there is, up to 1 MiB; False at its end."""
        for _ in range(_BURST):
            try:
                chunk = os.read(self._fd, _CHUNK)
            except BlockingIOError:
                break
            if not chunk:
                return False
            self._kept += chunk
            del self._kept[:-STDERR_KEPT]
        return True

    def text(self) -> str:
        """What is kept, as text."""
        return self._kept.decode(errors="replace")
