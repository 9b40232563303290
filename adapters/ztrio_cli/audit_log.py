"""Reading a file of JSON lines that another process may be writing, replacing or cutting at this moment.

A last line without its newline is one that is being written: it is left for the next look. A line that is complete
and still no event is damaged: it is named and skipped, since an audit with a hole is worth more than none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Self

import attrs

__all__ = ["Damage", "JsonLines"]

CHUNK = 256 * 1024  # bytes


@attrs.frozen
class Damage:
    """A line that is no JSON object.

    Args:
        line: Its number, from 1.
        problem: Why not.
    """

    line: int
    problem: str


class JsonLines:
    """The objects of a growing file, in order; each `poll` gives those that were completed since the last one.

    Args:
        path: The file; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # The file being read; None before it exists and after it was replaced.
        self._file: BinaryIO | None = None
        # Bytes after the last newline: a line that is still being written.
        self._rest = b""
        # Complete lines seen in the current file.
        self._line = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def torn(self) -> bool:
        """Whether the file ends in a line that is not complete."""
        return bool(self._rest.strip())

    def poll(self) -> Iterator[dict[str, Any] | Damage]:
        """What was completed since the last poll. A file that was replaced or cut is read from its start."""
        if self._file is not None and self._shrunk():
            self._restart()
        yield from self._read()
        if self._file is not None and self._replaced():
            self._restart()
            yield from self._read()

    def _read(self) -> Iterator[dict[str, Any] | Damage]:
        if self._file is None:
            try:
                self._file = self._path.open("rb")
            except FileNotFoundError:
                return
        while chunk := self._file.read(CHUNK):
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                self._line += 1
                if line.strip():
                    yield self._parse(line)

    def _parse(self, line: bytes) -> dict[str, Any] | Damage:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            return Damage(self._line, f"not JSON ({error})")
        if not isinstance(value, dict) or not isinstance(value.get("event"), str):
            return Damage(self._line, "not an audit event")
        return value

    def _shrunk(self) -> bool:
        assert self._file is not None
        return os.fstat(self._file.fileno()).st_size < self._file.tell()

    def _replaced(self) -> bool:
        assert self._file is not None
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False  # moved away and not yet made anew: the old file may still grow
        here = os.fstat(self._file.fileno())
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)

    def _restart(self) -> None:
        self.close()
        self._rest, self._line = b"", 0
