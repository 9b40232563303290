"""`ztrio audit`: the JSON-lines audit of a workspace, as a table or as JSON lines, once or as it grows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import trio
from rich.table import Table

from ztrio_cli.audit_log import Damage, JsonLines
from ztrio_cli.console import OK, Complaint, console, note, write_json, write_line
from ztrio_cli.workspace import audit_file, checked_workspace

__all__ = ["run"]

POLL = 0.25  # seconds between looks at a file that nobody tells us about


@attrs.frozen
class _Wanted:
    job: str | None
    event: str | None

    def __call__(self, event: dict[str, Any]) -> bool:
        return (self.job is None or event.get("execution_job_id") == self.job) and (
            self.event is None or event["event"] == self.event
        )


def run(folder: Path, *, job: str | None, event: str | None, last: int | None, follow: bool, as_json: bool) -> int:
    """Show the events; the exit status.

    Raises:
        Complaint: AUDIT_NOT_FOUND, nothing was recorded in this workspace.
    """
    path = audit_file(checked_workspace(folder))
    if not follow and not path.exists():
        raise Complaint(
            "AUDIT_NOT_FOUND",
            f"There is no {path}: no call was made in this workspace yet, or --workspace names another one.",
        )
    wanted = _Wanted(job, event)
    with JsonLines(path) as lines:
        found: Iterable[dict[str, Any]] = filter(wanted, _intact(lines))
        if last is not None:
            found = deque(found, maxlen=last)
        if follow or as_json or not console().is_terminal:
            for item in found:
                _show_line(item, as_json=as_json)
        else:
            _show_table(found)
        if follow:
            trio.run(_follow, lines, wanted, as_json)
        elif lines.torn:
            note("note: the last line is not complete; it is being written, or its writer was killed.")
    return OK


async def _follow(lines: JsonLines, wanted: _Wanted, as_json: bool) -> None:
    while True:
        await trio.sleep(POLL)
        for item in await trio.to_thread.run_sync(lambda: list(_intact(lines))):
            if wanted(item):
                _show_line(item, as_json=as_json)


def _intact(lines: JsonLines) -> Iterator[dict[str, Any]]:
    for item in lines.poll():
        if isinstance(item, Damage):
            note(f"warning: AUDIT_DAMAGED: line {item.line}: {item.problem}; skipped.")
        else:
            yield item


def _show_line(event: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        write_json(event)
        return
    write_line("  ".join(part for part in _cells(event) if part))
    console().file.flush()


def _show_table(events: Iterable[dict[str, Any]]) -> None:
    table = Table("time", "event", "tool", "session", "job", "what", box=None, pad_edge=False, header_style="bold")
    for column in ("event", "job"):
        next(item for item in table.columns if item.header == column).no_wrap = True
    for event in events:
        table.add_row(*_cells(event))
    if table.row_count:
        console().print(table)
    else:
        note("No such events.")


def _cells(event: dict[str, Any]) -> tuple[str, ...]:
    time = str(event.get("time", ""))
    return (
        time[11:23] if "T" in time else time,
        event["event"],
        *(str(event.get(key) or "") for key in ("tool", "session", "execution_job_id")),
        _what(event),
    )


def _what(event: dict[str, Any]) -> str:
    """The facts that make this event different from others of its name, in a few words."""
    parts = [str(event[key]) for key in ("outcome", "cause", "code", "exception_type") if event.get(key)]
    if event["event"] == "allow" and isinstance(event.get("timeout"), int | float):
        parts.append(f"timeout {event['timeout']:g} s")
    if event["event"] != "allow" and isinstance(event.get("duration"), int | float):
        parts.append(f"after {event['duration']:.3f} s")
    if isinstance(proof := event.get("proof"), dict):
        parts.append(f"worker {proof.get('pid')} proven dead ({proof.get('rung')}, {proof.get('containment')})")
    elif event.get("pid"):
        parts.append(f"worker {event['pid']}")
    if event.get("missed"):
        parts.append(f"{event['missed']} events missed")
    return ", ".join(parts)
