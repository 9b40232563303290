"""A tool's exception as a frame: bounded, encodable, and with the part the sandbox had in it.

Everything here handles foreign objects: `__str__` may raise, text may hold surrogates, a traceback may be endless.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, Final

from ztrio.workers.denials import explain
from ztrio.workers.sandbox import SandboxPolicy
from ztrio.workers.wire import Failure

__all__ = ["MAX_REASON", "encodable", "safe_str", "tool_failure"]

MAX_REASON: Final = 2000
"""Characters of an exception's text in the message."""

_MAX_TRACEBACK: Final = 16 * 1024  # bytes
_TRACEBACK_HEAD: Final = 4 * 1024  # bytes kept from its beginning; the end says more


def tool_failure(
    error: BaseException,
    message: str,
    function: Callable[..., Any] | None,
    policy: SandboxPolicy | None = None,
) -> Failure:
    """The frame that says how a tool failed.

    Args:
        error: What it raised.
        message: The same, in words.
        function: The tool's function; the traceback begins with it.
        policy: The sandbox the tool ran in, where that may be the reason.
    """
    if isinstance(error, MemoryError):
        traceback.clear_frames(error.__traceback__)  # what the tool holds is missing here
    denial = None if policy is None else explain(error, policy)
    if denial is not None and denial.sentence:
        message = f"{message[: MAX_REASON // 2]}. {denial.sentence}"
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return Failure(
        code="TOOL_ERROR",
        message=encodable(message[:MAX_REASON]),
        exception_type=encodable(name),
        traceback=_format_traceback(error, function),
        path=None if denial is None or denial.path is None else encodable(denial.path),
        limit=None if denial is None else denial.limit,
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


def safe_str(error: BaseException) -> str:
    """An exception's text, or nothing where its author's `__str__` fails."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a foreign __str__ may raise anything
        return ""


def encodable(text: str) -> str:
    """Text that can be encoded, whatever it came from."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
