"""A tool that looks around and says what it sees, in words that do not change from run to run."""

import ctypes
import errno
import gc
import locale
import multiprocessing  # noqa: TID251 - tools use it, and it is to work
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import shared_memory  # noqa: TID251 - the same
from pathlib import Path
from typing import Annotated, Any

import trio

import ztrio
from ztrio import Output, ToolContext

toolbox = ztrio.Toolbox("parity")

SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGCHLD", "SIGALRM", "SIGPIPE", "SIGXFSZ")
KIB = 1024


@toolbox.tool(capability="write", env=["ZTRIO_TEST_DECLARED"], timeout=60.0)
def look_around(ctx: ToolContext, out: Annotated[Path, Output()], supervisor: int) -> dict[str, Any]:
    """Everything that could differ between ways of running a tool."""
    assert ctx.tmp is not None
    out.write_text("done")
    seen = {
        **_process(supervisor),
        **_signals(),
        **_programs(),
        **_files(ctx.workspace, ctx.tmp),
        **_python(),
        **_parallel(),
    }
    return {name: value if isinstance(value, str) else repr(value) for name, value in seen.items()}


def _process(supervisor: int) -> dict[str, Any]:
    own = os.getpid()
    parent = {0: "0, which is nobody", supervisor: "the supervisor"}.get(os.getppid(), "a process of ztrio's")
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "`os.getpid()`": "1" if own == 1 else "its number on the host",
        "`os.getppid()`": parent,
        "the number in `/proc/self`": "`os.getpid()`" if os.readlink("/proc/self") == str(own) else "not `os.getpid()`",
        "leads a session": os.getsid(0) == own,
        "leads a process group": os.getpgrp() == own,
        "has a terminal": _fails(lambda: os.close(os.open("/dev/tty", os.O_RDONLY))),
        "user": (os.getuid(), os.getgid()),
        "privileges": (status["CapEff"], status["NoNewPrivs"]),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "limits": [resource.getrlimit(number) for number in range(16) if number != resource.RLIMIT_NOFILE],
        "descriptors beyond 0, 1, 2": ", ".join(_descriptors()),
        "threads": (threading.active_count(), threading.current_thread() is threading.main_thread(), status["Threads"]),
        "who gets orphans": _orphan(),
        "exit of a child": os.waitstatus_to_exitcode(os.waitpid(_forked(lambda: os._exit(7)), 0)[1]),
    }


def _fails(function: Callable[[], Any]) -> str:
    try:
        function()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "works"


def _descriptors() -> list[str]:
    found = []
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}").partition(":")[0])
        except FileNotFoundError:
            pass  # that was the listing itself
    return sorted(found[3:])


