"""The case `orphans`: the process that calls is killed from outside, or one of ztrio's own below it; what is left?

Whoever kills and looks must live on, so the driver starts itself once more as a *host*, which opens the subject and has
calls of every kind under way: tools that sleep, that have children, that left a daemon, one in its grace, and short
calls in a row, so that workers are forked and ended all the time. At some moment the driver sends SIGKILL.

Before that it takes a pidfd of every process below the victim, and has those of the tools that announced themselves.
The clock runs from the kill to the last of their ends, as poll(2) sees them. A process that was born between the two
cannot be in the list: the driver is a child subreaper, so such a one becomes its child when its parent is gone, and
the sample is not over while it has one that lives. What lives on 3.5 s later is a survivor.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ztrio_bench.drivers.kit import EXPECTED, Listener, Samples, Unsupported, now

__all__ = ["HELD", "adopting_orphans", "run_round", "wait_for_end"]

HELD: Final = ("sleeping", "forking", "daemon")
SHORT: Final = 4  # callers of short calls
_WITHIN: Final = 0.05  # seconds in which the moment of the kill is chosen
_PR_SET_CHILD_SUBREAPER: Final = 36  # linux/prctl.h
_PAUSE: Final = 0.001


def run_round(
    request: dict[str, Any], *, held: tuple[str, ...] = HELD, grace: bool = False, own: bool = False
) -> dict[str, Any]:
    """Kill hosts, one after the other.

    Args:
        request: The controller's request; its variant says who is killed.
        held: Tools that are under way.
        grace: Whether one is in its grace.
        own: Whether the subject is ztrio, which has processes of its own between itself and its workers.
    """
    variant = request["variant"]
    if variant != "supervisor" and not own:
        raise Unsupported(f"it has no {variant}")
    samples = Samples()
    deadline = time.monotonic() + request["seconds"]
    with adopting_orphans():
        for number in range(request["count"]):
            if number and time.monotonic() >= deadline:
                break
            _kill_one(request, samples, held, grace=grace)
    return samples.as_dict()


def _kill_one(request: dict[str, Any], samples: Samples, held: tuple[str, ...], *, grace: bool) -> None:
    listener = Listener(request["folder"])
    folder = Path(tempfile.mkdtemp(prefix="h", dir=request["folder"]))
    folder.chmod(0o755)  # workers may run as another user
    token, tree = listener.expect()
    more: dict[str, Any] = {"case": "host", "folder": str(folder), "place": listener.place, "token": token}
    more |= {"held": held, "grace": grace, "short": SHORT, "load": len(held) + SHORT}
    roles = [role for tool in held for role in EXPECTED[tool]] + ["grace"] * grace
    host = subprocess.Popen(sys.orig_argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    pidfds: dict[int, int] = {}
    try:
        assert host.stdin is not None
        host.stdin.write(json.dumps(request | more).encode() + b"\n")
        host.stdin.flush()
        if not listener.wait(tree, roles, request["start_bound"]):
            samples.count("dropped")
            samples.note("not all of the tools started")
            return
        samples.facts |= json.loads((folder / "facts.json").read_text())
        time.sleep(random.uniform(0.0, _WITHIN))  # noqa: S311 - any moment will do
        victim, root = _victim(request["variant"], host.pid)
        spare = {host.pid} - {root}
        for pid in {root, *_below(root), *tree.pids} - spare:
            try:
                pidfds[pid] = os.pidfd_open(pid)
            except ProcessLookupError:
                continue  # the worker of a short call
        killed = now()
        os.kill(victim, signal.SIGKILL)
        survivors = wait_for_end(pidfds, request["linger"], spare=spare)
        gone = now()
        samples.count("survivors", len(survivors))
        if not survivors:
            samples.add("gone", gone - killed)
    finally:
        for pidfd in pidfds.values():
            _kill(pidfd)
            os.close(pidfd)
        with host:
            host.kill()
        listener.close()
        _bury()
        shutil.rmtree(folder, ignore_errors=True)


def _victim(variant: str, host: int) -> tuple[int, int]:
    """Who is killed, and who stands above all that is to end with it."""
    if variant == "supervisor":
        return host, host
    launchers = [pid for pid in _children(host) if b"ztrio.workers.launcher" in _command(pid)]
    if not launchers:
        raise Unsupported(f"its backend has no {variant}")
    if variant == "launcher":
        return launchers[0], launchers[0]
    # The one of the launcher's children that has children; the other, on one rung, only keeps a namespace.
    return next(pid for pid in _children(launchers[0]) if any(_children(pid))), launchers[0]


def wait_for_end(pidfds: Mapping[int, int], within: float, *, spare: Collection[int] = ()) -> set[int]:
    """Wait until all of these are dead, and with them every orphan that came to this process meanwhile.

    Orphans are reaped as they end, as init does: a PID namespace is not empty while one of its processes is a zombie.

    Args:
        pidfds: pid -> pidfd.
        within: Seconds after which to give up.
        spare: Children of this process that have nothing to do with it.

    Returns:
        Who lives.
    """
    deadline = time.monotonic() + within
    left = set(pidfds.values())
    poll = select.poll()
    for pidfd in left:
        poll.register(pidfd, select.POLLIN)
    with _wakes_at_every_end() as wakeup:
        poll.register(wakeup, select.POLLIN)
        while ((strays := _strays(spare)) or left) and (patience := deadline - time.monotonic()) > 0:
            for fd, _ in poll.poll(patience * 1000):
                if fd == wakeup:
                    os.read(wakeup, 4096)
                else:
                    poll.unregister(fd)
                    left.discard(fd)
    return {pid for pid, pidfd in pidfds.items() if pidfd in left} | strays


@contextmanager
def _wakes_at_every_end() -> Iterator[int]:
    """A descriptor that becomes readable whenever a child ends."""
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    handler = signal.signal(signal.SIGCHLD, lambda *_: None)
    before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        yield read
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGCHLD, handler)
        os.close(read)
        os.close(write)


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """Whatever loses its parent below this process becomes its child meanwhile; prctl(2)."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    rest = (ctypes.c_ulong(0),) * 3
    if prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), *rest):
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(0), *rest)


def _bury() -> None:
    """Wait until this process has no children; those that do not end by themselves are killed."""
    patience = time.monotonic() + 1.0
    while strays := _strays():
        if time.monotonic() > patience:
            for pid in strays:
                os.kill(pid, signal.SIGKILL)  # unreaped, so the number is its own
        time.sleep(_PAUSE)


def _strays(spare: Collection[int] = ()) -> set[int]:
    """Children of this process that live, but for these; those that have ended are reaped."""
    alive = set()
    for pid in set(_children(os.getpid())).difference(spare):
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                alive.add(pid)
        except ChildProcessError:
            continue  # it was reaped meanwhile
    return alive


def _below(pid: int) -> Iterator[int]:
    for child in _children(pid):
        yield child
        yield from _below(child)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except OSError:
        pass  # it ended meanwhile
    return found


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _kill(pidfd: int) -> None:
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        pass
