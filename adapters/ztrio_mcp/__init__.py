"""MCP over stdio: ztrio's own server, and what stands in front of a foreign one.

    serve, server, …    `run_stdio` for a process, `serve_stdio` for a program that runs trio already
    gateway             `ztrio wrap`

The server is built on the MCP SDK, whose import takes most of a second. The gateway needs none of it and starts as
often as its client does; so what the server exports is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ztrio_mcp.life import EXIT_BOUND, FAILURE_STATUS, SIGNALS, Ending
    from ztrio_mcp.serve import run_stdio, serve_stdio
    from ztrio_mcp.stdio import FRAME_LIMIT, TransportStatistics
else:

    def __getattr__(name: str) -> object:
        """What is exported, when it is asked for. Unknown to type checkers, which are to know what there is not."""
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"ztrio_mcp.{_PLACES[name]}"), name)
        return value


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

_PLACES = {
    "EXIT_BOUND": "life",
    "SIGNALS": "life",
    "Ending": "life",
    "FAILURE_STATUS": "life",
    "run_stdio": "serve",
    "serve_stdio": "serve",
    "FRAME_LIMIT": "stdio",
    "TransportStatistics": "stdio",
}
