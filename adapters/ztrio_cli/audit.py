"""`ztrio audit`: what happened to the calls of a workspace, whether the log is whole, and all of it for others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from ztrio_cli.console import USAGE, Complaint
from ztrio_cli.options import HERE, Json, State, Workspace

__all__ = ["audit"]

# What each action takes beside --workspace, --state and --json.
_FITTING: Final = {
    "show": {"--job", "--event", "--principal", "--last", "--after", "--follow", "--file"},
    "verify": set[str](),
    "export": {"--job", "--event", "--principal", "--after", "--file", "--output"},
}


def audit(
    action: Annotated[
        Literal["show", "verify", "export"],
        typer.Argument(metavar="[show|verify|export]", help="What to do; show if not given.", show_default=False),
    ] = "show",
    job: Annotated[
        str | None, typer.Option("--job", metavar="ID", help="Only events of this call.", show_default=False)
    ] = None,
    event: Annotated[
        str | None, typer.Option("--event", metavar="NAME", help="Only events of this name.", show_default=False)
    ] = None,
    principal: Annotated[
        str | None, typer.Option("--principal", metavar="ID", help="Only events of this caller.", show_default=False)
    ] = None,
    last: Annotated[
        int | None, typer.Option("--last", "-n", min=0, metavar="N", help="Only the last N of them.")
    ] = None,
    after: Annotated[
        int | None, typer.Option("--after", min=0, metavar="POS", help="Only events after this log_pos.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new events until interrupted.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="export: write to this new file, private.", show_default=False
        ),
    ] = None,
    workspace: Workspace = HERE,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="The audit of the `ztrio wrap` of this name.", show_default=False),
    ] = None,
    state: State = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="Read this file of JSON lines and no store.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> int:
    """Show what happened to the calls of a workspace or gateway, oldest first; verify the log; or export it.

    \b
      ztrio audit --last 20
      ztrio audit --event rollback
      ztrio audit --job job_abc… --json | jq .proof
      ztrio audit --follow
      ztrio audit --name mail              of a `ztrio wrap`, whether it runs or not
      ztrio audit verify                   follow the hash chain; exits with 1 at the first bad link and names it
      ztrio audit export -o audit.jsonl    every event with log_pos and hash, one JSON object a line

    The store is only looked at, so all of this works beside a running server. Where there is no store, the file of
    JSON lines is read; its damaged lines are named on stderr and skipped.
    """
    given = {
        "--job": job,
        "--event": event,
        "--principal": principal,
        "--last": last,
        "--after": after,
        "--follow": follow or None,
        "--output": output,
        "--file": file,
    }
    odd = [name for name, value in given.items() if value is not None and name not in _FITTING[action]]
    if odd:
        raise Complaint("USAGE", f"{odd[0]} does not go with {action}.", status=USAGE)
    from ztrio_cli.workspace import checked_workspace

    if name is None:
        folder = checked_workspace(workspace)
    else:
        folder, state = _gateway(name, workspace, state, file, wait=follow)
    if action == "verify":
        from ztrio_cli.audit_verify import verify

        return verify(folder, state, as_json=as_json)
    from ztrio_cli.audit_source import Wanted, open_log

    wanted = Wanted(job, event, principal, after or 0)
    with open_log(folder, state, file, wanted, wait=follow) as log:
        if action == "export":
            from ztrio_cli.audit_export import export

            return export(log, output)
        from ztrio_cli.audit_show import show

        return show(log, last=last, follow=follow, as_json=as_json)


def _gateway(name: str, workspace: Path, state: str | None, file: Path | None, *, wait: bool) -> tuple[Path, str]:
    """Directory and store of a gateway."""
    for option, given in (("--workspace", workspace != HERE), ("--state", state), ("--file", file)):
        if given:
            raise Complaint("USAGE", f"{option} does not go with --name.", status=USAGE)
    from ztrio_cli.instances import find

    instance = find(name)
    if not (wait or instance.store.is_file()):
        raise Complaint("AUDIT_NOT_FOUND", f"The gateway {name} has recorded nothing yet.")
    return instance.folder, str(instance.store)
