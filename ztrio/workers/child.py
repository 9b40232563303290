"""The worker's main program: loads the tools, takes one request, runs it, answers, waits to be killed.

It runs foreign code and then has to be believed by nobody: what it sends is checked on the other side, and what it
leaves behind is looked at after its death. trio is only needed here for tools that are async.
"""

from __future__ import annotations

import inspect
import math
import os
import signal
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

from ztrio.errors import ZtrioError
from ztrio.loading import FunctionRef, ModuleRef, load_function, load_module
from ztrio.plain import NotPlain, decode, encode, plain
from ztrio.schema import Schema, describe
from ztrio.tools import ToolContext
from ztrio.workers.failures import MAX_REASON, encodable, safe_str, tool_failure
from ztrio.workers.job_init import run_as_init
from ztrio.workers.prelude import flush, hang_on, prepare_streams, reset_signals
from ztrio.workers.sandbox import SandboxPolicy, enter
from ztrio.workers.wire import (
    Boot,
    Failure,
    Frame,
    FrameDecoder,
    Progress,
    ProtocolError,
    Ready,
    Request,
    Result,
    Started,
    encode_frame,
)

__all__ = ["Channel", "load", "main", "run_request", "serve_forked"]

_CHUNK: Final = 64 * 1024  # bytes
_PROGRESS_RATE: Final = 50.0  # Progress frames per second in the long run; what comes beyond is dropped
_PROGRESS_BURST: Final = 100.0  # so that only a flood loses any, and never a tool that reports a step before a long one
_MAX_MESSAGE: Final = 1000  # characters of a progress message
_INIT: Final = 1  # process id of the first process of a PID namespace


class Stopped(BaseException):
    """An async tool was cancelled by SIGTERM: there is nothing to answer any more."""


class Channel:
    """The worker's end of its socket. Forked copies of the process are mute.

    Args:
        sock: The socket, blocking.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._decoder = FrameDecoder()
        self._pid = os.getpid()
        # Frames from several threads must not be mixed.
        self._lock = threading.Lock()
        # Progress frames that may be sent now, and when that was last counted (`time.monotonic`).
        self._progress_credit = _PROGRESS_BURST
        self._progress_at = time.monotonic()

    @property
    def mine(self) -> bool:
        """False in a copy of the process that the tool forked."""
        return os.getpid() == self._pid

    def take_over(self) -> None:
        """This process, a fork of the one that made the channel, is the worker now."""
        self._pid = os.getpid()

    def send(self, frame: Frame) -> None:
        """Send a frame.

        Raises:
            OSError: nobody listens.
            ProtocolError: the frame is too large.
        """
        if self.mine:
            data = encode_frame(frame)
            with self._lock:
                self._sock.sendall(data)

    def receive(self) -> Frame | None:
        """Wait for a frame; None at the end of the stream.

        Raises:
            ProtocolError: the other side sent something else.
        """
        while (frame := self._decoder.next_frame()) is None:
            try:
                chunk = self._sock.recv(_CHUNK)
            except ConnectionError:
                return None
            if not chunk:
                return None
            self._decoder.feed(chunk)
        return frame

    def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Send progress, unless there was a flood of it just now.

        Raises:
            ValueError: a number is not finite.
        """
        progress, total = float(progress), None if total is None else float(total)
        if not math.isfinite(progress) or not math.isfinite(total or 0.0):
            raise ValueError("progress and total must be finite numbers")
        now = time.monotonic()
        earned = (now - self._progress_at) * _PROGRESS_RATE
        self._progress_credit, self._progress_at = min(_PROGRESS_BURST, self._progress_credit + earned), now
        if self._progress_credit < 1:
            return
        self._progress_credit -= 1
        text = None if message is None else encodable(str(message)[:_MAX_MESSAGE])
        try:
            self.send(Progress(progress=progress, total=total, message=text))
        except OSError:
            pass  # nobody listens: the call is over, and this process about to be


def main(channel_fd: int, lifeline_fd: int) -> NoReturn:
    """Serve one request, then wait to be killed.

    Args:
        channel_fd: The inherited socket.
        lifeline_fd: The inherited read end of the pipe whose end ends this process group.
    """
    for fd in (channel_fd, lifeline_fd):
        os.set_inheritable(fd, False)
    hang_on(lifeline_fd)
    reset_signals()
    prepare_streams()
    _serve(Channel(socket.socket(fileno=channel_fd)), None)


def serve_forked(channel_fd: int, schemas: dict[tuple[str, str], Schema]) -> NoReturn:
    """Serve one request in a fork of a process that has loaded everything, then wait to be killed.

    Args:
        channel_fd: The worker's socket.
        schemas: (module, function) → validators, as `load` built them.
    """
    if os.getpid() == _INIT:
        # The kernel drops signals to PID 1 that it has no handler for.
        signal.signal(signal.SIGTERM, _leave)
    _serve(Channel(socket.socket(fileno=channel_fd)), schemas)


def _leave(number: int, _: object) -> None:
    """SIGTERM in PID 1 of a namespace: what the default action would do."""
    if os.getpid() != _INIT:  # a copy of the process that the tool forked
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(128 + number)


def _serve(channel: Channel, schemas: dict[tuple[str, str], Schema] | None) -> NoReturn:
    try:
        if schemas is None:
            schemas = _boot(channel)
        _serve_request(channel, schemas)
    except (OSError, ProtocolError):
        os._exit(1)  # nobody listens, or nobody who speaks our protocol
    except Stopped:
        flush()
        os.kill(os.getpid(), signal.SIGTERM)  # the status then says what ended it
    os._exit(0)


