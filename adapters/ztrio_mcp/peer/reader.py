"""The one reader of a connection: it reads as the bytes come, and gives away every whole line before it reads on.

Not `trio.lowlevel.FdStream`: its `receive_some` is a checkpoint even when bytes are there, and so costs a turn of the
event loop for each read. Here others have their turn when nothing is there, and now and then while a flood comes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import trio

from ztrio_mcp.peer.messages import Ending
from ztrio_mcp.peer.splitter import Line, Splitter

__all__ = ["Reader"]

_CHUNK: Final = 64 * 1024  # bytes per read; the capacity of a Linux pipe
_TURN: Final = 4  # reads before others have their turn
_BURST: Final = 64  # lines before others have their turn
_DRAIN: Final = 16  # reads after the end; together what a pipe holds at most, unless root said otherwise


class Reader:
    """Reads lines from a file descriptor that does not block, and is read by nobody else.

    Args:
        fd: The descriptor.
        line_limit: Bytes that a line may have, without its newline.
        take: Takes each line, and one that is too long as `Oversized`; must not wait.
        ended: Told how reading ended, after the last line.
    """

    def __init__(
        self, fd: int, *, line_limit: int, take: Callable[[Line], None], ended: Callable[[Ending], None]
    ) -> None:
        self._fd = fd
        self._take = take
        self._ended = ended
        self._splitter = Splitter(line_limit)
        # How reading ended, even where lines are still to be taken.
        self._ending: Ending | None = None

    async def run(self) -> None:
        """Read until nothing more can come."""
        while self._ending is None:
            try:
                await trio.lowlevel.wait_readable(self._fd)
            except PermissionError:
                await trio.lowlevel.checkpoint()  # a regular file or the null device, which are always ready
            except (OSError, trio.ClosedResourceError) as error:
                self._ending = Ending("broken", f"reading failed: {error}")
                break
            for _ in range(_TURN):
                count = self._receive()
                await self._give()
                if count < _CHUNK:
                    break
        self._ended(self._ending)

    def drain(self) -> None:
        """Take what has arrived by now, and no more: the connection is over, but the other side may live and go on."""
        lines = self._splitter.lines
        for _ in range(_DRAIN):
            count = self._receive()
            while lines:
                self._take(lines.popleft())
            if not count:
                break

    def _receive(self) -> int:
        """Read once; the number of bytes."""
        try:
            chunk = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._ending = Ending("broken", f"reading failed: {error.strerror}")
            return 0
        if chunk:
            self._splitter.feed(chunk)
        else:
            self._splitter.end()
            self._ending = Ending("eof")
        return len(chunk)

    async def _give(self) -> None:
        lines = self._splitter.lines
        while lines:
            for _ in range(min(len(lines), _BURST)):
                self._take(lines.popleft())
            if lines:
                await trio.lowlevel.checkpoint()
