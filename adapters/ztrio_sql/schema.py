"""Bringing a database to the present schema, by the migrations in this package and nothing else."""

from __future__ import annotations

import secrets
import sqlite3
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from ztrio.calls import new_id
from ztrio_sql.sqlite import SqliteDatabase
from ztrio_sql.tables import meta, metadata

__all__ = ["FORMAT", "bring_up_to_date", "database_at", "make"]

FORMAT: Final = 3
"""Number of the newest migration. A database says which it has, so that an older ztrio leaves a newer one alone."""


def migrate(connection: sa.Connection, revision: str = "head") -> None:
    """Apply the migrations that the database lacks, in the transaction of `connection`."""
    from alembic import command  # noqa: PLC0415 - 0.3 s, and most databases lack nothing
    from alembic.config import Config  # noqa: PLC0415 - the same

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def database_at(path: str | Path, factory: type[sqlite3.Connection] = sqlite3.Connection) -> SqliteDatabase:
    """The database of a store, which need not be there. All names of a file lead to the same one, and to one lock."""
    by_size = ("meta", "sessions", "jobs", "results", "activity", "pending_journal", "audit")
    assert set(by_size) == set(metadata.tables)
    return SqliteDatabase(Path(path).resolve(), tables=by_size, newest=FORMAT, factory=factory)


def make(database: SqliteDatabase) -> None:
    """Make the database of a new store."""

    def fill(connection: sa.Connection) -> None:
        migrate(connection)
        identity = {"store_id": new_id("st_").encode(), "secret": secrets.token_bytes(32), "mark": b"0"}
        connection.execute(sa.insert(meta), [{"key": key, "value": value} for key, value in identity.items()])
        database.sign(connection, FORMAT)

    database.create(fill)


def bring_up_to_date(database: SqliteDatabase) -> None:
    """Apply what an older database lacks, all or nothing."""

    def change(connection: sa.Connection) -> None:
        migrate(connection)
        database.sign(connection, FORMAT)

    database.change(change)
