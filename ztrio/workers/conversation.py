"""What the supervisor and one worker say to each other, from the request to the result, whoever made the worker.

What a worker sends is foreign input: anything unexpected is `WORKER_PROTOCOL_ERROR`.
"""

from __future__ import annotations

import math
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from ztrio.errors import InvalidArguments, WorkerFailed
from ztrio.workers.channel import WorkerChannel
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

__all__ = ["Conversation", "describe_exit"]

_FRAME_SLACK: Final = 64 * 1024  # bytes of a frame beside the bounded parts; a traceback has 16 KiB
_EXIT_LAG: Final = 1.0  # seconds between the end of the channel and the exit; both come from the kernel's own cleanup
_PROGRESS_RATE: Final = 200.0  # frames per second; an honest worker sends 50 in the long run
_PROGRESS_BURST: Final = 1000.0  # more than a socket buffers while this side is busy
_MAX_MESSAGE: Final = 4096  # characters of a progress message

_FAILURE_CODES: Final = frozenset(("TOOL_ERROR", "RESULT_TOO_LARGE", "STATE_TOO_LARGE"))


class Conversation:
    """One worker's socket and output.

    Args:
        sock: Our end of its socket pair; owned from now on.
        output: Our end of the pipe that is its stdout and stderr; owned from now on.
        exited: Set when the worker has ended; whoever sets it calls `interrupt`.
        status: How it ended, asked for once `exited` is set: an exit status, negative for a signal, or None.
    """

    def __init__(
        self,
        sock: socket.socket,
        output: OutputPipe,
        exited: trio.Event,
        status: Callable[[], Awaitable[int | None]],
    ) -> None:
        self._channel = WorkerChannel(sock, exited)
        self._output = output
        self._exited = exited
        self._status = status

    def interrupt(self) -> None:
        """The worker has ended: nobody needs to wait for it any longer."""
        self._channel.interrupt()

    def hang_up(self) -> None:
        """Let the worker see the end of the stream; it can still send."""
        self._channel.hang_up()

    async def drain(self) -> None:
        """Read what the worker prints; runs beside everything else."""
        await self._output.drain()

    def output_tail(self) -> str:
        """The last of what the worker wrote to stdout and stderr."""
        self._output.drain_now()
        return self._output.ring.tail()

    def close(self) -> None:
        """Close socket and output, whoever holds the other ends."""
        self._channel.close()
        self._output.close()

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
        if frame.problem is not None:
            raise WorkerFailed(
                f"The worker could not enter its sandbox: {frame.problem[:_MAX_MESSAGE]}. Nothing ran.",
                code="WORKER_START_FAILED",
                output=self.output_tail(),
            )

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
            await self._exited.wait()
            raise self._died(await self._status())
        raise self._protocol_error("the end of the stream, though it still runs")

    def _died(self, status: int | None) -> WorkerFailed:
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
