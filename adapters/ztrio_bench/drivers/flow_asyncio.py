"""`flow` on asyncio, for peers that need it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from ztrio_bench.drivers import flow
from ztrio_bench.drivers.flow import Caller
from ztrio_bench.drivers.kit import Listener

__all__ = ["Caller", "run_round"]


class _Task:
    def __init__(self, inner: asyncio.Task[None]) -> None:
        self._inner = inner

    @property
    def ended(self) -> bool:
        return self._inner.done()

    def cancel(self) -> None:
        self._inner.cancel()

    async def wait(self, within: float) -> bool:
        if not self.ended:
            await asyncio.wait([self._inner], timeout=within)
        return self.ended


class _Tasks:
    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._tasks: list[_Task] = []

    def start(self, function: Callable[..., Awaitable[None]], *args: Any) -> _Task:
        async def run() -> None:
            await function(*args)

        task = _Task(self._group.create_task(run()))
        self._tasks.append(task)
        return task

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()


class _Asyncio:
    sleep = staticmethod(asyncio.sleep)

    async def in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.to_thread(function, *args)

    async def arrival(self, listener: Listener, within: float) -> None:
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        loop.add_reader(listener.fileno(), arrived.set)
        try:
            await asyncio.wait_for(arrived.wait(), within)
        except TimeoutError:
            pass  # whoever waits looks at the clock
        finally:
            loop.remove_reader(listener.fileno())
        listener.drain()

    @asynccontextmanager
    async def tasks(self) -> AsyncIterator[_Tasks]:
        async with asyncio.TaskGroup() as group:
            yield _Tasks(group)


async def run_round(opening: AbstractAsyncContextManager[Caller], request: dict[str, Any]) -> dict[str, Any]:
    """Do one round of a case; see `flow.run_round`."""
    return await flow.run_round(_Asyncio(), opening, request)
