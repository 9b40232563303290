"""The audit as a table or as JSON lines, once or as it grows."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

import trio
from rich.table import Table

from ztrio_cli.audit_log import Damage
from ztrio_cli.audit_source import Item, Log
from ztrio_cli.console import OK, console, note, write_line

__all__ = ["intact", "show"]

POLL: Final = 0.25  # seconds between looks at what nobody tells us about

_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def show(log: Log, *, last: int | None, follow: bool, as_json: bool) -> int:
    """Show the events; the exit status.

    Args:
        log: The audit.
        last: Only the last so many, or None.
        follow: Go on with new ones until interrupted.
        as_json: One JSON object a line instead of words.
    """
    found = intact(log.poll() if last is None else log.newest(last))
    if follow or as_json or not console().is_terminal:
        for event in found:
            _show_line(event, as_json=as_json)
    else:
        _show_table(found)
    if follow:
        trio.run(_follow, log, as_json)
    elif log.torn:
        note("note: the last line is not complete; it is being written, or its writer was killed.")
    return OK


def intact(items: Iterable[Item]) -> Iterator[dict[str, Any]]:
    """The events; damaged lines are named on stderr."""
    for item in items:
        if isinstance(item, Damage):
            note(f"warning: AUDIT_DAMAGED: line {item.line}: {item.problem}; skipped.")
        else:
            yield item


async def _follow(log: Log, as_json: bool) -> None:
    while True:
        await trio.sleep(POLL)
        for event in await trio.to_thread.run_sync(lambda: list(intact(log.poll()))):
            _show_line(event, as_json=as_json)


def _show_line(event: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        shown = {name: value for name, value in event.items() if name != "hash"}
        text = json.dumps(shown, ensure_ascii=False)
        # A lone surrogate, as a caller's id may hold, cannot be printed but as its escape.
        write_line(json.dumps(shown) if _UNPRINTABLE.search(text) else text)
    else:
        write_line("  ".join(part for part in _cells(event) if part))
    sys.stdout.flush()  # the reader may be a pipe


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
    cells = (
        time[11:23] if "T" in time else time,
        event["event"],
        *(str(event.get(key) or "") for key in ("tool", "session")),
        str(event.get("execution_job_id") or _pending(event).get("call_id") or ""),
        _what(event),
    )
    # Names and causes are a caller's own; they shall not move the cursor of whoever reads them.
    return tuple(_UNPRINTABLE.sub(lambda odd: ascii(odd.group())[1:-1], cell) for cell in cells)


def _pending(event: dict[str, Any]) -> dict[str, Any]:
    """What an event says of a pending call."""
    facts = event.get("pending")
    return facts if isinstance(facts, dict) else {}


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
    pending = _pending(event)
    parts += [str(pending[key]) for key in ("state", "settled_by", "blocker") if pending.get(key)]
    if event.get("missed"):
        parts.append(f"{event['missed']} events missed")
    return ", ".join(parts)
