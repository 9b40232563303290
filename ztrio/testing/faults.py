"""Faults on demand in the file operations of publication."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from ztrio.publication.exchange import FileOps, Stat

__all__ = ["FaultyOps"]

_T = TypeVar("_T")


class FaultyOps(FileOps):
    """File operations of which one call fails.

    Args:
        operation: Name of the operation that fails: `exchange`, `move_new`, …, or `*` for any; with None nothing fails.
        error: What it raises.
        nth: Which call of it fails, counted from 1.
        after: Whether it fails *after* having taken effect, as a signal or a lost answer would have it.
        then: Called right before the failing call does anything; for what somebody else does at that instant.

    Attributes:
        calls: Names of the operations called, in order.
        fired: Whether the fault has struck.
        armed: While False, calls are not counted and nothing fails.
    """

    def __init__(
        self,
        operation: str | None = None,
        error: BaseException | None = None,
        *,
        nth: int = 1,
        after: bool = False,
        then: Callable[[], None] | None = None,
    ) -> None:
        self._real = FileOps()
        self._operation = operation
        self._error = error
        self._after = after
        self._then = then
        # Calls of the operation up to the one that fails; zero or below once that one was made.
        self._left = nth
        self.calls: list[str] = []
        self.fired = False
        self.armed = True

    def _run(self, name: str, real: Callable[[], _T], *, undo: Callable[[_T], None] | None = None) -> _T:
        self.calls.append(name)
        if self._operation not in (name, "*") or not self.armed:
            return real()
        self._left -= 1
        if self._left != 0:
            return real()
        self.fired = True
        if self._then is not None:
            self._then()
        if self._error is None:
            return real()
        if self._after:
            result = real()
            if undo is not None:
                undo(result)
        raise self._error

    def open_directory(self, dir_fd: int | None, name: str) -> int:
        # Nobody learns of a descriptor that an exception took the place of.
        return self._run("open_directory", lambda: self._real.open_directory(dir_fd, name), undo=os.close)

    def list_directory(self, dir_fd: int, limit: int) -> list[tuple[str, os.stat_result]]:
        return self._run("list_directory", lambda: self._real.list_directory(dir_fd, limit))

    def stat(self, dir_fd: int, name: str) -> Stat | None:
        return self._run("stat", lambda: self._real.stat(dir_fd, name))

    def digest(self, dir_fd: int, name: str) -> str:
        return self._run("digest", lambda: self._real.digest(dir_fd, name))

    def exchange(self, first_fd: int, first: str, second_fd: int, second: str) -> None:
        self._run("exchange", lambda: self._real.exchange(first_fd, first, second_fd, second))

    def move_new(self, source_fd: int, source: str, target_fd: int, target: str) -> None:
        self._run("move_new", lambda: self._real.move_new(source_fd, source, target_fd, target))

    def set_mode(self, dir_fd: int, name: str, mode: int) -> None:
        self._run("set_mode", lambda: self._real.set_mode(dir_fd, name, mode))

    def carry_metadata(self, source_fd: int, source: str, target_fd: int, target: str) -> None:
        self._run("carry_metadata", lambda: self._real.carry_metadata(source_fd, source, target_fd, target))

    def sync_data(self, dir_fd: int, name: str) -> None:
        self._run("sync_data", lambda: self._real.sync_data(dir_fd, name))

    def sync_directory(self, dir_fd: int) -> None:
        self._run("sync_directory", lambda: self._real.sync_directory(dir_fd))

    def write_file(self, dir_fd: int, name: str, data: bytes) -> None:
        self._run("write_file", lambda: self._real.write_file(dir_fd, name, data))
