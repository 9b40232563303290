"""Tools that behave, and tools that misbehave in every way the tests need. Loaded by workers from this file."""

import ctypes
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import trio

import ztrio
from ztrio import ToolContext
from ztrio.testing import host_pid
from ztrio.workers import wire

toolbox = ztrio.Toolbox("workers")

IGNORE_TERM = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(300)"
)


def channel_fd() -> int:
    """The worker's protocol descriptor, as foreign code may find it."""
    for name in os.listdir("/proc/self/fd"):
        if Path(f"/proc/self/fd/{name}").is_socket():
            return int(name)
    raise LookupError("no socket")


def send_raw(data: bytes) -> None:
    """Write to the protocol's descriptor behind the runtime's back."""
    fd = channel_fd()
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


# -- tools that behave


def add(a: int, b: int = 1) -> int:
    """Add."""
    return a + b


def surroundings(ctx: ToolContext, names: list[str]) -> dict[str, Any]:
    """What a tool finds around itself."""
    import tempfile

    mine = signal.SIGTERM, signal.SIGHUP, signal.SIGINT
    return {
        "cwd": str(Path.cwd()),
        "tmp": tempfile.gettempdir(),
        "environment": {name: os.environ[name] for name in names if name in os.environ},
        "names": sorted(os.environ),
        "stdin": os.readlink("/proc/self/fd/0"),
        "context": [ctx.job_id, ctx.tool, ctx.session_name, ctx.principal, str(ctx.workspace), str(ctx.tmp)],
        "request_id": ctx.request_id,
        "session": os.getsid(0) == os.getpid() == os.getpgrp(),
        "signals": [signal.getsignal(number) is signal.SIG_DFL for number in mine],
        "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
        "path": sys.path,
    }


def inherited(ctx: ToolContext) -> list[str]:
    """What a program that the tool starts finds open."""
    script = "import os; print([os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if int(n) > 2])"
    done = subprocess.run([sys.executable, "-c", script], close_fds=False, capture_output=True, text=True, check=True)
    return [done.stdout.strip()]


def typed(path: Annotated[Path, ztrio.Output()], when: datetime) -> list[str]:
    """Receive what the annotations say."""
    return [type(path).__name__, type(when).__name__, str(when.astimezone(UTC))]


def remember(ctx: ToolContext, values: dict[str, Any]) -> int:
    """Change the session."""
    ctx.session.update(values)
    return len(ctx.session)


def remember_rich(ctx: ToolContext) -> None:
    """Put into the session what JSON has not."""
    ctx.session["bytes"] = b"\xff"
    ctx.session["time"] = datetime(2026, 1, 2, tzinfo=UTC)
    ctx.session["big"] = 10**30


async def add_async(ctx: ToolContext, a: int) -> int:
    """Add, asynchronously."""
    await trio.lowlevel.checkpoint()
    ctx.progress(1)
    return a + 1


def report(ctx: ToolContext, seconds: float) -> int:
    """Report progress as fast as possible."""
    end = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end:
        count += 1
        ctx.progress(count, total=1e9, message="m" * 5000)
    return count


def report_nonsense(ctx: ToolContext, what: float) -> None:
    """Report what is no number."""
    ctx.progress(what or float("nan"))


# -- tools that fail


def fail(text: str) -> None:
    """Raise."""
    helper_that_raises(text)


def helper_that_raises(text: str) -> None:
    """One frame more in the traceback."""
    raise LookupError(text)


async def fail_async(text: str) -> None:
    """Raise in a nursery of its own."""
    raise LookupError(text)


def fail_by_exit(status: int) -> None:
    """Leave by SystemExit."""
    sys.exit(status)


def fail_by_interrupt() -> None:
    """Leave by KeyboardInterrupt."""
    raise KeyboardInterrupt


def fail_long() -> None:
    """Raise with an endless text that is no UTF-8."""
    raise ValueError("\ud800" + "x" * 1_000_000)


