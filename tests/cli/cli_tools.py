"""Tools for the tests of the command."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Annotated, Any

import ztrio
from ztrio.testing import host_pid

toolbox = ztrio.Toolbox("cli-tests")
empty = ztrio.Toolbox("empty")

print("a toolbox that talks while it is loaded")  # the command must keep it off stdout


@toolbox.tool(capability="read")
def echo(
    text: str = "", number: int | None = None, flag: bool = False, rows: list[int] | None = None
) -> dict[str, Any]:
    """Return the arguments."""
    print("a read that talks")  # the same
    return {"text": text, "number": number, "flag": flag, "rows": rows}


@toolbox.tool(capability="read")
def say(text: str) -> str:
    """Return the text."""
    return text


@toolbox.tool(capability="read")
def count() -> list[int]:
    """Return a list."""
    return [1, 2]


@toolbox.tool(capability="write")
def write(ctx: ztrio.ToolContext, target: Annotated[Path, ztrio.Output()], text: str, fail: bool = False) -> str:
    """Write a file, in two steps."""
    ctx.progress(1, 2, "half way")
    target.write_text(text)
    if fail:
        raise RuntimeError(f"it was\nasked to: {text}")
    return str(target)


@toolbox.tool(capability="write")
def hang(ctx: ztrio.ToolContext, target: Annotated[Path, ztrio.Output()]) -> None:
    """Write half a file, start a child process, say its pid, and wait for it."""
    target.write_text("half")
    with subprocess.Popen(["sleep", "120"]) as child:
        ctx.progress(1, message=f"child {host_pid(child.pid)}")


@toolbox.tool(capability="destructive")
def forget(target: Annotated[Path, ztrio.Output(kind="dir", existing="copy_in")]) -> None:
    """Leave nothing of a folder."""
    for path in target.iterdir():
        path.unlink()
