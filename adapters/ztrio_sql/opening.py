"""Opening a store: look, lock, look again, make or bring up to date, and only then write."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio

from ztrio.errors import StoreUnavailable
from ztrio.locks import ProcessLock
from ztrio_sql.batches import Batches
from ztrio_sql.files import make_folder, make_private
from ztrio_sql.reader import StoreReader
from ztrio_sql.reserve import DiskReserve
from ztrio_sql.retention import Retention
from ztrio_sql.schema import FORMAT, bring_up_to_date, database_at, make
from ztrio_sql.sqlite import SqliteDatabase
from ztrio_sql.store import SqlStore
from ztrio_sql.writer import Writer

__all__ = ["open_store"]

_CLOSING: Final = 5.0  # seconds for what is left to be written; a disk that hangs must not keep the process


@asynccontextmanager
async def open_store(
    path: str | Path,
    *,
    retention: Retention | None = None,
    now: Callable[[], float] = time.time,
    connection_factory: type[sqlite3.Connection] = sqlite3.Connection,
) -> AsyncIterator[SqlStore]:
    """Open a store, or make it, for as long as the `async with` body lasts.

    An exception of the body leaves as it is, never wrapped in a group.

    Args:
        path: The database file; beside it `.lock`, and while it is open `-wal`, `-shm` and `-reserve`.
        retention: How much of the audit log is kept from now on; when omitted, as much as was said last, at first
            1 GiB.
        now: The wall clock, in seconds since the epoch; for tests.
        connection_factory: Class of the connections that write; for faults in tests.

    Raises:
        StoreRefused: the file is not ours, of a newer format, or damaged; it was left as it is.
        AlreadyInUse: another process works on it.
        StoreUnavailable: it cannot be made or opened.
    """
    database = database_at(path, connection_factory)
    lock = ProcessLock(Path(f"{database.path}.lock"), what=f"the store {path}", code="STORE_BUSY")
    try:
        reader = await trio.to_thread.run_sync(_open, database, lock)
        try:
            async with _writing(database, reader, retention, now) as store:
                yield store
        finally:
            reader.close()
    finally:
        lock.release()


def _open(database: SqliteDatabase, lock: ProcessLock) -> StoreReader:
    database.examine()  # nothing is made beside a file that is not ours
    try:
        make_folder(database.path.parent)
    except OSError as error:
        raise StoreUnavailable(
            f"The directory of {database.path} cannot be made: {error}. Nothing was started."
        ) from error
    lock.acquire()
    try:
        written = database.examine()
        if written is None:
            make(database)
        else:
            database.inspect(complete=written == FORMAT)
            if written < FORMAT:
                bring_up_to_date(database)
        make_private(database.path)
        return StoreReader(database)
    except BaseException:
        lock.release()
        raise


@asynccontextmanager
async def _writing(
    database: SqliteDatabase, reader: StoreReader, retention: Retention | None, now: Callable[[], float]
) -> AsyncIterator[SqlStore]:
    """Run the writer's thread beside the body."""
    reserve = DiskReserve(Path(f"{database.path}-reserve"))
    said = reader.retention()
    store = SqlStore(reader, partial(Writer, Batches(database, now), reserve), retention or said)
    if retention is not None and retention != said:
        store.set_retention_nowait(retention)
    failure: BaseException | None = None
    ended = trio.Event()
    # Whatever is cancelled around it, what was submitted is written; closing puts an end to it.
    writing = trio.CancelScope(shield=True)

    async def write() -> None:
        try:
            with writing:
                await trio.to_thread.run_sync(store.write, limiter=trio.CapacityLimiter(1), abandon_on_cancel=True)
        finally:
            ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        try:
            yield store
        except BaseException as error:  # noqa: BLE001, ASYNC103 - raised again below, outside the nursery
            failure = error
        # A connection that only reads and is the last one to close would leave the log beside the file.
        reader.close()
        store.close()
        with trio.move_on_after(_CLOSING, shield=True):
            await ended.wait()
        writing.cancel()
    if failure is not None:
        raise failure
