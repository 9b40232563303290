"""Trying the rungs of the containment ladder, by doing: a little tree is made, killed, and looked for.

Whether a rung works is decided by kernels, container runtimes, security modules and limits together, and no version or
flag tells. So each trial makes what a call makes, in a process of its own that can be thrown away: a worker whose
child daemonises (a new session, a double fork), which then is ended the way the rung ends it. The daemon holds the
write end of a pipe; the end of that pipe is how its death is seen, by other means than the rung's own.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from ztrio.workers import cgroups
from ztrio.workers.control import Trial
from ztrio.workers.job_init import AGREED, ALL_DEAD, KILL, VERDICT, guard
from ztrio.workers.linux import set_parent_death_signal
from ztrio.workers.namespaces import (
    enter_pid_namespace,
    leave_pid_namespace,
    own_pid_namespace,
    unshare_pid_namespace,
)

__all__ = ["try_rungs"]

_PATIENCE: Final = 5.0  # seconds for one trial
_DAEMON_LIFE: Final = 30  # seconds after which the kernel ends the daemon of a trial that failed


def try_rungs(
    rungs: Sequence[str], *, cgroup: str | None = None, try_all: bool = False
) -> tuple[str | None, list[Trial]]:
    """Try rungs in this order.

    Args:
        rungs: Their names.
        cgroup: The cgroup to make others in, or None where there is none.
        try_all: Go on after the first that works.

    Returns:
        The first that works, or None; and what came of each that was tried.
    """
    chosen, trials = None, []
    for rung in rungs:
        reason = _in_a_process(partial(_TRIALS[rung], cgroup))
        trials.append(Trial(rung, not reason, reason))
        if not reason and chosen is None:
            chosen = rung
            if not try_all:
                break
    return chosen, trials


def _in_a_process(attempt: Callable[[], str]) -> str:
    """Make an attempt in a process of its own; why it failed, or empty."""
    read, write = os.pipe()
    tester = os.fork()
    if tester == 0:
        try:
            os.close(read)
            set_parent_death_signal(signal.SIGKILL)
            reason = attempt()
        except BaseException as error:  # noqa: BLE001, ASYNC103 - not under trio; it ends here whatever it was
            reason = str(error) or type(error).__name__
        finally:
            os.write(write, reason.encode()[:2000])
            os._exit(0)
    os.close(write)
    try:
        if not _readable(read, _PATIENCE):
            os.kill(tester, signal.SIGKILL)
            return f"nothing happened for {_PATIENCE:g} s"
        return os.read(read, 2000).decode("utf-8", "replace")
    finally:
        os.close(read)
        os.waitpid(tester, 0)


def _try_pidns(_: str | None) -> str:
    enter_pid_namespace()
    keeper = os.fork()
    if keeper == 0:
        set_parent_death_signal(signal.SIGKILL)
        while True:
            signal.pause()
    try:
        return _in_a_process(_in_namespace)
    finally:
        os.kill(keeper, signal.SIGKILL)
        os.waitpid(keeper, 0)


def _in_namespace() -> str:
    own = own_pid_namespace()
    alive, held = os.pipe()
    unshare_pid_namespace()
    worker = os.fork()
    if worker == 0:
        os.close(alive)
        _be_a_tree(held)
    leave_pid_namespace(own)
    os.close(held)
    pidfd = os.pidfd_open(worker)
    if os.read(alive, 1) != b"d":
        return "the tree could not be made"
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    if not _readable(pidfd, _PATIENCE):
        return "PID 1 of a namespace was killed and did not end"
    os.waitpid(worker, 0)
    return "" if _readable(alive, 0) else "PID 1 of a namespace ended before the others in it"


def _try_job_init(_: str | None) -> str:
    alive, held = os.pipe()
    verdict, spoken = os.pipe()
    job = os.fork()
    if job == 0:
        try:
            os.close(alive)
            os.close(verdict)
            guard(spoken)
            os.close(spoken)
            _be_a_tree(held)
        finally:
            os._exit(1)
    os.close(held)
    os.close(spoken)
    if os.read(alive, 1) != b"d":
        return "the tree could not be made"
    os.kill(job, KILL)
    if os.waitstatus_to_exitcode(os.waitpid(job, 0)[1]) != AGREED:
        return "the init of a job did not see its end"
    if not os.read(verdict, VERDICT.size).startswith(ALL_DEAD):
        return "the init of a job said nothing"
    return "" if _readable(alive, 0) else "the init of a job ended before its descendants"


def _try_cgroup(cgroup: str | None) -> str:
    if cgroup is None:
        return "no cgroup (version 2) is mounted"
    alive, held = os.pipe()
    group = cgroups.make(Path(cgroup), f"trial-{os.getpid()}")
    try:
        worker = os.fork()
        if worker == 0:
            try:
                os.close(alive)
                (group / "cgroup.procs").write_text("0")
                _be_a_tree(held)
            finally:
                os._exit(1)
        os.close(held)
        if os.read(alive, 1) != b"d":
            return "no process could be put into a cgroup"
        cgroups.kill(group)
        os.waitpid(worker, 0)
        if not _readable(alive, _PATIENCE):
            return "cgroup.kill killed not everybody"
        deadline = time.monotonic() + _PATIENCE
        while cgroups.is_populated(group):
            if time.monotonic() > deadline:
                return "a cgroup whose processes were killed stays populated"
            time.sleep(0.0005)
    finally:
        cgroups.kill(group)
        cgroups.remove(group)
    return ""


def _try_group(_: str | None) -> str:
    return ""  # sessions and groups are everywhere


_TRIALS: Final[dict[str, Callable[[str | None], str]]] = {
    "pidns": _try_pidns,
    "cgroup": _try_cgroup,
    "job-init": _try_job_init,
    "group": _try_group,
}


def _be_a_tree(held: int) -> None:
    """A worker with a daemon, which says that it is there and holds the pipe."""
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        signal.alarm(_DAEMON_LIFE)
        os.write(held, b"d")
        while True:
            signal.pause()
    os.close(held)
    signal.alarm(_DAEMON_LIFE)
    while True:
        signal.pause()


def _readable(fd: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
