"""The command line: what each command takes. What it does is in the module of its name, imported when it is used."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ztrio_cli.audit import audit
from ztrio_cli.bench import bench
from ztrio_cli.options import HERE, BackendName, ContainmentName, GateMode, Json, SandboxMode, State, Tools, Workspace
from ztrio_cli.outcome import outcome
from ztrio_cli.pending import pending, reload
from ztrio_cli.wrap import WrapCommand, wrap

__all__ = ["app"]

app = typer.Typer(
    name="ztrio",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            number = version("ztrio")
        except PackageNotFoundError:
            number = "(run from its source tree)"
        sys.stdout.write(f"ztrio {number}\n")
        raise typer.Exit


@app.callback()
def ztrio(
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Run tools so that the end of a call is a state boundary: committed or rolled back, and proven.

    \b
    Start here:
      ztrio demo                                       see it work, on real files and processes
      ztrio doctor                                     what works on this machine
      ztrio serve my_tools.py --workspace .            serve your tools over MCP (stdio)
      ztrio call my_tools.py export design=x out_dir=out
      ztrio wrap -- npx -y some-server                 stand in front of an MCP server of somebody else's
      ztrio audit --last 20                            what happened to the calls in this workspace
      ztrio outcome job_abc...                         what became of one call, also after a crash
      ztrio recover --dry-run                          what a killed server left in this workspace
      ztrio pending list                               calls that nobody knows the end of, in what runs
      ztrio reload                                     let a running server load its tools anew
      ztrio bench cancel --load 64                     what it costs on this machine

    \b
    Exit status of every command:
      0 done   1 failed   2 the command line or an argument is wrong, nothing ran   130 interrupted (Ctrl-C)
    """


@app.command()
def serve(
    tools: Tools,
    workspace: Workspace = HERE,
    state: State = None,
    allow: Annotated[
        str, typer.Option("--allow", metavar="LIST", help="Capabilities that may be used, separated by commas.")
    ] = "read,write,destructive",
    workers: Annotated[int, typer.Option("--workers", min=1, metavar="N", help="Most worker processes at once.")] = 64,
    backend: BackendName = "auto",
    containment: ContainmentName = "auto",
    sandbox: SandboxMode = "auto",
    gate: GateMode = "warn",
    run_as: Annotated[
        str | None,
        typer.Option(
            "--run-as", metavar="UID:GID", help="User that tools run as, when root serves.", show_default=False
        ),
    ] = None,
    keep_audit: Annotated[
        str | None,
        typer.Option(
            "--keep-audit",
            metavar="BOUND",
            help="How much of the audit is kept from now on: 30d, 1GB, 30d,1GB or forever; at first 1GiB.",
            show_default=False,
        ),
    ] = None,
    audit_file: Annotated[
        Path | None,
        typer.Option(
            "--audit-file",
            metavar="FILE",
            help="Append the audit to this file as well, as JSON lines; with --state memory DIR/.ztrio/audit.jsonl.",
            show_default=False,
        ),
    ] = None,
    log_level: Annotated[
        str, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error; the log is on stderr.")
    ] = "info",
    as_json: Annotated[bool, typer.Option("--json", help="Log JSON lines instead of text.")] = False,
) -> int:
    """Serve a toolbox over MCP on stdin and stdout.

    A client starts this command by itself; in its configuration write, for example:

    \b
      {"mcpServers": {"site": {"command": "ztrio",
        "args": ["serve", "/path/to/site_tools.py", "--workspace", "/path/to/folder", "--allow", "read,write"]}}}

    The server ends when stdin does, and on SIGINT, SIGTERM and SIGHUP: calls in flight are rolled back first. Killed
    in the middle, it puts right what it left when it starts again. Every call is recorded in the store (--state);
    read it with `ztrio audit`. While it runs, `ztrio pending` and `ztrio reload` reach it from another terminal.
    """
    from ztrio_cli.serve import run

    return run(
        tools,
        workspace=workspace,
        state=state,
        allow=allow,
        workers=workers,
        backend=backend,
        containment=containment,
        sandbox=sandbox,
        gate=gate,
        run_as=run_as,
        keep_audit=keep_audit,
        audit_file=audit_file,
        log_level=log_level,
        as_json=as_json,
    )


