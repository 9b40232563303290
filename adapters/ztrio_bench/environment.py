"""The machine and the software of a run, without anything that names whose it is: no host name, no path, no user."""

from __future__ import annotations

import os
import platform
import re
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["clock_step", "describe"]

_LIBRARIES = ("ztrio", "trio", "msgspec", "mcp", "attrs", "hdrhistogram")


def describe() -> dict[str, Any]:
    """What figures depend on."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "system": platform.system(),
        "kernel": re.match(r"[\d.]*", platform.release())[0],  # type: ignore[index] # matches always; builds have names
        "machine": platform.machine(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "libraries": {name: found for name in _LIBRARIES if (found := _version(name))},
        "root": os.geteuid() == 0,
        "load_before": round(os.getloadavg()[0], 2),
        "clock": "perf_counter",
        "clock_resolution_ns": round(time.get_clock_info("perf_counter").resolution * 1e9, 3),
        "clock_step_ns": clock_step(),
    }


def clock_step() -> int:
    """The least difference of two readings of the clock that is not zero, in nanoseconds, seen in a thousand tries."""
    steps = []
    for _ in range(1000):
        start = time.perf_counter_ns()
        while (end := time.perf_counter_ns()) == start:
            pass
        steps.append(end - start)
    return min(steps)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))]
    return names[0] if names else platform.machine()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
