"""Everything that is true of SQLite alone: files, pragmas, locks, errors, and the one statement that needs a dialect.

A database that is not ours to write is not touched. It is looked at with `immutable` first, which takes no lock, makes
no file beside it and never repairs anything; and what is in its write-ahead log is read as bytes, since a version that
opened it properly would copy the log into the file on closing. For the same reason the file itself is never opened but
through SQLite: closing a descriptor of ours would end the POSIX locks that a connection of this process holds on it.

A new database comes into being beside its name and is renamed when it is complete, so there is never half of one.

In WAL mode a commit is one append to the log. With `synchronous=NORMAL` it is not synced, with FULL it is, together
with every commit before it. Checkpoints are made between transactions, not inside of commits.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

import attrs
import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.pool import NullPool, QueuePool

from ztrio.errors import StoreRefused, StoreUnavailable
from ztrio_sql.files import sync_directory
from ztrio_sql.wal import header_in_wal

__all__ = ["APPLICATION_ID", "SqliteDatabase", "Trouble", "trouble_of", "upsert"]

APPLICATION_ID: Final = 0x5A54524F
"""`ZTRO`: in the header of each of our databases, so that another program's is never taken for one."""

_PATIENCE: Final = 5.0  # seconds to wait for a lock that another process has for a moment
_CHECK_TIME: Final = 0.5  # seconds at the most to look for damage while opening

_WRITING: Final = (
    "journal_mode = WAL",
    "wal_autocheckpoint = 0",
    "journal_size_limit = 67108864",  # bytes
    "fullfsync = ON",  # macOS: a sync that deserves the name
    "checkpoint_fullfsync = ON",
)

Kind = Literal["full", "io", "read_only", "busy", "damaged", "other"]

_MISTAKES: Final = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.NotSupportedError, sqlite3.DataError)

# Primary result codes of SQLite.
_KINDS: Final[dict[int, tuple[Kind, str]]] = {
    sqlite3.SQLITE_FULL: ("full", "the disk is full"),
    sqlite3.SQLITE_IOERR: ("io", "the disk reports an error"),
    sqlite3.SQLITE_READONLY: ("read_only", "it can only be read"),
    sqlite3.SQLITE_CANTOPEN: ("read_only", "it cannot be opened"),
    sqlite3.SQLITE_BUSY: ("busy", "another process has it locked"),
    sqlite3.SQLITE_LOCKED: ("busy", "it is locked"),
    sqlite3.SQLITE_CORRUPT: ("damaged", "it is damaged"),
    sqlite3.SQLITE_NOTADB: ("damaged", "it is damaged"),
}


@attrs.frozen
class Trouble:
    """Why a database cannot be used now.

    Args:
        kind: What to do about it.
        sentence: What happened.
    """

    kind: Kind
    sentence: str


def trouble_of(error: BaseException) -> Trouble | None:
    """What an exception says about the database; None when it is about something else, like a violated constraint."""
    if isinstance(error, OSError):
        return Trouble("full" if error.errno == errno.ENOSPC else "io", str(error))
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    if not isinstance(cause, sqlite3.DatabaseError) or isinstance(cause, _MISTAKES):
        return None
    code = getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    kind, words = _KINDS.get(code & 0xFF, ("other", "it fails"))
    name = getattr(cause, "sqlite_errorname", None)
    return Trouble(kind, f"{words} ({cause}{'' if name is None else f', {name}'})")


def upsert(table: sa.Table, key: str, change: Callable[[Any], dict[str, Any]], where: Callable[[Any], Any]) -> Any:
    """An INSERT that changes the row of the same key, if there is one.

    Args:
        table: The table.
        key: Name of the unique column.
        change: Gets what was to be inserted; the new values.
        where: Gets what was to be inserted; the condition for the change.
    """
    statement = insert(table)
    new = statement.excluded
    return statement.on_conflict_do_update(index_elements=[table.c[key]], set_=change(new), where=where(new))


