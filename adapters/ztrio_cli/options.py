"""The options that several commands have, spelt alike everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import typer

__all__ = [
    "HERE",
    "BackendName",
    "ContainmentName",
    "GateMode",
    "GatewayName",
    "Json",
    "SandboxMode",
    "ServedWorkspace",
    "State",
    "Tools",
    "Workspace",
]

HERE: Final = Path()

Tools = Annotated[
    str, typer.Argument(metavar="TOOLS.py[:NAME]", help="A Python file with a toolbox; NAME if it is not 'toolbox'.")
]
Workspace = Annotated[
    Path,
    typer.Option(
        "--workspace", "-w", metavar="DIR", help="Folder that outputs and inputs are relative to and may not leave."
    ),
]
ServedWorkspace = Annotated[
    Path | None,
    typer.Option(
        "--workspace",
        "-w",
        metavar="DIR",
        help="Ask the `ztrio serve` of this folder; if neither is given, the one of this folder, where one runs.",
        show_default=False,
    ),
]
GatewayName = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="NAME",
        help="Ask the `ztrio wrap` of this name; if neither is given, and none serves here, the only one that runs.",
        show_default=False,
    ),
]
SandboxMode = Annotated[
    Literal["auto", "require", "off"],
    typer.Option(
        "--sandbox",
        metavar="MODE",
        help="Keep tools from writing elsewhere: auto (where the system can), require (or refuse) or off.",
    ),
]
BackendName = Annotated[
    Literal["auto", "zygote", "spawn"],
    typer.Option(
        "--backend",
        metavar="NAME",
        help="How workers are made: zygote (forked, Linux), spawn (each anew), or auto (the first that works).",
    ),
]
ContainmentName = Annotated[
    Literal["auto", "require", "pidns", "cgroup", "job-init", "group"],
    typer.Option(
        "--containment",
        metavar="RUNG",
        help="What a worker cannot escape: auto (the best that works), require (one that nothing escapes, or refuse), "
        "pidns, cgroup, job-init or group. See `ztrio doctor`.",
    ),
]
GateMode = Annotated[
    Literal["off", "warn", "enforce"],
    typer.Option(
        "--gate",
        metavar="MODE",
        help="When nobody knows what became of an earlier call, a new one that changes something is let through (off), "
        "warned about (warn) or refused (enforce). See `ztrio pending --help`.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
State = Annotated[
    str | None,
    typer.Option(
        "--state",
        metavar="FILE",
        help="Where sessions, calls and the audit are kept, or memory; DIR/.ztrio/state.db if not given.",
        show_default=False,
    ),
]
