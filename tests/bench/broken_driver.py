"""ztrio with a canceller that is broken in the way that `BROKEN` says, for the gate to find. Run as a driver.

`leaves`: says that a worker is dead and lets it live. `waits`: gives the tool half a second to end by itself first.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from ztrio.workers.backend import Backend, BackendSettings, Proof
from ztrio.workers.spawn import open_spawn_backend
from ztrio_bench.drivers import on_ztrio, start


class BrokenWorker:
    """A worker whose end is broken."""

    def __init__(self, inner: Any, how: str) -> None:
        self._inner = inner
        self._how = how

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def terminate(self, *, grace: float, bound: float) -> Proof | None:
        if self._how == "leaves":
            now = trio.current_time()
            return Proof(rung="group", complete=True, pid=self._inner.pid, status=-9, killed_at=now, proven_at=now)
        await trio.sleep(0.5)
        proof: Proof | None = await self._inner.terminate(grace=grace, bound=bound)
        return proof


class BrokenBackend:
    """A backend that hands out broken workers."""

    def __init__(self, inner: Backend, how: str) -> None:
        self._inner = inner
        self._how = how

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def acquire(self) -> Any:
        return BrokenWorker(await self._inner.acquire(), self._how)


class Driver:
    """The driver of ztrio, on a broken backend."""

    def __init__(self, how: str) -> None:
        self._how = how

    hello = staticmethod(on_ztrio.hello)

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        @asynccontextmanager
        async def broken(settings: BackendSettings) -> AsyncIterator[Any]:
            async with open_spawn_backend(settings) as backend:
                yield BrokenBackend(backend, self._how)

        return on_ztrio.run(request, backend=broken)


if __name__ == "__main__":
    with start.answers() as out:
        start.serve(Driver(sys.argv[1]), out)
