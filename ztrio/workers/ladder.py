"""The containment ladder: which ways there are to end a worker with everything it started, and which of them work here.

| rung | the tree is | and ends with | seen empty by |
|---|---|---|---|
| `pidns` | a PID namespace whose PID 1 is the worker | SIGKILL to PID 1 | the kernel reports PID 1's exit last |
| `cgroup` | a cgroup (version 2) of its own | `cgroup.kill` | `populated 0` |
| `job-init` | below a child subreaper | the subreaper, which kills its children | it has none left, and says so |
| `group` | a session and process group | SIGKILL to the group | the process table |

The first three see every descendant. The last does not see one that makes its own session, and says so: `partial`.
The strongest that works is chosen by doing it; what did not work is kept with its reason.
"""

from __future__ import annotations

from typing import Final, Literal

import attrs

from ztrio.errors import InvalidArguments

__all__ = ["COMPLETE", "RUNGS", "Containment", "ContainmentReport", "RungTrial", "complete", "rungs_for"]

Containment = Literal["auto", "require", "pidns", "cgroup", "job-init", "group"]

RUNGS: Final = ("pidns", "cgroup", "job-init", "group")
"""The strongest first."""
COMPLETE: Final = frozenset(("pidns", "cgroup", "job-init"))
"""Rungs that see every descendant."""


@attrs.frozen
class RungTrial:
    """What came of trying something.

    Args:
        name: A rung, or a backend.
        works: Whether it works here.
        reason: Why not, in words for people; empty where it works.
    """

    name: str
    works: bool
    reason: str = ""


@attrs.frozen(kw_only=True)
class ContainmentReport:
    """What was chosen to run workers, and why.

    Args:
        backend: Name of the backend.
        rung: The rung of the ladder that its workers stand on.
        complete: Whether that sees every descendant.
        rungs: The rungs that were tried, in that order; those below the first that works usually are not.
        backends: The backends that were tried, in that order.
    """

    backend: str
    rung: str
    complete: bool
    rungs: tuple[RungTrial, ...] = ()
    backends: tuple[RungTrial, ...] = ()


def complete(rung: str) -> bool:
    """Whether the rung sees every descendant."""
    return rung in COMPLETE


def rungs_for(containment: str) -> tuple[str, ...]:
    """The rungs that may be used, the strongest first.

    Raises:
        InvalidArguments: there is no such choice.
    """
    if containment == "auto":
        return RUNGS
    if containment == "require":
        return tuple(rung for rung in RUNGS if complete(rung))
    if containment in RUNGS:
        return (containment,)
    choices = ", ".join(("auto", "require", *RUNGS))
    raise InvalidArguments(f"There is no containment {containment!r}; choose from {choices}. Nothing was started.")
