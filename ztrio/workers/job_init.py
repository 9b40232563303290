"""A process above the worker that ends with it: the init of one job.

Two uses. On the rung `job-init` it is a child subreaper: whatever a tool starts, however it daemonises, becomes a child
of this process when its own parent ends. So killing children until there are none (`ECHILD`) empties the tree, and
`ECHILD` is the proof. It says so by a word on a pipe that only it holds, and by its exit status; ended by a signal
itself, it has proven nothing.

In a PID namespace it is PID 1 for tools that need a real one (`init=True`): it reaps what is re-parented to it and
passes SIGTERM on. There the kernel kills the rest when it ends.
"""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Collection
from typing import Final

from ztrio.workers.linux import set_dumpable
from ztrio.workers.namespaces import children, use_as_subreaper
from ztrio.workers.prelude import close_all_but

__all__ = ["AGREED", "ALL_DEAD", "KILL", "SOFT", "VERDICT", "guard", "kill_all_children", "run_as_init"]

SOFT: Final = signal.SIGHUP
"""Asks a guard to pass SIGTERM on to the worker's group."""
KILL: Final = signal.SIGTERM
"""Asks a guard to kill everything; also sent by the kernel when the fork server ends."""
VERDICT: Final = struct.Struct("<8si")
"""What a guard writes when nobody is left: the agreed word, and how the worker ended (as `waitpid` has it)."""
ALL_DEAD: Final = b"all dead"
AGREED: Final = 99
"""Exit status of a process that has seen all its descendants dead."""

_PAUSE: Final = 0.001  # seconds between looks while something dies
_WAITED: Final = frozenset((SOFT, KILL, signal.SIGCHLD))


def guard(verdict: int) -> None:
    """Become the guard of a worker. Returns in the worker, a new child; never in the guard.

    Args:
        verdict: Write end of the pipe for the verdict; the worker has to close it.
    """
    use_as_subreaper()
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
    # Out of the launcher's group, whose lifeline sends SIGKILL: a guard has to do its work when the rest is gone.
    os.setsid()
    # A tool of the same user must not be able to write a verdict through /proc.
    set_dumpable(False)
    worker = os.fork()
    if worker == 0:
        set_dumpable(True)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        return
    try:
        close_all_but(verdict)
        ended: dict[int, int] = {}
        _wait_for(worker, ended)
        ended |= kill_all_children()
        os.write(verdict, VERDICT.pack(ALL_DEAD, ended[worker]))
        os._exit(AGREED)
    finally:
        os._exit(1)


def _wait_for(worker: int, ended: dict[int, int]) -> None:
    """Wait until the worker ends or everything is to be killed, reaping what ends meanwhile."""
    while worker not in ended:
        number = signal.sigwait(_WAITED)
        if number == KILL:
            return
        if number == SOFT:
            _kill_group(worker, signal.SIGTERM)
        while _reap_any(ended):
            pass


def kill_all_children(spare: Collection[int] = ()) -> dict[int, int]:
    """Kill this process's children, and those who become its children thereby, until there are none.

    The process has one thread, so nobody else takes a child away while the list is read, and an empty list is exact.

    Args:
        spare: Children to leave alone.

    Returns:
        Process id → status as `waitpid` has it, of those who were killed.
    """
    ended: dict[int, int] = {}
    while alive := [pid for pid in children() if pid not in spare]:
        for pid in alive:
            os.kill(pid, signal.SIGKILL)  # unreaped, so the number is theirs
        reaped = [pid for pid in alive if _reap(pid, ended)]
        if not reaped:
            signal.sigtimedwait((signal.SIGCHLD,), _PAUSE)  # where SIGCHLD is not blocked, only a pause
    return ended


def _reap(pid: int, ended: dict[int, int]) -> bool:
    """Reap a child (-1 for any) that has ended and note its status; False when none has."""
    reaped, status = os.waitpid(pid, os.WNOHANG)
    if reaped:
        ended[reaped] = status
    return reaped != 0


def run_as_init() -> None:
    """In PID 1 of a worker's namespace: become a real init. Returns in a new child, the worker; never in PID 1.

    It reaps whatever is re-parented to it, passes SIGTERM on to the worker, and ends as the worker does (128 + the
    signal where that was killed by one). The kernel then kills the rest.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
    worker = os.fork()
    if worker == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.setsid()
        return
    try:
        close_all_but()
        ended: dict[int, int] = {}
        while worker not in ended:
            if signal.sigwait(_WAITED) == signal.SIGTERM:
                _kill_group(worker, signal.SIGTERM)
            while _reap_any(ended):
                pass
        code = os.waitstatus_to_exitcode(ended[worker])
        os._exit(code if code >= 0 else 128 - code)
    finally:
        os._exit(1)


def _reap_any(ended: dict[int, int]) -> bool:
    try:
        return _reap(-1, ended)
    except ChildProcessError:
        return False


def _kill_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        os.kill(group, number)  # it has not made its group yet; unreaped, so the number is its own
