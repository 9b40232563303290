"""`ztrio outcome`: what became of one call, by its job id or by its idempotency key.

The store is only looked at, so this works beside a running server, and when none runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ztrio_cli.console import OK, USAGE, Complaint, write_json, write_line
from ztrio_cli.options import HERE, Json, State, Workspace

if TYPE_CHECKING:
    from ztrio.store import JobRow

__all__ = ["outcome"]

_MEANING: Final = {
    "committed": "its files and session state are as the tool left them",
    "rolled_back": "everything is as it was before",
    "not_started": "the tool never ran",
    "completed": "it was a read and changed nothing",
    "unresolved": "nobody can say yet: look at its targets before repeating it",
    "running": "it is not decided yet; if no server runs there any more, `ztrio recover` decides",
}


def outcome(
    job_id: Annotated[
        str | None, typer.Argument(metavar="[JOB_ID]", help="The call, by the id in its answer.", show_default=False)
    ] = None,
    tool: Annotated[
        str | None, typer.Option("--tool", metavar="TOOL", help="With --key: the tool.", show_default=False)
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="The call, by its idempotency key; the newest.", show_default=False),
    ] = None,
    workspace: Workspace = HERE,
    state: State = None,
    as_json: Json = False,
) -> int:
    """Show what became of a call, also when its answer was lost or its server killed.

    \b
      ztrio outcome job_abcdefghijklmnop
      ztrio outcome --tool build_site --key release-7 --json | jq -r .outcome

    Works beside a running server. Exits with 1 if there is no such call.
    """
    from ztrio_cli.workspace import checked_workspace

    if (job_id is None) == (key is None) or (tool is None) != (key is None):
        raise Complaint("USAGE", "give either a job id, or --tool and --key.", status=USAGE)
    found = _find(checked_workspace(workspace), state, job_id, tool or "", key or "")
    facts = found.as_dict() | {"outcome": str(found.outcome or "running")}
    if as_json:
        write_json(facts)
    else:
        _show(facts)
    return OK


def _find(workspace: Path, state: str | None, job_id: str | None, tool: str, key: str) -> JobRow:
    from ztrio.calls import LOCAL
    from ztrio.idempotency import check_key
    from ztrio_cli.state import kept_state

    file = kept_state(workspace, state)
    if file is None:
        raise Complaint(
            "STATE_NOT_FOUND",
            f"No calls were kept in {workspace}: none was made there yet, they were kept in memory only, or "
            "--workspace or --state names another place.",
        )
    from ztrio_sql import StoreReader

    with StoreReader.open(file) as reader:
        if job_id is None:
            row = reader.job_by_key(LOCAL.principal.id, tool, check_key(key)) if tool.isprintable() else None
            name = f"call of {tool!r} with the key {key!r}"
        else:
            row = reader.job(job_id) if job_id.isascii() else None
            name = f"call {job_id!r}"
    if row is None:
        raise Complaint("JOB_UNKNOWN", f"There is no {name} in {file}. It may be older than what is kept there.")
    return row


def _show(facts: dict[str, Any]) -> None:
    write_line(f"{facts['job_id']}  {facts['tool']}, session {facts['session']}: {facts['outcome']}")
    write_line(f"  {_MEANING[facts['outcome']]}")
    if facts.get("reason"):
        write_line(f"  ! {facts['reason']}")
    for parameter, path in facts["targets"].items():
        write_line(f"  {parameter}: {path}")
    if facts.get("idempotency_key"):
        write_line(f"  key: {facts['idempotency_key']}")
    if facts.get("repeats"):
        write_line(f"  repeats: {facts['repeats']}")
