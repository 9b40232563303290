"""A toolbox whose calls can be left so that nobody knows what became of them."""

from __future__ import annotations

import time

import ztrio

toolbox = ztrio.Toolbox("mail")


@toolbox.tool(capability="write", effects="external", timeout=30, max_timeout=60)
def send(ctx: ztrio.ToolContext, seconds: float = 0.0) -> str:
    """Send a letter, slowly."""
    ctx.progress(1)
    time.sleep(seconds)
    return "sent"


@toolbox.tool(capability="read")
async def sent() -> list[str]:
    """Look what was sent."""
    return []
