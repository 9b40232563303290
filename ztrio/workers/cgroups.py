"""Control groups, version 2, as containment: what is born in a group stays in it, however it daemonises.

`cgroup.kill` kills everybody in a group in one step, forks that race with it included (Linux 5.14), and `populated 0`
in `cgroup.events` says that nobody alive is left. Only a process that may write to other groups gets out: root, or the
owner of a delegated subtree.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

__all__ = ["find", "is_populated", "kill", "make", "remove", "sweep"]

_PREFIX: Final = "ztrio-"
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")  # proc_pid_mountinfo(5): space, tab, newline and backslash


def find() -> Path | None:
    """The cgroup of this process in the version-2 hierarchy, or None where that is not mounted."""
    try:
        own = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except (OSError, StopIteration):
        return None
    for line in mounts:
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            root, point = (_unescaped(word) for word in before.split()[3:5])
            path = own[3:]
            if root != "/" and path.startswith(root):
                path = path[len(root) :]
            return Path(point, path.lstrip("/"))
    return None


def _unescaped(word: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), word)


def make(parent: Path, name: str) -> Path:
    """Make a group.

    Raises:
        OSError: it cannot be made or not be used for killing; then it is not there.
    """
    group = parent / f"{_PREFIX}{name}"
    group.mkdir()
    if not (group / "cgroup.kill").exists():
        group.rmdir()
        raise OSError("this kernel has no cgroup.kill (it came with Linux 5.14)")
    return group


def kill(group: Path) -> None:
    """SIGKILL to everybody in the group and below it."""
    fd = os.open(group / "cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, b"1")
    finally:
        os.close(fd)


def is_populated(group: Path) -> bool:
    """Whether anybody alive is in the group or below it."""
    fd = os.open(group / "cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"populated 0" not in os.read(fd, 4096)
    finally:
        os.close(fd)


def remove(group: Path) -> None:
    """Remove a group that nobody is in, with the groups that somebody made below it."""
    for folder, _, _ in os.walk(group, topdown=False):
        try:
            Path(folder).rmdir()
        except OSError:
            return  # somebody is in it; the kernel keeps it


def sweep(parent: Path) -> None:
    """Remove the empty groups of supervisors that have ended; their names begin with their process id."""
    for group in parent.glob(f"{_PREFIX}*"):
        pid = group.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            remove(group)
