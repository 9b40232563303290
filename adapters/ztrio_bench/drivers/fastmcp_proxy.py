"""FastMCP's proxy between its own stdin and stdout and a server that it starts; run by its path, with FastMCP's Python.

One session to the server for the client's one session, as FastMCP documents it for servers with state: it starts the
server once, and is the quickest of the ways that FastMCP offers.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from fastmcp.client.transports import StdioTransport
from fastmcp.server.providers.proxy import FastMCPProxy, StatefulProxyClient

__all__ = ["serve"]


def serve(program: str, *arguments: str) -> None:
    """Serve until stdin ends."""
    transport: Any = StdioTransport(command=program, args=list(arguments), env=dict(os.environ))
    client: Any = StatefulProxyClient(transport, mode="legacy")
    proxy: Any = FastMCPProxy(client_factory=client.new_stateful)
    proxy.run("stdio", show_banner=False, log_level="ERROR")


if __name__ == "__main__":
    serve(*sys.argv[1:])
