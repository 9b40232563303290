"""The toolbox that `ztrio doctor` tries workers with."""

from __future__ import annotations

import subprocess

import ztrio

toolbox = ztrio.Toolbox("doctor")


@toolbox.tool(capability="write")
def nothing() -> None:
    """Do nothing, in a worker."""


@toolbox.tool(capability="write", timeout=30.0)
def hold(ctx: ztrio.ToolContext) -> None:
    """Start a child process, say its process id, and wait for it."""
    with subprocess.Popen(["sleep", "60"]) as child:
        ctx.progress(1.0, message=str(child.pid))
