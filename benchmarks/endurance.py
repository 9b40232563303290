"""Very many calls in a row through one supervisor: is there anything afterwards that was not there before?

    python benchmarks/endurance.py [--calls 100000] [--callers 16] [--json FILE] [--backend B] [--containment C]

Every tenth call writes a file and session state, every fiftieth runs into its time limit, every fiftieth is cancelled;
the rest return at once. Descriptors, processes, job directories, temporary files and memory are compared with what they
were after a warm-up, and shown on the way. Exit status 1: something is left, or a process has grown by more than
`--memory` MiB.
"""

import argparse
import gc
import itertools
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trio

import ztrio
from ztrio.testing.leaks import processes, resident_bytes
from ztrio_bench.environment import describe
from ztrio_bench.toolbox import toolbox

WARM_UP = 12_000  # calls; then the store has its newest 10,000 events and calls, and drops older ones
LOOKS = 10


def main(words: list[str]) -> int:
    """Run it; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=100_000, metavar="N")
    parser.add_argument("--callers", type=int, default=16, metavar="N", help="at once, a session each")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--containment", default="auto")
    parser.add_argument("--memory", type=float, default=64.0, metavar="MIB", help="most growth of any process")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the result")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="ztrio-endurance-") as folder:
        # Of this process and all below it, so that what they leave can be told.
        os.environ["TMPDIR"] = tempfile.tempdir = str(Path(folder, "tmp"))
        for name in ("tmp", "workspace"):
            Path(folder, name).mkdir()
        result = trio.run(endure, Path(folder), options)
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    for line in result["broken"]:
        sys.stderr.write(f"BROKEN {line}\n")
    sys.stderr.write("something is left\n" if result["broken"] else "everything is as it was\n")
    return int(bool(result["broken"]))


async def endure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Make all calls; what was found."""
    chosen = {"backend": options.backend, "containment": options.containment}
    async with ztrio.open_supervisor(toolbox, workspace=folder / "workspace", **chosen) as supervisor:
        run = _Run(supervisor, folder)
        began = time.monotonic()
        await run.calls(min(WARM_UP, options.calls // 8), options.callers)
        looks = [await run.look(began)]
        for _ in range(LOOKS):
            await run.calls(options.calls // LOOKS, options.callers)
            looks.append(await run.look(began))
    return {
        "environment": describe(),
        "options": {**chosen, "calls": options.calls, "callers": options.callers},
        "outcomes": dict(run.outcomes),
        "looks": looks,
        "broken": list(_broken(looks[0], looks[-1], options.memory)),
    }


class _Run:
    def __init__(self, supervisor: ztrio.Supervisor, folder: Path) -> None:
        self.supervisor = supervisor
        self.folder = folder
        self.numbers = itertools.count(1)
        self.done = 0
        self.outcomes: Counter[str] = Counter()

    async def calls(self, number: int, callers: int) -> None:
        """So many more calls."""
        last = self.done + number
        async with trio.open_nursery() as nursery:
            for caller in range(callers):
                nursery.start_soon(self._caller, f"c{caller}", last)

    async def _caller(self, name: str, last: int) -> None:
        # Each call that was begun before the last is finished, so there may be a few more.
        while self.done < last:
            self.done += 1
            self.outcomes[await self._one(next(self.numbers), name)] += 1

    async def _one(self, number: int, name: str) -> str:
        call = self.supervisor.call
        try:
            if number % 10 == 0:
                result = await call("record", {"value": number, "out": f"{name}.txt"}, session=name)
            elif number % 50 == 1:
                result = await call("nap", {"seconds": 30.0}, session=name, timeout=0.02)
            elif number % 50 == 2:
                with trio.move_on_after(0.02):
                    await call("nap", {"seconds": 30.0}, session=name)
                return "cancelled"
            else:
                result = await call("trivial", {"value": number}, session=name)
        except ztrio.ZtrioError as error:
            return error.code
        return result.outcome

    def _busy(self) -> bool:
        now = self.supervisor.statistics()
        return bool(now.slots_in_use or now.backend.starting)

    async def look(self, began: float) -> dict[str, Any]:
        """What there is now, when all calls have ended and the pool is full again."""
        with trio.move_on_after(5.0):
            while self._busy():  # noqa: ASYNC110 - nobody tells
                await trio.sleep(0.01)
        await trio.sleep(0.2)
        gc.collect()
        tree = list(_tree())
        found: dict[str, Any] = {
            "calls": self.done,
            "seconds": round(time.monotonic() - began, 1),
            "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - names, quickly
            "processes": len(tree),
            "zombies": sum(state == "Z" for _, state, _ in tree),
            "job_directories": sum(name.startswith(".ztrio-job-") for name in _names(self.folder / "workspace")),
            "temporary_files": len(_names(self.folder / "tmp")),
            # Of those that last: this process, and those below it that are older than the first call.
            "resident_bytes": {role: resident_bytes(pid) for role, _, pid in tree if role},
        }
        memory = ", ".join(f"{role} {size / 2**20:.1f} MiB" for role, size in found["resident_bytes"].items())
        shown = ", ".join(
            f"{value} {name.replace('_', ' ')}" for name, value in found.items() if isinstance(value, int)
        )
        sys.stderr.write(f"{found['seconds']:8.1f} s  {shown}; {memory}\n")
        return found


def _names(folder: Path) -> list[str]:
    return os.listdir(folder)  # noqa: PTH208 - names, quickly


def _tree() -> Iterator[tuple[str, str, int]]:
    """(role, state, pid) of this process and all below it; only those that last have a role."""
    table = processes()
    parents = {info.parent for info in table.values()}
    below, roles = {os.getpid()}, ["supervisor", "launcher", "fork server"]
    while below:
        # Of the processes on one level, the one that lasts has children: workers that are ready, at the end.
        role = roles.pop(0) if roles else ""
        for pid in below:
            yield role if pid in parents else "", table[pid].state, pid
        below = {pid for pid, info in table.items() if info.parent in below}


def _broken(before: dict[str, Any], after: dict[str, Any], most: float) -> Iterator[str]:
    for name in ("descriptors", "processes", "zombies", "job_directories", "temporary_files"):
        if after[name] > before[name]:
            yield f"{name.replace('_', ' ')}: {before[name]} after the warm-up, {after[name]} at the end"
    for role, size in after["resident_bytes"].items():
        grown = (size - before["resident_bytes"].get(role, size)) / 2**20
        if grown > most:
            yield f"memory of the {role}: grew by {grown:.1f} MiB"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
