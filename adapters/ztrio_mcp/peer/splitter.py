"""Bytes to lines of bounded length, without waiting.

`ztrio_mcp.lines` gives one line per turn of a loop around a stream. Here a chunk becomes all its lines in one step, and
C does the splitting; a line that spans chunks is collected in place and handed out uncopied, so one of the greatest
length costs its length once. A line that is too long is thrown away as it comes: only its two ends are kept, which may
tell which request it would have answered.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import attrs

__all__ = ["SAMPLE", "Line", "Oversized", "Splitter"]

SAMPLE: Final = 256  # bytes that are kept of each end of a line that is too long


@attrs.define
class Oversized:
    """A line that was longer than the limit.

    Args:
        head: Its first bytes.
        tail: Its last bytes.
        size: Its length in bytes.
    """

    head: bytes
    tail: bytes
    size: int


Line = bytes | bytearray | Oversized


class Splitter:
    """The lines of a byte stream, without their newlines.

    Args:
        limit: Bytes that a line may have.

    Attributes:
        lines: Whole lines that nobody has taken yet. Those of one chunk, if each chunk's are taken before the next.
    """

    def __init__(self, limit: int) -> None:
        self.lines: deque[Line] = deque()
        self._limit = limit
        # The start of a line whose newline has not come; never more than the limit, empty while `_over` is set.
        self._start = bytearray()
        # The line whose newline has not come, once it is too long.
        self._over: Oversized | None = None

    def feed(self, chunk: bytes) -> None:
        """Bytes came."""
        pieces = chunk.split(b"\n")
        last = pieces.pop()
        if pieces:
            if self._start or self._over is not None:
                self._extend(pieces[0])
                self.lines.append(self._take())
                del pieces[0]
            if len(chunk) > self._limit:
                self.lines.extend(each if len(each) <= self._limit else _oversized(each) for each in pieces)
            else:
                self.lines.extend(pieces)
        if last:
            self._extend(last)

    def end(self) -> None:
        """No more bytes will come; the last line needs no newline."""
        if self._start or self._over is not None:
            self.lines.append(self._take())

    def _extend(self, piece: bytes) -> None:
        over = self._over
        if over is not None:
            over.head = (over.head + piece[:SAMPLE])[:SAMPLE]
            over.tail = (over.tail + piece[-SAMPLE:])[-SAMPLE:]
            over.size += len(piece)
        elif len(self._start) + len(piece) <= self._limit:
            self._start += piece
        else:
            head = bytes(self._start[:SAMPLE]) + piece[:SAMPLE]
            tail = bytes(self._start[-SAMPLE:]) + piece[-SAMPLE:]
            self._over = Oversized(head[:SAMPLE], tail[-SAMPLE:], len(self._start) + len(piece))
            self._start = bytearray()

    def _take(self) -> Line:
        line: Line = self._start if self._over is None else self._over
        self._start, self._over = bytearray(), None
        return line


def _oversized(line: bytes) -> Oversized:
    return Oversized(line[:SAMPLE], line[-SAMPLE:], len(line))
