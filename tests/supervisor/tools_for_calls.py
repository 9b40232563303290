"""The tools of these tests: with scripted workers only their signatures count, real workers run them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import trio

import ztrio
from ztrio import Output, ToolContext
from ztrio.testing import host_pid

toolbox = ztrio.Toolbox("calls")

File = Annotated[Path, Output()]
Folder = Annotated[Path, Output(kind="dir", existing="replace")]


@toolbox.tool(capability="write", queue_timeout=10.0, timeout=5.0)
def count(ctx: ToolContext) -> int:
    """Add one to the session's counter."""
    ctx.session["count"] = ctx.session.get("count", 0) + 1
    value: int = ctx.session["count"]
    return value


@toolbox.tool(capability="write", queue_timeout=10.0, timeout=5.0)
def export(out: File, text: str = "new") -> str:
    """Write one file."""
    out.write_text(text)
    return str(out)


@toolbox.tool(capability="write", queue_timeout=10.0, timeout=5.0)
def publish(ctx: ToolContext, page: File, fresh: File, site: Folder) -> None:
    """Replace a file, make a new one and replace a directory, and count."""
    ctx.session["count"] = ctx.session.get("count", 0) + 1
    page.write_text("new page")
    fresh.write_text("fresh")
    site.mkdir()
    (site / "index").write_text("new site")


@toolbox.tool(capability="write", queue_timeout=10.0, timeout=5.0)
def build(site: Folder) -> None:
    """Replace a directory."""
    site.mkdir()


@toolbox.tool(capability="write", queue_timeout=10.0, timeout=5.0)
def found(site: Annotated[Path, Output(kind="dir")]) -> None:
    """Make a directory that must not exist yet."""
    site.mkdir()


@toolbox.tool(capability="destructive", effects="external", queue_timeout=10.0, timeout=5.0)
def mail(to: str = "somebody") -> None:
    """Send what cannot be called back."""


@toolbox.tool(capability="write", grace=1.5, timeout=5.0)
def polite() -> None:
    """A tool that is asked before it is killed."""


@toolbox.tool(capability="read", timeout=5.0)
async def look(ctx: ToolContext, seconds: float = 0.0, fail: bool = False, scribble: bool = False) -> dict[str, Any]:
    """Look at the session, in the server process."""
    await trio.sleep(seconds)
    if fail:
        raise LookupError("nothing there")
    if scribble:
        ctx.session["scribble"] = 1
    return dict(ctx.session)


@toolbox.tool(capability="read", timeout=0.3, queue_timeout=0.3)
def look_long(path: str) -> str:
    """Look at something slowly, in a thread, until the file is there."""
    while not os.path.exists(path):
        time.sleep(0.01)
    return "seen"


@toolbox.tool(capability="read")
async def leave() -> None:
    """Call sys.exit."""
    sys.exit(3)


@toolbox.tool(capability="read")
def leave_thread() -> None:
    """Call sys.exit in a thread."""
    sys.exit(3)


@toolbox.tool(capability="read")
def look_around(ctx: ToolContext) -> None:
    """Look, and tell how far it is."""
    ctx.progress(1, 2)
    ctx.progress(2, 2, "done")


@toolbox.tool(capability="read", isolate=True, timeout=5.0, queue_timeout=10.0)
def look_apart() -> str:
    """Look, in a worker."""
    return "seen"


# -- for real workers


@toolbox.tool(capability="write", timeout=30.0)
def stubborn(out: File, marks: str) -> None:
    """Ignore SIGTERM, write to staging, start a child that does the same, and never end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    out.write_text("late")
    late = "import signal,sys,time;signal.signal(15,signal.SIG_IGN);time.sleep(1.5);open(sys.argv[1],'w').write('late')"
    child = subprocess.Popen([sys.executable, "-c", late, str(out)])
    Path(marks).write_text(f"{host_pid()} {host_pid(child.pid)}")
    while True:
        pass


@toolbox.tool(capability="write", timeout=30.0)
def leave_child(out: File, marks: str) -> str:
    """Succeed and leave a child running."""
    child = subprocess.Popen(["sleep", "300"])
    Path(marks).write_text(str(host_pid(child.pid)))
    out.write_text("done")
    return "done"


@toolbox.tool(capability="write", timeout=60.0)
def burn(marks: str) -> None:
    """Burn a processor until killed."""
    Path(marks).touch()
    while True:
        pass


@toolbox.tool(capability="write", timeout=60.0)
def block(marks: str) -> None:
    """Sit in a system call until killed."""
    Path(marks).touch()
    time.sleep(999)


@toolbox.tool(capability="write", grace=30.0, timeout=60.0)
def deaf(ctx: ToolContext) -> None:
    """Ignore the request to end, for as long as it takes."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctx.progress(1)
    while True:
        time.sleep(60)


@toolbox.tool(capability="write", timeout=60.0)
def linger(ctx: ToolContext) -> None:
    """Say that it runs, and go on for as long as it is let."""
    ctx.progress(1)
    time.sleep(60)
