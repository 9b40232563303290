"""Tools for the tests of the MCP server; loaded by path."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import trio

import ztrio
from ztrio.testing import host_pid

print("printed at import")

toolbox = ztrio.Toolbox("mcp box")


@toolbox.tool(capability="read", title="Echo")
async def echo(value: Any = None) -> Any:
    """Return the value."""
    return value


@toolbox.tool(capability="read")
def put_away() -> int:
    """How many objects of the server full collections leave alone."""
    return gc.get_freeze_count()


@toolbox.tool(capability="read")
def noisy(text: str) -> str:
    """Print to stdout in every way there is, then return the text."""
    print(text)
    sys.stdout.flush()
    os.write(1, text.encode() + b"\n")
    return text


@toolbox.tool(capability="read", timeout=20)
async def nap(seconds: float) -> dict[str, float]:
    """Sleep without holding anything."""
    await trio.sleep(seconds)
    return {"slept": seconds}


@toolbox.tool(capability="write")
def put(ctx: ztrio.ToolContext, text: str, out: Annotated[Path, ztrio.Output()]) -> dict[str, Any]:
    """Write a file and count the writes of the session."""
    ctx.session["writes"] = ctx.session.get("writes", 0) + 1
    out.write_text(text)
    print("stray", text)
    return {"out": str(out), "writes": ctx.session["writes"]}


@toolbox.tool(capability="write")
def keep(value: Any) -> Any:
    """Return the value from a worker."""
    return value


@toolbox.tool(capability="destructive")
def fail() -> None:
    """Raise."""
    raise RuntimeError("no such luck")


@toolbox.tool(capability="write", timeout=30, max_timeout=60)
def heavy(ctx: ztrio.ToolContext, out: Annotated[Path, ztrio.Output()]) -> None:
    """Start a child that ignores SIGTERM, report both pids as progress, and never end."""
    out.write_text("half")
    child = subprocess.Popen(
        [sys.executable, "-c", "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"]
    )
    ctx.progress(1, message=f"{host_pid()} {host_pid(child.pid)}")
    time.sleep(300)


@toolbox.tool(capability="write", timeout=30)
def burn(seconds: float) -> int:
    """Keep a processor busy."""
    end, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        rounds += 1
    return rounds


@toolbox.tool(capability="write")
def steps(ctx: ztrio.ToolContext, count: int, pause: float = 0.0) -> int:
    """Report progress `count` times."""
    for step in range(1, count + 1):
        ctx.progress(step, total=count, message=f"step {step}")
        time.sleep(pause)
    return count


@toolbox.tool(capability="write")
def huge() -> int:
    """Return an integer that JSON text cannot carry."""
    return 10**5000


@toolbox.tool(capability="write", grace=20)
async def graceful(ctx: ztrio.ToolContext) -> None:
    """Report the pid, and when asked to end, take long over it."""
    ctx.progress(1, message=str(host_pid()))
    try:
        await trio.sleep(300)
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(15)


@toolbox.tool(capability="read", timeout=300)
def stuck() -> None:
    """Block a thread of the server for long."""
    time.sleep(300)
