"""Where the audit of a workspace is read: the store where there is one, else the file of JSON lines."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import attrs

from ztrio_cli.audit_log import Damage, JsonLines
from ztrio_cli.console import Complaint
from ztrio_cli.state import MEMORY, kept_state, state_file
from ztrio_cli.workspace import audit_file

if TYPE_CHECKING:
    from ztrio_sql import StoreReader

__all__ = ["Log", "Wanted", "open_log"]

Item = dict[str, Any] | Damage


@attrs.frozen
class Wanted:
    """Which events are asked for.

    Args:
        job: Only those of this call, or None.
        event: Only those of this name, or None.
        principal: Only those of this caller, or None.
        after: Only those after this log position; in a file that has none, all.
    """

    job: str | None = None
    event: str | None = None
    principal: str | None = None
    after: int = 0

    def __call__(self, event: dict[str, Any]) -> bool:
        position = event.get("log_pos")
        return (
            (self.job is None or event.get("execution_job_id") == self.job)
            and (self.event is None or event["event"] == self.event)
            and (self.principal is None or event.get("principal") == self.principal)
            and (not isinstance(position, int) or position > self.after)
        )


class Log(Protocol):
    """An audit that may be growing."""

    def __enter__(self) -> Self:
        """Open it."""

    def __exit__(self, *_: object) -> None:
        """Close it."""

    @property
    def torn(self) -> bool:
        """Whether its end is not complete."""

    def poll(self) -> Iterator[Item]:
        """The wanted events, oldest first; the next time, those that came since."""

    def newest(self, count: int) -> list[Item]:
        """The newest wanted events, oldest first; `poll` goes on after them."""


def open_log(workspace: Path, state: str | None, file: Path | None, wanted: Wanted, *, wait: bool) -> Log:
    """The audit of a workspace.

    Args:
        workspace: The workspace.
        state: What `--state` said, or None.
        file: A file of JSON lines to be read instead, or None.
        wanted: Which events.
        wait: Whether one that does not exist yet will do.

    Raises:
        Complaint: AUDIT_NOT_FOUND, nothing was recorded; USAGE, the named store does not exist.
    """
    lines = audit_file(workspace) if file is None else file
    if file is None and state != MEMORY:
        store = state_file(workspace, state) if wait else kept_state(workspace, state)
        # An older server, or one that keeps nothing, leaves a file; where both are, the store has all of it.
        if store is not None and (store.exists() or state is not None or not lines.exists()):
            return _StoreLog(store, wanted)
    if not wait and not lines.exists():
        raise Complaint(
            "AUDIT_NOT_FOUND",
            f"There is no {lines}, and no store: no call was made in this workspace yet, or --workspace or --state "
            "names another place.",
        )
    return _FileLog(lines, wanted)


class _FileLog(JsonLines):
    """The wanted events of a file, and its damaged lines."""

    def __init__(self, path: Path, wanted: Wanted) -> None:
        super().__init__(path)
        self._wanted = wanted

    def poll(self) -> Iterator[Item]:
        return (item for item in super().poll() if isinstance(item, Damage) or self._wanted(item))

    def newest(self, count: int) -> list[Item]:
        damaged: list[Item] = []
        events: deque[Item] = deque(maxlen=count)
        for item in self.poll():
            (damaged if isinstance(item, Damage) else events).append(item)
        return [*damaged, *events]


class _StoreLog:
    """The wanted events of a store, which is looked at only; it need not exist yet."""

    torn = False

    def __init__(self, path: Path, wanted: Wanted) -> None:
        self._path = path
        self._filter = {"job_id": wanted.job, "event": wanted.event, "principal": wanted.principal}
        # Position up to which everything wanted was given out.
        self._after = wanted.after
        # The store being read and which file it is; None before it exists and after it was replaced.
        self._reader: StoreReader | None = None
        self._file: tuple[int, int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def poll(self) -> Iterator[Item]:
        reader = self._opened()
        if reader is None:
            return
        last = reader.last_position()  # what comes later is for the next time, wanted or not
        for event in reader.export(after=self._after, **self._filter):
            self._after = event["log_pos"]
            yield event
        self._after = max(self._after, last)

    def newest(self, count: int) -> list[Item]:
        reader = self._opened()
        if reader is None:
            return []
        last = reader.last_position()
        after = self._after
        newest: list[dict[str, Any]] = [
            event for event in islice(reader.newest(**self._filter), count) if event["log_pos"] > after
        ]
        self._after = max(after, last, *(event["log_pos"] for event in newest[:1]))
        return [*reversed(newest)]

    def _opened(self) -> StoreReader | None:
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return self._reader  # not made yet, or moved away; what is open may still grow
        if self._file != (there.st_dev, there.st_ino):
            if self._reader is not None:
                self._close()
                self._after = 0
            from ztrio_sql import StoreReader  # a file of JSON lines needs no database

            self._reader = StoreReader.open(self._path)
            self._file = (there.st_dev, there.st_ino)
        return self._reader

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
