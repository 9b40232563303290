"""A server of the MCP SDK on stdin and stdout, run by its path: `lowlevel`, or `high` for one with functions as tools.

The low-level server is the quicker one, and the one that ztrio is built on.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import anyio  # the SDK's own way to run on asyncio
import mcp_types as types
from mcp.server import MCPServer
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

__all__ = ["high", "lowlevel"]


async def _list_tools(_context: Any, _params: Any) -> types.ListToolsResult:  # noqa: ASYNC124 - the SDK awaits it
    return types.ListToolsResult(tools=[types.Tool(name="empty", input_schema={"type": "object"})])


async def _call_tool(_context: Any, _params: Any) -> types.CallToolResult:  # noqa: ASYNC124 - the SDK awaits it
    return types.CallToolResult(content=[types.TextContent(text="{}")], structured_content={})


async def lowlevel() -> None:
    """Serve the tool `empty`."""
    server: Server[Any] = Server("benchmark", version="1", on_list_tools=_list_tools, on_call_tool=_call_tool)
    async with stdio_server() as (receive, send):
        await server.run(receive, send, server.create_initialization_options())


def high() -> None:
    """Serve the tool `sleeping` as users of the SDK write it: a plain function."""
    from bench_tools import announce  # noqa: PLC0415 - on the path only when this is run by a driver

    server = MCPServer("benchmark")

    @server.tool()
    def sleeping(place: str, token: str, seconds: float) -> str:
        announce(place, token, "tool")
        time.sleep(seconds)
        announce(place, token, "finished")
        return token

    server.run("stdio")


if __name__ == "__main__":
    if sys.argv[1:] == ["high"]:
        high()
    else:
        anyio.run(lowlevel)
