"""A FastMCP server on stdin and stdout, run by its path."""

from __future__ import annotations

import time
from typing import Any

from bench_tools import announce
from fastmcp import FastMCP

__all__ = ["server"]

server: Any = FastMCP("benchmark")


def _run(place: str, token: str, seconds: float) -> str:
    announce(place, token, "tool")
    time.sleep(seconds)
    announce(place, token, "finished")
    return token


@server.tool()
def empty() -> None:
    """Do nothing."""


@server.tool()
def sleeping(place: str, token: str, seconds: float) -> str:
    """Sleep and return."""
    return _run(place, token, seconds)


@server.tool(timeout=0.2)
def limited(place: str, token: str) -> str:
    """Sleep longer than its limit."""
    return _run(place, token, 0.7)


if __name__ == "__main__":
    server.run("stdio", show_banner=False)
