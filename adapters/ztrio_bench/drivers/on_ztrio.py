"""ztrio itself, as a program would embed it: a supervisor on a workspace of its own.

The store is in memory, except where durability is measured.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import trio

import ztrio
from ztrio_bench.drivers import orphans, publication, stdio
from ztrio_bench.drivers.flow_trio import Caller, run_round
from ztrio_bench.drivers.kit import Samples, now, supported, version_of
from ztrio_bench.toolbox import toolbox

__all__ = ["hello", "run"]

CASES = ("call", "publication", "throughput", "cancel", "timeout", "stall", "memory", "orphans", "stdio")
SERVE = "import sys; from ztrio_cli.main import main; sys.exit(main())"


class _Ztrio:
    def __init__(self, supervisor: ztrio.Supervisor) -> None:
        self._supervisor = supervisor

    async def call(self, tool: str, arguments: dict[str, Any], *, session: str = "s") -> Any:
        return (await self._supervisor.call(tool, arguments, session=session)).value

    async def run_out(self, tool: str, arguments: dict[str, Any], limit: float) -> tuple[int, int]:
        # The audit knows when the worker had the request; its clock is trio's, which runs like ours.
        offset = now() - trio.current_time() * 1e9
        try:
            await self._supervisor.call(tool, arguments, session="s", timeout=limit)
        except ztrio.ToolTimeout as error:
            resumed = now()
            events = await self._supervisor.events(limit=16)
            start = next(
                event for event in events if event["execution_job_id"] == error.job_id and event["event"] == "start"
            )
            return int(start["monotonic"] * 1e9 + offset), resumed
        raise RuntimeError("the call did not time out")

    async def finish(self, samples: Samples) -> None:
        events = await self._supervisor.events()
        proofs = [event["proof"] for event in events if event.get("proof")]
        samples.facts["backend"] = self._supervisor.statistics().backend.name
        samples.facts["containment"] = "/".join(sorted({proof["rung"] for proof in proofs})) or "none"
        samples.facts["complete"] = bool(proofs) and all(proof["complete"] for proof in proofs)
        unresolved = sum(event["event"] == "unresolved" for event in events)
        if unresolved:
            samples.count("unresolved", unresolved)


@asynccontextmanager
async def _open(request: dict[str, Any], backend: Any) -> AsyncIterator[Caller]:
    workspace = Path(request["folder"]) / "workspace"
    workspace.mkdir(exist_ok=True)  # noqa: ASYNC240 - before anything is measured
    options = {name: request[name] for name in ("backend", "containment", "sandbox") if request.get(name)}
    if backend is not None:
        options["backend"] = backend
    async with AsyncExitStack() as stack:
        if request["variant"] == "durable":
            from ztrio_sql import open_store  # noqa: PLC0415 - the other cases are measured without a database

            options["store"] = await stack.enter_async_context(open_store(Path(request["folder"]) / "state.db"))
        supervisor = await stack.enter_async_context(
            ztrio.open_supervisor(
                toolbox, workspace=workspace, settings=ztrio.Settings(workers=128, start_bound=90.0), **options
            )
        )
        # As `ztrio serve` does, and the README advises programs: else a full collection of everything that is loaded
        # falls into some measurement, and stops everything for as long.
        gc.collect()
        gc.freeze()
        yield _Ztrio(supervisor)


def hello(request: dict[str, Any]) -> dict[str, Any]:
    """Who this is."""
    return {"version": version_of("ztrio"), "trio": trio.__version__, "backend": request.get("backend") or "auto"}


def run(request: dict[str, Any], *, backend: Any = None) -> dict[str, Any]:
    """Do one round.

    Args:
        request: The controller's request.
        backend: A factory of backends to use instead of the one that the request names.
    """
    supported(request, CASES, durable=True)
    if request["case"] == "publication":
        return publication.durable(request)
    if request["case"] == "stdio":
        workspace = Path(request["folder"]) / "workspace"
        workspace.mkdir(exist_ok=True)
        command = [sys.executable, "-c", SERVE, "serve", "ztrio_bench.toolbox", "--workspace", str(workspace)]
        return stdio.round_trips([*command, "--log-level", "error"], request)
    if request["case"] == "orphans":
        # A rung that promises nothing about daemons is not asked about them.
        partial = request.get("backend") == "spawn" or request.get("containment") == "group"
        return orphans.run_round(request, held=orphans.HELD[: 2 if partial else 3], grace=True, own=True)
    return trio.run(run_round, _open(request, backend), request)
