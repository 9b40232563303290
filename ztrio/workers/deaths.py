"""Saying that it was a limit, where the supervisor only sees that a worker was killed.

The kernel ends a process that used its processor time with SIGKILL, as many others may. What tells them apart is the
time it has used, which can be read for as long as it is not reaped.
"""

from __future__ import annotations

from typing import Final

from ztrio.errors import WorkerFailed
from ztrio.policies import Limits
from ztrio.workers.containment import cpu_seconds
from ztrio.workers.denials import Denial

__all__ = ["explain_death", "with_limit"]

_CPU_SLACK: Final = 0.1  # seconds; processor time is counted in clock ticks
# Numbers, because not every platform that imports this has the names. Below an init a signal shows as 128 + its number;
# None is where nobody can tell how it ended.
_KILLED: Final = (-9, 128 + 9, -24, 128 + 24, None)  # SIGKILL; SIGXCPU, where a system sends that at the hard limit
_CRASHED: Final = (-4, -6, -7, -11, 128 + 4, 128 + 6, 128 + 7, 128 + 11)  # SIGILL, SIGABRT, SIGBUS, SIGSEGV


def with_limit(error: WorkerFailed, limits: Limits | None, pid: int) -> WorkerFailed:
    """Name the limit that a worker died of, if it was one.

    Args:
        error: The failure.
        limits: The worker's limits.
        pid: The worker, not reaped yet.

    Returns:
        `error`, or one that says more.
    """
    if error.code != "WORKER_DIED" or limits is None:
        return error
    denial = explain_death(limits, status=error.details.get("exit_status"), cpu=cpu_seconds(pid))
    if denial is None:
        return error
    return WorkerFailed(f"{error.message} {denial.sentence}", code=error.code, limit=denial.limit, **error.details)


def explain_death(limits: Limits | None, *, status: int | None, cpu: float | None) -> Denial | None:
    """Why a worker died, if its limits may be the reason.

    Args:
        limits: Its limits.
        status: Its exit status, negative for a signal; None where it is not known.
        cpu: Seconds of processor time it has used; None where that is not known.
    """
    if limits is None:
        return None
    if limits.cpu is not None and cpu is not None and status in _KILLED and cpu >= limits.cpu - _CPU_SLACK:
        sentence = f"It had used the {limits.cpu} s of processor time it may (Limits.cpu). Raise the limit, or do less."
        return Denial(sentence=sentence, limit="cpu")
    if limits.memory is not None and status in _CRASHED:
        sentence = f"It may have run out of its {limits.memory} bytes of memory (Limits.memory)."
        return Denial(sentence=sentence, limit="memory")
    return None
