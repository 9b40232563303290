"""Who takes part: ztrio, the floors, and peers that are installed on demand, each into an environment of its own."""

from __future__ import annotations

from typing import Final

import attrs

__all__ = ["ALWAYS", "PEERS", "SUBJECTS", "Subject"]


@attrs.frozen(kw_only=True)
class Subject:
    """One subject.

    Args:
        name: Its key, also on the command line.
        text: What it is.
        driver: Module in `ztrio_bench.drivers`, or the path of a script.
        arguments: Further words for its command line.
        requirement: What to install for it; None where ztrio's own environment has it.
        python: (major, minor) of the interpreter that it needs; any when None.
        cases: Cases that it can do at all.
    """

    name: str
    text: str
    driver: str
    arguments: tuple[str, ...] = ()
    requirement: str | None = None
    python: tuple[int, int] | None = None
    cases: tuple[str, ...]


_POOL: Final = ("call", "throughput", "cancel", "timeout", "orphans", "stall", "memory")

SUBJECTS: Final = {
    subject.name: subject
    for subject in (
        Subject(name="ztrio", text="this", driver="on_ztrio", cases=(*_POOL, "publication", "stdio")),
        Subject(
            name="floor",
            text="the bare system calls on this machine",
            driver="floor",
            cases=("call", "publication", "cancel", "orphans", "stall", "memory", "stdio"),
        ),
        Subject(
            name="zaptrace",
            text="ZapTrace's execute_mutating_tool (zaptrace-eda)",
            driver="on_zaptrace",
            requirement="zaptrace-eda>=0.3.5,<0.4",
            python=(3, 13),
            cases=_POOL,
        ),
        Subject(
            name="pebble",
            text="pebble.ProcessPool",
            driver="on_pebble",
            requirement="pebble>=5.2,<6",
            cases=_POOL,
        ),
        Subject(
            name="trio-parallel",
            text="trio_parallel.run_sync(kill_on_cancel=True)",
            driver="on_trio_parallel",
            requirement="trio-parallel>=1.3,<2",
            cases=_POOL,
        ),
        Subject(
            name="mcp-sdk",
            text="the MCP Python SDK's asyncio stdio server",
            driver="on_mcp_sdk",
            cases=("stdio", "cancel"),
        ),
        Subject(
            name="fastmcp",
            text="FastMCP's stdio server and tool timeout",
            driver="on_fastmcp",
            requirement="fastmcp>=4,<5",
            cases=("stdio", "timeout", "cancel"),
        ),
    )
}

ALWAYS: Final = ("ztrio", "floor")
PEERS: Final = tuple(name for name in SUBJECTS if name not in ALWAYS)
