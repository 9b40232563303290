"""`flow` on trio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import trio

from ztrio_bench.drivers import flow
from ztrio_bench.drivers.flow import Caller
from ztrio_bench.drivers.kit import Listener

__all__ = ["Caller", "run_round"]


class _Task:
    def __init__(self) -> None:
        self._scope = trio.CancelScope()
        self._over = trio.Event()

    async def run(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        try:
            with self._scope:
                await function(*args)
        finally:
            self._over.set()

    @property
    def ended(self) -> bool:
        return self._over.is_set()

    def cancel(self) -> None:
        self._scope.cancel()

    async def wait(self, within: float) -> bool:
        with trio.move_on_after(within):
            await self._over.wait()
        return self.ended


class _Tasks:
    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    def start(self, function: Callable[..., Awaitable[None]], *args: Any) -> _Task:
        task = _Task()
        self._nursery.start_soon(task.run, function, *args)
        return task

    def cancel(self) -> None:
        self._nursery.cancel_scope.cancel()


class _Trio:
    sleep = staticmethod(trio.sleep)
    in_thread = staticmethod(trio.to_thread.run_sync)

    async def arrival(self, listener: Listener, within: float) -> None:
        with trio.move_on_after(within):
            await trio.lowlevel.wait_readable(listener)
        listener.drain()

    @asynccontextmanager
    async def tasks(self) -> AsyncIterator[_Tasks]:
        async with trio.open_nursery() as nursery:
            yield _Tasks(nursery)


async def run_round(opening: AbstractAsyncContextManager[Caller], request: dict[str, Any]) -> dict[str, Any]:
    """Do one round of a case; see `flow.run_round`."""
    return await flow.run_round(_Trio(), opening, request)
