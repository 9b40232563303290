"""One forked worker as the supervisor sees it: how each rung of the ladder ends it, and what proves the end."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import attrs
import trio

from ztrio.workers import cgroups, control
from ztrio.workers.backend import Proof
from ztrio.workers.containment import (
    GroupEnd,
    LeaderWatch,
    Members,
    end_group,
    kill_member,
    look,
    signal_group,
    started_at,
)
from ztrio.workers.conversation import Conversation
from ztrio.workers.job_init import ALL_DEAD, KILL, SOFT, VERDICT
from ztrio.workers.ladder import complete
from ztrio.workers.output import OutputPipe
from ztrio.workers.programs import pipe
from ztrio.workers.server import Answer, ForkServerLink, ServerGone
from ztrio.workers.wire import Failure, Request, Result

__all__ = ["ForkedWorker"]

_STATUS_BOUND: Final = 0.5  # seconds for the fork server to say how a worker ended
_FIRST_PAUSE: Final = 0.0005  # seconds between looks at a cgroup or after a sweep, doubled each time
_LAST_PAUSE: Final = 0.05
_FDINFO: Final = 4096  # bytes, more than there are
_GONE: Final = -1  # process id of one that was reaped


@attrs.frozen(kw_only=True)
class _Birth:
    """What came with a worker.

    Args:
        job: Its number at the fork server.
        end: Where the fork server says how it ended.
        pid: Process id on the host, of the guard on the rung `job-init`.
        pidfd: Refers to that process.
        namespace: Inode number of its PID namespace, or None.
        cgroup: Its cgroup, or None.
        verdict: Read end of the pipe on which a guard says that nobody is left; -1 where there is none.
    """

    job: int
    end: Answer
    pid: int
    pidfd: int
    namespace: int | None
    cgroup: Path | None
    verdict: int


class ForkedWorker:
    """A worker that a fork server made. Made by `fork`; `watch` and `drain` must run in some nursery.

    Args:
        link: The fork server.
        birth: What came with it.
        sock: Our end of its socket pair.
        output: Our end of the pipe that is its stdout and stderr.
        members: Reads the process table.
        on_exit: Called once when it has ended.
        on_end: Called after each `terminate`, with whether the end is proven.
    """

    def __init__(
        self,
        link: ForkServerLink,
        birth: _Birth,
        sock: socket.socket,
        output: OutputPipe,
        *,
        members: Members,
        on_exit: Callable[[ForkedWorker], None],
        on_end: Callable[[ForkedWorker, bool], None],
    ) -> None:
        self.link = link
        self._birth = birth
        self._members = members
        self._on_exit = on_exit
        self._on_end = on_end
        self._leader = LeaderWatch(birth.pid, pidfd=birth.pidfd)
        self._started_at = started_at(birth.pid)
        self._conversation = Conversation(sock, output, self._leader.exited, self._how_it_ended)
        # Trio time of the first `kill`.
        self._killed_at: float | None = None
        # One `terminate` at a time; a later one finds the proof of the earlier.
        self._ending = trio.Lock()
        # Set once, when the end is proven; everything is closed then.
        self._proof: Proof | None = None
        # How it ended, once asked; the fork server can tell until it is reaped.
        self._status: int | None = None
        # Set when everything is closed: with the proof, or when the worker was abandoned without one.
        self._closed = False
        # Whether a guard has said, or the fork server has seen to it, that nobody is left.
        self._all_dead = False
        link.workers += 1

    @classmethod
    async def fork(
        cls,
        link: ForkServerLink,
        *,
        wanted: bool,
        output_limit: int,
        cgroup: Callable[[], Path] | None,
        members: Members,
        on_exit: Callable[[ForkedWorker], None],
        on_end: Callable[[ForkedWorker, bool], None],
    ) -> ForkedWorker:
        """Have a worker forked; it has everything loaded.

        Args:
            link: The fork server.
            wanted: Whether a call waits for it.
            output_limit: Bytes of its output that are kept.
            cgroup: Makes a cgroup for it, on the rung that needs one.
            members: Reads the process table.
            on_exit: Called once when it has ended.
            on_end: Called after each `terminate`, with whether the end is proven.

        Raises:
            WorkerFailed: it could not be forked.
            OSError: a descriptor or a cgroup could not be had.
            ServerGone: the fork server ended.
        """
        with ExitStack() as ours, ExitStack() as theirs:
            sock, far = socket.socketpair()
            ours.callback(sock.close)
            theirs.callback(far.close)
            output, printed = pipe(ours, theirs)
            special: list[int] = []
            verdict, group = -1, None
            if link.rung == "job-init":
                verdict, spoken = pipe(ours, theirs)
                os.set_blocking(verdict, False)
                special.append(spoken)
            elif cgroup is not None:
                group = cgroup()
                ours.callback(cgroups.remove, group)
                procs = os.open(group / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
                theirs.callback(os.close, procs)
                special.append(procs)
            born, pidfd, end = await link.fork((far.fileno(), printed, *special), wanted=wanted)
            ours.callback(os.close, pidfd)
            birth = _Birth(
                job=born.job,
                end=end,
                pid=_pid_of(pidfd),
                pidfd=pidfd,
                namespace=born.namespace,
                cgroup=group,
                verdict=verdict,
            )
            worker = cls(
                link, birth, sock, OutputPipe(output, output_limit), members=members, on_exit=on_exit, on_end=on_end
            )
            ours.pop_all()
        return worker

    @property
    def pid(self) -> int:
        """Process id on the host."""
        return self._birth.pid

    @property
    def started_at(self) -> float:
        """The process's start time, seconds since the epoch."""
        return self._started_at

    @property
    def has_exited(self) -> bool:
        """Whether it has ended, proven or not."""
        return self._proof is not None or self._leader.has_exited

    async def watch(self) -> None:
        """Notice its end; runs beside everything else."""
        await self._leader.run()
        if self._leader.exited.is_set():
            self._conversation.interrupt()
            self._on_exit(self)

    async def drain(self) -> None:
        """Read what it prints; runs beside everything else."""
        await self._conversation.drain()

    async def send_request(self, request: Request) -> None:
        """Hand over the call and wait until the worker has it; see `backend.Worker`."""
        await self._conversation.send_request(request)

    async def receive(self, on_progress: Callable[[float, float | None, str | None], None]) -> Result | Failure:
        """Wait for the complete result frame, reporting progress on the way; see `backend.Worker`."""
        return await self._conversation.receive(on_progress)

    def output_tail(self) -> str:
        """The last of what the worker wrote to stdout and stderr."""
        return self._conversation.output_tail()

    def kill(self) -> None:
        """Send SIGKILL; see `backend.Worker`."""
        if not self._closed:
            self._killed_at = self._killed_at or trio.current_time()
            if self.link.rung == "group" and not self.link.died.is_set():
                signal_group(self.pid, signal.SIGKILL)  # the fork server holds the leader unreaped
            self._kill()

    async def terminate(self, *, grace: float, bound: float) -> Proof | None:
        """End the worker and its descendants and prove it; see `backend.Worker`. May be called again after None."""
        async with self._ending:
            if self._closed:
                return self._proof
            if grace > 0:
                # A worker that has sent its result, or tidied up after SIGTERM, ends by itself on this.
                self._conversation.hang_up()
            end = await self._end(grace, bound)
            if end is None:
                self._on_end(self, False)
                return None
            await self._how_it_ended()
            birth = self._birth
            self._proof = Proof(
                rung=self.link.rung,
                complete=complete(self.link.rung),
                pid=birth.pid,
                status=self._status,
                killed_at=self._killed_at or end.killed_at,
                proven_at=end.proven_at,
                survivors_killed=end.survivors_killed,
                escalated=end.escalated,
                namespace=birth.namespace,
                cgroup=None if birth.cgroup is None else str(birth.cgroup),
            )
            self._close()
            self._on_end(self, True)
            return self._proof

    def abandon(self) -> None:
        """Let go of a worker whose end could not be proven: a last SIGKILL, close everything."""
        self._signal(signal.SIGKILL)
        self._close()

    # ---- how each rung ends it

    async def _end(self, grace: float, bound: float) -> GroupEnd | None:
        if self.link.rung == "group" and not self.link.died.is_set():
            return await end_group(self._leader, grace=grace, bound=bound, members=self._members)
        escalated = False
        if grace > 0:
            self._ask_to_end()
            escalated = not await self._is_gone(grace)
        self._kill()
        killed_at = trio.current_time()
        if not await self._is_gone(bound):
            return None
        return GroupEnd(killed_at=killed_at, proven_at=trio.current_time(), survivors_killed=0, escalated=escalated)

    def _ask_to_end(self) -> None:
        """SIGTERM to the worker's group: by its guard, where there is one."""
        if self.link.rung == "job-init" or self.link.died.is_set():
            self._signal(SOFT if self.link.rung == "job-init" else signal.SIGTERM)
        else:
            signal_group(self.pid, signal.SIGTERM)  # the fork server holds the leader unreaped

    def _kill(self) -> None:
        if self._birth.cgroup is not None:
            cgroups.kill(self._birth.cgroup)
        self._signal(KILL if self.link.rung == "job-init" else signal.SIGKILL)
        if self.link.rung == "job-init":
            self._signal(signal.SIGCONT)  # in case a tool has stopped its guard

    def _signal(self, number: signal.Signals) -> None:
        if not self._closed:
            try:
                signal.pidfd_send_signal(self._birth.pidfd, number)
            except ProcessLookupError:
                pass  # it has ended, and was reaped when the fork server ended

    async def _is_gone(self, bound: float) -> bool:
        """Wait at most that many seconds for the proof that nobody of the tree is left."""
        with trio.move_on_after(bound):
            await self._leader.exited.wait()
            pause = _FIRST_PAUSE
            while not await self._is_empty():
                await trio.sleep(pause)
                pause = min(2 * pause, _LAST_PAUSE)
            return True
        return False

    async def _is_empty(self) -> bool:
        """Whether nobody of the tree is left, now that the worker (or its guard) has ended."""
        if self.link.rung == "pidns":
            return True  # the kernel reports the exit of PID 1 last
        if self._birth.cgroup is not None:
            await trio.lowlevel.checkpoint()
            return not cgroups.is_populated(self._birth.cgroup)
        if self.link.rung == "job-init":
            if not self._all_dead and not self._hear_verdict():
                # The guard was killed itself. What it left is re-parented to the fork server.
                self._all_dead = await self.link.sweep(self._birth.job)
            if self._all_dead:
                return True
        elif self.link.rung == "group" and await self._kill_members():
            return True
        await trio.lowlevel.checkpoint()
        return self.link.saw_all_dead

    async def _kill_members(self) -> bool:
        """On the rung `group`, when the fork server is gone and the leader is reaped; whether nobody is left.

        As long as there are members nobody else gets the group's number; a member with that number leads another group.
        """
        found = await look(self._members, self.pid)
        if self.pid in found:
            return True
        for pid in found:
            kill_member(pid, self.pid)
        return not found

    def _hear_verdict(self) -> bool:
        try:
            word = os.read(self._birth.verdict, VERDICT.size)
        except BlockingIOError:
            return False  # a worker whose guard was killed at once still holds the other end
        if len(word) == VERDICT.size:
            said, status = VERDICT.unpack(word)
            self._all_dead = said == ALL_DEAD
            self._status = os.waitstatus_to_exitcode(status)
        return self._all_dead

    async def _how_it_ended(self) -> int | None:
        """Its exit status, if anybody can tell."""
        if self._closed:
            return self._status
        if self._status is None and self.link.rung == "job-init":
            self._hear_verdict()
        if self._status is None:
            end = self._birth.end
            with trio.move_on_after(_STATUS_BOUND):
                await end.come.wait()
                self._status = end.message.status if isinstance(end.message, control.Ended) else None
        return self._status

    def _close(self) -> None:
        self._closed = True
        self._conversation.close()
        self._leader.close()
        if self._birth.verdict >= 0:
            os.close(self._birth.verdict)
        if self._birth.cgroup is not None:
            cgroups.remove(self._birth.cgroup)
        self.link.reap(self._birth.job)
        self.link.worker_gone()


def _pid_of(pidfd: int) -> int:
    """The process id on the host; the fork server, in its own namespace, knows another. pidfd_open(2), proc(5)."""
    fd = os.open(f"/proc/self/fdinfo/{pidfd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _, _, rest = os.read(fd, _FDINFO).partition(b"\nPid:")
    finally:
        os.close(fd)
    pid = int(rest.partition(b"\n")[0] or _GONE)
    if pid == _GONE:
        raise ServerGone
    return pid
