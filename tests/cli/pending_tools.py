"""Tools of which nobody knows what became of them when they are stopped."""

from __future__ import annotations

import time

import ztrio

toolbox = ztrio.Toolbox("mail")


@toolbox.tool(capability="write", effects="external", timeout=60, max_timeout=60)
def send(ctx: ztrio.ToolContext, seconds: float = 0.0) -> str:
    """Send a letter, slowly."""
    ctx.progress(1)
    time.sleep(seconds)
    return "sent"


@toolbox.tool(capability="read")
def sent(number: int = 0) -> list[int]:
    """Look what was sent."""
    return [number]
