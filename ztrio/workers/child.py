"""The worker's main program: loads the tools, takes one request, runs it, answers, waits to be killed.

It runs foreign code and then has to be believed by nobody: what it sends is checked on the other side, and what it
leaves behind is looked at after its death. trio is only needed here for tools that are async.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

import attrs

from ztrio.binding import Binding
from ztrio.errors import ZtrioError
from ztrio.loading import FunctionRef, ModuleRef, load_function, load_module
from ztrio.plain import NotPlain, decode, encode, plain
from ztrio.schema import describe
from ztrio.tools import ToolContext
from ztrio.workers.child_channel import Channel
from ztrio.workers.failures import MAX_REASON, encodable, safe_str, tool_failure
from ztrio.workers.job_init import run_as_init
from ztrio.workers.prelude import flush, hang_on, prepare_streams, reset_signals
from ztrio.workers.sandbox import SandboxPolicy, enter
from ztrio.workers.wire import (
    Boot,
    Failure,
    ProtocolError,
    Ready,
    Request,
    Result,
    Started,
)

__all__ = ["Prepared", "Tools", "leave_on_term", "load", "main", "prepare", "run_request", "serve_forked"]

_INIT: Final = 1  # process id of the first process of a PID namespace


@attrs.frozen
class Prepared:
    """A tool, and what is found out about it before it is called.

    Args:
        function: The tool's function.
        binding: What is known of its types.
        context: Name of the parameter that receives the `ToolContext`, or None.
        is_async: Whether it is a coroutine function.
    """

    function: Callable[..., Any]
    binding: Binding
    context: str | None
    is_async: bool


Tools = dict[tuple[str, str], Prepared]
"""(module, function) → the tool."""


class Stopped(BaseException):
    """An async tool was cancelled by SIGTERM: there is nothing to answer any more."""


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
    _serve(Channel(channel_fd), None)


def serve_forked(channel: Channel, tools: Tools) -> NoReturn:
    """Serve one request in a fork of a process that has loaded everything, then wait to be killed.

    Args:
        channel: The worker's socket.
        tools: What `load` has prepared.
    """
    _serve(channel, tools)


def leave_on_term() -> None:
    """Let SIGTERM do to forks of this process that are PID 1 what it does to others.

    The kernel drops signals to PID 1 that it has no handler for. A fork inherits it.
    """
    signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, _: object) -> None:
    """SIGTERM in PID 1 of a namespace: what the default action would do."""
    if os.getpid() != _INIT:  # a copy of the process that the tool forked
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(128 + number)


def _serve(channel: Channel, tools: Tools | None) -> NoReturn:
    try:
        if tools is None:
            tools = _boot(channel)
        _serve_request(channel, tools)
    except (OSError, ProtocolError):
        os._exit(1)  # nobody listens, or nobody who speaks our protocol
    except Stopped:
        flush()
        os.kill(os.getpid(), signal.SIGTERM)  # the status then says what ended it
    os._exit(0)


def _boot(channel: Channel) -> Tools:
    boot = channel.receive()
    if not isinstance(boot, Boot):
        os._exit(0)
    tools: Tools = {}
    channel.send(Ready(problem=load(boot, tools)))
    return tools


def _serve_request(channel: Channel, tools: Tools) -> None:
    request = channel.receive()
    if not isinstance(request, Request):
        return
    if request.init and os.getpid() == _INIT:
        run_as_init()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        channel.take_over()
    problem = _enter(request.sandbox)
    if problem is not None:
        channel.send(Started(problem=problem))
        return
    channel.start()
    answer = run_request(request, channel, tools)
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


def load(boot: Boot, tools: Tools, loaded: Callable[[str], None] = lambda _: None) -> str | None:
    """Load modules and prepare tools; what went wrong, or None.

    Args:
        boot: What to load.
        tools: Receives the tools.
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
            tools[module, function_name] = prepare(function)
    except BaseException as error:  # noqa: BLE001, ASYNC103 - not under trio; a module may raise SystemExit
        traceback.print_exc()
        flush()
        return encodable(f"{where}: {type(error).__name__}: {safe_str(error)}"[:MAX_REASON])  # noqa: ASYNC104 - the same
    return None


def prepare(function: Callable[..., Any], *, simple: bool | None = None) -> Prepared:
    """Look at a tool's signature and build what validators it needs.

    Args:
        function: The tool's function.
        simple: Whether it needs none; found out when omitted.
    """
    is_async = inspect.iscoroutinefunction(function)
    if is_async:
        import trio  # noqa: F401, PLC0415 - only async tools need it, and they do so here already
    parameters = describe(function)
    return Prepared(function, Binding(function, parameters, simple=simple), parameters.context, is_async)


def run_request(request: Request, channel: Channel, tools: Tools) -> Result | Failure:
    """Run the tool that `request` names, in this process.

    Args:
        request: The call.
        channel: Takes the progress.
        tools: Those that are prepared; another is prepared now.

    Raises:
        Stopped: the tool is async and SIGTERM cancelled it.
    """
    function: Callable[..., Any] | None = None
    try:
        for name, value in request.env.items():
            os.environ[name] = value
        os.environ["TMPDIR"] = request.tmp
        if "tempfile" in sys.modules:
            sys.modules["tempfile"].tempdir = None  # type: ignore[attr-defined] # a module may have asked meanwhile
        os.chdir(request.workspace)
        tool = tools.get((request.module[0], request.function))
        if tool is None:
            tool = prepare(load_function(FunctionRef(ModuleRef(*request.module), request.function)))
        function = tool.function
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
        arguments = tool.binding.bind(decode(request.arguments))
        if tool.context is not None:
            arguments[tool.context] = context
        value = _call_async(function, arguments) if tool.is_async else function(**arguments)
        return _result(request, tool.binding.result(value), context.session)
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
    import trio  # noqa: PLC0415 - see `prepare`

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
