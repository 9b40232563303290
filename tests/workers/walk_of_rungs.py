"""Runs tools that try to leave something behind, on one rung, as whoever starts it; prints what was found as JSON."""

import json
import os
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import Any

import attrs
import trio

from ztrio.errors import WorkerFailed
from ztrio.plain import encode
from ztrio.testing.leaks import processes
from ztrio.workers.backend import Backend, BackendSettings, Worker
from ztrio.workers.selection import open_backend
from ztrio.workers.wire import Failure, Request, Result

TOOLS = ("tools_for_rungs", str(Path(__file__).with_name("tools_for_rungs.py")))
ATTACKS = ("setsid", "succeed", "leader_exits_first", "deaf", "chain", "bomb")
BOUND = 20.0


def named(name: str) -> list[int]:
    """Live processes of that name."""
    return [info.pid for info in processes().values() if info.name == name and info.state not in "ZX"]


def settings(workspace: Path, rung: str, **changes: Any) -> BackendSettings:
    """Settings that force a rung."""
    options = {"modules": (TOOLS,), "functions": (), "workspace": str(workspace), "prewarmed": 0, "containment": rung}
    return BackendSettings(**{**options, **changes})


def request(workspace: Path, function: str, **arguments: Any) -> Request:
    """A request for one of the tools."""
    tmp = workspace / "tmp"
    tmp.mkdir(exist_ok=True)
    return Request(
        job_id="job-1",
        tool=function,
        module=TOOLS,
        function=function,
        arguments=encode(arguments),
        session=encode({}),
        session_name="default",
        principal="local",
        request_id=encode(None),
        workspace=str(workspace),
        tmp=str(tmp),
        env={},
        read_only=False,
        max_result=100_000,
        max_state=100_000,
    )


async def begin(worker: Worker, sent: Request) -> str:
    """Send a request, and wait for the first sign: progress, the result, or the death of the worker."""
    await worker.send_request(sent)
    with trio.CancelScope() as scope:
        try:
            answer = await worker.receive(lambda *_: scope.cancel())
        except WorkerFailed as error:
            return error.code
        assert isinstance(answer, Result | Failure)
        return type(answer).__name__
    return "running"


async def attack(backend: Backend, workspace: Path, function: str) -> dict[str, Any]:
    """Let the tool do its worst, end the worker, and look who is left at once."""
    name = f"z{secrets.token_hex(6)}"
    worker = await backend.acquire()
    try:
        began = await begin(worker, request(workspace, function, name=name))
        before = len(named(name))
        start = time.monotonic()
        proof = await worker.terminate(grace=0, bound=BOUND)
        return {
            "began": began,
            "before": before,
            "seconds": time.monotonic() - start,
            "left": len(named(name)),
            "proof": None if proof is None else proof.as_dict(),
        }
    finally:
        kill_all(name)


def kill_all(name: str) -> None:
    """Clean up after a rung that does not see everybody."""
    while left := named(name):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


async def walk(workspace: Path, backend: str, rung: str) -> dict[str, Any]:
    """Every attack on one rung."""
    async with open_backend(settings(workspace, rung), backend) as opened:
        found: dict[str, Any] = {name: await attack(opened, workspace, name) for name in ATTACKS}
        return {"report": attrs.asdict(opened.report), **found}


if __name__ == "__main__":
    print(json.dumps(trio.run(walk, Path(sys.argv[1]), sys.argv[2], sys.argv[3])))
