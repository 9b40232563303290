"""A peer as others write it, for the asyncio side of the drivers: one subprocess per call, ended with SIGTERM only."""

import asyncio  # noqa: TID251 - this is a peer, in a process of its own
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ztrio_bench import workload
from ztrio_bench.drivers import orphans, start
from ztrio_bench.drivers.flow_asyncio import Caller, run_round
from ztrio_bench.drivers.kit import Samples, Unsupported, now

CODE = "import json, sys, runpy; tools = runpy.run_path(sys.argv[1]); tools[sys.argv[2]](**json.loads(sys.argv[3]))"


class Peer:
    """Calls tools in subprocesses."""

    async def call(self, tool: str, arguments: dict[str, Any], *, session: str = "s") -> Any:
        if tool == "record":
            raise Unsupported("no files")
        words = [sys.executable, "-I", "-S", "-c", CODE, workload.__file__, tool, json.dumps(arguments)]
        process = await asyncio.create_subprocess_exec(*words)
        try:
            return await process.wait()
        except asyncio.CancelledError:
            process.terminate()
            await asyncio.shield(process.wait())
            raise

    async def run_out(self, tool: str, arguments: dict[str, Any], limit: float) -> tuple[int, int]:
        start = now()
        try:
            await asyncio.wait_for(self.call(tool, arguments), limit)
        except TimeoutError:
            pass
        return start, now()

    async def finish(self, samples: Samples) -> None:
        samples.facts["containment"] = "none"


@asynccontextmanager
async def opening() -> AsyncIterator[Caller]:
    yield Peer()


class Driver:
    """Does what it is told, and misbehaves where the variant says so."""

    def hello(self, request: dict[str, Any]) -> dict[str, Any]:
        print("this is not an answer")
        return {"version": "1"}

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["case"] == "orphans":
            return orphans.run_round(request)
        return asyncio.run(run_round(opening(), request))


if __name__ == "__main__":
    with start.answers() as out:
        start.serve(Driver(), out)
