"""Ending a worker with everything it started, and the evidence that it is dead: the rung `group`.

A worker leads its own session and process group. Ending it means more than waiting for the leader, because members
outlive it, and `killpg(group, 0)` is no evidence, because zombies count. So the leader is held unreaped, which keeps
its number from being used again, while the group is signalled; then the process table is read until no live member
is left; only then is the leader reaped, and nothing is signalled after that.

One look at the table is enough once it shows nobody: SIGKILL is delivered to all members in one step, and a fork that
races with it either is in the group by then or fails.

Nothing here waits in a thread: a thread pool that is busy must never stand between a call and its end.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import attrs
import trio

__all__ = [
    "GroupEnd",
    "LeaderWatch",
    "Members",
    "cpu_seconds",
    "end_group",
    "exit_status",
    "kill_member",
    "live_members",
    "look",
    "signal_group",
    "started_at",
]

_FIRST_PAUSE: Final = 0.0005  # seconds between looks at the table, doubled each time
_LAST_PAUSE: Final = 0.02
_GRACE_PAUSE: Final = 0.05  # while a tool tidies up there is no hurry
_EXIT_PAUSE: Final = 0.02  # between looks at a running leader where no pidfd tells
_SLICE: Final = 256  # processes looked at between two checkpoints; a few milliseconds

Members = Callable[[int], Awaitable[frozenset[int]]]
"""Process group → its live members, or `OSError` where that cannot be seen now."""


@attrs.frozen(kw_only=True)
class GroupEnd:
    """How a process group ended. Times are Trio's.

    Args:
        killed_at: When SIGKILL was sent.
        proven_at: When the group was seen empty.
        survivors_killed: Live members seen after the leader's exit.
        escalated: Whether the grace period ran out before the group was empty.
    """

    killed_at: float
    proven_at: float
    survivors_killed: int
    escalated: bool


class LeaderWatch:
    """Notices a child's exit without reaping it.

    Args:
        pid: A child of this process that nobody else reaps.
        use_pidfd: Use a pidfd where the kernel has them; else the child is asked for again and again.
        pidfd: One that is there already, owned from now on; the process then need not be a child.
    """

    def __init__(self, pid: int, *, use_pidfd: bool = True, pidfd: int | None = None) -> None:
        self.pid = pid
        # Set once the child is known to have ended; never cleared.
        self.exited = trio.Event()
        # Read by one task at a time; -1 where there is none, or once closed.
        self._pidfd = pidfd if pidfd is not None else _open_pidfd(pid) if use_pidfd else -1

    @property
    def has_exited(self) -> bool:
        """Whether it has ended, also when `run` has not noticed yet; for those that have a pidfd."""
        if self._pidfd < 0:
            return self.exited.is_set()
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))

    async def run(self) -> None:
        """Wait for the exit and set `exited`. One task runs this."""
        await trio.lowlevel.checkpoint()
        if self._pidfd >= 0:
            try:
                await trio.lowlevel.wait_readable(self._pidfd)
            except trio.ClosedResourceError:
                return
        else:
            while not await _has_exited(self.pid):  # noqa: ASYNC110 - nobody tells
                await trio.sleep(_EXIT_PAUSE)
        self.exited.set()

    def close(self) -> None:
        """Close the pidfd; `run` ends."""
        if self._pidfd >= 0:
            fd, self._pidfd = self._pidfd, -1
            trio.lowlevel.notify_closing(fd)
            os.close(fd)


async def end_group(leader: LeaderWatch, *, grace: float, bound: float, members: Members) -> GroupEnd | None:
    """End the process group that `leader` leads, and see it empty. The leader is left to be reaped.

    Args:
        leader: The unreaped leader; its `run` is active somewhere.
        grace: Seconds between SIGTERM and SIGKILL; 0 sends SIGKILL at once.
        bound: Seconds to wait for the evidence after SIGKILL.
        members: Reads the process table.

    Returns:
        What was seen, or None when the group was not seen empty within the bound.
    """
    escalated = False
    if grace > 0:
        signal_group(leader.pid, signal.SIGTERM)
        escalated = not await _becomes_empty(leader, grace, members)
    survivors: set[int] = set()
    if leader.exited.is_set():
        with trio.move_on_after(bound):
            survivors |= await look(members, leader.pid)
    # Also when the group is empty by now: the leader, unreaped, keeps the number, so this can hit nobody else.
    signal_group(leader.pid, signal.SIGKILL)
    try:
        os.kill(leader.pid, signal.SIGKILL)  # a forked one may not have made its group yet
    except ProcessLookupError:
        pass  # somebody else in this program reaped it
    killed_at = trio.current_time()
    pause = _FIRST_PAUSE
    with trio.move_on_after(bound):
        await leader.exited.wait()
        while live := await look(members, leader.pid):
            survivors |= live
            # A process of the same session may have joined the group since.
            signal_group(leader.pid, signal.SIGKILL)
            await trio.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)
        return GroupEnd(
            killed_at=killed_at,
            proven_at=trio.current_time(),
            survivors_killed=len(survivors - {_UNSEEN}),
            escalated=escalated,
        )
    return None


async def _becomes_empty(leader: LeaderWatch, grace: float, members: Members) -> bool:
    """Wait up to `grace` seconds until nobody of the group is left alive; whether that happened."""
    await trio.lowlevel.checkpoint()
    pause = _FIRST_PAUSE
    with trio.move_on_after(grace):
        await leader.exited.wait()
        while await look(members, leader.pid):  # noqa: ASYNC110 - nobody tells
            await trio.sleep(pause)
            pause = min(2 * pause, _GRACE_PAUSE)
        return True
    return False


_UNSEEN: Final = 0
"""Stands for members when the process table could not be read: no evidence is not evidence of absence."""


async def look(members: Members, group: int) -> frozenset[int]:
    """The live members of a group; somebody who is none where that cannot be seen now."""
    try:
        return await members(group)
    except (OSError, subprocess.SubprocessError):
        await trio.lowlevel.checkpoint()
        return frozenset((_UNSEEN,))


def signal_group(group: int, number: signal.Signals) -> None:
    """Signal a process group whose leader is unreaped."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass  # the leader is a zombie and was the last
    except PermissionError:
        pass  # only members of another user, or (macOS) only zombies, are left; the table decides


