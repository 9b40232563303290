"""One spawned worker process as the supervisor sees it: how it is started, what it is told, how it ends."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable

import trio

from ztrio.workers.backend import Proof
from ztrio.workers.containment import LeaderWatch, Members, end_group, exit_status, signal_group, started_at
from ztrio.workers.conversation import Conversation
from ztrio.workers.programs import Program, start
from ztrio.workers.wire import Boot, Failure, Request, Result

__all__ = ["WorkerProcess"]


class WorkerProcess:
    """A worker in its own session and process group. Made by `launch`; `watch` and `drain` must run in some nursery.

    Args:
        program: The started process.
        members: Reads the process table.
        on_exit: Called once when the leader has ended.
        on_end: Called after each `terminate`, with whether the end is proven.
    """

    def __init__(
        self,
        program: Program,
        *,
        members: Members,
        on_exit: Callable[[WorkerProcess], None],
        on_end: Callable[[WorkerProcess, bool], None],
    ) -> None:
        self._program = program
        self._members = members
        self._on_exit = on_exit
        self._on_end = on_end
        self._leader = LeaderWatch(program.process.pid)
        self._started_at = started_at(program.process.pid)
        self._conversation = Conversation(program.sock, program.output, self._leader.exited, self._status)
        # Trio time of the first `kill`.
        self._killed_at: float | None = None
        # One `terminate` at a time; a later one finds the proof of the earlier.
        self._ending = trio.Lock()
        # Set once, when the end is proven; everything is closed then.
        self._proof: Proof | None = None

    @classmethod
    async def launch(
        cls,
        *,
        output_limit: int,
        members: Members,
        on_exit: Callable[[WorkerProcess], None],
        on_end: Callable[[WorkerProcess, bool], None],
    ) -> WorkerProcess:
        """Start the process. It is not ready until `boot` returns.

        Raises:
            OSError: it cannot be started.
        """
        program = await start("ztrio.workers.child", socket.socketpair(), output_limit=output_limit)
        return cls(program, members=members, on_exit=on_exit, on_end=on_end)

    @property
    def pid(self) -> int:
        """Process id; also its process group's and session's."""
        return self._leader.pid

    @property
    def started_at(self) -> float:
        """The process's start time, seconds since the epoch."""
        return self._started_at

    @property
    def has_exited(self) -> bool:
        """Whether the leader has ended, proven or not."""
        return self._proof is not None or self._leader.exited.is_set() or exit_status(self.pid) is not None

    async def watch(self) -> None:
        """Notice the leader's exit; runs beside everything else."""
        await self._leader.run()
        if self._leader.exited.is_set():
            self._conversation.interrupt()
            self._on_exit(self)

    async def drain(self) -> None:
        """Read what the worker prints; runs beside everything else."""
        await self._conversation.drain()

    async def boot(self, boot: Boot) -> None:
        """Let the worker load everything and wait until it is ready; see `Conversation.boot`."""
        await self._conversation.boot(boot)

    async def send_request(self, request: Request) -> None:
        """Hand over the call and wait until the worker has it; see `backend.Worker`."""
        await self._conversation.send_request(request)

    async def receive(self, on_progress: Callable[[float, float | None, str | None], None]) -> Result | Failure:
        """Wait for the complete result frame, reporting progress on the way; see `backend.Worker`."""
        return await self._conversation.receive(on_progress)

    def kill(self) -> None:
        """Send SIGKILL; see `backend.Worker`."""
        if self._proof is None:
            self._killed_at = self._killed_at or trio.current_time()
            signal_group(self.pid, signal.SIGKILL)  # the leader is unreaped

    async def terminate(self, *, grace: float, bound: float) -> Proof | None:
        """End the worker and its descendants and prove it; see `backend.Worker`. May be called again after None."""
        async with self._ending:
            if self._proof is not None:
                return self._proof
            if grace > 0:
                # A worker that has sent its result, or tidied up after SIGTERM, ends by itself on this.
                self._conversation.hang_up()
            end = await end_group(self._leader, grace=grace, bound=bound, members=self._members)
            if end is None:
                self._on_end(self, False)
                return None
            self._proof = Proof(
                rung="group",
                complete=False,
                pid=self.pid,
                status=await self._program.process.wait(),  # reaps; it has ended, so this does not wait
                killed_at=self._killed_at or end.killed_at,
                proven_at=end.proven_at,
                survivors_killed=end.survivors_killed,
                escalated=end.escalated,
            )
            self._close()
            self._on_end(self, True)
            return self._proof

    def abandon(self) -> None:
        """Let go of a worker whose end could not be proven: a last SIGKILL, reap if possible, close everything."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # nobody is there, or nobody may
        self._program.process.poll()
        self._close()

    def output_tail(self) -> str:
        """The last of what the worker wrote to stdout and stderr."""
        return self._conversation.output_tail()

    def _close(self) -> None:
        self._conversation.close()
        self._leader.close()
        self._program.cut_lifeline()

    async def _status(self) -> int | None:
        await trio.lowlevel.checkpoint()
        return exit_status(self.pid)
