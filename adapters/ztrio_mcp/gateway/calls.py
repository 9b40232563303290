"""The surface that MCP clients see: a `tools/call` of theirs, from its frame to the frame of its answer.

One task a call, but its frame goes on in the step that read it, and so does its answer: the task only waits. A client's
cancel reaches that task as the cancellation of its scope, and then nothing is answered (MCP, Cancellation: the receiver
should not respond); what the call became is on the books. Everything that ztrio has to say about a call is an `isError`
result that a model can read; what the server says passes as it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import attrs
import msgspec
import structlog
import trio

from ztrio.calls import LOCAL, CallContext
from ztrio.errors import InvalidArguments, ZtrioError
from ztrio.pending import open_lineage, seal_lineage
from ztrio_mcp import jsonrpc
from ztrio_mcp.client import Client, ClientRequest
from ztrio_mcp.gateway.batch import BatchError
from ztrio_mcp.gateway.own_tools import OWN_TOOLS, OwnTools
from ztrio_mcp.gateway.seam import Seam
from ztrio_mcp.gateway.story import CallRequest, Reply, Story
from ztrio_mcp.gateway.wire import CALL_ID_META, CallParams, decode_call, shape_of, with_meta
from ztrio_mcp.jsonrpc import INTERNAL_ERROR
from ztrio_mcp.objects import Fields, encode_fields, fields_of, raw
from ztrio_mcp.results import OUTCOME_META, WARNING_META, error_result

__all__ = ["ToolCalls"]

_log: Final = structlog.get_logger("ztrio.gateway")

_STATE: Final = "requestState"

_text: Final = msgspec.json.Decoder(str)
_encoder: Final = msgspec.json.Encoder()


class ToolCalls:
    """Answers the `tools/call` requests of one client.

    Args:
        seam: The way to the server.
        client: The client.
        secret: The store's secret, which seals what a client carries.
        nursery: Where calls run.
    """

    def __init__(self, seam: Seam, client: Client, *, secret: bytes, nursery: trio.Nursery) -> None:
        self.own: OwnTools | None = None
        # How a result of our own is said in the client's era.
        self.own_result: Callable[[dict[str, Any]], dict[str, Any]] = lambda result: result
        # What a call of our own carries in its `_meta`, in an era in which each request says who asks.
        self.envelope: Fields = {}
        self._seam = seam
        self._client = client
        self._secret = secret
        self._nursery = nursery
        # Of the calls that somebody waits for.
        self._scopes: set[trio.CancelScope] = set()
        self._context = attrs.evolve(LOCAL, surface="mcp")

    # ---- from the client

    def request(self, request: ClientRequest) -> None:
        """Begin to answer a `tools/call`, in the order in which they are read."""
        context = self._context_of(request)
        with self._defects(request):
            try:
                params = decode_call(request.params)
                if params.tool in OWN_TOOLS and self.own is not None:
                    self._start(request, self._answer_own, self.own, params, context)
                else:
                    self._enter(request, params, context)
            except ZtrioError as error:
                self._failed(request, error)

    def leave(self) -> None:
        """Nobody waits for any call any more, because everything ends."""
        for scope in self._scopes:
            scope.cancel()

    def _enter(self, request: ClientRequest, params: CallParams, context: CallContext) -> None:
        params, lineage = self._continued(params, context)

        def on_reply(reply: Reply) -> None:
            with self._defects(request, reply.call_id):
                if reply.answer.result is None:
                    request.fail(_error_of(reply))
                else:
                    request.answer(self._result(reply, lineage, context))

        on_progress = self._progress(request, params)
        asked = CallRequest(params=params, on_progress=on_progress, lineage=lineage, on_reply=on_reply)
        self._start(request, self._finish, self._seam.enter(asked, context))

    def _start(self, request: ClientRequest, run: Callable[..., Awaitable[None]], *about: Any) -> None:
        scope = trio.CancelScope()
        request.on_cancel = lambda _reason: scope.cancel()
        self._scopes.add(scope)
        self._nursery.start_soon(run, request, scope, *about)

    async def _finish(self, request: ClientRequest, scope: trio.CancelScope, story: Story) -> None:
        try:
            with self._defects(request, story.call_id), scope:
                await self._seam.finish(story)
        except ZtrioError as error:
            self._failed(request, error)
        finally:
            self._scopes.discard(scope)
        if scope.cancelled_caught:
            self._seam.forward_cancel(story.call_id)

    async def _answer_own(
        self, request: ClientRequest, scope: trio.CancelScope, own: OwnTools, params: CallParams, context: CallContext
    ) -> None:
        try:
            with self._defects(request), scope:
                result = await own.call(params.tool, params.arguments, context)
                request.answer(_encoder.encode(self.own_result(result)))
        except ZtrioError as error:
            self._failed(request, error)
        finally:
            self._scopes.discard(scope)

    def _failed(self, request: ClientRequest, error: ZtrioError) -> None:
        request.answer(_encoder.encode(self.own_result(error_result(error))))

    @contextmanager
    def _defects(self, request: ClientRequest, call_id: str | None = None) -> Iterator[None]:
        """A defect costs its own call only."""
        try:
            yield
        except ZtrioError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is
            _log.exception("a call failed in the gateway", call_id=call_id)
            said = f"The gateway failed: {type(error).__name__}."
            if call_id is not None:
                said += f" The call {call_id} may have happened; `ztrio_pending_call` says more."
            request.refuse(INTERNAL_ERROR, said)

    def _context_of(self, request: ClientRequest) -> CallContext:
        context = self._context
        return CallContext(context.principal, context.view, context.surface, context.gate_scope, request.id)

    def _progress(self, request: ClientRequest, params: CallParams) -> Callable[[msgspec.Raw], None] | None:
        """Tells the client of progress under its own token, as long as its request is in flight."""
        if params.progress_token is None:
            return None
        token = raw(params.progress_token)

        def tell(progress: msgspec.Raw) -> None:
            if request.in_flight:
                self._client.notify(
                    "notifications/progress", encode_fields({**fields_of(progress), "progressToken": token})
                )

        return tell

    # ---- what a batch, or a replay, asks for

    async def one(self, params: CallParams, context: CallContext) -> dict[str, Any]:
        """Make one call; its result as it goes over the wire, in the client's era.

        Raises:
            ZtrioError: see `Seam.call`.
            BatchError: the server answered with a JSON-RPC error.
        """
        if params.tool in OWN_TOOLS:
            raise InvalidArguments(f"{params.tool} is not one of the server's tools. Nothing was sent.")
        if self.envelope:
            params = attrs.evolve(params, meta={**params.meta, **self.envelope})
        reply = await self._seam.call(CallRequest(params=params), context)
        if reply.answer.result is None:
            raise BatchError(jsonrpc.decode(_error_of(reply)))
        result = jsonrpc.decode(self._result(reply, None, context))
        if not isinstance(result, dict):
            raise BatchError({"code": INTERNAL_ERROR, "message": f"The answer of {reply.call_id} is no result."})
        return result

    # ---- results

    def _result(self, reply: Reply, lineage: str | None, context: CallContext) -> bytes:
        result = reply.answer.result
        assert result is not None
        down: bytes | msgspec.Raw = result
        if b'"input_required"' in bytes(result):
            down = self._sealed(result, lineage or reply.call_id, context)
        ours: dict[str, Any] = {CALL_ID_META: reply.call_id, OUTCOME_META: "completed"}
        if reply.warning is not None:
            ours[WARNING_META] = reply.warning
        return with_meta(down, ours)

    def _sealed(self, result: bytes | msgspec.Raw, root: str, context: CallContext) -> bytes | msgspec.Raw:
        """A result that wants input, with its state wrapped so that whoever continues the call can be told."""
        shape = shape_of(result)
        if shape is None or not shape.wants_input:
            return result
        state = bytes(shape.request_state).decode()
        sealed = seal_lineage(self._secret, self._seam.server, context.principal.id, root, state)
        return encode_fields({**fields_of(result), _STATE: raw(sealed)})

    def _continued(self, params: CallParams, context: CallContext) -> tuple[CallParams, str | None]:
        """The parameters with the server's own state, and the call that they continue; None for a new call."""
        given = params.fields.get(_STATE)
        if given is None:
            return params, None
        try:
            opened = open_lineage(self._secret, self._seam.server, context.principal.id, _text.decode(given))
        except msgspec.DecodeError:
            opened = None
        if opened is None:
            raise InvalidArguments(
                f"{params.tool}: this requestState was not given to you by this server. Nothing was sent."
            )
        root, state = opened
        fields = {key: value for key, value in params.fields.items() if key != _STATE}
        if state:
            fields[_STATE] = msgspec.Raw(state.encode())
        return attrs.evolve(params, fields=fields), root


def _error_of(reply: Reply) -> bytes:
    """The JSON-RPC error that a client is told: the server's own, as it came, or that there was none."""
    answer = reply.answer
    if answer.error is not None:
        return bytes(answer.error)
    message = f"The server answered the call {reply.call_id} with what is no response ({answer.malformed})."
    return _encoder.encode({"code": INTERNAL_ERROR, "message": message})
