"""The worker's main program: loads the tools, takes one request, runs it, answers, waits to be killed.

It runs foreign code and then has to be believed by nobody: what it sends is checked on the other side, and what it
leaves behind is looked at after its death. trio is only needed here for tools that are async.
"""

from __future__ import annotations

import fcntl
import inspect
import math
import os
import select
import signal
import socket
import sys
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

__all__ = ["Channel", "main", "run_request"]

_CHUNK: Final = 64 * 1024  # bytes
_PROGRESS_RATE: Final = 50.0  # Progress frames per second in the long run; what comes beyond is dropped
_PROGRESS_BURST: Final = 100.0  # so that only a flood loses any, and never a tool that reports a step before a long one
_MAX_MESSAGE: Final = 1000  # characters of a progress message
_MAX_TRACEBACK: Final = 16 * 1024  # bytes
_TRACEBACK_HEAD: Final = 4 * 1024  # bytes kept from its beginning; the end says more
_MAX_REASON: Final = 2000  # characters of an exception's text in the message


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
        text = None if message is None else _text(str(message)[:_MAX_MESSAGE])
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
    _hang_on(lifeline_fd)
    # Whoever started the server may have had signals blocked or ignored; a tool and its programs get the defaults.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        # What was printed before a kill should be in the pipe; text that cannot be encoded is no reason to fail.
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    channel = Channel(socket.socket(fileno=channel_fd))
    try:
        _serve(channel)
    except (OSError, ProtocolError):
        os._exit(1)  # nobody listens, or nobody who speaks our protocol
    except Stopped:
        _flush()
        os.kill(os.getpid(), signal.SIGTERM)  # the status then says what ended it
    os._exit(0)


def _serve(channel: Channel) -> None:
    boot = channel.receive()
    if not isinstance(boot, Boot):
        return
    schemas: dict[tuple[str, str], Schema] = {}
    problem = _load(boot, schemas)
    channel.send(Ready(problem=problem))
    request = channel.receive()
    if not isinstance(request, Request):
        return
    channel.send(Started())
    answer = run_request(request, channel, schemas)
    if not channel.mine:
        os._exit(0)  # the tool forked, and the copy came back here
    _flush()
    channel.send(answer)
    channel.receive()


def _hang_on(lifeline_fd: int) -> None:
    """Have the kernel kill this process group when the supervisor's end of the pipe closes, however it ends."""
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline_fd, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(lifeline_fd, fcntl.F_GETFL)
        fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, flags | os.O_ASYNC | os.O_NONBLOCK)
    poll = select.poll()
    poll.register(lifeline_fd, 0)
    if poll.poll(0):  # closed before the line above
        os._exit(1)


def _load(boot: Boot, schemas: dict[tuple[str, str], Schema]) -> str | None:
    """Load modules and build validators; what went wrong, or None."""
    files = {}
    where = ""
    try:
        for name, file in boot.modules:
            where = file or name
            files[name] = file
            load_module(ModuleRef(name, file))
        for module, function_name in boot.functions:
            where = f"{module}.{function_name}"
            function = load_function(FunctionRef(ModuleRef(module, files.get(module)), function_name))
            schemas[module, function_name] = Schema(function, describe(function))
    except BaseException as error:  # noqa: BLE001, ASYNC103 - not under trio; a module may raise SystemExit
        traceback.print_exc()
        _flush()
        return _text(f"{where}: {type(error).__name__}: {_safe_str(error)}"[:_MAX_REASON])  # noqa: ASYNC104 - the same
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
        return _failure(error, error.message, function)
    except BaseException as error:  # noqa: BLE001, ASYNC103 - not under trio, and SystemExit is the tool's
        reason = _safe_str(error)
        message = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
        return _failure(error, message, function)  # noqa: ASYNC104 - the same


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


def _failure(error: BaseException, message: str, function: Callable[..., Any] | None) -> Failure:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return Failure(
        code="TOOL_ERROR",
        message=_text(message[:_MAX_REASON]),
        exception_type=_text(name),
        traceback=_format_traceback(error, function),
    )


def _format_traceback(error: BaseException, function: Callable[..., Any] | None) -> str:
    """The traceback from the tool's function on, bounded; empty where the tool had not begun."""
    step = error.__traceback__
    while step is not None and (function is None or step.tb_frame.f_code is not function.__code__):
        step = step.tb_next
    if step is None:
        return ""
    try:
        text = "".join(traceback.format_exception(type(error), error, step))
    except Exception as failure:  # noqa: BLE001 - foreign __str__ and notes may raise anything
        text = f"(no traceback: {type(failure).__name__})"
    data = text.encode("utf-8", "backslashreplace")
    if len(data) > _MAX_TRACEBACK:
        head, tail = data[:_TRACEBACK_HEAD], data[_TRACEBACK_HEAD - _MAX_TRACEBACK + 64 :]
        data = head + b"\n  [... cut ...]\n" + tail
    return data.decode("utf-8", "ignore")


def _safe_str(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a foreign __str__ may raise anything
        return ""


def _text(text: str) -> str:
    """Text that can be encoded, whatever it came from."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass  # the tool closed it
