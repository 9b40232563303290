"""The toolbox that `ztrio doctor` tries workers with."""

from __future__ import annotations

import subprocess

import ztrio

toolbox = ztrio.Toolbox("doctor")

# Says its process id as the host knows it, which inside a PID namespace only /proc tells.
CHILD = "if [ -e /proc/self/stat ]; then read pid rest < /proc/self/stat; else pid=$$; fi; echo $pid; exec sleep 60"


@toolbox.tool(capability="write")
def nothing() -> None:
    """Do nothing, in a worker."""


@toolbox.tool(capability="write", timeout=30.0)
def hold(ctx: ztrio.ToolContext) -> None:
    """Start a child process, say its process id, and wait for it."""
    with subprocess.Popen(["sh", "-c", CHILD], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        ctx.progress(1.0, message=child.stdout.readline().strip())