@app.command()
def call(
    tools: Tools,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="Name of the tool.")],
    pairs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Arguments. KEY:=JSON gives a value as JSON.", show_default=False
        ),
    ] = None,
    arguments: Annotated[
        str | None, typer.Option("--arguments", metavar="JSON", help="All arguments as one JSON object; - reads stdin.")
    ] = None,
    session: Annotated[str, typer.Option("--session", metavar="NAME", help="Session whose state is used.")] = "default",
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", help="Time the tool may run; its own if not given.")
    ] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key",
            metavar="KEY",
            help="Your name for this call: repeated under it, it is not done twice and shows the first answer.",
            show_default=False,
        ),
    ] = None,
    workspace: Workspace = HERE,
    state: State = None,
    backend: BackendName = "auto",
    containment: ContainmentName = "auto",
    sandbox: SandboxMode = "auto",
    gate: GateMode = "warn",
    as_json: Json = False,
) -> int:
    """Call one tool and show what became of it.

    A value is text where the tool takes text, and JSON elsewhere:

    \b
      ztrio call site_tools.py build_site site=out title="Harbour report" slow_charts=0.5
      ztrio call site_tools.py remove_pages names:='["tides", "traffic"]'
      ztrio call site_tools.py list_sources --arguments '{"content": "content"}' --json

    Ctrl-C stops the tool with everything it started, waits until that is proven and the files are as before, and
    exits with 130. With --json the answer is {"value", "job_id", "outcome", "targets"} or {"error": {"code", …}}.
    Sessions and keys last from one command to the next, unless --state is memory.
    """
    from ztrio_cli.call import Options, run

    return run(
        Options(
            tools=tools,
            tool=tool,
            pairs=tuple(pairs or ()),
            arguments=arguments,
            session=session,
            timeout=timeout,
            idempotency_key=idempotency_key,
            workspace=workspace,
            state=state,
            backend=backend,
            containment=containment,
            sandbox=sandbox,
            gate=gate,
            as_json=as_json,
        )
    )


app.command(cls=WrapCommand, options_metavar="[OPTIONS] -- COMMAND [ARG]...")(wrap)
app.command()(audit)


@app.command()
def recover(
    workspace: Workspace = HERE,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and why; change nothing.")
    ] = False,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            "--accept", metavar="ID", help="You have looked: take this call's files as they are.", show_default=False
        ),
    ] = None,
    state: State = None,
    as_json: Json = False,
) -> int:
    """Put right what a killed server left in a workspace.

    A server does this by itself when it starts. Every file of a call that was cut short is either what it was before
    or, if the call had committed, what the call made of it; this says which, and why. Where somebody else changed a
    file meanwhile, both versions are kept and the file is locked until you have looked: take what you need from the
    job directory, then --accept the call.

    \b
      ztrio recover --dry-run
      ztrio recover
      ztrio recover --accept job_abc...

    Exits with 1 if something is left for you to look at.
    """
    from ztrio_cli.recover import run

    return run(workspace, state=state, accept=accept or (), dry_run=dry_run, as_json=as_json)


@app.command()
def doctor(
    tools: Annotated[
        str | None, typer.Argument(metavar="[TOOLS.py[:NAME]]", help="A toolbox to check as well.", show_default=False)
    ] = None,
    workspace: Workspace = HERE,
    state: State = None,
    as_json: Json = False,
) -> int:
    """Find out what works on this machine, by trying it.

    Starts a real worker with a child process and kills both, exchanges real files in the workspace, and says for
    each finding what to do about it. Exits with 1 if something that ztrio needs does not work.

    \b
      ztrio doctor
      ztrio doctor my_tools.py --workspace /path/to/folder
    """
    from ztrio_cli.doctor import run

    return run(tools, workspace=workspace, state=state, as_json=as_json)


@app.command()
def demo(
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Work in this new folder and leave it.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> int:
    """See every promise kept, checked from outside.

    Serves the example (Markdown and CSV files to a web site with charts) in a process of its own, talks to it with
    the official MCP client, and lets things go wrong: a timeout, a client that cancels, a bad file, two sessions
    that want the same folder, a destroyed session, a killed server. After each scene it looks at files and processes
    by itself. Exits with 1 if a promise was broken.

    \b
      ztrio demo
      ztrio demo --keep /tmp/harbour && open /tmp/harbour/site/index.html
    """
    from ztrio_cli.demo import run

    return run(keep=keep, as_json=as_json)


app.command()(outcome)
app.add_typer(pending)
app.command()(reload)
app.command()(bench)
