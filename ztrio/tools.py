"""Declaring tools: a `Toolbox`, its decorator, what a tool may say about its outputs, and what it is handed."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import attrs

from ztrio.errors import ToolboxError
from ztrio.policies import Limits
from ztrio.schema import Parameters, Schema, describe

__all__ = ["DEFAULT_QUEUE_TIMEOUT", "DEFAULT_TIMEOUT", "Capability", "Tool", "ToolContext", "Toolbox"]

DEFAULT_TIMEOUT = 30.0
DEFAULT_QUEUE_TIMEOUT = 60.0

_F = TypeVar("_F", bound=Callable[..., Any])

Effects = Literal["transactional", "external"]


class Capability(StrEnum):
    """What a tool does to the world; decides where it runs and what the policy is asked.

    `READ` has no effects and runs beside others in the server process. `WRITE` changes session state or outputs and
    runs in a worker. `DESTRUCTIVE` is a write that may remove or overwrite what cannot be had again.
    """

    READ = "read"
    WRITE = "write"
    DESTRUCTIVE = "destructive"


class ToolContext:
    """What a tool may ask of ztrio; a parameter annotated with this class receives it.

    Args:
        job_id: The call's id.
        tool: The tool's name.
        session: The session's state: JSON-like values, bytes and datetimes. What a mutating tool leaves here is
            committed with its outputs; a read gets a copy that is thrown away.
        session_name: The caller's name for the session.
        principal: Id of who calls.
        workspace: The workspace, absolute; also the worker's current directory.
        tmp: A private directory that vanishes with the call (also `TMPDIR`); None for reads in the server process.
        request_id: The caller's own id of the request.
        report: Receives (progress, total, message).
    """

    def __init__(
        self,
        *,
        job_id: str,
        tool: str,
        session: MutableMapping[str, Any],
        session_name: str,
        principal: str,
        workspace: Path,
        tmp: Path | None,
        request_id: str | int | None,
        report: Callable[[float, float | None, str | None], None],
    ) -> None:
        self.job_id = job_id
        self.tool = tool
        self.session = session
        self.session_name = session_name
        self.principal = principal
        self.workspace = workspace
        self.tmp = tmp
        self.request_id = request_id
        self._report = report

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report how far the tool is; shown to the caller while the call runs.

        Args:
            progress: A number that grows with each report (MCP 2025-11-25, Progress).
            total: The value that `progress` will reach, if known.
            message: A sentence for people.
        """
        self._report(progress, total, message)


@attrs.frozen(kw_only=True)
class Tool:
    """One registered tool. See `Toolbox.tool` for the options."""

    name: str
    function: Callable[..., Any]
    parameters: Parameters
    capability: Capability
    title: str | None
    description: str
    timeout: float
    queue_timeout: float
    max_timeout: float
    grace: float
    env: tuple[str, ...]
    effects: Effects
    isolate: bool
    init: bool
    limits: Limits | None
    writes: tuple[str, ...]

    @property
    def in_worker(self) -> bool:
        """Whether calls run in a worker process."""
        return self.isolate or self.capability is not Capability.READ

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.function)

    def environment(self) -> dict[str, str]:
        """The variables that this tool's workers get beside the standard ones, as they are now."""
        return {name: os.environ[name] for name in self.env if name in os.environ}

    @cached_property
    def schema(self) -> Schema:
        """JSON Schemas and validation, built on first use because that imports pydantic.

        Raises:
            ToolboxError: a parameter's type has no JSON Schema.
        """
        return Schema(self.function, self.parameters)


