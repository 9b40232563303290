"""A raw-bytes MCP client for stdio servers: it sends exactly the bytes it is given and keeps exactly what comes back.

No SDK is involved, so what the wire really carries can be seen: types of ids, line endings, answers that must not come.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

__all__ = ["MODERN_META", "RawClient", "RawProcess", "raw_client", "raw_process"]

Frame = dict[str, Any]
RequestId = str | int | None

MODERN_META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "0"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
"""The envelope of a request in protocol 2026-07-28."""


class RawClient:
    """Speaks to a server over two byte streams; `raw_client` and `raw_process` make one.

    Attributes:
        frames: Every message received, in order.
        raw: Every byte received.
    """

    def __init__(self, send: trio.abc.SendStream, receive: trio.abc.ReceiveStream) -> None:
        self._send = send
        self._receive = receive
        self.frames: list[Frame] = []
        self.raw = bytearray()
        # Messages that no `reply` or `take` has returned yet.
        self._unread: list[Frame] = []
        self._arrived = trio.Event()
        self._ended = trio.Event()
        self._reading = trio.CancelScope()

    def pause(self) -> None:
        """Stop reading for good, with the stream left open, like a client that hangs."""
        self._reading.cancel()

    async def run(self) -> None:
        """Receive until the server closes its end."""
        try:
            with self._reading:
                while chunk := await self._receive.receive_some(64 * 1024):
                    self._take_in(bytes(chunk))
            if self._reading.cancelled_caught:
                await trio.sleep_forever()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the server is gone, or the test closed our end: the same as its end of output
        finally:
            self._ended.set()
            self._wake()

    def _take_in(self, chunk: bytes) -> None:
        start = self.raw.rfind(b"\n") + 1
        self.raw += chunk
        complete = self.raw.rfind(b"\n") + 1
        for line in bytes(self.raw[start:complete]).split(b"\n")[:-1]:
            frame = json.loads(line)
            self.frames.append(frame)
            self._unread.append(frame)
        self._wake()

    def _wake(self) -> None:
        self._arrived.set()
        self._arrived = trio.Event()

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        await self._send.send_all(data)

    async def send_json(self, *messages: Any) -> None:
        """Send each message as one line."""
        await self.send(b"".join(json.dumps(message).encode() + b"\n" for message in messages))

    async def request(self, request_id: Any, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a request without waiting for its answer."""
        message = {"jsonrpc": "2.0", "id": request_id, "method": method}
        await self.send_json(message if params is None else {**message, "params": params})

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        message = {"jsonrpc": "2.0", "method": method}
        await self.send_json(message if params is None else {**message, "params": params})

    async def call(
        self,
        request_id: Any,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        """Send a tool call without waiting for its answer."""
        params: dict[str, Any] = {"name": tool, "arguments": arguments or {}}
        if meta is not None:
            params["_meta"] = meta
        await self.request(request_id, "tools/call", params)

    async def take(self, wanted: Callable[[Frame], bool], *, within: float = 30.0) -> Frame:
        """The first message not taken yet for which `wanted` holds; waits for it at most `within` seconds.

        Raises:
            AssertionError: it did not come; shows what did.
        """
        with trio.move_on_after(within):
            while True:
                for index, frame in enumerate(self._unread):
                    if wanted(frame):
                        return self._unread.pop(index)
                if self._ended.is_set():
                    break
                await self._arrived.wait()
        raise AssertionError(f"no such message; unread: {self._unread!r}")

    async def reply(self, request_id: RequestId, *, within: float = 30.0) -> Frame:
        """The answer under this id: same value *and* same type."""
        return await self.take(
            lambda frame: (
                "method" not in frame
                and "id" in frame
                and type(frame["id"]) is type(request_id)
                and frame["id"] == request_id
            ),
            within=within,
        )

    async def ask(self, request_id: Any, method: str, params: Mapping[str, Any] | None = None) -> Frame:
        """Send a request and wait for its answer."""
        await self.request(request_id, method, params)
        return await self.reply(request_id)

    async def initialize(self, request_id: RequestId = "init") -> Frame:
        """Shake hands as a 2025-11-25 client."""
        answer = await self.ask(
            request_id,
            "initialize",
            {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "0"}},
        )
        await self.notify("notifications/initialized")
        return answer

    async def close_input(self) -> None:
        """End the server's input."""
        await self._send.aclose()

    async def close_output(self) -> None:
        """Stop reading: the server's next write breaks."""
        await self._receive.aclose()

    async def wait_end(self, *, within: float = 30.0) -> None:
        """Wait until the server has closed its output."""
        with trio.fail_after(within):
            await self._ended.wait()


@asynccontextmanager
async def raw_client(send: trio.abc.SendStream, receive: trio.abc.ReceiveStream) -> AsyncIterator[RawClient]:
    """A client on two byte streams, which are closed at the end."""
    client = RawClient(send, receive)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            yield client
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
            await send.aclose()
            await receive.aclose()


class RawProcess:
    """A server process and the client that speaks to it.

    Attributes:
        client: The client.
        process: The process.
        stderr: Every byte the server wrote to stderr.
    """

    def __init__(self, client: RawClient, process: trio.Process) -> None:
        self.client = client
        self.process = process
        self.stderr = bytearray()

    async def drain_stderr(self) -> None:
        """Keep what the server writes to stderr."""
        assert self.process.stderr is not None
        async for chunk in self.process.stderr:
            self.stderr += chunk

    def signal(self, signum: signal.Signals) -> None:
        """Signal the server alone, not its children."""
        os.kill(self.process.pid, signum)

    async def wait_exit(self, *, within: float = 7.0) -> int:
        """Wait for the server's exit; its status as `subprocess` has it."""
        with trio.fail_after(within):
            return await self.process.wait()


@asynccontextmanager
async def raw_process(
    command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> AsyncIterator[RawProcess]:
    """Start a server and a client on its stdin and stdout; a server that still runs at the end is killed."""
    process: trio.Process = await trio.lowlevel.open_process(
        list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=cwd
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with raw_client(process.stdin, process.stdout) as client, trio.open_nursery() as nursery:
            running = RawProcess(client, process)
            nursery.start_soon(running.drain_stderr)
            yield running
            nursery.cancel_scope.cancel()
    finally:
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
            await process.wait()
            await process.stderr.aclose()
