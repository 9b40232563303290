"""What mcp-proxy proxies with, between its own stdin and stdout and a server that it starts; run by its path.

Its command always has HTTP on one side. This is its core, without that.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.server.stdio import stdio_server
from mcp_proxy.proxy_server import create_proxy_server

__all__ = ["serve"]


async def serve(program: str, *arguments: str) -> None:
    """Serve until stdin ends."""
    parameters = StdioServerParameters(command=program, args=list(arguments), env=dict(os.environ))
    async with stdio_client(parameters) as streams, ClientSession(*streams) as session:
        proxy: Any = await create_proxy_server(session)
        async with stdio_server() as (receive, send):
            await proxy.run(receive, send, proxy.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
