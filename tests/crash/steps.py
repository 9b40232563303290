"""Making the steps of a process visible, so that whoever kills it from outside can choose the instant.

Everything that a server does to files, to its store and to its audit goes past one `Steps`. It can hold the process at
a step, for as long as it lives, or say that a step is being made and go on, so that the kill falls *into* the step.
"""

import os
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from ztrio.publication.exchange import FileOps

_OPERATIONS = ("exchange", "move_new", "set_mode", "carry_metadata", "write_file")
_SYNCS = ("sync_data", "sync_directory")
_CHANGES = {"os.remove", "os.rmdir", "os.mkdir", "os.rename", "os.chmod", "os.chown", "os.utime", "os.setxattr"}


class Steps:
    """Counts the steps of this process.

    Args:
        tell: Says a word to whoever watches.
        record: Keep the names of all steps.
    """

    def __init__(self, tell: Callable[[dict[str, Any]], None], *, record: bool = False) -> None:
        self._tell = tell
        self._record = record
        # (name, nth): where to stop and say so, and where only to say so, now and at each later one.
        self._hold: tuple[str, int] | None = None
        self._race: tuple[str, int] | None = None
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        # Threads that are inside of a step: what one operation is made of are no steps of their own.
        self._inside: set[int] = set()
        # While False nothing is a step.
        self.armed = False
        self.names: list[str] = []

    def aim(self, order: dict[str, Any]) -> None:
        """Take the names and numbers in `hold` and `race`; numbers count from 1, the name `*` stands for any."""
        hold, race = order.get("hold"), order.get("race")
        self._hold = None if hold is None else (hold[0], hold[1])
        self._race = None if race is None else (race[0], race[1])

    def step(self, name: str) -> None:
        """A step is about to be made, or was just made."""
        if not self.armed:
            return
        with self._lock:
            self._counts[name] += 1
            self._counts["*"] += 1
            if self._record:
                self.names.append(name)
            at = (name, self._counts[name])
            held = self._hold in (at, ("*", self._counts["*"]))
            raced = self._race is not None and self._race[0] == name and self._counts[name] >= self._race[1]
            if held or raced:
                self._tell({"type": "step", "name": name})
        while held:
            time.sleep(60)

    @contextmanager
    def around(self, name: str) -> Iterator[None]:
        """A step before and one after."""
        me = threading.get_ident()
        if me in self._inside or not self.armed:
            yield
            return
        self.step(name)
        self._inside.add(me)
        try:
            yield
        finally:
            self._inside.discard(me)
        self.step(f"{name} done")

    def event(self, name: str, arguments: tuple[Any, ...]) -> None:
        """An audit hook of the interpreter: what goes past the file operations."""
        made = name == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT
        if (made or name in _CHANGES) and self.armed and threading.get_ident() not in self._inside:
            self.step(name)

    def watch(self) -> None:
        """Have all file operations of this process counted. Cannot be undone, so only in a process of its own."""
        for name in (*_OPERATIONS, *_SYNCS):
            setattr(FileOps, name, self._stepped(name, getattr(FileOps, name)))
        sys.addaudithook(self.event)

    def _stepped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(real)
        def stepped(*arguments: Any) -> Any:
            with self.around(name):
                return real(*arguments)

        return stepped

    def connections(self, *, full_after: int | None = None) -> type[sqlite3.Connection]:
        """A class of connections whose transactions are steps.

        Args:
            full_after: Let no more room be there for the database from this commit on; None for never.
        """
        steps, commits = self, Counter[str]()

        class Connection(sqlite3.Connection):
            def commit(self) -> None:
                if steps.armed:
                    commits["all"] += 1
                    if full_after == commits["all"]:
                        [(pages,)] = self.execute("PRAGMA page_count")
                        self.execute(f"PRAGMA max_page_count = {pages}")
                with steps.around("COMMIT"):
                    super().commit()

        return Connection
