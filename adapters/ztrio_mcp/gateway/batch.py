"""Several calls in one: `ztrio_batch` runs a list of calls at once and says of each what became of it.

The calls run in a nursery, each through the seam like any other, so each has an id, an entry and its own place in the
queue; whatever one of them becomes is published before its task ends. The answer is made after the nursery has closed,
so its list of unresolved calls is complete by construction. A batch whose caller leaves is no exception: its calls
become entries on their way out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import attrs
import msgspec
import trio

from ztrio.calls import CallContext
from ztrio.errors import InvalidArguments, ZtrioError
from ztrio_mcp.gateway.wire import CallParams, decode_call

__all__ = ["BATCH", "BATCH_TOOL", "MAX_CALLS", "Batch", "BatchError", "CallOne"]

BATCH: Final = "ztrio_batch"

MAX_CALLS: Final = 64
"""Calls in one batch; half of what one caller may have in flight."""

CallOne = Callable[[CallParams, CallContext], Awaitable[dict[str, Any]]]
"""Makes one call; its result as it goes over the wire. Raises `ZtrioError`, or `BatchError` for a JSON-RPC error."""

_ITEM_KEYS: Final = frozenset({"tool", "arguments", "timeout", "reconciles"})

BATCH_TOOL: Final[dict[str, Any]] = {
    "name": BATCH,
    "title": "Run several calls",
    "description": "Run up to 64 calls of this server's tools at once, and learn of each what became of it. "
    "`unresolved` lists the calls of which nobody knows whether they happened: do not repeat these blindly.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "calls": {
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_CALLS,
                "items": {
                    "type": "object",
                    "properties": {
                        "tool": {"type": "string"},
                        "arguments": {"type": "object"},
                        "timeout": {"type": "number", "exclusiveMinimum": 0, "description": "Seconds."},
                        "reconciles": {
                            "type": "array",
                            "items": {"type": "string"},
                            "maxItems": 16,
                            "description": "Ids of pending calls that this one, a read, settles.",
                        },
                    },
                    "required": ["tool"],
                    "additionalProperties": False,
                },
            }
        },
        "required": ["calls"],
        "additionalProperties": False,
    },
    "outputSchema": {
        "type": "object",
        "properties": {
            "results": {"type": "array", "items": {"type": "object"}},
            "unresolved": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["results", "unresolved"],
    },
    "annotations": {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False},
}


class BatchError(Exception):
    """The server answered a call with a JSON-RPC error.

    Args:
        error: The error, as it came.
    """

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error.get("message", ""))
        self.error = error


class Batch:
    """Runs lists of calls.

    Args:
        call: Makes one call.
    """

    def __init__(self, call: CallOne) -> None:
        self._call = call

    async def run(self, arguments: dict[str, Any], context: CallContext) -> dict[str, Any]:
        """Run a list of calls, all at once.

        Args:
            arguments: `calls`, as `BATCH_TOOL` describes it.
            context: Who calls.

        Returns:
            `results`, in the order of the calls: `{ok, result}` or `{ok, error}`; `unresolved`, the ids of the calls of
            which nobody knows.

        Raises:
            InvalidArguments: the list is none. Nothing was sent.
        """
        calls = _calls(arguments)
        results: list[dict[str, Any]] = [{} for _ in calls]
        context = attrs.evolve(context, surface="batch")
        async with trio.open_nursery() as nursery:
            for index, params in enumerate(calls):
                nursery.start_soon(self._one, params, context, results[index])
        return {"results": results, "unresolved": [each for each in map(_unresolved, results) if each is not None]}

    async def _one(self, params: CallParams, context: CallContext, result: dict[str, Any]) -> None:
        try:
            answer = await self._call(params, context)
        except ZtrioError as error:
            result.update(ok=False, error=error.as_dict())
        except BatchError as failed:
            result.update(ok=False, error={"code": "JSONRPC_ERROR", "message": str(failed), "error": failed.error})
        else:
            result.update(ok=not answer.get("isError", False), result=answer)


def _unresolved(result: dict[str, Any]) -> str | None:
    pending = result.get("error", {}).get("pending_call")
    if pending is None or pending["state"] != "unresolved" or result["error"]["code"] == "PENDING_CALL_UNRESOLVED":
        return None
    call_id = result["error"]["call_id"]
    assert isinstance(call_id, str)
    return call_id


def _calls(arguments: dict[str, Any]) -> list[CallParams]:
    calls = arguments.get("calls")
    if set(arguments) != {"calls"} or not isinstance(calls, list) or not 0 < len(calls) <= MAX_CALLS:
        raise InvalidArguments(f"{BATCH} takes `calls`, a list of 1 to {MAX_CALLS} calls. Nothing was sent.")
    return [_params(index, item) for index, item in enumerate(calls)]


def _params(index: int, item: Any) -> CallParams:
    if not isinstance(item, dict) or not item.keys() <= _ITEM_KEYS:
        raise InvalidArguments(f"Call {index} takes tool, arguments, timeout and reconciles. Nothing was sent.")
    meta = {f"ztrio/{key}": item[key] for key in ("timeout", "reconciles") if item.get(key) is not None}
    params = {"name": item.get("tool"), "arguments": item.get("arguments") or {}, "_meta": meta}
    try:
        return decode_call(msgspec.json.encode(params))
    except InvalidArguments as error:
        raise InvalidArguments(f"Call {index}: {error.message}") from None
