"""Tools that try the walls of their sandbox, and say what happened."""

import ctypes
import errno
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import ztrio
from ztrio import Limits, Output, ToolContext

toolbox = ztrio.Toolbox("sandbox")

File = Annotated[Path, Output()]
Folder = Annotated[Path, Output(kind="dir", existing="copy_in")]

# What can be done to a directory that holds `file`, `other`, `gone`, `moved` and an empty `folder`.
WAYS: dict[str, Callable[[Path, Path], Any]] = {
    "write": lambda place, _: (place / "file").write_text("changed"),
    "append": lambda place, _: os.close(os.open(place / "file", os.O_WRONLY | os.O_APPEND)),
    "truncate": lambda place, _: os.truncate(place / "other", 0),
    "create": lambda place, _: (place / "new").touch(exist_ok=False),
    "create unnamed": lambda place, _: os.close(os.open(place, os.O_TMPFILE | os.O_WRONLY)),
    "mkdir": lambda place, _: (place / "new folder").mkdir(),
    "unlink": lambda place, _: (place / "gone").unlink(),
    "rmdir": lambda place, _: (place / "folder").rmdir(),
    "rename": lambda place, _: (place / "moved").rename(place / "renamed"),
    "rename in": lambda place, tmp: _made(tmp / "in").rename(place / "in"),
    "rename out": lambda place, tmp: (place / "file").rename(tmp / "out"),
    "link in": lambda place, tmp: os.link(_made(tmp / "linked"), place / "linked"),
    "symlink": lambda place, _: (place / "link").symlink_to("file"),
    "fifo": lambda place, _: os.mkfifo(place / "fifo"),
    "socket": lambda place, _: _bind(place / "sock"),
    "program": lambda place, _: _run(f"echo changed > '{place}/by program'"),
    "daemon": lambda place, _: _run(f"setsid sh -c \"echo changed > '{place}/by daemon'\""),
    "thread": lambda place, _: _in_thread((place / "by thread").touch),
}
# What Landlock knows nothing of.
UNCOVERED: dict[str, Callable[[Path], Any]] = {
    "chmod": lambda place: (place / "other").chmod(0o640),
    "utime": lambda place: os.utime(place / "other", (1, 1)),
    "read": lambda place: (place / "other").read_text(),
    "list": os.listdir,
}


def _made(path: Path) -> Path:
    path.touch()
    return path


def _bind(path: Path) -> None:
    os.chdir(path.parent)  # a socket's path may not be long
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path.name)


def _run(script: str) -> None:
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(errno.EACCES if "denied" in done.stderr else errno.EIO, done.stderr)


def _in_thread(function: Callable[[], Any]) -> None:
    raised: list[OSError] = []

    def run() -> None:
        try:
            function()
        except OSError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for error in raised:
        raise error


def _try(function: Callable[..., Any], *args: Any) -> str:
    try:
        function(*args)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "done"


def fill(place: Path) -> Path:
    """Make what `WAYS` needs."""
    (place / "folder").mkdir(parents=True, exist_ok=True)
    for name in ("file", "other", "gone", "moved"):
        (place / name).write_text("as it was")
    return place


@toolbox.tool(capability="write", writes=["cache", "missing"])
def change(ctx: ToolContext, out: File, place: str, own: list[str]) -> dict[str, Any]:
    """Try every way of changing a place that is not ours, then those that are."""
    assert ctx.tmp is not None
    out.write_text("new")
    found: dict[str, Any] = {"elsewhere": {}, "uncovered": {}, "own": [], "devices": []}
    for name, way in WAYS.items():
        found["elsewhere"][name] = _try(way, Path(place), ctx.tmp)
    for name, look in UNCOVERED.items():
        found["uncovered"][name] = _try(look, Path(place))
    for mine in (str(ctx.tmp / "mine"), str(out.parent / "mine"), *own):
        fill(Path(mine))
        tried = {_try(way, Path(mine), ctx.tmp) for way in WAYS.values()}
        found["own"].append(sorted(tried))
        _run(f"rm -r '{mine}'")
    staging = out.parent.parent
    found["staging"] = [
        _try((ctx.tmp.parent / "recovery.json").write_text, "{}"),
        _try((ctx.tmp.parent / "recovery.json").unlink),
        _try(out.parent.rename, staging / "else"),
        _try((staging / "more").mkdir),
    ]
    for device in ("/dev/null", "/dev/zero"):
        found["devices"].append(_try(Path(device).write_text, "x"))
    return found


