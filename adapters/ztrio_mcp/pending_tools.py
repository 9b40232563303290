"""The tools by which a client manages its pending calls: list, look up, cancel.

They are answered from the supervisor's desk and run no tool code, so they pass neither queue nor gate: a client whose
writes are refused finds out why. What they show is what errors and the command line show, field for field.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import trio

from ztrio.calls import CallContext
from ztrio.errors import InvalidArguments
from ztrio.pending import PENDING_CALL_SCHEMA
from ztrio.tracking.desk import Desk

__all__ = ["PENDING_TOOLS", "answer_pending"]

_Answer = Callable[[Desk, CallContext, Mapping[str, Any]], Awaitable[dict[str, Any]]]

_CALL_ID: Final = {
    "type": "object",
    "properties": {"call_id": {"type": "string", "description": "Id of the pending call: pc_… or pcb_…"}},
    "required": ["call_id"],
    "additionalProperties": False,
}
_PENDING_CALL: Final = {name: value for name, value in PENDING_CALL_SCHEMA.items() if name != "$schema"}


async def _list(desk: Desk, context: CallContext, _arguments: Mapping[str, Any]) -> dict[str, Any]:
    await trio.lowlevel.checkpoint()
    return {"pending_calls": desk.calls(context)}


async def _show(desk: Desk, context: CallContext, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"pending_call": await desk.call(arguments["call_id"], context)}


async def _cancel(desk: Desk, context: CallContext, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return await desk.cancel(arguments["call_id"], context)


def _tool(
    name: str, title: str, description: str, takes: dict[str, Any], gives: dict[str, Any], *, reads: bool
) -> dict[str, Any]:
    return {
        "name": name,
        "title": title,
        "description": description,
        "inputSchema": takes,
        "outputSchema": {"type": "object", **gives},
        "annotations": {"readOnlyHint": reads, "destructiveHint": False, "idempotentHint": True},
    }


_TOOLS: Final[tuple[tuple[dict[str, Any], _Answer], ...]] = (
    (
        _tool(
            "ztrio_pending_calls",
            "List pending calls",
            "List your calls of which nobody knows whether they happened, oldest first, with what you can do about "
            "each (`resolve`). Settled ones are shown for a while.",
            {"type": "object", "properties": {}, "additionalProperties": False},
            {"properties": {"pending_calls": {"type": "array", "items": _PENDING_CALL}}, "required": ["pending_calls"]},
            reads=True,
        ),
        _list,
    ),
    (
        _tool(
            "ztrio_pending_call",
            "Look a pending call up",
            "What is known of one of your calls, by the `call_id` that an error or the list named, and what you can "
            "do about it.",
            _CALL_ID,
            {"properties": {"pending_call": _PENDING_CALL}, "required": ["pending_call"]},
            reads=True,
        ),
        _show,
    ),
    (
        _tool(
            "ztrio_cancel_pending_call",
            "Cancel a pending call",
            "Have the server of a pending call told to stop. `state: cancelled` means that it was told, not that "
            "nothing happened.",
            _CALL_ID,
            {
                "properties": {
                    "call_id": {"type": "string"},
                    "state": {"type": "string"},
                    "cancel_sent": {"type": "boolean"},
                    "cancel_error": {"type": "string"},
                    "method": {"type": "string"},
                    "note": {"type": "string"},
                },
                "required": ["call_id", "state", "cancel_sent", "note"],
            },
            reads=False,
        ),
        _cancel,
    ),
)

PENDING_TOOLS: Final[Mapping[str, dict[str, Any]]] = {each["name"]: each for each, _ in _TOOLS}
"""Name → tool, as it is on the wire (MCP 2025-11-25, `Tool`)."""

_ANSWERS: Final = {each["name"]: answer for each, answer in _TOOLS}


async def answer_pending(name: str, desk: Desk, context: CallContext, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Answer one of `PENDING_TOOLS`.

    Raises:
        InvalidArguments: the arguments are not those that it takes.
        UnknownCall: there is no such call that this caller may see.
    """
    known = PENDING_TOOLS[name]["inputSchema"]["properties"]
    for argument, value in arguments.items():
        if argument not in known or not isinstance(value, str):
            await trio.lowlevel.checkpoint()
            raise InvalidArguments(f"{name}: {argument} is not an argument that it takes. Nothing was done.")
    if missing := known.keys() - arguments.keys():
        await trio.lowlevel.checkpoint()
        raise InvalidArguments(f"{name} needs {', '.join(sorted(missing))}. Nothing was done.")
    return await _ANSWERS[name](desk, context, arguments)