class Unprintable(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def fail_unprintable() -> None:
    """Raise what cannot be shown."""
    raise Unprintable


def fail_politely() -> None:
    """Raise the product's own error."""
    raise ztrio.ToolError("The board has no outline.")


def return_object() -> Any:
    """Return what is no value."""
    return {"rows": [{1: 2}]}


def return_large(size: int) -> str:
    """Return much."""
    return "x" * size


def state_object(ctx: ToolContext) -> None:
    """Leave in the session what is no value."""
    ctx.session["deep"] = [{"x": object()}]


def state_list(ctx: ToolContext) -> None:
    """Replace the session by a list."""
    ctx.session = []  # type: ignore[assignment]


def state_large(ctx: ToolContext, size: int) -> None:
    """Leave much in the session."""
    ctx.session["x"] = "x" * size


# -- tools that do not end


def spin() -> None:
    """Burn CPU."""
    while True:
        pass


def sleep_in_c() -> None:
    """Sleep without ever looking at signals."""
    ctypes.CDLL(None).sleep(999)


def sleep_ignoring(ctx: ToolContext) -> None:
    """Ignore every polite signal."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    ctx.progress(1)
    time.sleep(999)


def sleep_until_term(ctx: ToolContext) -> None:
    """Sleep; SIGTERM has its default effect."""
    ctx.progress(1)
    time.sleep(999)


async def tidy_up(ctx: ToolContext, path: str) -> None:
    """Sleep; write a file when cancelled."""
    try:
        ctx.progress(1)
        await trio.sleep_forever()
    finally:
        Path(path).write_text("tidied")


async def swallow_cancellation(ctx: ToolContext) -> str:
    """Answer although cancelled."""
    ctx.progress(1)
    try:
        await trio.sleep_forever()
    except trio.Cancelled:
        return "done all the same"


def pipeline(ctx: ToolContext) -> None:
    """Run a shell pipeline."""
    with subprocess.Popen(["sh", "-c", "sleep 300 | cat"]) as shell:
        ctx.progress(host_pid(shell.pid))
        shell.wait()


def leave_children(ctx: ToolContext, count: int) -> list[int]:
    """Return while children still run."""
    return [host_pid(subprocess.Popen(["sleep", "300"]).pid) for _ in range(count)]


def leave_stubborn_child(ctx: ToolContext) -> None:
    """Obey SIGTERM, with a child that does not."""
    child = subprocess.Popen([sys.executable, "-c", IGNORE_TERM], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read(1)
    ctx.progress(host_pid(child.pid))
    time.sleep(999)


def die_before_child(status: int) -> None:
    """Die while a child runs that holds the output and, being a fork, the protocol's socket."""
    if os.fork() == 0:
        time.sleep(300)
    os._exit(status)


def die_main_thread() -> None:
    """End the main thread only: the process then looks like a zombie in the process table."""
    threading.Thread(target=time.sleep, args=(300,)).start()
    ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)


# -- tools that break things


def flood(megabytes: int) -> int:
    """Write much to both standard streams."""
    chunk = b"o" * 2**20
    for _ in range(megabytes):
        os.write(1, chunk)
    print("last words", flush=True)
    os.write(2, b"and these\n")
    return megabytes


def say(text: str) -> None:
    """Print, also what cannot be encoded."""
    print(text, "\ud800")


def close_streams() -> str:
    """Close what is printed to."""
    sys.stdout.close()
    os.close(2)
    return "quiet"


def exit_at_once(status: int) -> None:
    """Die without a word but these."""
    print("goodbye")
    os._exit(status)


def die_by(number: int) -> None:
    """Die by a signal."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def segfault() -> None:
    """Die in C."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)


def send_garbage() -> None:
    """Send what is no frame."""
    send_raw(b"\xff" * 100)
    time.sleep(999)


def announce(size: int) -> None:
    """Announce a frame of `size` bytes and send some of it."""
    send_raw(struct.pack("<IB", size, 6) + b"x" * 1000)
    time.sleep(999)


def send_kind(name: str) -> None:
    """Send a good frame that is not due."""
    frames: dict[str, wire.Frame] = {
        "Started": wire.Started(),
        "Ready": wire.Ready(),
        "Boot": wire.Boot(modules=[], functions=[]),
        "Failure": wire.Failure(code="COMMITTED", message="x"),
        "Progress": wire.Progress(progress=float("inf")),
    }
    send_raw(wire.encode_frame(frames[name]))
    time.sleep(999)


def send_progress(count: int) -> None:
    """Flood with progress."""
    frame = wire.encode_frame(wire.Progress(progress=1))
    for _ in range(count // 1000):
        send_raw(frame * 1000)
    time.sleep(999)


def send_large_result(size: int) -> None:
    """Send a result behind the runtime's back."""
    send_raw(wire.encode_frame(wire.Result(value=b"x" * size)))
    time.sleep(999)


def send_after_result() -> None:
    """Send a result, then anything."""
    send_raw(wire.encode_frame(wire.Result(value=b"\x01")) + b"\xff" * 1000)
    time.sleep(999)


def close_descriptors() -> None:
    """Close everything, as programs that make themselves daemons do."""
    os.closerange(3, 100)
    time.sleep(999)


def fork_and_return() -> int:
    """Return twice."""
    return os.fork()


def fork_and_report(ctx: ToolContext) -> str:
    """Report from a copy of the worker."""
    pid = os.fork()
    if pid == 0:
        ctx.progress(13)
        os._exit(0)
    os.waitpid(pid, 0)
    return "parent"


async def cancelled_by_signal() -> None:
    """Cancel itself the way a grace period does."""
    os.kill(os.getpid(), signal.SIGTERM)
    await trio.sleep_forever()


def preloaded() -> float:
    """When this module was loaded; `time.monotonic`."""
    return LOADED_AT


LOADED_AT = time.monotonic()
