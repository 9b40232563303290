"""A durable store whose database fails on demand, underneath everything that is tested."""

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import trio

from ztrio.errors import StoreUnavailable
from ztrio_sql import SqlStore, open_store


class Faults:
    """What is to fail, for all connections that write; set at any time.

    Attributes:
        commit: What COMMIT does: raise without effect, take effect and raise, or neither; each a number of times, then
            it works again.
        connect: How many attempts to connect fail from now on.
        code: The result code of what fails.
        setting: A pragma that every new connection gets.
        gate: While set, each COMMIT waits for it before it does anything.
        connections: The connections that were made, in order.
        commits: How often COMMIT was called.
        committer: The thread that called it last.
    """

    def __init__(self) -> None:
        self.commit: list[Literal["before", "after", "works"]] = []
        self.connect = 0
        self.code = sqlite3.SQLITE_IOERR_FSYNC
        self.setting: str | None = None
        self.gate: threading.Event | None = None
        self.at_gate = threading.Event()
        self.connections: list[sqlite3.Connection] = []
        self.commits = 0
        self.committer: threading.Thread | None = None

    def error(self) -> sqlite3.OperationalError:
        """What SQLite raises."""
        names = {sqlite3.SQLITE_IOERR_FSYNC: "disk I/O error", sqlite3.SQLITE_FULL: "database or disk is full"}
        error = sqlite3.OperationalError(names.get(self.code, "it fails"))
        error.sqlite_errorcode = self.code
        error.sqlite_errorname = {sqlite3.SQLITE_FULL: "SQLITE_FULL"}.get(self.code, "SQLITE_IOERR_FSYNC")
        return error

    @property
    def factory(self) -> type[sqlite3.Connection]:
        """The class of connections that fail like this."""
        faults = self

        class Connection(sqlite3.Connection):
            def __init__(self, *args: Any, **options: Any) -> None:
                if faults.connect:
                    faults.connect -= 1
                    raise faults.error()
                super().__init__(*args, **options)
                if faults.setting is not None:
                    self.execute(f"PRAGMA {faults.setting}")
                faults.connections.append(self)

            def commit(self) -> None:
                faults.commits += 1
                faults.committer = threading.current_thread()
                if faults.gate is not None:
                    faults.at_gate.set()
                    faults.gate.wait()
                what = faults.commit.pop(0) if faults.commit else "works"
                if what != "before":
                    super().commit()
                if what != "works":
                    raise faults.error()

        return Connection

    def set(self, pragma: str) -> None:
        """Have the newest connection and every later one get a pragma."""
        self.setting = pragma
        with contextlib.suppress(sqlite3.ProgrammingError):  # the newest may be closed already
            self.connections[-1].execute(f"PRAGMA {pragma}")


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so, in a thread or another process."""
    with trio.fail_after(20):
        while not condition():
            await trio.sleep(0.002)


async def works_again(store: SqlStore) -> None:
    """Wait until the store can be written."""
    await until(lambda: store.statistics().trouble is None and store.statistics().waiting == 0)


async def fails(operation: Callable[[], Any]) -> StoreUnavailable:
    """The error of an operation that the store cannot do now."""
    try:
        await operation()
    except StoreUnavailable as error:
        return error
    raise AssertionError("it did not fail")


def opened(tmp_path: Path, faults: Faults) -> Any:
    """The store that fails."""
    return open_store(tmp_path / "state.db", connection_factory=faults.factory)
