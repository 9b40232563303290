"""Runs the walk along the walls of the sandbox as whoever starts it, and prints what was found as JSON."""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import trio

import ztrio
from ztrio.workers import linux


async def walk(tools: str, workspace: Path, place: Path, **options: Any) -> dict[str, Any]:
    """Call `change`, `privileges`, `spy` and `edit`."""
    toolbox = ztrio.load_toolbox(tools)
    async with ztrio.open_supervisor(toolbox, workspace=workspace, sandbox="require", **options) as supervisor:
        own = [str(workspace / "cache" / "own"), "/dev/shm/ztrio-test-own"]
        changed = await supervisor.call("change", {"out": "out", "place": str(place), "own": own})
        found = {
            **changed.value,
            "out": (workspace / "out").read_text(),
            "privileges": (await supervisor.call("privileges")).value,
            "spy": (await supervisor.call("spy", {"pid": os.getpid()})).value,
            "dumpable": [linux.is_dumpable()],
            "fdinfo": own_fdinfo(),
        }
        found["edit"] = (await supervisor.call("edit", {"site": "site", "out": "edited"})).value
        starts = [event for event in await supervisor.events() if event["event"] == "start"]
        found["labels"] = sorted({event["sandbox"] for event in starts})
    found["dumpable"].append(linux.is_dumpable())
    async with ztrio.open_supervisor(toolbox, workspace=workspace, sandbox="off", **options) as supervisor:
        found["spy without Landlock"] = (await supervisor.call("spy", {"pid": os.getpid()})).value
    return found


def own_fdinfo() -> bool:
    """Whether this process can read what its pidfds are about, though it cannot be traced."""
    fd = os.pidfd_open(os.getpid())
    try:
        return f"Pid:\t{os.getpid()}" in Path(f"/proc/self/fdinfo/{fd}").read_text()
    finally:
        os.close(fd)


if __name__ == "__main__":
    ask = partial(walk, sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), backend=sys.argv[4])
    print(json.dumps(trio.run(ask)))
