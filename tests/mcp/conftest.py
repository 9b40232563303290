"""A server on pipes in this process, and one in a process of its own, each with a raw client."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest
import trio

import ztrio
from tests.kit.raw_client import RawClient, RawProcess, raw_client, raw_process
from ztrio_mcp import Ending, serve_stdio

HERE = Path(__file__).parent


@attrs.define
class Served:
    """A server on pipes.

    Args:
        client: Speaks to it.
        supervisor: What it serves.
        ending: Ends it.
    """

    client: RawClient
    supervisor: ztrio.Supervisor
    ending: Ending
    # The server's return value; set before `ended`.
    status: int | None = None
    ended: trio.Event = attrs.field(factory=trio.Event)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    async def stop(self) -> None:
        """Cancel the server and wait for its end."""
        self.scope.cancel()
        await self.ended.wait()

    async def wait_end(self, within: float = 30) -> int | None:
        """Wait for the server's end; its status."""
        with trio.fail_after(within):
            await self.ended.wait()
        return self.status

    async def event_names(self, request_id: Any) -> list[str]:
        """The audit sequence of the call with this request id."""
        events = await self.supervisor.events()
        return [event["event"] for event in events if event.get("request_id") == request_id]


Gate = Literal["off", "warn", "enforce"]
Serving = Callable[..., AbstractAsyncContextManager[Served]]
Starting = Callable[..., AbstractAsyncContextManager[RawProcess]]


@pytest.fixture(scope="session")
def box() -> ztrio.Toolbox:
    """The tools of `mcp_box.py`."""
    return ztrio.load_toolbox(str(HERE / "mcp_box.py"))


@pytest.fixture
def serving(box: ztrio.Toolbox, tmp_path: Path) -> Serving:
    """Opens a server on pipes with a raw client; `handshake=False` leaves the era open."""

    @asynccontextmanager
    async def serve(
        *, handshake: bool = True, toolbox: ztrio.Toolbox = box, gate: Gate = "warn", **options: Any
    ) -> AsyncIterator[Served]:
        server_in, client_out = os.pipe()
        client_in, server_out = os.pipe()
        ending = Ending()
        async with (
            ztrio.open_supervisor(toolbox, workspace=tmp_path, gate=gate) as supervisor,
            raw_client(trio.lowlevel.FdStream(client_out), trio.lowlevel.FdStream(client_in)) as client,
            trio.open_nursery() as nursery,
        ):
            served = Served(client, supervisor, ending)

            async def run() -> None:
                try:
                    with served.scope:
                        served.status = await serve_stdio(
                            supervisor, fds=(server_in, server_out), ending=ending, **options
                        )
                finally:
                    served.ended.set()

            nursery.start_soon(run)
            if handshake:
                await client.initialize()
            yield served
            nursery.cancel_scope.cancel()

    return serve


@pytest.fixture
def starting(tmp_path: Path) -> Starting:
    """Starts `mcp_box_server.py` as a process with a raw client."""

    @asynccontextmanager
    async def start(*, handshake: bool = True) -> AsyncIterator[RawProcess]:
        command: list[str | Path] = [sys.executable, HERE / "mcp_box_server.py", tmp_path]
        async with raw_process(command) as server:
            if handshake:
                await server.client.initialize()
            yield server

    return start
