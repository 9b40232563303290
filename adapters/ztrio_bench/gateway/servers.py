"""The servers behind the ways: the same processes for all, and each call costs them as little as a server can cost.

`echo` is the SDK's own low-level server, the quickest that can be built on it: behind it a proxy shows most. `time` is
one that people use, published and pinned. `silent` has no library, because nothing is to be learnt from it but when it
answers: late, or never.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs

from ztrio_bench import drivers
from ztrio_bench.subjects import Subject

__all__ = ["ECHO", "SERVERS", "SILENT", "TIME", "Server"]

_TEXT: Final = "All that is asked is that it comes back as it was. " * 4  # 204 bytes, as long as a usual argument


@attrs.frozen(kw_only=True)
class Server:
    """A server that is measured.

    Args:
        name: Its key.
        text: What it is.
        package: What is installed for it, as a subject; None where ztrio's own environment has it.
        arguments: What its interpreter is told.
        call: Parameters of the call that is timed.
        right: Whether a result of that call is what it has to be.
    """

    name: str
    text: str
    package: Subject | None = None
    arguments: tuple[str, ...]
    call: dict[str, Any] = attrs.field(factory=dict)
    right: Callable[[dict[str, Any]], bool] = attrs.field(default=bool)

    def command(self, python: str | None = None) -> list[str]:
        """Program and arguments.

        Args:
            python: The interpreter that has its package; this one when there is none.
        """
        return [python or sys.executable, *self.arguments]


def _script(name: str) -> str:
    return str(Path(drivers.__file__).with_name(name))


ECHO: Final = Server(
    name="echo",
    text="the MCP SDK's low-level server",
    arguments=(_script("echo_server.py"),),
    call={"name": "echo", "arguments": {"text": _TEXT}},
    right=lambda result: bool(result["content"][0]["text"] == _TEXT),
)
TIME: Final = Server(
    name="time",
    text="mcp-server-time of PyPI",
    package=Subject(name="mcp-server-time", text="", driver="", requirement="mcp-server-time==2026.10.19", cases=()),
    arguments=("-m", "mcp_server_time", "--local-timezone", "UTC"),
    call={"name": "get_current_time", "arguments": {"timezone": "UTC"}},
    right=lambda result: "UTC" in result["content"][0]["text"],
)
SILENT: Final = Server(
    name="silent", text="a server that answers late, or never", arguments=("-I", "-S", _script("silent_server.py"))
)
SERVERS: Final = {server.name: server for server in (ECHO, TIME)}
