"""FastMCP: its stdio server, and the time limit of its tools."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ztrio_bench.drivers import stdio
from ztrio_bench.drivers.kit import Unsupported, supported, version_of

__all__ = ["hello", "run"]

SECONDS = 0.7  # for a tool that is cancelled or runs into its limit


def hello(request: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - the same for every driver
    """Who this is."""
    return {"version": version_of("fastmcp")}


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Do one round."""
    supported(request, ("stdio", "timeout", "cancel"))
    command = [sys.executable, str(Path(__file__).with_name("fastmcp_server.py"))]
    if request["case"] == "stdio":
        return stdio.round_trips(command, request)
    if request["case"] == "timeout":
        return stdio.timeouts(command, request, limit=0.2, seconds=SECONDS)
    if request["variant"] != "sleeping" or request["load"]:
        raise Unsupported("it runs tools in threads of the server, which nothing can end")
    return stdio.cancels(command, request, SECONDS)
