"""The MCP Python SDK's own server on its own asyncio stdio transport."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ztrio_bench.drivers import stdio
from ztrio_bench.drivers.kit import Unsupported, supported, version_of

__all__ = ["hello", "run"]

SECONDS = 0.7  # for a tool that is cancelled


def hello(request: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - the same for every driver
    """Who this is."""
    return {"version": version_of("mcp")}


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Do one round."""
    supported(request, ("stdio", "cancel"))
    command = [sys.executable, str(Path(__file__).with_name("sdk_server.py"))]
    if request["case"] == "stdio":
        return stdio.round_trips([*command, "lowlevel"], request)
    if request["variant"] != "sleeping" or request["load"]:
        raise Unsupported("it runs tools in threads of the server, which nothing can end")
    return stdio.cancels([*command, "high"], request, SECONDS)
