"""The gateway's own tools among its server's: pending calls, and the batch. None of them reaches the server by itself.

They are listed after the server's and win over one of the same name; a client that has never heard of them sees a
server with a few tools more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
import trio

from ztrio.calls import CallContext
from ztrio.errors import InvalidArguments, ZtrioError
from ztrio.tracking.desk import Desk
from ztrio_mcp.gateway.batch import BATCH, BATCH_TOOL, Batch
from ztrio_mcp.gateway.held import LateResults
from ztrio_mcp.pending_tools import PENDING_TOOLS, answer_pending
from ztrio_mcp.results import error_result, plain_result

__all__ = ["OWN_TOOLS", "OwnTools"]

OWN_TOOLS: Final[Mapping[str, dict[str, Any]]] = {**PENDING_TOOLS, BATCH: BATCH_TOOL}
"""Name → tool, as it is on the wire."""

_LOOK_UP: Final = "ztrio_pending_call"

_arguments: Final = msgspec.json.Decoder(dict[str, Any])


class OwnTools:
    """Answers calls of the gateway's own tools.

    Args:
        desk: How pending calls are told of.
        held: Results that came too late.
        batch: Runs lists of calls.
    """

    def __init__(self, desk: Desk, held: LateResults, batch: Batch) -> None:
        self._desk = desk
        self._held = held
        self._batch = batch
        self._answers: dict[str, Callable[[str, CallContext, dict[str, Any]], Awaitable[dict[str, Any]]]] = (
            dict.fromkeys(PENDING_TOOLS, self._pending)
        )
        self._answers[BATCH] = self._run_batch

    async def call(self, name: str, arguments: msgspec.Raw | None, context: CallContext) -> dict[str, Any]:
        """Answer one of `OWN_TOOLS`; its result as it goes over the wire."""
        try:
            return plain_result(await self._answers[name](name, context, _decoded(name, arguments)))
        except ZtrioError as error:
            return error_result(error)

    async def _pending(self, name: str, context: CallContext, arguments: dict[str, Any]) -> dict[str, Any]:
        answer = await answer_pending(name, self._desk, context, arguments)
        if name == _LOOK_UP:
            late = self._held.take(arguments["call_id"], context, trio.current_time())
            if late is not None:
                answer["late_result"] = msgspec.json.decode(late)
        return answer

    async def _run_batch(self, _name: str, context: CallContext, arguments: dict[str, Any]) -> dict[str, Any]:
        return await self._batch.run(arguments, context)


def _decoded(name: str, arguments: msgspec.Raw | None) -> dict[str, Any]:
    if arguments is None or bytes(arguments).strip() == b"null":
        return {}
    try:
        return _arguments.decode(arguments)
    except msgspec.DecodeError as error:
        raise InvalidArguments(f"{name}: the arguments are not what it takes ({error}). Nothing was done.") from None