class SqliteDatabase:
    """One database file.

    Args:
        path: The file.
        tables: The tables that it must have, the small ones first.
        newest: The newest format that is understood.
        factory: Class of the connections that write; for faults in tests.
    """

    def __init__(
        self,
        path: Path,
        *,
        tables: Iterable[str],
        newest: int,
        factory: type[sqlite3.Connection] = sqlite3.Connection,
    ) -> None:
        self.path = path
        self._tables = tuple(tables)
        self._newest = newest
        self._factory = factory
        self._wal = Path(f"{path}-wal")
        # What `synchronous` of the writing connection is; None when it is not known.
        self._synced: bool | None = None

    # ---- is it ours?

    def examine(self) -> int | None:
        """The format of the database, or None if there is none yet. Leaves everything as it is.

        Raises:
            StoreRefused: it is not ours, of a newer format, or damaged.
            StoreUnavailable: it cannot be looked at.
        """
        try:
            found = self.path.stat()
        except FileNotFoundError:
            found = None
        except OSError as error:
            raise self._unavailable(error) from error
        if found is None or (stat.S_ISREG(found.st_mode) and found.st_size == 0):
            if self._wal_size():
                raise self.damaged(f"{self._wal.name} is there without it")
            return None
        if not stat.S_ISREG(found.st_mode):
            raise self._foreign("it is no regular file")
        in_wal = header_in_wal(self._wal)
        try:
            owner, written = in_wal or self._header()
        except sqlite3.DatabaseError as error:
            trouble = trouble_of(error)
            if trouble is None or trouble.kind != "damaged":
                raise self._unavailable(error) from error
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_NOTADB:
                raise self._foreign("it is no database") from error
            raise self.damaged(str(error)) from error
        if owner != APPLICATION_ID:
            raise self._foreign("another program made it" if owner else "no program has signed it")
        if written > self._newest:
            raise StoreRefused(
                f"The store {self.path} was made by a newer ztrio (format {written}, this one knows {self._newest}). "
                "It was left as it is; use that version, or name another file.",
                code="STORE_NEWER",
                path=str(self.path),
                format=written,
            )
        return written

    def inspect(self, *, complete: bool) -> None:
        """Look for damage, for half a second at the most, the small tables first. Changes nothing.

        Args:
            complete: Whether every table must be there; else only the first.

        Raises:
            StoreRefused: it is damaged.
            StoreUnavailable: it cannot be looked at.
        """
        # Where there is no log, to open it properly would make one.
        whole = self._wal_size() == 0
        try:
            self._inspect("ro&immutable=1" if whole else "ro", complete)
        except StoreRefused:
            if not whole or self._wal_size() == 0:
                raise
            self._inspect("ro", complete)  # somebody has begun to write, and it was not whole any more

    def _inspect(self, mode: str, complete: bool) -> None:
        deadline = time.monotonic() + _CHECK_TIME
        try:
            with closing(self._connect(mode)) as connection:
                there = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
                needed = self._tables if complete else self._tables[:1]
                if missing := [table for table in needed if table not in there]:
                    raise self.damaged(f"it has no table {missing[0]}")
                connection.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
                for table in filter(there.__contains__, self._tables):
                    found = connection.execute(f"PRAGMA quick_check({table})").fetchall()
                    if found != [("ok",)]:
                        raise self.damaged(f"table {table}: {found[0][0]}")
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
                return  # it is large, and no damage was found in the time there is
            raise self.refusal(error) from error

    def _header(self) -> tuple[int, int]:
        """Application id and user version as the file says."""
        with closing(self._connect("ro&immutable=1")) as connection:
            [(owner,)] = connection.execute("PRAGMA application_id")
            [(written,)] = connection.execute("PRAGMA user_version")
            return owner, written

    def _wal_size(self) -> int:
        try:
            return self._wal.stat().st_size
        except OSError:
            return 0

    # ---- making and opening

    def create(self, fill: Callable[[sa.Connection], None]) -> None:
        """Make the database, complete or not at all.

        Args:
            fill: Makes the tables and their first rows and signs, in a transaction.

        Raises:
            StoreUnavailable: it cannot be made; then there is none.
        """
        draft = Path(f"{self.path}.new")
        leftovers = [Path(f"{draft}{suffix}") for suffix in ("", "-journal", "-wal", "-shm")]
        try:
            for leftover in leftovers:
                leftover.unlink(missing_ok=True)
            os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            with self._engine("rw", NullPool, path=draft, begin="BEGIN IMMEDIATE").connect() as connection:
                with connection.begin():
                    fill(connection)
                _raw(connection).execute("PRAGMA journal_mode = WAL")
            draft.rename(self.path)
            sync_directory(self.path.parent)
        except (OSError, sa.exc.DBAPIError, sqlite3.Error) as error:
            for leftover in leftovers:
                leftover.unlink(missing_ok=True)
            raise self._unavailable(error) from error

    def change(self, change: Callable[[sa.Connection], None]) -> None:
        """Change the schema in one synced transaction, and have the file itself show it; else raise what to raise."""
        try:
            with closing(self.writer()) as connection:
                self.set_synced(connection, synced=True)
                with connection.begin():
                    change(connection)
                self.checkpoint(connection, whole=True)
        except (sa.exc.DBAPIError, sqlite3.Error) as error:
            raise self.refusal(error) from error

    def sign(self, connection: sa.Connection, written: int) -> None:
        """Say in the header whose database it is and of which format, in the transaction of `connection`."""
        connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.exec_driver_sql(f"PRAGMA user_version = {written}")

    def writer(self) -> sa.Connection:
        """The one connection that writes. Each of its transactions has the right to write from the start."""
        connection = self._engine("rw", NullPool, begin="BEGIN IMMEDIATE", pragmas=_WRITING).connect()
        self._synced = None
        return connection

    def readers(self) -> sa.Engine:
        """Connections that only read, for any threads. From its first question to its end, each sees one state."""
        return self._engine("ro", QueuePool, begin="BEGIN", pragmas=("query_only = ON",))

    def _engine(
        self,
        mode: str,
        pool: type[sa.Pool],
        *,
        begin: str,
        path: Path | None = None,
        pragmas: tuple[str, ...] = (),
    ) -> sa.Engine:
        def connect() -> sqlite3.Connection:
            connection = self._connect("rw", path, self._factory) if mode == "rw" else self._connect_ro()
            try:
                for pragma in pragmas:
                    connection.execute(f"PRAGMA {pragma}")
            except BaseException:
                connection.close()
                raise
            return connection

        engine = sa.create_engine("sqlite+pysqlite://", creator=connect, poolclass=pool)

        @sa.event.listens_for(engine, "begin")
        def _(connection: sa.Connection) -> None:
            _raw(connection).execute(begin)

        return engine

    def _connect_ro(self) -> sqlite3.Connection:
        connection = self._connect("ro")
        try:
            connection.execute("SELECT 1 FROM sqlite_schema")
        except sqlite3.OperationalError:
            connection.close()
            if os.access(self.path.parent, os.W_OK) or self._wal_size():
                raise
            # Nothing can be made beside it, so nobody writes, and there is no log to be missed.
            return self._connect("ro&immutable=1")
        return connection

    def _connect(
        self, mode: str, path: Path | None = None, factory: type[sqlite3.Connection] = sqlite3.Connection
    ) -> sqlite3.Connection:
        return sqlite3.connect(
            f"file:{quote(os.fspath(path or self.path))}?mode={mode}",
            uri=True,
            timeout=_PATIENCE,
            isolation_level=None,  # transactions begin where we say, DDL included
            check_same_thread=False,
            factory=factory,
        )

    # ---- writing

    def set_synced(self, connection: sa.Connection, synced: bool) -> None:
        """Have the next commits of the writing connection synced, or not. Outside of a transaction."""
        if synced is not self._synced:
            _raw(connection).execute(f"PRAGMA synchronous = {'FULL' if synced else 'NORMAL'}")
            self._synced = synced

    def checkpoint(self, connection: sa.Connection, *, whole: bool) -> bool:
        """Copy the log into the file. Outside of a transaction.

        Args:
            connection: The writing connection.
            whole: Wait for readers, and empty the log.

        Returns:
            Whether everything was copied.
        """
        mode = "TRUNCATE" if whole else "PASSIVE"
        [(busy, logged, copied)] = _raw(connection).execute(f"PRAGMA wal_checkpoint({mode})")
        return not busy and logged == copied

    # ---- words

    def refusal(self, error: BaseException) -> StoreRefused | StoreUnavailable:
        """What to raise when it cannot be opened."""
        trouble = trouble_of(error)
        if trouble is not None and trouble.kind == "damaged":
            return self.damaged(trouble.sentence)
        return self._unavailable(error)

    def unreadable(self, error: BaseException) -> StoreUnavailable:
        """What to raise when a question to the open database failed."""
        return StoreUnavailable(f"The store {self.path} cannot be read: {_why(error)}.")

    def _unavailable(self, error: BaseException) -> StoreUnavailable:
        return StoreUnavailable(f"The store {self.path} cannot be used: {_why(error)}. Nothing was started.")

    def _foreign(self, why: str) -> StoreRefused:
        return StoreRefused(
            f"{self.path} is no store of ztrio's: {why}. It was left as it is; name another file.",
            code="STORE_FOREIGN",
            path=str(self.path),
        )

    def damaged(self, why: str) -> StoreRefused:
        """The refusal of a damaged database."""
        return StoreRefused(
            f"The store {self.path} is damaged: {why}. It was left as it is; restore it from a backup, or name another "
            "file.",
            code="STORE_DAMAGED",
            path=str(self.path),
        )


def _why(error: BaseException) -> str:
    trouble = trouble_of(error)
    return f"{type(error).__name__}: {error}" if trouble is None else trouble.sentence


def _raw(connection: sa.Connection) -> sqlite3.Connection:
    """The connection itself: what is no part of a transaction must not begin one."""
    raw = connection.connection.driver_connection
    assert isinstance(raw, sqlite3.Connection)
    return raw
