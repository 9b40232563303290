"""A process that starts servers by forking, so that each needs no second to load; they become killable children.

It is started once and asked over a socket; each answer is a process id. Every server gets a socket of its own, over
which it says what happens and hears when to begin. Whatever a server starts is adopted from here on its death, so
that what survived it can be told.
"""

import contextlib
import ctypes
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

import ztrio
from tests.crash.steps import Steps
from tests.crash.tools_for_crashes import toolbox
from ztrio.audit import AuditBus
from ztrio.publication.exchange import FileOps
from ztrio.restart import recover, workspace_lock
from ztrio_sql import open_store

_SUBREAPER = 36  # linux/prctl.h


class Channel:
    """Lines of JSON between a server and whoever watches it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def tell(self, message: dict[str, Any]) -> None:
        self._sock.sendall(json.dumps(message).encode() + b"\n")

    def hear(self) -> dict[str, Any]:
        """Wait for one line."""
        line = b""
        while not line.endswith(b"\n"):
            if not (more := self._sock.recv(1)):
                os._exit(0)  # nobody watches any more
            line += more
        heard: dict[str, Any] = json.loads(line)
        return heard


def paths(caller: int, attempt: str) -> dict[str, str]:
    """The outputs of a call: two that are replaced and two that are new each time."""
    return {
        "page": f"c{caller}/page",
        "site": f"c{caller}/site",
        "fresh": f"c{caller}/fresh-{attempt}",
        "folder": f"c{caller}/folder-{attempt}",
    }


class Load:
    """Callers that keep a supervisor busy and tell every answer.

    Args:
        supervisor: The supervisor.
        tell: Takes what is told.
        order: What the parent asked for.
    """

    def __init__(self, supervisor: ztrio.Supervisor, tell: Callable[[dict[str, Any]], None], order: dict[str, Any]):
        self._supervisor = supervisor
        self._tell = tell
        self._order = order

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for caller in range(self._order["callers"]):
                nursery.start_soon(self._caller, caller)

    async def _caller(self, caller: int) -> None:
        dice = random.Random(f"{self._order['seed']}-{caller}")
        script: list[str] = self._order.get("script") or []
        again: list[str] | None = self._order["again"].get(str(caller))
        if again is not None:  # as a client does that lost an answer
            await self._call(caller, again[0], again[1], dice)
        kinds, weights = ("publish", "count", "fail", "linger", "look"), (10, 3, 2, 1, 1)
        number = 0
        while not script or number < len(script):
            kind = script[number] if script else dice.choices(kinds, weights)[0]
            number += 1
            await self._call(caller, kind, f"{self._order['life']}-{number}", dice)

    async def _call(self, caller: int, kind: str, attempt: str, dice: random.Random) -> None:
        """Call a tool until there is an answer that says what became of it."""
        arguments = {} if kind in ("count", "look") else paths(caller, attempt)
        limit = 0.05 + dice.random() * 0.2 if kind == "linger" else None
        key = f"{caller}-{attempt}" if kind == "publish" else None
        told: dict[str, Any] = {"type": "answer", "caller": caller, "kind": kind, "attempt": attempt}
        self._tell(told | {"type": "asked"})
        try:
            result = await self._supervisor.call(
                kind, arguments, session=f"s{caller}", timeout=limit, idempotency_key=key
            )
        except ztrio.ZtrioError as error:
            outcome = None if error.outcome is None else str(error.outcome)
            told |= {"job": error.job_id, "outcome": outcome, "code": error.code, "message": error.message}
            if error.code in ("STORE_UNAVAILABLE", "COMMIT_FAILED"):
                await trio.sleep(0.02)
        else:
            told |= {"job": result.job_id, "outcome": str(result.outcome), "value": result.value}
        self._tell(told)


def _break_files(order: dict[str, Any]) -> None:
    """Let one kind of file operation fail from its nth call on, as a full or broken disk does."""
    broken = order.get("break_files")
    if broken is None:
        return
    name, number, left = broken["operation"], broken["errno"], broken["after"]
    real = getattr(FileOps, name)

    def fails(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(number, os.strerror(number))
        return real(*arguments)

    setattr(FileOps, name, fails)


async def _serve(channel: Channel, order: dict[str, Any]) -> None:
    steps = _steps(channel, order)
    offset = order.get("clock", 0.0)
    steps.armed = order.get("from_start", False)
    async with (
        open_store(
            order["store"],
            now=lambda: time.time() + offset,
            connection_factory=steps.connections(full_after=order.get("full_after")),
        ) as store,
        ztrio.open_supervisor(
            toolbox, workspace=order["workspace"], store=store, backend=order.get("backend", "auto")
        ) as supervisor,
    ):
        steps.armed = False
        locked = [target.path for target in supervisor.recovery.locked]
        channel.tell({"type": "up", "locked": locked})
        go = await trio.to_thread.run_sync(channel.hear)
        _break_files(go)
        steps.aim(go)
        supervisor.audit.add_reducer(lambda event: steps.step(f"event {event.event}"))
        steps.armed = True
        await Load(supervisor, channel.tell, order | go).run()
        await trio.sleep(0.3)  # cleanup comes after the answers
        steps.armed = False
        channel.tell({"type": "done", "names": steps.names})
    channel.tell({"type": "closed"})


async def _recover(channel: Channel, order: dict[str, Any]) -> None:
    steps = _steps(channel, order)
    steps.armed = True
    with workspace_lock(Path(order["workspace"])):
        async with open_store(order["store"], connection_factory=steps.connections()) as store:
            audit = AuditBus(recorder=store.record)
            found = await recover(
                store,
                order["workspace"],
                audit,
                blocking=trio.to_thread.run_sync,
                accept=tuple(order.get("accept", ())),
            )
        steps.armed = False
    problems = [finding.problem for finding in found.findings if finding.problem is not None]
    channel.tell({"type": "closed", "findings": len(found.findings), "problems": problems, "names": steps.names})


def _steps(channel: Channel, order: dict[str, Any]) -> Steps:
    steps = Steps(channel.tell, record=order.get("record", False))
    steps.aim(order)
    steps.watch()
    return steps


def _child(sock: socket.socket, order: dict[str, Any]) -> None:
    status = 1
    channel = Channel(sock)
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        channel.hear()
        trio.run({"serve": _serve, "recover": _recover}[order["role"]], channel, order)
        status = 0
    except BaseException as error:
        if isinstance(error, ztrio.ZtrioError):
            channel.tell({"type": "refused", "code": error.code, "details": error.details, "message": error.message})
        else:
            import traceback

            traceback.print_exception(error)
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(status)


def main() -> None:
    """Fork what is asked for, until nobody asks any more."""
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them; the kernel does
    control = socket.socket(fileno=int(sys.argv[1]))
    while True:
        data, fds, _, _ = socket.recv_fds(control, 65536, 1)
        if not data:
            return
        sock = socket.socket(fileno=fds[0])
        child = os.fork()
        if child == 0:
            control.close()
            _child(sock, json.loads(data))
        sock.close()
        control.sendall(b"%d\n" % child)


if __name__ == "__main__":
    main()