def _forked(function: Callable[[], Any]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            function()
        finally:
            os._exit(0)
    return pid


def _orphan() -> str:
    """Who becomes the parent of a process whose parent ends."""
    read, write = os.pipe()
    parent_read, parent_write = os.pipe()

    def grandchild() -> None:
        os.close(parent_write)
        os.read(parent_read, 1)  # ends with the parent
        while os.getppid() == parent[0]:
            pass
        os.write(write, str(os.getppid()).encode())

    parent = [0]

    def child() -> None:
        parent[0] = os.getpid()
        _forked(grandchild)

    os.waitpid(_forked(child), 0)
    os.close(parent_write)
    heir = int(os.read(read, 20))
    for fd in (read, write, parent_read):
        os.close(fd)
    if heir == os.getpid():
        os.waitpid(-1, 0)
        return "the tool itself"
    return "somebody else"


def _signals() -> dict[str, Any]:
    handled = [name for name in SIGNALS if signal.getsignal(getattr(signal, name)) is not signal.SIG_DFL]
    fired: list[int] = []
    signal.signal(signal.SIGUSR2, lambda number, _: fired.append(number))
    os.kill(os.getpid(), signal.SIGUSR2)
    signal.signal(signal.SIGALRM, lambda number, _: fired.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    signal.pause()
    child = subprocess.Popen(["sleep", "60"])
    child.terminate()
    script = "trap 'exit 5' TERM; kill -TERM $$; exit 6"
    return {
        "signals that are not at their default": ", ".join(handled),
        "blocked signals": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "own handlers": fired == [signal.SIGUSR2, signal.SIGALRM],
        "a terminated child": child.wait(),
        "signals of a program": subprocess.run(["sh", "-c", script], check=False).returncode,
    }


def _programs() -> dict[str, Any]:
    done = subprocess.run(["sh", "-c", "cat; echo out; echo err >&2; exit 3"], capture_output=True, check=False)
    ignored = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    status = dict(line.split(":\t", 1) for line in ignored.splitlines())
    piped = subprocess.run("yes | head -n 1", shell=True, capture_output=True, check=False)
    return {
        "a program": (done.returncode, done.stdout, done.stderr),
        "signals a program ignores": status["SigIgn"],
        "a broken pipe": (piped.returncode, piped.stdout, piped.stderr),
        "a thread pool": list(ThreadPoolExecutor(2).map(abs, [-1, -2])),
    }


def _files(workspace: Path, tmp: Path) -> dict[str, Any]:
    mask = os.umask(0)
    os.umask(mask)
    with tempfile.NamedTemporaryFile() as file, tempfile.TemporaryDirectory() as folder:
        places = {str(Path(name).parent) for name in (file.name, folder)}
    return {
        "temporary files": places == {str(tmp), tempfile.gettempdir()},
        "TMPDIR": os.environ["TMPDIR"] == str(tmp),
        "current directory": Path.cwd() == workspace,
        "umask": oct(mask),
        "stdin": os.readlink("/proc/self/fd/0"),
        "stdin at its end": os.read(0, 1),
        "output": [(stream.encoding, stream.errors, stream.isatty()) for stream in (sys.stdout, sys.stderr)],
    }


def _python() -> dict[str, Any]:
    flags = {name: getattr(sys.flags, name) for name in dir(sys.flags) if isinstance(getattr(sys.flags, name), int)}
    return {
        "environment": sorted(os.environ),
        "declared variable": os.environ.get("ZTRIO_TEST_DECLARED"),
        "locale": (locale.setlocale(locale.LC_CTYPE, None), sys.getfilesystemencoding(), locale.getencoding()),
        "`sys.argv`": sys.argv[0],
        "`sys.path`": sys.path,
        "flags of the interpreter": flags,
        "`__main__`": getattr(sys.modules["__main__"], "__file__", "no file"),
        "garbage collection": (gc.isenabled(), gc.get_threshold()),
        "interpreter": Path(sys.executable).name,
        "switch interval": sys.getswitchinterval(),
        "warnings": len(sys.warnoptions),
        "host name": socket.gethostname(),
        "asynchronous code": trio.run(_nap),
        "C library": ctypes.CDLL(None).getpid() == os.getpid(),
    }


async def _nap() -> str:
    await trio.lowlevel.checkpoint()
    done = await trio.run_process(["echo", "x"], capture_stdout=True)
    return done.stdout.decode()


def _parallel() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            found[f"multiprocessing, {method}"] = pool.map(abs, [-1, -2])
    memory = shared_memory.SharedMemory(create=True, size=KIB)
    assert memory.buf is not None
    memory.buf[:1] = b"x"
    other = shared_memory.SharedMemory(memory.name)
    assert other.buf is not None
    found["shared memory"] = bytes(other.buf[:1])
    other.close()
    memory.close()
    memory.unlink()
    lock = multiprocessing.Lock()
    with lock:
        found["a lock between processes"] = lock.acquire(block=False)
    return found


@toolbox.tool(capability="write")
def chance() -> list[str]:
    """Random numbers."""
    return [str(random.random()), tempfile.mktemp(), os.urandom(4).hex()]


@toolbox.tool(capability="write", timeout=20.0)
def signal_self(number: int) -> str:
    """Send a signal whose default action ends a process to ourselves."""
    os.kill(os.getpid(), number)
    return "nothing happens"


@toolbox.tool(capability="write", init=True)
def with_init() -> str:
    """With a real init."""
    return "1" if os.getpid() == 1 else "another"


@toolbox.tool(capability="write")
def leave() -> None:
    """End the process."""
    os._exit(4)
