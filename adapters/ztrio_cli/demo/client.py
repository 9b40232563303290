"""The server in its own process, and the official MCP client on its pipes.

The process is ours and not the SDK's: its stdio client ends a server that does not end by itself, and whether ours
does is one of the things to find out.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio  # noqa: TID251 - the SDK's client speaks through anyio's memory streams
import attrs
import mcp_types
import trio
from mcp.client import Client
from mcp.shared.message import SessionMessage

__all__ = ["Answer", "Server", "audit_events", "call", "serve", "transport"]

STOP = 5.0  # seconds in which a server whose stdin ended must be gone


@attrs.frozen
class Server:
    """A running `ztrio serve`."""

    process: trio.Process
    workspace: Path

    async def end_of_input(self) -> float | None:
        """Close the server's stdin and wait for its end; seconds that took, or None when it did not end in time."""
        assert self.process.stdin is not None
        began = trio.current_time()
        with trio.move_on_after(STOP) as bound:
            await self.process.stdin.aclose()
            await self.process.wait()
        return None if bound.cancelled_caught else trio.current_time() - began


@asynccontextmanager
async def serve(command: Sequence[str], workspace: Path, log: Path) -> AsyncIterator[Server]:
    """Start the server; on leaving its input ends if it still runs, and it is killed if that does not help.

    Args:
        command: The command line.
        workspace: Its workspace.
        log: File for what it writes to stderr.
    """
    with log.open("ab") as errors:
        process = await trio.lowlevel.open_process(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
    server = Server(process, workspace)
    try:
        yield server
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * STOP):
            if process.returncode is None and await server.end_of_input() is None:
                process.kill()
            await process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                await pipe.aclose()


@asynccontextmanager
async def transport(server: Server) -> AsyncIterator[tuple[Any, Any]]:
    """The streams that `mcp.client.Client` wants, on the server's pipes. Closing them leaves the server running."""
    to_client, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_server, from_client = anyio.create_memory_object_stream[SessionMessage](0)
    stdin, stdout = server.process.stdin, server.process.stdout
    assert stdin is not None
    assert stdout is not None

    async def read() -> None:
        buffer = bytearray()
        async with to_client:
            async for chunk in stdout:
                buffer += chunk
                *lines, rest = buffer.split(b"\n")
                buffer = bytearray(rest)
                for line in lines:
                    message = mcp_types.jsonrpc_message_adapter.validate_json(bytes(line), by_name=False)
                    await to_client.send(SessionMessage(message))

    async def write() -> None:
        async with from_client:
            async for item in from_client:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                try:
                    await stdin.send_all(text.encode() + b"\n")
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return  # the server is gone; the client learns it from the other stream

    async with from_server, to_server, trio.open_nursery() as nursery:
        nursery.start_soon(read)
        nursery.start_soon(write)
        yield from_server, to_server
        nursery.cancel_scope.cancel()


@attrs.frozen(kw_only=True)
class Answer:
    """What a client was told about one call.

    Args:
        value: The structured result; empty for a failure.
        error: The structured error, or None.
        outcome: `_meta["ztrio/outcome"]`, or None.
        job_id: `_meta["ztrio/job_id"]`, or None.
    """

    value: dict[str, Any]
    error: dict[str, Any] | None = None
    outcome: str | None = None
    job_id: str | None = None

    @property
    def code(self) -> str | None:
        """The error's code, or None."""
        return None if self.error is None else self.error.get("code")


async def call(
    client: Client,
    tool: str,
    arguments: dict[str, Any],
    *,
    timeout: float | None = None,
    key: str | None = None,
    on_progress: Any = None,
) -> Answer:
    """Call a tool and take the answer apart.

    Args:
        client: A connected client.
        tool: Name of the tool.
        arguments: Its arguments, `session` among them.
        timeout: Seconds for `_meta["ztrio/timeout"]`.
        key: `_meta["ztrio/idempotency_key"]`.
        on_progress: Async callback with (progress, total, message).
    """
    wanted = {"ztrio/timeout": timeout, "ztrio/idempotency_key": key}
    meta: Any = {name: value for name, value in wanted.items() if value is not None} or None
    result = await client.call_tool(tool, arguments, progress_callback=on_progress, meta=meta)
    content = result.structured_content if isinstance(result.structured_content, dict) else {}
    facts: dict[str, Any] = dict(result.meta or {})
    error = None
    if result.is_error:
        text = "".join(getattr(block, "text", "") for block in result.content)
        error = content.get("error") or {"code": "UNKNOWN", "message": text}
    return Answer(
        value={} if error else content,
        error=error,
        outcome=facts.get("ztrio/outcome"),
        job_id=facts.get("ztrio/job_id"),
    )


async def audit_events(client: Client, *, after: int = 0) -> list[dict[str, Any]]:
    """The events of the audit resource whose `seq` is greater than `after`, by `seq`."""
    result = await client.read_resource("ztrio://audit/events", cache_mode="bypass")
    text = "".join(getattr(part, "text", "") for part in result.contents)
    events = [event for event in json.loads(text)["events"] if event["seq"] > after]
    return sorted(events, key=lambda event: event["seq"])