@toolbox.tool(capability="write", writes=["missing"])
def write_to(path: str, wrapped: bool = False) -> None:
    """Write where we may or may not."""
    try:
        Path(path).write_text("written")
    except OSError as error:
        if wrapped:
            raise RuntimeError("the cache is broken") from error
        raise


@toolbox.tool(capability="write")
def read_from(path: str) -> str:
    """Read what we may or may not."""
    return Path(path).read_text()


@toolbox.tool(capability="write")
def privileges() -> dict[str, Any]:
    """What the kernel says about this process and about a program that it runs."""
    program = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    return {"worker": _status(Path("/proc/self/status").read_text()), "program": _status(program)}


def _status(text: str) -> dict[str, list[str]]:
    lines = dict(line.split(":", 1) for line in text.splitlines())
    names = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs")
    return {name: lines[name].split() for name in names}


@toolbox.tool(capability="write")
def spy(pid: int) -> list[str]:
    """Try to read another process's memory and environment."""
    return [_try(Path(f"/proc/{pid}/{name}").read_bytes) for name in ("environ", "maps")]


@toolbox.tool(capability="write")
def signal_others(pids: list[int]) -> list[str]:
    """Try to signal processes that are not ours, then one that is."""
    own = subprocess.Popen(["sleep", "60"])
    tried = [_try(os.kill, pid, 0) for pid in [*pids, os.getppid(), own.pid]]
    own.kill()
    return [*tried, str(own.wait())]


@toolbox.tool(capability="write")
def edit(site: Folder, out: File, note: str = "edited") -> dict[str, Any]:
    """Change what was copied in, and make something new."""
    (site / "page").write_text(note)
    (site / "fresh").write_text(note)
    out.write_text(note)
    return {"home": os.environ["HOME"], "uid": os.getuid(), "groups": os.getgroups()}


@toolbox.tool(capability="write", limits=Limits(memory=200 << 20))
def eat_memory(megabytes: int) -> int:
    """Hold on to memory."""
    held = [bytearray(1 << 20) for _ in range(megabytes)]
    return len(held)


@toolbox.tool(capability="write", limits=Limits(cpu=1), timeout=60.0)
def burn(out: File) -> None:
    """Use the processor without end."""
    out.write_text("begun")
    while True:
        pass


@toolbox.tool(capability="write", limits=Limits(cpu=1), timeout=60.0, init=True)
def burn_below_init(out: File) -> None:
    """The same, where a real init may stand above it."""
    burn(out)


@toolbox.tool(capability="write", limits=Limits(cpu=1))
def fail_fast() -> None:
    """Die of something else."""
    ctypes.string_at(0)


@toolbox.tool(capability="write", limits=Limits(memory=1 << 30))
def crash() -> None:
    """Die as a program does that could not get memory."""
    os.abort()


@toolbox.tool(capability="write", limits=Limits(file_size=1 << 16))
def write_much(out: File, size: int) -> int:
    """Write a file."""
    return out.write_bytes(bytes(size))


@toolbox.tool(capability="write", limits=Limits(open_files=40))
def open_many() -> None:
    """Open files without closing them."""
    held = []
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))


@toolbox.tool(capability="read", isolate=True, limits=Limits(open_files=40))
def look_apart(path: str) -> str:
    """A read in a worker."""
    return _try(lambda: Path(path).touch())
