"""`ztrio wrap`: the gateway in front of one stdio server that somebody else wrote.

Everything before `--` is ours and everything behind it the server's, untouched. The two are parted before options are
read, so neither a server's `--name` is taken for ours nor a forgotten `--` for a server.

Here is what it takes, and its help; what it does is in `wrap_run`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from ztrio_cli.wrap_words import DASHES, Wrap

__all__ = ["WrapCommand", "wrap"]


class WrapCommand(TyperCommand):
    """A command whose arguments are what follows the first `--`, as it is."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options in front of the first `--`; leave the rest in `ctx.args`."""
        parted = args.index(DASHES) if DASHES in args else len(args)
        super().parse_args(ctx, args[:parted])
        ctx.args = args[parted + 1 :]
        return list(ctx.args)


def _option(name: str, metavar: str, words: str, default: str) -> Any:
    shown = f"{words}  [default: {default}]" if default else words
    return typer.Option(name, metavar=metavar, help=shown, show_default=False)


def _seconds(name: str, words: str, default: str = "") -> Any:
    return _option(name, "SECONDS", words, default)


def wrap(
    context: typer.Context,
    name: Annotated[
        str | None,
        _option("--name", "NAME", "What this gateway is called; its state is under that name, one process has it.", ""),
    ] = None,
    gate: Annotated[
        Literal["off", "warn", "enforce"] | None,
        _option(
            "--gate",
            "MODE",
            "When nobody knows what became of an earlier call, a new one that changes something is let through (off), "
            "warned about (warn) or refused (enforce). See `ztrio pending --help`.",
            "warn",
        ),
    ] = None,
    timeout: Annotated[
        float | None, _seconds("--timeout", "How long a call is waited for; at the server it goes on.", "60")
    ] = None,
    idle_timeout: Annotated[
        float | None,
        _seconds("--idle-timeout", "Wait as long as the call reports progress at least this often; 0 for none."),
    ] = None,
    max_timeout: Annotated[
        float | None,
        _seconds(
            "--max-timeout",
            "The longest wait, whatever progress comes and whatever a caller asks for.",
            "--timeout, or 10 idle timeouts",
        ),
    ] = None,
    concurrency: Annotated[int | None, _option("--concurrency", "N", "Most calls at the server at once.", "64")] = None,
    queue: Annotated[int | None, _option("--queue", "N", "Most calls that wait for that.", "256")] = None,
    queue_timeout: Annotated[
        float | None, _seconds("--queue-timeout", "How long they wait before they are refused, unsent.", "60")
    ] = None,
    forward_cancel: Annotated[
        Literal["never", "explicit"] | None,
        _option(
            "--forward-cancel",
            "MODE",
            "Pass a client's own cancel of a call to the server (explicit), or let the call end there (never).",
            "never",
        ),
    ] = None,
    on_expire: Annotated[
        Literal["open", "hold"] | None,
        _option("--on-expire", "MODE", "The gate when an unresolved call gets too old: open or hold.", "open"),
    ] = None,
    on_reset: Annotated[
        Literal["open", "hold"] | None,
        _option("--on-reset", "MODE", "The gate when the server died in the middle of a call: open or hold.", "hold"),
    ] = None,
    late_results: Annotated[
        bool | None,
        typer.Option(
            "--late-results/--no-late-results",
            help="Keep a result that comes too late for its caller, for 15 minutes.  [default: no]",
            show_default=False,
        ),
    ] = None,
    journal_sync: Annotated[
        Literal["process", "power"] | None,
        _option(
            "--journal-sync",
            "WHAT",
            "What the record of sent writes survives: the end of this process, or a loss of power, at the cost of "
            "a flush of the disk per call.",
            "process",
        ),
    ] = None,
    start_timeout: Annotated[
        float | None, _seconds("--start-timeout", "How long the server may take to start and answer.", "60")
    ] = None,
    health_interval: Annotated[
        float | None, _seconds("--health-interval", "How often an idle server is pinged; 0 for never.", "30")
    ] = None,
    config: Annotated[
        Path | None,
        _option("--config", "FILE", "A TOML file with these settings, and with limits for single tools.", ""),
    ] = None,
    log_level: Annotated[
        str, _option("--log-level", "LEVEL", "debug, info, warning or error; the log is on stderr.", "info")
    ] = "info",
    as_json: Annotated[bool, typer.Option("--json", help="Log JSON lines instead of text.")] = False,
) -> int:
    """Stand in front of an MCP server, and know what became of each call to it.

    Everything behind -- is the server's command, started as it is, here and with this environment. A client gets the
    server's tools, resources and prompts through it. In the configuration of Claude Desktop, Claude Code, Cursor and
    others, put `ztrio wrap --` in front of what is there:

    \b
      {"mcpServers": {"mail": {"command": "ztrio",
        "args": ["wrap", "--name", "mail", "--gate", "enforce", "--", "npx", "-y", "some-mail-server"]}}}

    A call whose answer does not come in time may have happened all the same. Its caller is told so, with an id; a
    blind repeat is warned about or refused (--gate); a late answer is noted; a server that died is started again.
    From another terminal:

    \b
      ztrio pending status          the server, what it is busy with, how it died last
      ztrio pending list            calls that nobody knows the end of, and how to settle each
      ztrio audit --name mail       what happened to every call

    Without --name, a name is made of the command and the folder that it is started in.

    \b
    A --config FILE has these options as keys, limits of calls in a table, and those of single tools in tables of
    their own; options of the command line win:
      gate = "enforce"
      [limits]
      timeout = 120
      [tools."export_board"]
      idle-timeout = 30

    \b
    Exit status:
      0 the client is gone   128 + signal   1 failed   2 the command line or the file is wrong, nothing was started
    """
    from ztrio_cli.wrap_run import run

    return run(
        Wrap(
            command=tuple(context.args),
            name=name,
            config=config,
            log_level=log_level,
            as_json=as_json,
            settings={
                "gate": gate,
                "timeout": timeout,
                "idle-timeout": idle_timeout,
                "max-timeout": max_timeout,
                "concurrency": concurrency,
                "queue": queue,
                "queue-timeout": queue_timeout,
                "forward-cancel": forward_cancel,
                "on-expire": on_expire,
                "on-reset": on_reset,
                "late-results": late_results,
                "journal-sync": journal_sync,
                "start-timeout": start_timeout,
                "health-interval": health_interval,
            },
        )
    )