def _boot(channel: Channel) -> dict[tuple[str, str], Schema]:
    boot = channel.receive()
    if not isinstance(boot, Boot):
        os._exit(0)
    schemas: dict[tuple[str, str], Schema] = {}
    channel.send(Ready(problem=load(boot, schemas)))
    return schemas


def _serve_request(channel: Channel, schemas: dict[tuple[str, str], Schema]) -> None:
    request = channel.receive()
    if not isinstance(request, Request):
        return
    if request.init and os.getpid() == _INIT:
        run_as_init()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        channel.take_over()
    problem = _enter(request.sandbox)
    channel.send(Started(problem=problem))
    if problem is not None:
        return
    answer = run_request(request, channel, schemas)
    if not channel.mine:
        os._exit(0)  # the tool forked, and the copy came back here
    flush()
    channel.send(answer)
    channel.receive()


def _enter(policy: SandboxPolicy) -> str | None:
    """Enter the sandbox; why that is not possible, or None."""
    try:
        enter(policy)
    except (OSError, ValueError) as error:
        return encodable(f"{type(error).__name__}: {error}")
    return None


def load(
    boot: Boot, schemas: dict[tuple[str, str], Schema], loaded: Callable[[str], None] = lambda _: None
) -> str | None:
    """Load modules and build validators; what went wrong, or None.

    Args:
        boot: What to load.
        schemas: Receives (module, function) → validators.
        loaded: Called with each module's name after its execution.
    """
    files = {}
    where = ""
    try:
        for name, file in boot.modules:
            where = file or name
            files[name] = file
            load_module(ModuleRef(name, file))
            loaded(name)
        for module, function_name in boot.functions:
            where = f"{module}.{function_name}"
            function = load_function(FunctionRef(ModuleRef(module, files.get(module)), function_name))
            schemas[module, function_name] = Schema(function, describe(function))
    except BaseException as error:  # noqa: BLE001, ASYNC103 - not under trio; a module may raise SystemExit
        traceback.print_exc()
        flush()
        return encodable(f"{where}: {type(error).__name__}: {safe_str(error)}"[:MAX_REASON])  # noqa: ASYNC104 - the same
    return None


def run_request(request: Request, channel: Channel, schemas: dict[tuple[str, str], Schema]) -> Result | Failure:
    """Run the tool that `request` names, in this process.

    Args:
        request: The call.
        channel: Takes the progress.
        schemas: (module, function) → validators, as far as they were built before.

    Raises:
        Stopped: the tool is async and SIGTERM cancelled it.
    """
    function: Callable[..., Any] | None = None
    try:
        os.environ.update(request.env)
        os.environ["TMPDIR"] = request.tmp
        tempfile.tempdir = None  # a module may have asked for it while it was loaded
        os.chdir(request.workspace)
        function = load_function(FunctionRef(ModuleRef(*request.module), request.function))
        parameters = describe(function)
        schema = schemas.get((request.module[0], request.function)) or Schema(function, parameters)
        context = ToolContext(
            job_id=request.job_id,
            tool=request.tool,
            session=decode(request.session),
            session_name=request.session_name,
            principal=request.principal,
            workspace=Path(request.workspace),
            tmp=Path(request.tmp),
            request_id=decode(request.request_id),
            report=channel.report,
        )
        arguments = schema.bind(decode(request.arguments))
        if parameters.context is not None:
            arguments[parameters.context] = context
        value = _call_async(function, arguments) if inspect.iscoroutinefunction(function) else function(**arguments)
        return _result(request, schema.result(value), context.session)
    except Stopped:
        raise
    except ZtrioError as error:
        return tool_failure(error, error.message, function)
    except BaseException as error:  # noqa: BLE001, ASYNC103 - not under trio, and SystemExit is the tool's
        reason = safe_str(error)
        message = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
        return tool_failure(error, message, function, request.sandbox)  # noqa: ASYNC104 - the same


def _call_async(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Run an async tool. SIGTERM, which `grace` sends, is the cancellation of its scope."""
    import trio  # noqa: PLC0415 - only async tools pay for it

    values: list[Any] = []

    async def cancel_on_term(scope: trio.CancelScope, task_status: trio.TaskStatus[None]) -> None:  # noqa: ASYNC114
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                scope.cancel()

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(cancel_on_term, nursery.cancel_scope)
            values.append(await function(**arguments))
            nursery.cancel_scope.cancel()

    raised: BaseException | None = None
    try:
        trio.run(run)
    except BaseExceptionGroup as group:
        # The nursery wraps what the tool raised, and nothing else can be in there.
        (raised,) = group.exceptions
    if raised is not None:
        raise raised
    if not values:
        raise Stopped
    return values[0]


def _result(request: Request, value: Any, session: Any) -> Result | Failure:
    encoded = encode(value)
    if len(encoded) > request.max_result:
        return Failure(
            code="RESULT_TOO_LARGE",
            message=f"The result has {len(encoded)} bytes; {request.max_result} are allowed.",
        )
    if request.read_only:
        return Result(value=encoded)
    if not isinstance(session, dict):
        return Failure(code="TOOL_ERROR", message=f"ctx.session must stay a dict, not a {type(session).__qualname__}.")
    try:
        state = encode(plain(session, rich=True))
    except NotPlain as error:
        return Failure(code="TOOL_ERROR", message=f"The session state does not fit at {error}.")
    if len(state) > request.max_state:
        return Failure(
            code="STATE_TOO_LARGE",
            message=f"The session state has {len(state)} bytes; {request.max_state} are allowed.",
        )
    return Result(value=encoded, session=None if state == request.session else state)
