"""Every request of the client that is no call of a tool: passed to the server as it is, and its answer passed back.

Nothing of these is kept or settled: they change nothing that anybody has to know about. What a server has been told to
keep sending (log levels, subscriptions) is remembered, and told to the process that takes its place.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec
import trio

from ztrio.errors import UpstreamUnavailable, ZtrioError
from ztrio_mcp.client import Client, ClientRequest
from ztrio_mcp.gateway.catalogue import Catalogue
from ztrio_mcp.gateway.handshake import UpstreamHello
from ztrio_mcp.gateway.upstream import Connection, Upstream
from ztrio_mcp.jsonrpc import INTERNAL_ERROR
from ztrio_mcp.objects import Fields, encode_fields, fields_of, raw
from ztrio_mcp.peer import Ending, Exchange, PeerClosed, PeerQueueFull, Response

__all__ = ["PROGRESS_TOKEN", "Passing", "capabilities_shown"]

PROGRESS_TOKEN: Final = "progressToken"  # noqa: S105 - the protocol's name for it

_LISTED: Final = 5.0  # seconds for the server's own tools/list; then the last good one is answered
_REMEMBERED: Final = {
    "logging/setLevel": None,
    "resources/subscribe": "uri",
}  # method → which key tells one from another


class Passing:
    """Passes requests of one client to one server.

    Args:
        client: The client.
        upstream: The server.
        catalogue: Its tools.
        patience: Seconds that a request waits for a server that is not ready.
        nursery: Where requests wait.
    """

    def __init__(
        self, client: Client, upstream: Upstream, catalogue: Catalogue, *, patience: float, nursery: trio.Nursery
    ) -> None:
        self._client = client
        self._upstream = upstream
        self._catalogue = catalogue
        self._patience = patience
        self._nursery = nursery
        # A tools/list under way → the wait after which it is answered from memory.
        self._lists: dict[ClientRequest, trio.CancelScope] = {}
        # (method, what it is about) → parameters, of what a new process has to be told, too.
        self._told: dict[tuple[str, bytes], bytes] = {}

    def request(self, request: ClientRequest) -> None:
        """Pass a request; answered when the server answers it."""
        connection = self._upstream.connection
        if connection is not None:
            self._pass(request, connection)
            return
        if request.method == "tools/list":
            remembered = self._catalogue.remembered()
            if remembered is not None:
                request.answer(remembered)
                return
        scope = trio.CancelScope()
        request.on_cancel = lambda _reason: scope.cancel()
        self._nursery.start_soon(self._pass_later, request, scope)

    async def _pass_later(self, request: ClientRequest, scope: trio.CancelScope) -> None:
        with scope:
            try:
                with trio.move_on_after(self._patience):
                    self._pass(request, await self._upstream.ready())
                    return
                raise UpstreamUnavailable(f"{self._upstream.name} has not been ready for {self._patience:g} s.")
            except ZtrioError as error:
                request.refuse(INTERNAL_ERROR, error.message, error.as_dict())

    def _pass(self, request: ClientRequest, connection: Connection) -> None:
        peer, wire_id = connection.peer, connection.peer.next_id
        try:
            params, token = _with_token(request.params, wire_id)
        except msgspec.DecodeError:
            params, token = request.params, None
        listed = request.method == "tools/list"
        try:
            exchange = peer.request(
                request.method,
                params,
                on_response=partial(self._answered, request),
                on_ended=partial(self._lost, request),
                on_progress=None if token is None else partial(self._progressed, request, token),
            )
        except (PeerClosed, PeerQueueFull):
            self._lost(request, None, None)
            return

        def cancel(reason: str) -> None:
            self._waited(request)
            peer.forget(exchange)
            if exchange.sent:
                connection.tell_cancelled(exchange.id, reason)

        request.on_cancel = cancel
        if listed and request.in_flight:
            self._nursery.start_soon(self._answer_from_memory, request, exchange, connection)

    async def _answer_from_memory(self, request: ClientRequest, exchange: Exchange, connection: Connection) -> None:
        """A server that is busy does not list its tools in time: answer what it said last."""
        with trio.CancelScope() as scope:
            self._lists[request] = scope
            await trio.sleep(_LISTED)
        if self._lists.pop(request, None) is None:
            return
        remembered = self._catalogue.remembered()
        if request.in_flight and remembered is not None:
            connection.peer.forget(exchange)
            self._catalogue.changed()
            request.answer(remembered)

    # ---- from the server

    def _answered(self, request: ClientRequest, response: Response) -> None:
        self._waited(request)
        if response.result is not None:
            if request.method in _REMEMBERED or request.method == "resources/unsubscribe":
                self._remember(request)
            result = response.result
            request.answer(self._catalogue.passed(result) if request.method == "tools/list" else result)
        elif response.error is not None:
            request.fail(response.error)
        else:
            request.refuse(INTERNAL_ERROR, f"{self._upstream.name} has answered with no response: {response.malformed}")

    def _lost(self, request: ClientRequest, _exchange: Exchange | None, _ending: Ending | None) -> None:
        self._waited(request)
        data = {"code": "UPSTREAM_DIED", "server": self._upstream.name}
        request.refuse(INTERNAL_ERROR, f"The connection to {self._upstream.name} ended before it had answered.", data)

    def _waited(self, request: ClientRequest) -> None:
        scope = self._lists.pop(request, None)
        if scope is not None:
            scope.cancel()

    def _progressed(self, request: ClientRequest, token: msgspec.Raw, params: msgspec.Raw) -> None:
        if request.in_flight:
            self._client.notify("notifications/progress", encode_fields({**fields_of(params), PROGRESS_TOKEN: token}))

    # ---- after a restart

    def _remember(self, request: ClientRequest) -> None:
        try:
            fields = fields_of(request.params or b"")
        except msgspec.DecodeError:  # which the server took all the same
            return
        method = "resources/subscribe" if request.method == "resources/unsubscribe" else request.method
        about = _REMEMBERED[method]
        key = method, b"" if about is None else bytes(fields.get(about, b""))
        if request.method == "resources/unsubscribe":
            self._told.pop(key, None)
        else:
            self._told[key] = bytes(request.params or b"")

    def tell_again(self, connection: Connection) -> None:
        """Tell a new process what the last one had been told; what it tells of may be another by now."""
        try:
            for (method, about), params in list(self._told.items()):
                on_response = partial(self._again, about) if method == "resources/subscribe" else lambda _response: None
                connection.peer.request(method, params, on_response=on_response)
        except (PeerClosed, PeerQueueFull):
            return  # the next connection is told

    def _again(self, uri: bytes, response: Response) -> None:
        if response.result is not None:
            self._client.notify("notifications/resources/updated", encode_fields({"uri": msgspec.Raw(uri)}))


def _with_token(params: msgspec.Raw | None, wire_id: int) -> tuple[bytes | msgspec.Raw | None, msgspec.Raw | None]:
    """Parameters with a progress token of this connection, and the client's own; as they are where there is none."""
    if params is None or b"progressToken" not in bytes(params):
        return params, None
    fields = fields_of(params)
    meta: Fields = fields_of(fields.get("_meta", b"{}"))
    token = meta.get(PROGRESS_TOKEN)
    if token is None:
        return params, None
    fields["_meta"] = msgspec.Raw(encode_fields({**meta, PROGRESS_TOKEN: raw(wire_id)}))
    return encode_fields(fields), token.copy()


def capabilities_shown(hello: UpstreamHello) -> bytes:
    """What the server said of itself, as its client is told: with tools, because ours are always there."""
    fields = fields_of(hello.raw)
    capabilities = dict(hello.capabilities)
    tools = fields_of(capabilities.get("tools", b"{}"))
    capabilities["tools"] = msgspec.Raw(encode_fields({**tools, "listChanged": raw(True)}))
    return encode_fields({**fields, "capabilities": msgspec.Raw(encode_fields(capabilities))})