class Toolbox:
    """A named collection of tools, made in a module that workers can import.

    Args:
        name: Shown to clients as the server's name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._tools: dict[str, Tool] = {}

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __repr__(self) -> str:
        return f"<Toolbox {self.name!r}: {', '.join(self._tools) or 'no tools'}>"

    def get(self, name: str) -> Tool | None:
        """The tool called `name`, or None."""
        return self._tools.get(name)

    def tool(
        self,
        *,
        capability: Literal["read", "write", "destructive"] | Capability,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        queue_timeout: float = DEFAULT_QUEUE_TIMEOUT,
        max_timeout: float | None = None,
        grace: float = 0.0,
        env: Sequence[str] = (),
        effects: Effects = "transactional",
        isolate: bool = False,
        init: bool = False,
        limits: Limits | None = None,
        writes: Sequence[str] = (),
    ) -> Callable[[_F], _F]:
        """Register a top-level function as a tool; the function itself is returned unchanged.

        Args:
            capability: What the tool does to the world; mandatory, see `Capability`.
            name: Name shown to clients; the function's own when omitted.
            title: A short name for people.
            description: What the tool does; the docstring when omitted.
            timeout: Seconds the tool may run.
            queue_timeout: Seconds a call may wait for its session, targets and a worker; never eats `timeout`.
            max_timeout: The most seconds a remote caller may ask for; `timeout` when omitted.
            grace: Seconds between SIGTERM and SIGKILL when a call is stopped; 0 kills at once. An async tool sees
                SIGTERM as the cancellation of its scope.
            env: Names of environment variables passed on to the worker beside the standard ones.
            effects: `external` says that the tool also changes things ztrio cannot roll back (it sends a mail):
                killed, such a call ends as `Unresolved`, not as rolled back.
            isolate: Run a read in a worker process, so that it can be killed.
            init: Where the worker would be PID 1 of a namespace, put a real one above it, which reaps zombies and
                leaves signals their usual effect: for programs that start many others and wait for none.
            limits: What the worker process may use.
            writes: Directories, absolute or relative to the workspace, that the tool may write beside its outputs and
                its temporary directory: a cache, say. What it writes there is not rolled back.

        Raises:
            ToolboxError: the function cannot be a tool, naming file, line and reason.
        """

        def register(function: _F) -> _F:
            try:
                self._register(
                    Tool(
                        name=name or function.__name__,
                        function=_importable(function),
                        parameters=describe(function),
                        capability=_capability(capability),
                        title=title,
                        description=inspect.cleandoc(description or function.__doc__ or ""),
                        timeout=_seconds("timeout", timeout),
                        queue_timeout=_seconds("queue_timeout", queue_timeout),
                        max_timeout=_seconds("max_timeout", timeout if max_timeout is None else max_timeout),
                        grace=_seconds("grace", grace, zero=True),
                        env=_names(env),
                        effects=_effects(effects),
                        isolate=isolate,
                        init=init,
                        limits=_limits(limits),
                        writes=_paths(writes),
                    )
                )
            except ToolboxError as error:
                raise ToolboxError(f"{_where(function)}: {error.message}") from error.__cause__
            return function

        return register

    def _register(self, tool: Tool) -> None:
        if not _TOOL_NAME.issuperset(tool.name) or not 1 <= len(tool.name) <= 128:
            raise ToolboxError(f"the name {tool.name!r} must be 1 to 128 of A-Z, a-z, 0-9, '_', '-' and '.'")
        if tool.name in RESERVED_NAMES:
            raise ToolboxError(f"the name {tool.name!r} is taken by ztrio's own tool")
        if tool.name in self._tools:
            raise ToolboxError(f"a tool named {tool.name!r} is already registered")
        if tool.max_timeout < tool.timeout:
            raise ToolboxError("max_timeout is smaller than timeout")
        if tool.capability is Capability.READ:
            if tool.parameters.outputs:
                raise ToolboxError("a read tool cannot have Output parameters; declare capability='write'")
            if tool.effects == "external":
                raise ToolboxError("a read tool cannot have external effects; declare capability='write'")
            if tool.writes:
                raise ToolboxError("a read tool writes nothing; declare capability='write'")
            if tool.limits is not None and not tool.isolate:
                raise ToolboxError("limits hold for a worker process; declare isolate=True")
        self._tools[tool.name] = tool


RESERVED_NAMES = frozenset(
    {
        "session_open",
        "session_list",
        "session_destroy",
        "ztrio_pending_calls",
        "ztrio_pending_call",
        "ztrio_cancel_pending_call",
    }
)

# The MCP tool-name rule: specification 2025-11-25, Server Features, Tools.
_TOOL_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")


def _importable(function: Callable[..., Any]) -> Callable[..., Any]:
    """A worker finds the function by module and name, so it must be a plain function at the top of its module."""
    if not inspect.isfunction(function):
        raise ToolboxError(f"a tool must be a plain function, not a {type(function).__name__}")
    if function.__name__ == "<lambda>" or "." in function.__qualname__:
        raise ToolboxError(
            f"{function.__qualname__} is not at the top level of its module, so a worker cannot import it; "
            "move it there"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ToolboxError("a tool cannot be a generator; report steps with ctx.progress and return the result")
    return function


def _capability(value: str) -> Capability:
    try:
        return Capability(value)
    except ValueError:
        raise ToolboxError(f"capability must be read, write or destructive, not {value!r}") from None


def _effects(value: str) -> Effects:
    if value == "transactional":
        return "transactional"
    if value == "external":
        return "external"
    raise ToolboxError(f"effects must be transactional or external, not {value!r}")


def _seconds(option: str, value: float, *, zero: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ToolboxError(f"{option} must be a finite number of seconds, not {value!r}")
    if value < 0 or (value == 0 and not zero):
        raise ToolboxError(f"{option} must be {'at least 0' if zero else 'more than 0'} seconds, not {value!r}")
    return float(value)


def _names(env: Sequence[str]) -> tuple[str, ...]:
    if (
        not isinstance(env, Sequence)
        or isinstance(env, str)
        or not all(isinstance(name, str) and name and "=" not in name for name in env)
    ):
        raise ToolboxError(f"env must be a list of variable names, not {env!r}")
    return tuple(env)


def _limits(limits: Limits | None) -> Limits | None:
    if limits is not None and not isinstance(limits, Limits):
        raise ToolboxError(f"limits must be ztrio.Limits(...), not {limits!r}")
    return limits


def _paths(writes: Sequence[str]) -> tuple[str, ...]:
    if (
        not isinstance(writes, Sequence)
        or isinstance(writes, str)
        or not all(isinstance(path, str) and path and "\0" not in path for path in writes)
    ):
        raise ToolboxError(f"writes must be a list of directories, not {writes!r}")
    return tuple(writes)


def _where(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    return repr(function) if code is None else f"{code.co_filename}:{code.co_firstlineno}"
