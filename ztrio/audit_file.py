"""The audit as JSON lines in a file: one event a line, appended, readable by its owner only.

The file is a durable subscriber: it loses nothing, and when it falls behind new calls wait. When it cannot be
written, new mutating calls are refused and running ones roll back, until a write succeeds again.

Lines are gathered for a moment before they are written. A write is a thread's, because a disk may stall, and a thread
that wakes for every line takes turns with the event loop about the interpreter: measured, that is a tenth of a
millisecond and more of each call. The moment also bounds what a server that is killed has not written.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs
import msgspec
import trio

from ztrio.audit import AuditBus, AuditEvent, Subscription
from ztrio.errors import StoreUnavailable

__all__ = ["AuditFile"]

_GATHER: Final = 0.01  # seconds from the first event to its write
_RETRY: Final = 0.5  # seconds between attempts to write to a file that failed
_BATCH: Final = 256  # events written at once at the most


@attrs.define
class AuditFile:
    """Appends events to `path`.

    Args:
        path: The file; made with mode 0600, its folder with 0700, if they are not there. A file of ours that others
            may read is made private first.
    """

    path: Path
    _fd: int = -1

    def open(self) -> None:
        """Open the file for appending; a torn last line, from a crash, is ended first.

        Raises:
            StoreUnavailable: it cannot be opened.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            there = os.fstat(self._fd)
            if there.st_mode & 0o077 and stat.S_ISREG(there.st_mode) and there.st_uid == os.geteuid():
                os.fchmod(self._fd, stat.S_IMODE(there.st_mode) & 0o700)
            size = there.st_size
            if size and os.pread(self._fd, 1, size - 1) != b"\n":
                os.write(self._fd, b"\n")
        except OSError as error:
            self.close()
            raise StoreUnavailable(f"The audit file {self.path} cannot be opened: {error}. Nothing ran.") from error

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    async def write_all(self, bus: AuditBus, events: Subscription) -> None:
        """Append every event of a durable subscription until the bus is closed."""
        try:
            async for first in events:
                await trio.sleep(_GATHER)
                batch = [first]
                while len(batch) < _BATCH:
                    try:
                        batch.append(events.receive_nowait())
                    except (trio.WouldBlock, trio.EndOfChannel):
                        break
                await self._write(bus, batch)
        finally:
            self.close()

    async def _write(self, bus: AuditBus, batch: Sequence[AuditEvent]) -> None:
        lines = b"".join(map(_line, batch))
        done = 0
        while done < len(lines):
            try:
                done += await trio.to_thread.run_sync(os.write, self._fd, lines[done:])
            except OSError as error:
                bus.mark_unavailable("audit file", f"the audit file cannot be written: {error}")
                await trio.sleep(_RETRY)
            else:
                bus.mark_available("audit file")


def _line(event: AuditEvent) -> bytes:
    known = event.as_dict()
    try:
        return msgspec.json.encode(known) + b"\n"
    except (OverflowError, UnicodeEncodeError):  # an integer of more than 64 bits, or a lone surrogate
        # The surrogate becomes the JSON escape that names it.
        return json.dumps(known, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
