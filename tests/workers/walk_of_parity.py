"""Runs the tool that looks around in one way, and says what it saw; as a program it prints that as JSON."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import trio

import ztrio
from tests.workers.tools_for_parity import toolbox

WAYS = {
    "spawn, group": ("spawn", "group"),
    "zygote, pidns": ("zygote", "pidns"),
    "zygote, cgroup": ("zygote", "cgroup"),
    "zygote, job-init": ("zygote", "job-init"),
    "zygote, group": ("zygote", "group"),
}


async def ended(supervisor: ztrio.Supervisor, tool: str, **arguments: Any) -> str:
    """What a call returns, or how its worker died."""
    try:
        return str((await supervisor.call(tool, arguments)).value)
    except ztrio.WorkerFailed as error:
        status = error.details["exit_status"]
        return f"killed by {signal.Signals(-status).name}" if status < 0 else f"ends with {status}"


async def observe(workspace: Path, way: str) -> dict[str, str]:
    """What a tool sees."""
    backend, containment = WAYS[way]
    async with ztrio.open_supervisor(
        toolbox,
        workspace=workspace,
        backend=backend,  # type: ignore[arg-type]
        containment=containment,  # type: ignore[arg-type]
    ) as supervisor:
        call = await supervisor.call("look_around", {"out": "out", "supervisor": os.getpid()})
        seen: dict[str, str] = call.value
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGKILL):
            seen[f"`{number.name}` to itself"] = await ended(supervisor, "signal_self", number=int(number))
        seen["`os._exit(4)`"] = await ended(supervisor, "leave")
        seen["`os.getpid()` with `init=True`"] = await ended(supervisor, "with_init")
        numbers = [(await supervisor.call("chance")).value for _ in range(3)]
        seen["random numbers"] = str([len({number[index] for number in numbers}) for index in range(3)])
    return seen


if __name__ == "__main__":
    print(json.dumps(trio.run(observe, Path(sys.argv[1]), sys.argv[2])))
