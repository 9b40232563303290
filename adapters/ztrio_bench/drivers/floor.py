"""The bare system calls: what no supervisor can be quicker than on this machine, in this run."""

from __future__ import annotations

import ctypes
import os
import platform
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ztrio_bench import workload
from ztrio_bench.drivers.kit import EXPECTED, Listener, Samples, Unsupported, judge, now, pss, supported
from ztrio_bench.drivers.syncs import bare

__all__ = ["hello", "run"]

CASES = ("call", "publication", "cancel", "orphans", "stall", "memory", "stdio")
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def _repeat(request: dict[str, Any], once: Callable[[], None]) -> None:
    deadline = time.monotonic() + request["seconds"]
    for number in range(request["count"]):
        if number and time.monotonic() >= deadline:
            return
        once()


def _fork_exit_wait(request: dict[str, Any], samples: Samples) -> None:
    def once() -> None:
        start = now()
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        samples.add("latency", now() - start)

    samples.facts["what"] = "fork, exit, wait"
    _repeat(request, once)


def _write_sync(request: dict[str, Any], samples: Samples) -> None:
    with (Path(request["folder"]) / "synced").open("ab", buffering=0) as file:

        def once() -> None:
            file.write(bytes(4096))
            start = now()
            os.fsync(file.fileno())
            samples.add("latency", now() - start)

        _repeat(request, once)
    samples.facts["what"] = "one fsync"


def _killpg_reap(request: dict[str, Any], samples: Samples) -> None:
    listener = Listener(request["folder"])

    def start() -> tuple[str, int]:
        token, tree = listener.expect()
        child = os.fork()
        if child == 0:
            os.setsid()
            getattr(workload, request["variant"])(listener.place, token)
            os._exit(0)
        listener.wait(tree, EXPECTED[request["variant"]], 10.0)
        return token, child

    def once() -> None:
        started = [start() for _ in range(request["load"] or 1)]
        time.sleep(0.003)
        cancelled = now()
        for _, child in started:
            os.killpg(child, signal.SIGKILL)
        for token, child in started:
            os.waitpid(child, 0)
            resumed = now()
            judge(samples, listener.trees[token], cancelled, resumed, request["linger"])
        if request["load"]:
            samples.add("last", resumed - cancelled)
        for token, _ in started:
            listener.forget(token)

    samples.facts["what"] = "killpg, wait"
    try:
        _repeat({**request, "count": 1} if request["load"] else request, once)
    finally:
        listener.close()


def _parent_death(request: dict[str, Any], samples: Samples) -> None:
    """A child that has asked the kernel to be killed when its parent ends."""
    listener = Listener(request["folder"])

    def once() -> None:
        token, tree = listener.expect()
        parent = os.fork()
        if parent == 0:
            if os.fork() == 0:
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, *map(ctypes.c_ulong, (signal.SIGKILL, 0, 0, 0)))
                workload.sleeping(listener.place, token)
            else:
                time.sleep(workload.LIFETIME)
            os._exit(0)
        listener.wait(tree, ["tool"], 10.0)
        killed = now()
        os.kill(parent, signal.SIGKILL)
        samples.count("survivors", tree.alive(request["linger"]))
        samples.add("gone", now() - killed)
        os.waitpid(parent, 0)
        listener.forget(token)

    samples.facts["what"] = "a child with a parent-death signal"
    try:
        _repeat(request, once)
    finally:
        listener.close()


def _idle_loop(request: dict[str, Any], samples: Samples) -> None:
    """A timer with nothing beside it."""
    deadline = time.monotonic() + min(request["seconds"], 1.0)
    poll = select.poll()
    while time.monotonic() < deadline:
        due = now() + 1_000_000
        poll.poll(1)
        samples.add("late", max(0, now() - due))
    samples.facts["what"] = "a timer with nothing beside it"


def _bare_interpreters(request: dict[str, Any], samples: Samples) -> None:
    """An interpreter of its own for each call, with nothing but the tool."""
    listener = Listener(request["folder"])
    size = 8 << 20
    children = []
    try:
        for _ in range(int(request["variant"])):
            token, tree = listener.expect()
            command = [workload.__file__, "holding", f"place={listener.place}", f"token={token}", f"size={size}"]
            child = subprocess.Popen([sys.executable, "-I", "-S", *command])
            children.append((child, token, tree))
        for child, _, tree in children:
            if listener.wait(tree, ["tool"], request["start_bound"]):
                samples.add("beyond", max(0, pss(child.pid) - size))
            else:
                samples.count("dropped")
    finally:
        for child, token, _ in children:
            child.kill()
            child.wait()
            listener.forget(token)
        listener.close()
    samples.facts["what"] = "one interpreter per call"


def _echo(request: dict[str, Any], samples: Samples) -> None:
    """A process that answers each line with itself."""
    code = "import sys\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(line); sys.stdout.buffer.flush()"
    line = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"empty","arguments":{}}}\n'
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        send, receive = child.stdin, child.stdout

        def once() -> None:
            start = now()
            send.write(line)
            send.flush()
            receive.readline()
            samples.add("latency", now() - start)

        once()
        samples.values.clear()
        _repeat(request, once)
        send.close()
    samples.facts["what"] = "a process that echoes lines"


def hello(request: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - the same for every driver
    """Who this is."""
    return {"version": platform.python_version()}


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Do one round."""
    supported(request, CASES, durable=True)
    if request["variant"] == "daemon":
        raise Unsupported("killpg does not reach a daemon")
    if request["variant"] in ("launcher", "fork-server"):
        raise Unsupported(f"it has no {request['variant']}")
    samples = Samples()
    steps = {
        "call": _write_sync if request["variant"] == "durable" else _fork_exit_wait,
        "publication": bare,
        "cancel": _killpg_reap,
        "orphans": _parent_death,
        "stall": _idle_loop,
        "memory": _bare_interpreters,
        "stdio": _echo,
    }
    steps[request["case"]](request, samples)
    return samples.as_dict()
