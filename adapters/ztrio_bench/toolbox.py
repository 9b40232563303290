"""The workload as a toolbox of ztrio."""

from pathlib import Path
from typing import Annotated

import ztrio
from ztrio_bench import workload

__all__ = ["empty", "lingering", "record", "toolbox"]

toolbox = ztrio.Toolbox("benchmark")

for _tool in (
    workload.trivial,
    workload.nap,
    workload.sleeping,
    workload.cpu,
    workload.ignoring,
    workload.forking,
    workload.daemon,
    workload.holding,
):
    toolbox.tool(capability="write", timeout=120.0, queue_timeout=300.0)(_tool)


@toolbox.tool(capability="write")
def record(ctx: ztrio.ToolContext, value: int, out: Annotated[Path, ztrio.Output()]) -> dict[str, int]:
    """Write one small file and count in the session's state."""
    ctx.session["calls"] = ctx.session.get("calls", 0) + 1
    out.write_text(f"{value}\n")
    return {"value": value}


@toolbox.tool(capability="read")
async def empty() -> None:
    """Do nothing."""


@toolbox.tool(capability="write", grace=60.0)
def lingering(place: str, token: str) -> dict[str, str]:
    """Ignore being asked to end."""
    return workload.ignoring(place, token)
