"""`ztrio recover`: what a killed process left in a workspace, what is done about it, and why.

A server does the same by itself when it starts. This is for looking before (`--dry-run`), and for what only a person
can decide (`--accept`). The report gives the reason of every deed, since whoever reads it has just had a crash.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import trio
from rich.table import Table

from ztrio.audit import AuditBus
from ztrio.findings import Action, Finding, Recovery
from ztrio.memory_store import MemoryStore
from ztrio.restart import recover, workspace_lock
from ztrio.store import Store
from ztrio_cli.console import FAILED, OK, USAGE, Complaint, console, write_json, write_line
from ztrio_cli.state import kept_state
from ztrio_cli.workspace import checked_workspace

__all__ = ["run"]

_WORDS: Final = {
    "exchange back": "put the old one back",
    "take back": "take the new one away",
    "exchange forward": "put the new one in place",
    "put forward": "put the new one in place",
    "restore mode": "give its mode back",
    "kill": "kill",
    "remove": "remove",
    "leave": "leave as it is",
    "nothing": "nothing",
}


def run(folder: Path, *, state: str | None, accept: Sequence[str], dry_run: bool, as_json: bool) -> int:
    """Recover, or say what would be done; the exit status.

    Args:
        folder: The workspace.
        state: The store's file, `memory` for none, or None for the workspace's own.
        accept: Ids of calls whose files are taken as they are.
        dry_run: Change nothing.
        as_json: One JSON object instead of text.

    Returns:
        0 when nothing is left to be looked at by a person, 1 otherwise.

    Raises:
        Complaint: USAGE, there is no such workspace or store, or no such call to accept; WORKSPACE_READ_ONLY.
    """
    workspace = checked_workspace(folder)
    found = trio.run(_recover, workspace, kept_state(workspace, state), tuple(accept), dry_run)
    unknown = set(accept) - {finding.job_id for finding in found.findings}
    if unknown:
        raise Complaint("USAGE", f"--accept {min(unknown)}: no such call was left in {workspace}.", status=USAGE)
    if as_json:
        write_json({"dry_run": dry_run, **_as_dict(found)})
    else:
        _show(found, workspace, dry_run=dry_run)
    return FAILED if any(finding.problem for finding in found.findings) else OK


async def _recover(workspace: Path, file: Path | None, accept: tuple[str, ...], dry_run: bool) -> Recovery:
    # A server at work there would look like a dead one's leftovers; the locks say whose they are.
    with workspace_lock(workspace) as locked:
        if not locked:
            raise Complaint("WORKSPACE_READ_ONLY", f"{workspace} cannot be written, so nothing can be put right there.")
        async with _opened(file) as store:
            audit = AuditBus(recorder=store.record)
            return await recover(
                store, str(workspace), audit, blocking=_in_thread, dry_run=dry_run, accept=frozenset(accept)
            )


@asynccontextmanager
async def _opened(file: Path | None) -> AsyncIterator[Store]:
    if file is None:
        yield MemoryStore()
        return
    from ztrio_sql import open_store

    async with open_store(file) as store:
        yield store


def _in_thread(function: Callable[..., Any], /, *args: Any) -> Any:
    return trio.to_thread.run_sync(function, *args)


def _as_dict(found: Recovery) -> dict[str, Any]:
    facts = attrs.asdict(found)
    for finding in facts["findings"]:
        finding["outcome"] = None if finding["outcome"] is None else str(finding["outcome"])
    return facts


def _show(found: Recovery, workspace: Path, *, dry_run: bool) -> None:
    if not found.findings:
        write_line(f"Nothing was left in {workspace}.")
        return
    for finding in found.findings:
        _show_finding(finding, workspace, dry_run=dry_run)
    people = sum(finding.problem is not None for finding in found.findings)
    done = "would be put right" if dry_run else "put right"
    last = f"{len(found.findings) - people} of {len(found.findings)} {done}."
    if people:
        last += f" {people} for you to look at; targets that stay locked: {len(found.locked)}."
    write_line(last)


def _show_finding(finding: Finding, workspace: Path, *, dry_run: bool) -> None:
    name = finding.job_id if finding.tool is None else f"{finding.job_id}  {finding.tool}, session {finding.session}"
    write_line(name)
    write_line(f"  found: {finding.found}")
    rows = [_cells(action, workspace) for action in finding.actions]
    if rows and console().is_terminal:
        table = Table(
            "file", "to do" if dry_run else "done", "why", box=None, header_style="bold", padding=(0, 1, 0, 1)
        )
        for row in rows:
            table.add_row(*row)
        console().print(table)
    else:
        for path, what, why in rows:
            write_line(f"  {path}: {what}, because {why}" if what != "nothing" else f"  {path}: nothing to do, {why}")
    if finding.outcome is not None:
        write_line(f"  outcome: {finding.outcome}")
    if finding.problem is not None:
        write_line(f"  ! {finding.problem}. {finding.advice or ''}".rstrip())
    write_line()


def _cells(action: Action, workspace: Path) -> tuple[str, str, str]:
    path = Path(action.path)
    shown = str(path.relative_to(workspace)) if path.is_relative_to(workspace) else action.path
    return shown, _WORDS.get(action.what, action.what), action.reason
