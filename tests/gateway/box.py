"""A gateway in this process, a real server behind it, and a client that sees each byte."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from tests.kit.raw_client import RawClient, raw_client
from ztrio.management import frames, place
from ztrio.memory_store import MemoryStore
from ztrio.store import Store
from ztrio_mcp.gateway.running import serve_client
from ztrio_mcp.gateway.settings import GatewaySettings, ToolLimits
from ztrio_mcp.life import Ending

FAKE = Path(__file__).parent.parent / "kit" / "fake_server.py"


@attrs.define
class Box:
    """A gateway and what is around it."""

    client: RawClient
    ending: Ending
    folder: Path
    store: Store
    _ids: int = 100

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
        """Call a tool; the result, or the JSON-RPC error, as it came."""
        self._ids += 1
        given = {f"ztrio/{key}" if key != "progressToken" else key: value for key, value in meta.items()}
        await self.client.call(self._ids, tool, arguments, meta=given or None)
        answer = await self.client.reply(self._ids)
        found = answer.get("result", answer.get("error"))
        assert isinstance(found, dict)
        return found

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Any other request; its whole answer."""
        self._ids += 1
        return await self.client.ask(self._ids, method, params)

    async def pending(self) -> list[dict[str, Any]]:
        """What the gateway's own tool lists."""
        found = await self.call("ztrio_pending_calls")
        listed = found["structuredContent"]["pending_calls"]
        assert isinstance(listed, list)
        return listed

    async def state(self, call_id: str) -> str:
        """The state of a call."""
        found = await self.call("ztrio_pending_call", {"call_id": call_id})
        state = found["structuredContent"]["pending_call"]["state"]
        assert isinstance(state, str)
        return state

    async def settled(self, call_id: str, state: str, *, within: float = 10.0) -> None:
        """Wait until a call is in a state."""
        await self.until(lambda: self._is(call_id, state), within=within)

    async def _is(self, call_id: str, state: str) -> bool:
        return await self.state(call_id) == state

    async def until(self, holds: Callable[[], Awaitable[bool]], *, within: float = 10.0) -> None:
        """Wait until something holds."""
        with trio.fail_after(within):
            while not await holds():
                await trio.sleep(0.01)

    async def operator(self, question: Any) -> dict[str, Any]:
        """Ask as `ztrio pending` does."""
        sock = place.connect(self.folder)
        sock.setblocking(False)
        async with trio.SocketStream(trio.socket.from_stdlib_socket(sock)) as stream:
            await stream.send_all(frames.encode_request(question))
            got = b""
            while not got.endswith(b"\n"):
                chunk = await stream.receive_some(65536)
                assert chunk, "the socket ended"
                got += chunk
        found = json.loads(got)
        assert isinstance(found, dict)
        return found

    @property
    def ledger(self) -> list[str]:
        """What the server has really written."""
        file = self.folder / "ledger"
        return file.read_text().splitlines() if file.exists() else []

    def received(self, method: str) -> list[dict[str, Any]]:
        """The frames of a method that the server got."""
        lines = (json.loads(line) for line in (self.folder / "record").read_text().splitlines())
        return [line["frame"] for line in lines if line.get("frame", {}).get("method") == method]

    def pids(self) -> list[int]:
        """The processes of the server so far."""
        lines = (json.loads(line) for line in (self.folder / "record").read_text().splitlines())
        return [line["pid"] for line in lines if "pid" in line]


def pending_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """The pending call that a result is about."""
    found = result["structuredContent"]["pending_call"]
    assert result["isError"] is True
    assert found == result["_meta"]["ztrio/pending_call"]
    assert isinstance(found, dict)
    return found


def code_of(result: Mapping[str, Any]) -> str:
    """The code of an error result."""
    code = result["structuredContent"]["error"]["code"]
    assert isinstance(code, str)
    return code


@asynccontextmanager
async def gateway(
    folder: Path,
    *options: str,
    store: Store | None = None,
    hello: bool = True,
    command: tuple[str, ...] | None = None,
    timeout: float = 10.0,
    idle: float | None = None,
    ceiling: float | None = None,
    capabilities: Mapping[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Box]:
    """A gateway in front of the fake server, until the block is left; then everything has ended in order."""
    folder.chmod(0o700)
    command = command or (sys.executable, "-I", str(FAKE), str(folder / "record"), str(folder / "ledger"), *options)
    limits = {"timeout": timeout, "idle": idle, "ceiling": ceiling}
    made = GatewaySettings(
        name="fake",
        limits=ToolLimits(**{key: value for key, value in limits.items() if value is not None}),
        **settings,
    )
    in_read, in_write = os.pipe()
    out_read, out_write = os.pipe()
    ending = Ending()
    kept = MemoryStore() if store is None else store
    try:
        streams = trio.lowlevel.FdStream(in_write), trio.lowlevel.FdStream(out_read)
        async with raw_client(*streams) as client, trio.open_nursery() as nursery:

            async def serve() -> None:
                await serve_client(command, made, store=kept, instance=folder, fds=(in_read, out_write), ending=ending)

            nursery.start_soon(serve)
            box = Box(client, ending, folder, kept)
            if hello:
                about = {"name": "raw", "version": "0"}
                can = dict(capabilities or {})
                params = {"protocolVersion": "2025-11-25", "capabilities": can, "clientInfo": about}
                await client.ask(1, "initialize", params)
                await client.notify("notifications/initialized")
            yield box
            ending.request("shutdown", 0)
    finally:
        os.close(in_read)
        os.close(out_write)
