"""trio-parallel: a pool of processes for trio, with `kill_on_cancel`."""

from __future__ import annotations

import functools
import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio_parallel

from ztrio_bench.drivers import orphans
from ztrio_bench.drivers.flow_trio import Caller, run_round
from ztrio_bench.drivers.kit import Samples, now, supported, version_of

__all__ = ["hello", "run"]

CASES = ("call", "throughput", "cancel", "timeout", "stall", "memory", "orphans")


class _TrioParallel:
    def __init__(self, context: trio_parallel.WorkerContext) -> None:
        self._context = context
        self._tools = importlib.import_module("bench_tools")  # what the workers import too
        self._limiter = trio.CapacityLimiter(128)

    async def call(self, tool: str, arguments: dict[str, Any], *, session: str = "") -> Any:  # noqa: ARG002
        function = functools.partial(getattr(self._tools, tool), **arguments)
        return await self._context.run_sync(function, kill_on_cancel=True, limiter=self._limiter)

    async def run_out(self, tool: str, arguments: dict[str, Any], limit: float) -> tuple[int, int]:
        # It has no limit of its own: a cancel scope's deadline is what its users take.
        start = now()
        with trio.move_on_after(limit):
            await self.call(tool, arguments)
        return start, now()

    async def finish(self, samples: Samples) -> None:
        await trio.lowlevel.checkpoint()
        samples.facts["containment"] = "worker process only"


@asynccontextmanager
async def _open() -> AsyncIterator[Caller]:
    async with trio_parallel.open_worker_context(idle_timeout=600.0) as context:
        yield _TrioParallel(context)


def hello(request: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - the same for every driver
    """Who this is."""
    return {"version": version_of("trio-parallel"), "trio": trio.__version__}


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Do one round."""
    supported(request, CASES, files=False)
    if request["case"] == "orphans":
        return orphans.run_round(request)
    return trio.run(run_round, _open(), {**request, "pool": True})
