"""ZapTrace (`zaptrace-eda`): its `execute_mutating_tool` on the same tools.

The interpreter that runs this has it installed. Its worker imports the tool's module by name, so the folder with a
copy of the workload is on `PYTHONPATH`, which it passes on.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from zaptrace.agent import execution

from ztrio_bench.drivers import orphans
from ztrio_bench.drivers.flow_asyncio import Caller, run_round
from ztrio_bench.drivers.kit import Samples, now, supported, version_of

__all__ = ["hello", "run"]

CASES = ("call", "throughput", "cancel", "timeout", "stall", "memory", "orphans")
TIMEOUT = 120.0  # seconds


class _ZapTrace:
    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._tools = importlib.import_module("bench_tools")
        self._claims: list[bool] = []

    async def _execute(self, tool: str, arguments: dict[str, Any], session: str, limit: float) -> Any:
        # Its worker imports a tool by its module's name, so from the folder that is on the path for it.
        function = importlib.import_module("bench_record").record if tool == "record" else getattr(self._tools, tool)
        parameters: dict[str, Any] = {name: {"type": "string"} for name in arguments}
        if tool == "record":
            parameters["out"]["path_policy"] = {"access": "output"}
            arguments = {**arguments, "session_id": session}
        return await execution.execute_mutating_tool(
            tool_name=tool,
            tool_def={"fn": function, "params": parameters},
            kwargs=arguments,
            session_id=session,
            timeout_s=limit,
            workspace=self._workspace,
            event_sink=self._hear,
        )

    def _hear(self, decision: str, facts: dict[str, Any]) -> None:
        if decision == "worker_terminated":
            self._claims.append(bool(facts["worker_terminated"]))

    async def call(self, tool: str, arguments: dict[str, Any], *, session: str = "s") -> Any:
        outcome = await self._execute(tool, arguments, session, TIMEOUT)
        if outcome.status != "completed":
            raise RuntimeError(f"{outcome.status}: {outcome.error}")
        return outcome.result

    async def run_out(self, tool: str, arguments: dict[str, Any], limit: float) -> tuple[int, int]:
        # Its limit starts when the worker process is there; the function that then waits is wrapped to note it.
        inner = execution._communicate_with_deadline
        start = now()

        async def noting(**options: Any) -> Any:
            nonlocal start
            start = now()
            return await inner(**options)

        execution._communicate_with_deadline = noting
        try:
            outcome = await self._execute(tool, arguments, "s", limit)
        finally:
            execution._communicate_with_deadline = inner
        if outcome.status != "timeout":
            raise RuntimeError(f"it did not time out: {outcome.status}: {outcome.error}")
        return start, now()

    async def finish(self, samples: Samples) -> None:
        samples.facts["containment"] = "process group"
        if self._claims and samples.counts.get("survivors"):
            samples.note(f"it reported {sum(self._claims)} of {len(self._claims)} workers as terminated")


@asynccontextmanager
async def _open(request: dict[str, Any]) -> AsyncIterator[Caller]:
    workspace = Path(request["folder"]) / "workspace"
    workspace.mkdir(exist_ok=True)
    yield _ZapTrace(workspace)


def hello(request: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - the same for every driver
    """Who this is."""
    return {"version": version_of("zaptrace-eda")}


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Do one round."""
    supported(request, CASES)
    if request["case"] == "orphans":
        return orphans.run_round(request)
    if request["case"] == "timeout":
        request = {**request, "limit": 1.5}  # its worker takes about half a second to reach the tool
    return asyncio.run(run_round(_open(request), request))
