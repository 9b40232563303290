"""pebble: a process pool whose futures can be cancelled and limited in time."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pebble

from ztrio_bench.drivers import orphans
from ztrio_bench.drivers.flow_asyncio import Caller, run_round
from ztrio_bench.drivers.kit import Samples, now, supported, version_of

__all__ = ["hello", "run"]

CASES = ("call", "throughput", "cancel", "timeout", "stall", "memory", "orphans")


class _Pebble:
    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._tools = importlib.import_module("bench_tools")

    async def call(self, tool: str, arguments: dict[str, Any], *, session: str = "") -> Any:  # noqa: ARG002
        return await asyncio.wrap_future(self._pool.schedule(getattr(self._tools, tool), kwargs=arguments))

    async def run_out(self, tool: str, arguments: dict[str, Any], limit: float) -> tuple[int, int]:
        start = now()
        future = self._pool.schedule(getattr(self._tools, tool), kwargs=arguments, timeout=limit)
        try:
            await asyncio.wrap_future(future)
        except TimeoutError:
            return start, now()
        raise RuntimeError("it did not time out")

    async def finish(self, samples: Samples) -> None:
        samples.facts["containment"] = "worker process only"


@asynccontextmanager
async def _open(workers: int) -> AsyncIterator[Caller]:
    pool = pebble.ProcessPool(max_workers=workers)
    try:
        yield _Pebble(pool)
    finally:
        pool.stop()
        await asyncio.get_running_loop().run_in_executor(None, pool.join)


def hello(request: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - the same for every driver
    """Who this is."""
    return {"version": version_of("pebble")}


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Do one round."""
    supported(request, CASES, files=False)
    if request["case"] == "orphans":
        return orphans.run_round(request)
    # A pool has a fixed size, made beforehand: as many as the case has calls at once.
    variant = request["variant"]
    workers = request["load"] or (int(variant) if variant.isdecimal() else 2)
    return asyncio.run(run_round(_open(workers), {**request, "pool": True}))
