"""`ztrio pending …` and `ztrio reload`: what an operator asks a running server, over its private socket."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ztrio_cli.console import FAILED, OK, USAGE, Complaint, write_json, write_line
from ztrio_cli.options import HERE, GatewayName, Json, ServedWorkspace, Workspace
from ztrio_cli.pending_server import replay, retry, status

__all__ = ["pending", "reload"]

pending = typer.Typer(
    name="pending",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="""See and settle calls that nobody knows the end of, in a running server or gateway.

    A call is unresolved when its tool may or may not have done what it does: it was sent to a server that has not
    answered; or it acts on something outside of the workspace and was killed in the middle, or its worker cannot be
    proven dead, or its commit cannot be confirmed. Until that is settled, the gate of its caller is shut: what changes
    something is warned about or refused (--gate of `ztrio wrap` and `ztrio serve`). It is settled when ztrio finds
    out, when a read that looked settles it, or on your word:

    \b
      ztrio pending list
      ztrio pending show pc_abc...
      ztrio pending reconcile pc_abc... -- list_mails folder=sent     look with a tool that reads; its success settles
      ztrio pending release pc_abc... --reason "looked: it was sent"  you have looked yourself

    Of the server behind a gateway, `ztrio pending status` shows how it does.

    Asked is what runs: a `ztrio serve` in this folder, else the only `ztrio wrap` there is. --workspace and --name say
    which, where that is not enough.
    """,
)


@pending.callback(invoke_without_command=True)
def _choose(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        raise Complaint(
            "USAGE",
            "say what: list, show, cancel, reconcile, release, status, retry or replay. Try --help.",
            status=USAGE,
        )


CallId = Annotated[str, typer.Argument(metavar="ID", help="The call: pc_… or pcb_…, from `ztrio pending list`.")]

_ACTIONS: Final = {
    "wait": "wait{until}",
    "reconcile": "look with {tools}, then `ztrio pending reconcile {call_id} -- TOOL …`",
    "cancel": "`ztrio pending cancel {call_id}`",
    "release": "look yourself, then `ztrio pending release {call_id} --reason …`",
}


@pending.command("list")
def list_(workspace: ServedWorkspace = None, name: GatewayName = None, as_json: Json = False) -> int:
    """List pending calls of every caller, oldest first; settled ones for a while.

    \b
      ztrio pending list
      ztrio pending list --json | jq -r '.pending_calls[] | select(.gating) | .call_id'
    """
    from ztrio.management import frames

    answer = _ask(workspace, name, frames.List())
    if as_json:
        write_json(answer)
        return OK
    for call in answer["pending_calls"]:
        write_line("  ".join(_cells(call)))
    if not answer["pending_calls"]:
        write_line("No call is pending.")
    return OK


@pending.command()
def show(call_id: CallId, workspace: ServedWorkspace = None, name: GatewayName = None, as_json: Json = False) -> int:
    """Show what is known of one call, and what can be done about it.

    \b
      ztrio pending show pc_abcdefghijklmnop
    """
    from ztrio.management import frames

    answer = _ask(workspace, name, frames.Show(call_id))
    _show_call(answer, as_json=as_json)
    return OK


@pending.command()
def cancel(
    call_id: CallId,
    kill: Annotated[
        bool, typer.Option("--kill", help="Kill the server's process, with everything that it is at; it starts anew.")
    ] = False,
    workspace: ServedWorkspace = None,
    name: GatewayName = None,
    as_json: Json = False,
) -> int:
    """Tell the server that a call was sent to that it shall stop; or stop it.

    `cancelled` means that it was told, not that nothing happened. A tool of your own toolbox was stopped already, so
    there nobody is told. With --kill the server behind a gateway is killed, with every process that it started: each
    call that it was at ends there, and may or may not have happened.

    \b
      ztrio pending cancel pc_abcdefghijklmnop
      ztrio pending cancel pc_abcdefghijklmnop --kill

    Exits with 1 if it could not be told.
    """
    from ztrio.management import frames

    answer = _ask(workspace, name, frames.Cancel(call_id, kill))
    if as_json:
        write_json(answer)
    else:
        write_line(f"{answer['call_id']}: {answer['state']}")
        write_line(f"  {answer['note']}")
    return FAILED if "cancel_error" in answer else OK


@pending.command()
def release(
    call_id: CallId,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it goes into the audit.")],
    workspace: ServedWorkspace = None,
    name: GatewayName = None,
    as_json: Json = False,
) -> int:
    """Settle a call on your word: you have looked, and know what became of it.

    \b
      ztrio pending release pc_abcdefghijklmnop --reason "looked: the mail was sent"
    """
    from ztrio.management import frames

    _show_call(_ask(workspace, name, frames.Release(call_id, reason)), as_json=as_json)
    return OK


@pending.command()
def reconcile(
    call_id: CallId,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="A tool that only reads.")],
    pairs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Its arguments, as in `ztrio call`.", show_default=False),
    ] = None,
    session: Annotated[str, typer.Option("--session", metavar="NAME", help="Session that is read.")] = "default",
    workspace: ServedWorkspace = None,
    name: GatewayName = None,
    as_json: Json = False,
) -> int:
    """Look with a tool that only reads; when it succeeds, the call counts as settled.

    \b
      ztrio pending reconcile pc_abcdefghijklmnop -- list_mails folder=sent

    Exits with 1 if the call is not settled by that.
    """
    from ztrio.management import frames
    from ztrio_cli.arguments import parse_arguments
    from ztrio_cli.operator import reach

    with reach(workspace, name) as operator:
        schema = operator.ask(frames.Tool(tool))["input_schema"]
        arguments = parse_arguments(pairs or (), schema)
        if "session" in arguments:
            raise Complaint("USAGE", "the session is named with --session.", status=USAGE)
        answer = operator.ask(frames.Reconcile(call_id, tool, arguments, session))
    call = answer["pending_call"]
    if as_json:
        write_json(answer)
    else:
        write_line(f"{tool}: {answer['value']}")
        _show_call(answer, as_json=False)
    return FAILED if call.get("gating") else OK


for _command in (status, retry, replay):
    pending.command()(_command)


def reload(workspace: Workspace = HERE, as_json: Json = False) -> int:
    """Let a running server load its toolbox anew.

    Calls from now on use the new code, running ones end with the old. When it cannot be loaded, the error names file
    and line, and everything stays as it was.

    \b
      ztrio reload --workspace /path/to/folder
    """
    from ztrio.management import frames

    answer = _ask(workspace, None, frames.Reload())
    if as_json:
        write_json(answer)
    else:
        write_line(f"{answer['toolbox']}: {', '.join(answer['tools']) or 'no tools'}")
    return OK


def _ask(workspace: Path | None, name: str | None, request: Any) -> dict[str, Any]:
    from ztrio_cli.operator import reach

    with reach(workspace, name) as operator:
        return operator.ask(request)


def _cells(call: dict[str, Any]) -> list[str]:
    what = call["tool"] if call.get("count", 1) == 1 else f"{call['count']} calls"
    cells = [call["call_id"], str(call["unresolved_at"] or call["sent_at"]), call["server"], what, call["state"]]
    cells += [call["reason"]] if call["reason"] else []
    return [*cells, "gate shut"] if call.get("gating") else cells


def _show_call(answer: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        write_json(answer)
        return
    call = answer["pending_call"]
    write_line("  ".join(_cells(call)))
    for name in ("sent_at", "expires_at", "late_outcome", "settled_by", "principal", "blocker"):
        if call.get(name) is not None:
            write_line(f"  {name}: {call[name]}")
    for way in [*call["resolve"], {"action": "release"}] if call["resolve"] else ():
        if way["action"] in _ACTIONS:
            until = f", at most {way['seconds']:.0f} s" if "seconds" in way else " until it is settled"
            tools = " or ".join(way.get("tools", ()))
            write_line(f"  > {_ACTIONS[way['action']].format(tools=tools, call_id=call['call_id'], until=until)}")
