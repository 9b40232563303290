"""What the worker tests share: settings, requests, and a look at who is alive."""

import os
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from ztrio.plain import encode
from ztrio.testing.leaks import processes
from ztrio.workers.backend import BackendSettings, Worker
from ztrio.workers.wire import Request
from ztrio.workers.zygote import ZygoteBackend

TOOLS = ("tools_for_workers", str(Path(__file__).with_name("tools_for_workers.py")))
BOUND = 5.0


def settings(workspace: Path, **changes: Any) -> BackendSettings:
    """Settings for the tools of these tests; nothing is prewarmed unless the test says so."""
    options: dict[str, Any] = {"modules": (TOOLS,), "functions": (), "workspace": str(workspace), "prewarmed": 0}
    return BackendSettings(**{**options, **changes})


def request(workspace: Path, function: str, arguments: dict[str, Any] | None = None, **changes: Any) -> Request:
    """A request for one of the tools."""
    tmp = workspace / "tmp"
    tmp.mkdir(exist_ok=True)
    options: dict[str, Any] = {
        "job_id": "job-1",
        "tool": function,
        "module": TOOLS,
        "function": function,
        "arguments": encode(arguments or {}),
        "session": encode({}),
        "session_name": "default",
        "principal": "local",
        "request_id": encode(None),
        "workspace": str(workspace),
        "tmp": str(tmp),
        "env": {},
        "read_only": False,
        "max_result": 100_000,
        "max_state": 100_000,
    }
    return Request(**{**options, **changes})


class Reports(list[tuple[float, float | None, str | None]]):
    """Collects progress; `on_first` is called with the first of it."""

    on_first: Callable[[], None] = staticmethod(lambda: None)

    def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self.append((progress, total, message))
        if len(self) == 1:
            self.on_first()


async def begin(worker: Worker, sent: Request) -> Reports:
    """Send a request to a tool that does not end, and wait for its first progress."""
    reports = Reports()
    await worker.send_request(sent)
    with trio.CancelScope() as scope:
        reports.on_first = scope.cancel
        raise AssertionError(f"it ended: {await worker.receive(reports)}")
    return reports


def group(pid: int) -> set[int]:
    """The live members of a process group, seen with other eyes than the product's."""
    return {info.pid for info in processes().values() if info.group == pid and info.state not in "ZX"}


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    info = processes().get(pid)
    return info is not None and info.state not in "ZX"


def child_pids() -> set[int]:
    """Our children, zombies too."""
    return {info.pid for info in processes().values() if info.parent == os.getpid()}


def fork_server(backend: ZygoteBackend) -> int:
    """Process id of the fork server in use: the launcher's child that is not the keeper, which does nothing."""
    assert backend._link is not None
    below = sorted(info.pid for info in processes().values() if info.parent == backend._link.pid)
    return below[-1]


def tools(path: Path, text: str) -> dict[str, Any]:
    """Settings for a tools file with this text."""
    path.write_text(textwrap.dedent(text))
    return {"modules": ((path.stem, str(path)),)}
