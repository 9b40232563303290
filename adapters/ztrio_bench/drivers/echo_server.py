"""A low-level server of the MCP SDK on stdin and stdout, run by its path, with one tool that returns its argument."""

from __future__ import annotations

from typing import Any

import anyio  # the SDK's own way to run on asyncio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

__all__ = ["serve"]

_TOOL = types.Tool(
    name="echo",
    description="Say it again.",
    input_schema={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
)


async def _list_tools(_context: Any, _params: Any) -> types.ListToolsResult:  # noqa: ASYNC124 - the SDK awaits it
    return types.ListToolsResult(tools=[_TOOL])


async def _call_tool(_context: Any, params: Any) -> types.CallToolResult:  # noqa: ASYNC124 - the SDK awaits it
    return types.CallToolResult(content=[types.TextContent(text=params.arguments["text"])])


async def serve() -> None:
    """Serve until stdin ends."""
    server: Server[Any] = Server("benchmark", version="1", on_list_tools=_list_tools, on_call_tool=_call_tool)
    async with stdio_server() as (receive, send):
        await server.run(receive, send, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(serve)
