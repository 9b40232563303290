"""`ztrio pending status`, `retry` and `replay`: the server behind a gateway, and its calls once more."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ztrio_cli.console import FAILED, OK, write_json, write_line
from ztrio_cli.options import GatewayName, Json, ServedWorkspace

__all__ = ["replay", "retry", "status"]


def status(workspace: ServedWorkspace = None, name: GatewayName = None, as_json: Json = False) -> int:
    """Show what runs: its server and how that died last, what it is busy with, and what was counted.

    \b
      ztrio pending status
      ztrio pending status --name mail --json | jq .server.state
    """
    from ztrio.management import frames
    from ztrio_cli.operator import reach

    with reach(workspace, name) as operator:
        return _show(operator.ask(frames.Status()), as_json=as_json)


def retry(workspace: ServedWorkspace = None, name: GatewayName = None, as_json: Json = False) -> int:
    """Start a server again that was given up because it died again and again.

    \b
      ztrio pending retry --name mail
    """
    from ztrio.management import frames
    from ztrio_cli.operator import reach

    with reach(workspace, name) as operator:
        return _show(operator.ask(frames.Retry()), as_json=as_json)


def replay(
    call_id: Annotated[str, typer.Argument(metavar="ID", help="The recorded call: pc_…, from `ztrio pending list`.")],
    pairs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="The arguments, as in `ztrio call`.", show_default=False),
    ] = None,
    arguments: Annotated[
        str | None, typer.Option("--arguments", metavar="JSON", help="All arguments as one JSON object; - reads stdin.")
    ] = None,
    reconciles: Annotated[
        list[str] | None,
        typer.Option(
            "--reconciles", metavar="ID", help="A call that this one settles, if it is a read.", show_default=False
        ),
    ] = None,
    workspace: ServedWorkspace = None,
    name: GatewayName = None,
    as_json: Json = False,
) -> int:
    """Make a recorded call once more, in the name of its caller. It is sent at once.

    Arguments are never recorded, so they are given again. The call passes the gate of that caller: while the first one
    is unresolved, it is warned about or refused like a repeat by the caller itself.

    \b
      ztrio pending replay pc_abcdefghijklmnop -- to=anna subject=Minutes
      ztrio pending replay pc_abcdefghijklmnop --arguments '{"to": "anna"}' --json

    Exits with 1 if the tool failed.
    """
    from ztrio.management import frames
    from ztrio_cli.arguments import given_arguments
    from ztrio_cli.operator import reach

    with reach(workspace, name) as operator:
        schema: dict[str, Any] = {}
        if pairs:  # what may be text in them, the tool says
            tool = operator.ask(frames.Show(call_id))["pending_call"]["tool"]
            schema = operator.ask(frames.Tool(tool, reads=False))["input_schema"]
        given = given_arguments(arguments, pairs or (), schema)
        answer = operator.ask(frames.Replay(call_id, given, list(reconciles or ())))
    if as_json:
        write_json(answer)
    else:
        write_line(f"{answer['tool']}: {answer['value']}")
        write_line(f"  call_id: {answer['call_id']}")
    return FAILED if answer["is_error"] else OK


def _show(answer: dict[str, Any], *, as_json: bool) -> int:
    if as_json:
        write_json(answer)
    else:
        for line in _lines(answer, ""):
            write_line(line)
    return OK


def _lines(value: dict[str, Any], margin: str) -> list[str]:
    """An object as lines `name: value`, what is in it further in; a text of several lines has its own."""
    lines = []
    for name, item in value.items():
        if isinstance(item, dict) and item:
            lines += [f"{margin}{name}:", *_lines(item, margin + "  ")]
        elif isinstance(item, str) and "\n" in item.strip():
            lines += [f"{margin}{name}:", *(f"{margin}  | {line}" for line in item.strip().splitlines())]
        else:
            lines.append(f"{margin}{name}: {_plain(item)}")
    return lines


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value)) or "none"
    if value is None or value in ({}, ""):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.1f}" if isinstance(value, float) else str(value).strip()
