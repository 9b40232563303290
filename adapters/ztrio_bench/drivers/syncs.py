"""The bare system calls of a durable publication, and what it shares with ztrio's; of the standard library only.

Both replace files of 2 kB of the same directory, in the same order and with the same number of syncs: the content of
each, one record of what is about to happen, the renames, the names.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ztrio_bench.drivers.kit import Samples, now

__all__ = ["CONTENT", "bare", "names", "repeat", "workspace_of"]

CONTENT: Final = b"x" * 2000
_WARM: Final = 3  # repetitions before the first that counts


def repeat(request: dict[str, Any], samples: Samples, once: Callable[[int], int]) -> None:
    """Add the nanoseconds that `once(number)` returns, while neither count nor time have run out."""
    deadline = time.monotonic() + request["seconds"]
    for number in range(_WARM + request["count"]):
        if number > _WARM and time.monotonic() >= deadline:
            return
        took = once(number)
        if number >= _WARM:
            samples.add("latency", took)


def names(request: dict[str, Any]) -> list[str]:
    """The files that are published."""
    return [f"file{number}" for number in range(int(request["variant"]))]


def workspace_of(request: dict[str, Any]) -> Path:
    """The directory in which they stand, old ones in place."""
    workspace = Path(request["folder"]) / "published"
    workspace.mkdir(exist_ok=True)
    for name in names(request):
        (workspace / name).write_bytes(b"old")
    return workspace


def bare(request: dict[str, Any], samples: Samples) -> None:
    """A round of the bare system calls."""
    workspace = workspace_of(request)
    slots = [workspace / f".slot-{name}" for name in names(request)]
    for slot in slots:
        slot.mkdir(exist_ok=True)
    with (Path(request["folder"]) / "intents").open("ab", buffering=0) as log:

        def once(_: int) -> int:
            for slot in slots:
                (slot / "new").write_bytes(CONTENT)
            start = now()
            for slot in slots:
                _sync(slot / "new")
            log.write(bytes(4096))
            os.fsync(log.fileno())
            for name, slot in zip(names(request), slots, strict=True):
                (slot / "new").rename(workspace / name)
            for directory in (workspace, *slots):
                _sync(directory)
            return now() - start

        repeat(request, samples, once)
    samples.facts["what"] = "fsync, rename, fsync"


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
