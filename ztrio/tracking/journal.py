"""The journal of sent writes in a file: a line for a call that may be sent, and a word in a later one when it is over.

A file, because each call pays for it while its caller waits: one `write` of one line, some microseconds, where a row in
a database wakes a thread that takes turns with the event loop: a tenth of a millisecond and more. Nothing is synced, so
it survives the process and not the machine; whoever wants that too waits for `sync`, and those who wait at the same
time share one.

A row's line is in the file before its call is sent. The word that it is settled may be missing after a crash, and then
the call comes back although it was over: that is the safe mistake. A file that cannot be read as a whole is refused and
left as it is, because what it does not say may be a call that has happened.

When most of the file says nothing any more it is written anew beside itself, synced, and renamed, with what was
appended meanwhile; at each step one of the two files is whole. Segments and a manifest were rejected: what is open is
bounded by the registry, so a rewrite is small.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

import attrs
import trio

from ztrio.activity import JournalRow
from ztrio.errors import StoreUnavailable
from ztrio.tracking.journal_format import HEADER, drop_line, foreign, put_line, replay

__all__ = ["FileJournal", "JournalStatistics"]

_LARGE: Final = 1 << 20  # bytes of a file that is worth rewriting, and until the next attempt when that failed
_MOSTLY: Final = 4  # times the bytes of its live rows that it may have then
_PRIVATE: Final = 0o600


@attrs.frozen
class JournalStatistics:
    """A snapshot.

    Args:
        rows: Rows that are open.
        size: Bytes of the file.
        rewrites: How often it was written anew, and
        failed: how often that did not work.
        syncs: How often it was synced.
    """

    rows: int
    size: int
    rewrites: int
    failed: int
    syncs: int


class FileJournal:
    """The journal of one gateway. Whoever opens it holds the lock of the directory that it is in.

    Args:
        path: The file; made with mode 0600 when it is opened first. Beside it, while it is written anew, `.new`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft = path.with_name(f"{path.name}.new")
        self._fd = -1
        # Call → its row, and the line that says so: what a reader of the file finds.
        self._live: dict[str, tuple[JournalRow, bytes]] = {}
        # Bytes of those lines.
        self._live_bytes = 0
        # Where the last whole line ends; whether a write that failed may have left something behind that.
        self._size = 0
        self._torn = False
        # What was appended while the file is being written anew; None while it is not.
        self._since: list[bytes] | None = None
        # Size below which a rewrite is not tried again.
        self._not_before = 0
        # Writes so far, and how many of them are known to be on the disk; both only grow.
        self._written = self._synced = 0
        # Whether the file's name is known to be on the disk.
        self._named = False
        # A sync failed: what it was to bring to the disk may be lost though a later one succeeds (fsync(2), EIO).
        self._unsound = False
        # Held by whoever syncs or rewrites.
        self._disk = trio.Lock()
        self._rewrites = self._failed = self._syncs = 0

    def open(self) -> None:
        """Open the file, or make it, and read what an earlier process left.

        Raises:
            StoreRefused: it is no journal, one of a newer version, or damaged; it was left as it is.
            StoreUnavailable: it cannot be read or made.
        """
        try:
            self._fd = _open(self._path)
            self._read()
        except OSError as error:
            self.close()
            why = f"The journal {self._path} cannot be used: {error.strerror}. Nothing was started."
            raise StoreUnavailable(why) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def statistics(self) -> JournalStatistics:
        """A snapshot."""
        return JournalStatistics(len(self._live), self._size, self._rewrites, self._failed, self._syncs)

    # ---- rows

    def left(self) -> list[JournalRow]:
        """The rows that are open, in the order of the sequence."""
        return sorted((row for row, _ in self._live.values()), key=lambda row: (row.seq, row.call_id))

    def get(self, call_id: str) -> JournalRow | None:
        """The row of a call that is open, the very object that was written last; or None."""
        found = self._live.get(call_id)
        return None if found is None else found[0]

    def append(self, row: JournalRow) -> None:
        """Note a write that is about to be sent, unless a newer row of its call is there.

        Raises:
            OSError: it cannot be noted, so the call must not be sent. Nothing was changed.
        """
        old = self.get(row.call_id)
        if old is None or old.seq <= row.seq:
            self.put([row])

    def put(self, rows: Iterable[JournalRow]) -> None:
        """Write rows, each in the place of any other of its call.

        Raises:
            OSError: they cannot be written. Nothing was changed.
        """
        lines = [(row, put_line(row)) for row in rows]
        if lines:
            self._append(b"".join([line for _, line in lines]))
            for row, line in lines:
                self._set(row, line)

    def drop(self, call_ids: Iterable[str]) -> None:
        """Forget the rows of calls that are settled; unknown ones have none.

        Raises:
            OSError: that cannot be written. Nothing was changed.
        """
        known = [call_id for call_id in call_ids if call_id in self._live]
        if known:
            self._append(drop_line(known))
            for call_id in known:
                self._forget(call_id)

    def _set(self, row: JournalRow, line: bytes) -> None:
        self._forget(row.call_id)
        self._live[row.call_id] = (row, line)
        self._live_bytes += len(line)

    def _forget(self, call_id: str) -> None:
        old = self._live.pop(call_id, None)
        if old is not None:
            self._live_bytes -= len(old[1])

    # ---- the file

    def _append(self, data: bytes) -> None:
        if self._torn:
            self._cut()
        try:
            _write(self._fd, data)
        except OSError:
            self._torn = True
            raise
        self._size += len(data)
        self._written += 1
        if self._since is not None:
            self._since.append(data)

    def _cut(self) -> None:
        """Take away what a write that failed has left behind the last whole line."""
        os.ftruncate(self._fd, self._size)
        self._torn = False

    def _read(self) -> None:
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            raise foreign(self._path, "it is no file")
        with open(self._fd, "rb", closefd=False) as file:
            self._live, self._size = replay(file.read(), self._path)
        self._live_bytes = sum(len(line) for _, line in self._live.values())
        if found.st_mode & 0o077 and found.st_uid == os.geteuid():
            os.fchmod(self._fd, stat.S_IMODE(found.st_mode) & _PRIVATE)
        if self._size != found.st_size:
            self._cut()
        if not self._size:
            self._append(HEADER)
        self._draft.unlink(missing_ok=True)

    # ---- the disk

    async def sync(self) -> None:
        """Wait until everything that has been written so far survives the machine.

        A sync is not cut short once it has begun, so a slow disk may keep a caller longer than its limit.

        Raises:
            OSError: it may not be on the disk.
        """
        wanted = self._written
        async with self._disk:
            if self._synced >= wanted:
                return
            if self._unsound:
                await self._rewrite()
                return
            written = self._written
            try:
                await trio.to_thread.run_sync(os.fsync, self._fd)
            except OSError:
                self._unsound = True
                raise
            await self._name()
            self._syncs += 1
            self._synced = written

    async def tidy(self) -> None:
        """Write the file anew if most of it says nothing any more. If that fails, it stays as it is for a while."""
        if self._size <= max(_LARGE, _MOSTLY * self._live_bytes, self._not_before) or self._disk.locked():
            await trio.lowlevel.checkpoint()
            return
        async with self._disk:
            try:
                await self._rewrite()
            except OSError:
                self._failed += 1
                self._not_before = self._size + _LARGE

    async def _rewrite(self) -> None:
        lines = b"".join([HEADER, *(line for _, line in self._live.values())])
        written = self._written
        fd = _open(self._draft, os.O_TRUNC)
        self._since = []
        try:
            await trio.to_thread.run_sync(_write_and_sync, fd, lines)
            since = b"".join(self._since)
            _write(fd, since)
            self._draft.rename(self._path)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                self._draft.unlink()
            raise
        finally:
            self._since = None
        old, self._fd = self._fd, fd
        self._size, self._torn, self._not_before, self._named = len(lines) + len(since), False, 0, False
        self._rewrites += 1
        os.close(old)
        await self._name()
        self._unsound = False
        self._synced = max(self._synced, written)

    async def _name(self) -> None:
        """Have the file's name on the disk."""
        if not self._named:
            await trio.to_thread.run_sync(_sync_directory, self._path.parent)
            self._named = True


def _open(path: Path, flags: int = 0) -> int:
    flags |= os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, _PRIVATE)


def _write(fd: int, data: bytes) -> None:
    done = os.write(fd, data)
    while done < len(data):  # what there was no room for; the next attempt says why
        done += os.write(fd, data[done:])


def _write_and_sync(fd: int, data: bytes) -> None:
    _write(fd, data)
    os.fsync(fd)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
