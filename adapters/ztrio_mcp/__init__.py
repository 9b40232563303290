"""ztrio's MCP server over stdio: `run_stdio` for a process, `serve_stdio` for a program that runs trio already."""

from ztrio_mcp.life import EXIT_BOUND, SIGNALS, Ending
from ztrio_mcp.serve import FAILURE_STATUS, run_stdio, serve_stdio
from ztrio_mcp.stdio import FRAME_LIMIT, TransportStatistics

__all__ = [
    "EXIT_BOUND",
    "FAILURE_STATUS",
    "FRAME_LIMIT",
    "SIGNALS",
    "Ending",
    "TransportStatistics",
    "run_stdio",
    "serve_stdio",
]
