"""Tools that try to leave something behind. Everything they start carries the mark they are given as its name."""

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

import ztrio
from ztrio import ToolContext

toolbox = ztrio.Toolbox("rungs")

LIFE = 60  # seconds after which the kernel ends what a broken rung has left


def mark(name: str) -> None:
    """Give this process, and those it forks, a name by which it can be found."""
    Path("/proc/self/comm").write_text(name)


def daemon() -> None:
    """Leave a process in a session of its own, twice forked, deaf, that holds whatever it inherited."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        be_deaf()
        os.write(write, b"x")
        sleep()
    os.read(read, 1)


def be_deaf() -> None:
    """Ignore every signal that can be ignored, and block the rest."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGALRM}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {signal.SIGALRM})
    signal.alarm(LIFE)


def sleep() -> None:
    """Never return, not even by an exception."""
    ctypes.CDLL(None).sleep(LIFE)
    os._exit(0)


@toolbox.tool(capability="write")
def setsid(ctx: ToolContext, name: str) -> None:
    """A daemon, and the tool goes on."""
    mark(name)
    daemon()
    ctx.progress(1)
    time.sleep(LIFE)


@toolbox.tool(capability="write")
def succeed(ctx: ToolContext, name: str) -> str:
    """A daemon, and the tool is done."""
    mark(name)
    daemon()
    return "done"


@toolbox.tool(capability="write")
def leader_exits_first(ctx: ToolContext, name: str) -> None:
    """A daemon that holds the output pipe, and the worker is gone."""
    mark(name)
    daemon()
    print("goodbye", flush=True)
    os._exit(7)


@toolbox.tool(capability="write")
def deaf(ctx: ToolContext, name: str) -> None:
    """The worker and a child ignore every signal."""
    mark(name)
    be_deaf()
    if os.fork() == 0:
        sleep()
    ctx.progress(1)
    sleep()


@toolbox.tool(capability="write")
def chain(ctx: ToolContext, name: str) -> None:
    """A daemon that forks itself and dies, again and again, always in a new session; for a bounded time."""
    mark(name)
    until = time.monotonic() + 20
    if os.fork() == 0:
        while time.monotonic() < until:
            os.setsid()
            if os.fork():
                os._exit(0)
        os._exit(0)
    ctx.progress(1)
    sleep()


@toolbox.tool(capability="write")
def bomb(ctx: ToolContext, name: str) -> None:
    """Every process forks two, six generations deep, each in a session of its own."""
    mark(name)
    signal.alarm(LIFE)
    for _ in range(6):
        if os.fork() == 0:
            os.setsid()
    ctx.progress(1)  # copies are mute
    sleep()


@toolbox.tool(capability="write")
def kill_parent(ctx: ToolContext, name: str) -> None:
    """A daemon, and the process above the worker is killed."""
    mark(name)
    daemon()
    ctx.progress(1)
    os.kill(os.getppid(), signal.SIGKILL)
    sleep()


@toolbox.tool(capability="write")
def draw() -> list[str]:
    """Random numbers of every kind."""
    import random
    import ssl
    import tempfile

    name = tempfile.mktemp()
    return [str(random.random()), ssl.RAND_bytes(8).hex(), name]


@toolbox.tool(capability="write")
def descriptors() -> dict[str, str]:
    """What is open."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[name] = os.readlink(f"/proc/self/fd/{name}")
    return {name: target for name, target in found.items() if not target.startswith("/proc/")}


@toolbox.tool(capability="write")
def orphan(ctx: ToolContext, patience: float) -> list[object]:
    """A grandchild that ends after its parent did: is it reaped? And does SIGTERM have its usual effect?"""
    read, write = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            os.write(write, str(os.getpid()).encode())
        os._exit(0)
    os.wait()
    grandchild, reaped = int(os.read(read, 20)), False
    until = time.monotonic() + patience
    while not reaped and time.monotonic() < until:
        time.sleep(0.005)
        try:
            os.kill(grandchild, 0)
        except ProcessLookupError:
            reaped = True
    return [os.getpid(), reaped, signal.getsignal(signal.SIGTERM) is signal.SIG_DFL]


@toolbox.tool(capability="write")
def term_self(ctx: ToolContext) -> None:
    """Send SIGTERM to itself."""
    os.kill(os.getpid(), signal.SIGTERM)
    sleep()
