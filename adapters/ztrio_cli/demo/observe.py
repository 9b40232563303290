"""What can be seen from outside: the process table and the files. Nothing here asks ztrio anything."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import attrs

__all__ = ["Process", "Tree", "below", "job_directories", "processes", "read_tree", "still_alive", "unfinished_charts"]

_PROC: Final = Path("/proc")
_TIMES: Final = 5  # words that `ps -o lstart` prints: "Mon Nov 30 15:43:00 2026"

Tree = dict[str, str]
"""Path relative to a root → SHA-256 of the file; a missing root is an empty tree."""


@attrs.frozen
class Process:
    """One process.

    Args:
        pid: Its process id.
        started: When it started, in the platform's own notation; with the pid it names the process for ever.
        parent: Process id of its parent when it was seen.
        group: Its process group when it was seen.
        command: Its command line.
    """

    pid: int
    started: str
    parent: int = attrs.field(eq=False)
    group: int = attrs.field(eq=False)
    command: str = attrs.field(eq=False)


def processes() -> dict[int, Process]:
    """Every live process, by pid. Zombies are not alive."""
    found = _from_proc() if (_PROC / "self" / "stat").exists() else _from_ps()
    return {process.pid: process for process in found}


def below(ancestor: int, table: dict[int, Process]) -> list[Process]:
    """The descendants of `ancestor`, by pid."""
    found: set[int] = set()
    waiting = [ancestor]
    while waiting:
        parent = waiting.pop()
        children = {process.pid for process in table.values() if process.parent == parent} - found
        found |= children
        waiting.extend(children)
    return [table[pid] for pid in sorted(found)]


def still_alive(seen: Iterable[Process]) -> list[Process]:
    """Those of `seen` that are alive now; a pid that was given to another process does not count."""
    table = processes()
    return [process for process in seen if table.get(process.pid) == process]


def read_tree(root: Path) -> Tree:
    """The content of every file below `root` but ztrio's own. Files that vanish meanwhile are left out."""
    tree = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".ztrio")]
        for name in names:
            path = Path(folder, name)
            try:
                tree[path.relative_to(root).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
            except FileNotFoundError:
                continue
    return tree


def job_directories(workspace: Path) -> list[str]:
    """Staging folders that are there now, relative to the workspace."""
    found = [
        os.path.relpath(os.path.join(folder, name), workspace)  # noqa: PTH118 - as os.walk has it
        for folder, names, _ in os.walk(workspace)  # which, unlike rglob, does not mind what vanishes meanwhile
        for name in names
        if name.startswith(".ztrio-job-")
    ]
    return sorted(found)


def unfinished_charts(workspace: Path) -> list[str]:
    """Charts that are half written: they have a beginning and no end. Relative to the workspace."""
    found = []
    for folder, _, names in os.walk(workspace):
        for name in names:
            path = Path(folder, name)
            if path.suffix == ".svg" and _half_written(path):
                found.append(path.relative_to(workspace).as_posix())
    return found


def _half_written(path: Path) -> bool:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return text.startswith("<svg") and not text.rstrip().endswith("</svg>")


def _from_proc() -> Iterator[Process]:
    for entry in os.listdir(_PROC):  # noqa: PTH208 - names are all that is needed
        if not entry.isdecimal():
            continue
        try:
            fields = (_PROC / entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            command = (_PROC / entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        # Fields of proc(5) from the third on: state, parent, group, …, start time in ticks since boot.
        if fields[0] not in ("Z", "X"):
            yield Process(int(entry), fields[19], int(fields[1]), int(fields[2]), command.strip())


def _from_ps() -> Iterator[Process]:
    listing = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,pgid=,state=,lstart=,command="], capture_output=True, check=True, text=True
    )
    for line in listing.stdout.splitlines():
        pid, parent, group, state, *rest = line.split()
        if not state.startswith("Z"):
            started, command = " ".join(rest[:_TIMES]), " ".join(rest[_TIMES:])
            yield Process(int(pid), started, int(parent), int(group), command)
