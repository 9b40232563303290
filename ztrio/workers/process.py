"""One worker process as the supervisor sees it: how it is started, what it is told, how it ends.

What a worker sends is foreign input: anything unexpected is `WORKER_PROTOCOL_ERROR`.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

import trio

from ztrio.errors import InvalidArguments, WorkerFailed
from ztrio.workers.backend import Proof
from ztrio.workers.channel import WorkerChannel
from ztrio.workers.containment import LeaderWatch, Members, end_group, exit_status, started_at
from ztrio.workers.output import OutputPipe
from ztrio.workers.wire import (
    Boot,
    Failure,
    Frame,
    Progress,
    ProtocolError,
    Ready,
    Request,
    Result,
    Started,
    encode_frame,
)

__all__ = ["WorkerProcess"]

_FRAME_SLACK: Final = 64 * 1024  # bytes of a frame beside the bounded parts; a traceback has 16 KiB
_EXIT_LAG: Final = 1.0  # seconds between the end of the channel and the exit; both come from the kernel's own cleanup
_PROGRESS_RATE: Final = 200.0  # frames per second; an honest worker sends 50 in the long run
_PROGRESS_BURST: Final = 1000.0  # more than a socket buffers while this side is busy
_MAX_MESSAGE: Final = 4096  # characters of a progress message

_BOOT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); "
    "from ztrio.workers.child import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)
_FAILURE_CODES: Final = frozenset(("TOOL_ERROR", "RESULT_TOO_LARGE", "STATE_TOO_LARGE"))


class WorkerProcess:
    """A worker in its own session and process group. Made by `launch`; `watch` and `drain` must run in some nursery.

    Args:
        process: The leader; nobody else may wait for it.
        channel: Our end of its socket pair.
        output: Our end of the pipe that is its stdout and stderr.
        lifeline: The write end of a pipe whose end kills the worker's group.
        members: Reads the process table.
        on_exit: Called once when the leader has ended.
        on_end: Called after each `terminate`, with whether the end is proven.
    """

    def __init__(
        self,
        process: trio.Process,
        channel: socket.socket,
        output: OutputPipe,
        lifeline: int,
        *,
        members: Members,
        on_exit: Callable[[WorkerProcess], None],
        on_end: Callable[[WorkerProcess, bool], None],
    ) -> None:
        self._process = process
        self._output = output
        self._lifeline = lifeline
        self._members = members
        self._on_exit = on_exit
        self._on_end = on_end
        self._leader = LeaderWatch(process.pid)
        self._started_at = started_at(process.pid)
        self._channel = WorkerChannel(channel, self._leader.exited)
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
        with ExitStack() as ours, ExitStack() as theirs:
            channel, far = socket.socketpair()
            ours.callback(channel.close)
            theirs.callback(far.close)
            output, printed = _pipe(ours, theirs)
            # The child holds the read end here, so the roles are swapped.
            held, lifeline = _pipe(theirs, ours)
            process = await trio.lowlevel.open_process(
                [sys.executable, "-I", "-c", _BOOT, str(far.fileno()), str(held), _search_path()],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                pass_fds=(far.fileno(), held),
                start_new_session=True,
                env=_environment(),
            )
            ours.pop_all()
        return cls(
            process,
            channel,
            OutputPipe(output, output_limit),
            lifeline,
            members=members,
            on_exit=on_exit,
            on_end=on_end,
        )

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
            self._channel.interrupt()
            self._on_exit(self)

    async def drain(self) -> None:
        """Read what the worker prints; runs beside everything else."""
        await self._output.drain()

    async def boot(self, boot: Boot) -> None:
        """Let the worker load everything and wait until it is ready.

        Raises:
            WorkerFailed: WORKER_START_FAILED, WORKER_DIED or WORKER_PROTOCOL_ERROR.
        """
        await self._channel.send(encode_frame(boot))
        frame = await self._next_frame()
        if not isinstance(frame, Ready):
            raise self._protocol_error(f"a {type(frame).__name__} frame instead of Ready")
        if frame.problem is not None:
            raise WorkerFailed(frame.problem, code="WORKER_START_FAILED", output=self.output_tail())

    async def send_request(self, request: Request) -> None:
        """Hand over the call and wait until the worker has it.

        Raises:
            InvalidArguments: arguments and session state together do not fit a frame.
            WorkerFailed: the worker died or broke the protocol.
        """
        try:
            data = encode_frame(request)
        except ProtocolError as error:
            raise InvalidArguments(
                f"The arguments and the session state are too large: {error}. Nothing ran."
            ) from error
        self._channel.limit(request.max_result + request.max_state + _FRAME_SLACK)
        await self._channel.send(data)
        frame = await self._next_frame()
        if not isinstance(frame, Started):
            raise self._protocol_error(f"a {type(frame).__name__} frame instead of Started")

    async def receive(self, on_progress: Callable[[float, float | None, str | None], None]) -> Result | Failure:
        """Wait for the complete result frame, reporting progress on the way.

        What a worker sends after its result is never looked at: it is about to be killed.

        Raises:
            WorkerFailed: WORKER_DIED with the exit status, or WORKER_PROTOCOL_ERROR.
        """
        await trio.lowlevel.checkpoint()
        credit, credited_at = _PROGRESS_BURST, trio.current_time()
        while True:
            frame = await self._next_frame()
            if isinstance(frame, Result):
                return frame
            if isinstance(frame, Failure):
                if frame.code not in _FAILURE_CODES:
                    raise self._protocol_error(f"the unknown failure code {frame.code[:40]!r}")
                return frame
            if not isinstance(frame, Progress):
                raise self._protocol_error(f"an unexpected {type(frame).__name__} frame")
            now = trio.current_time()
            credit, credited_at = min(_PROGRESS_BURST, credit + (now - credited_at) * _PROGRESS_RATE) - 1, now
            if credit < 0:
                raise self._protocol_error("a flood of Progress frames")
            if not math.isfinite(frame.progress) or not math.isfinite(frame.total or 0.0):
                raise self._protocol_error("a Progress frame without a finite number")
            on_progress(frame.progress, frame.total, None if frame.message is None else frame.message[:_MAX_MESSAGE])

    async def terminate(self, *, grace: float, bound: float) -> Proof | None:
        """End the worker and its descendants and prove it; see `backend.Worker`. May be called again after None."""
        async with self._ending:
            if self._proof is not None:
                return self._proof
            if grace > 0:
                # A worker that has sent its result, or tidied up after SIGTERM, ends by itself on this.
                self._channel.hang_up()
            end = await end_group(self._leader, grace=grace, bound=bound, members=self._members)
            if end is None:
                self._on_end(self, False)
                return None
            self._proof = Proof(
                rung="group",
                complete=False,
                pid=self.pid,
                status=await self._process.wait(),  # reaps; it has ended, so this does not wait
                killed_at=end.killed_at,
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
        self._process.poll()
        self._close()

    def output_tail(self) -> str:
        """The last of what the worker wrote to stdout and stderr."""
        self._output.drain_now()
        return self._output.ring.tail()

    def _close(self) -> None:
        self._channel.close()
        self._output.close()
        self._leader.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    async def _next_frame(self) -> Frame:
        """The next frame.

        Raises:
            WorkerFailed: WORKER_DIED or WORKER_PROTOCOL_ERROR.
        """
        try:
            frame = await self._channel.receive()
        except ProtocolError as error:
            raise self._protocol_error(str(error)) from error
        if frame is not None:
            return frame
        with trio.move_on_after(_EXIT_LAG):
            await self._leader.exited.wait()
            raise self._died()
        raise self._protocol_error("the end of the stream, though it still runs")

    def _died(self) -> WorkerFailed:
        status = exit_status(self.pid)
        return WorkerFailed(
            f"The worker process {describe_exit(status)} before its result was complete. Nothing was published. "
            "The captured output may say why; mend the tool, then repeat the call.",
            code="WORKER_DIED",
            exit_status=status,
            output=self.output_tail(),
        )

    def _protocol_error(self, what: str) -> WorkerFailed:
        return WorkerFailed(
            f"The worker process broke its protocol: {what}. Nothing was published. "
            "The tool must leave the descriptors it did not open alone.",
            code="WORKER_PROTOCOL_ERROR",
            output=self.output_tail(),
        )


def describe_exit(status: int | None) -> str:
    """An exit status in words: `ended with exit status 3`, `was killed by SIGSEGV`."""
    if status is None:
        return "ended"
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """A pipe whose ends each belong to a stack: (read end, write end)."""
    read, write = os.pipe()
    reader.callback(os.close, read)
    writer.callback(os.close, write)
    return read, write


def _search_path() -> str:
    """This process's `sys.path` for a child that need not have the same current directory."""
    return json.dumps([os.path.abspath(entry) for entry in sys.path])  # noqa: PTH100 - Path would keep ''


def _environment() -> dict[str, str]:
    """The variables that every worker has; TMPDIR and what the tool declares come with the request."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in ("PATH", "HOME", "LANG", "TZ") or name.startswith("LC_")
    }