def kill_member(pid: int, group: int) -> None:
    """SIGKILL to a process if it is a member of the group now; for a group whose number nobody holds any more."""
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, ValueError):
        return  # it has ended, or stands for nobody
    try:
        fields = _stat_fields(pid)
        if fields and int(fields[2]) == group:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # it has ended, or nobody may
    finally:
        os.close(pidfd)


def live_members() -> Members:
    """The way to read this platform's process table."""
    return _members_by_proc if Path("/proc/self/stat").exists() else _members_by_ps


async def _members_by_proc(group: int) -> frozenset[int]:
    found = set()
    # A process that ends meanwhile is no longer alive, and a new one in the group is ruled out: see the module.
    for count, name in enumerate(os.listdir("/proc"), start=1):  # noqa: PTH208 - names, quickly
        if name.isdigit() and _is_live_member(name, group):
            found.add(int(name))
        if count % _SLICE == 0:
            await trio.lowlevel.checkpoint()
    await trio.lowlevel.checkpoint()
    return frozenset(found)


def _is_live_member(pid: str, group: int) -> bool:
    fields = _stat_fields(pid)
    if not fields or int(fields[2]) != group:
        return False
    # A main thread that ended before its siblings shows as a zombie with threads: the process lives.
    return fields[0] not in (b"Z", b"X", b"x") or int(fields[17]) > 1


def _stat_fields(pid: int | str) -> list[bytes]:
    """The fields of /proc/<pid>/stat from the third (state) on, see proc(5); empty where there is no such process."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return []
    try:
        # The second field is the command's name, which may hold spaces and parentheses.
        return os.read(fd, 4096).rpartition(b")")[2].split()
    except ProcessLookupError:
        return []
    finally:
        os.close(fd)


async def _members_by_ps(group: int) -> frozenset[int]:
    return frozenset(pid for pid, state in (await _ps(group)).items() if state[:1] not in ("Z", "X"))


async def _ps(group: int) -> dict[int, str]:
    """Process id → state, of a group's members, where there is no /proc (macOS, BSD)."""
    done = await trio.run_process(["ps", "-axo", "pid=,pgid=,stat="], capture_stdout=True, stdin=subprocess.DEVNULL)
    rows = (line.split() for line in done.stdout.decode("ascii", "replace").splitlines())
    return {int(row[0]): row[2] for row in rows if len(row) == 3 and row[1] == str(group)}


def _open_pidfd(pid: int) -> int:
    if sys.platform == "linux":
        try:
            return os.pidfd_open(pid)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EINVAL):  # an old kernel, or a sandbox, has none
                raise
    return -1


async def _has_exited(pid: int) -> bool:
    await trio.lowlevel.checkpoint()
    if hasattr(os, "waitid"):
        try:
            return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None  # noqa: ASYNC222 - WNOHANG
        except ChildProcessError:
            return True  # somebody else in this program reaped it
    # macOS before Python 3.13
    return (await _ps(pid)).get(pid, "Z").startswith("Z")


def exit_status(pid: int) -> int | None:
    """The exit status of a child that ended, negative for the signal that ended it, without reaping it.

    Returns:
        None while it runs, and where it cannot be told.
    """
    if not hasattr(os, "waitid"):
        return None
    try:
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:  # somebody else in this program reaped it
        return None
    if info is None:
        return None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status


def cpu_seconds(pid: int) -> float | None:
    """Processor time that a process has used, also one that ended and is not reaped.

    Returns:
        Seconds: its own, or those of the children it has waited for if they are more, which is how the time of a worker
        shows in whoever stands above it. None where it cannot be told.
    """
    fields = _stat_fields(pid) if sys.platform == "linux" else []
    if not fields:
        return None
    own, waited_for = (sum(map(int, ticks)) for ticks in (fields[11:13], fields[13:15]))
    return max(own, waited_for) / os.sysconf("SC_CLK_TCK")


def started_at(pid: int) -> float:
    """When a process started, in seconds since the epoch; now where the platform does not tell."""
    fields = _stat_fields(pid) if sys.platform == "linux" else []
    if not fields:
        return time.time()
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - age
