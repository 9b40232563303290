"""The tools that are at work when the server is killed; what they write is known to whoever looks afterwards."""

import time
from pathlib import Path
from typing import Annotated

import ztrio
from tests.crash.content import text_of
from ztrio import Output, ToolContext

toolbox = ztrio.Toolbox("crash")

File = Annotated[Path, Output()]
Folder = Annotated[Path, Output(kind="dir", existing="replace")]


def _count(ctx: ToolContext) -> str:
    ctx.session["count"] = ctx.session.get("count", 0) + 1
    ctx.session["job"] = ctx.job_id
    return text_of(ctx.job_id, ctx.session["count"])


def _make(text: str, page: Path, fresh: Path, site: Path, folder: Path) -> None:
    page.write_text(text)
    fresh.write_text(text)
    for place in (site, folder):
        (place / "deep").mkdir(parents=True)
        (place / "index").write_text(text)
        (place / "deep" / "leaf").write_text(text)


@toolbox.tool(capability="write", queue_timeout=30.0, timeout=30.0)
def publish(ctx: ToolContext, page: File, fresh: File, site: Folder, folder: Folder) -> int:
    """Replace a file and a directory, make a file and a directory anew, and count."""
    _make(_count(ctx), page, fresh, site, folder)
    count: int = ctx.session["count"]
    return count


@toolbox.tool(capability="write", queue_timeout=30.0, timeout=30.0)
def count(ctx: ToolContext) -> int:
    """Change the session alone."""
    _count(ctx)
    value: int = ctx.session["count"]
    return value


@toolbox.tool(capability="write", queue_timeout=30.0, timeout=30.0)
def fail(ctx: ToolContext, page: File, fresh: File, site: Folder, folder: Folder) -> None:
    """Make everything, and raise."""
    _make(_count(ctx), page, fresh, site, folder)
    raise RuntimeError("broken on purpose")


@toolbox.tool(capability="write", queue_timeout=30.0, timeout=30.0)
def linger(ctx: ToolContext, page: File, fresh: File, site: Folder, folder: Folder) -> None:
    """Make everything, and never end."""
    _make(_count(ctx), page, fresh, site, folder)
    while True:
        time.sleep(1)


@toolbox.tool(capability="read", isolate=True, queue_timeout=30.0, timeout=30.0)
def look(ctx: ToolContext) -> int:
    """Read the session."""
    value: int = ctx.session.get("count", 0)
    return value
