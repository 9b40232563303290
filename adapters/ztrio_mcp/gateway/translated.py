"""A wire to a server of the other era on which everything is said in the client's: what both directions have in common.

A request either has a form in the server's era, and goes out in it, or is served here by a subclass, or is refused in
the words that a server of the client's era would use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import msgspec

from ztrio_mcp.gateway.asks import Wire
from ztrio_mcp.gateway.eras import (
    METHOD_NOT_FOUND,
    SUBSCRIPTION_ID,
    CrossEra,
    Encoded,
    Translator,
    UpstreamHello,
    object_in,
)
from ztrio_mcp.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS
from ztrio_mcp.objects import Fields, encode_fields, fields_of, raw
from ztrio_mcp.peer import Ending, Exchange, Id, PeerStatistics, Response

__all__ = [
    "ACKNOWLEDGED",
    "CANCELLED",
    "CROSS_ERA",
    "EMPTY",
    "LISTEN",
    "LISTS",
    "UPDATED",
    "URIS",
    "Told",
    "TranslatedWire",
    "fields_in",
    "meta_in",
    "stamped",
]

Told = tuple[str, Encoded | None]
"""A notification: its method and its parameters."""

CROSS_ERA: Final = "CROSS_ERA"
"""The code of an answer that cannot be said in the client's era."""

EMPTY: Final = msgspec.Raw(b"{}")
CANCELLED: Final = "notifications/cancelled"
LISTEN: Final = "subscriptions/listen"
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
UPDATED: Final = "notifications/resources/updated"
URIS: Final = "resourceSubscriptions"

LISTS: Final = {
    kind: (f"notifications/{kind}/list_changed", f"{kind}ListChanged") for kind in ("tools", "resources", "prompts")
}
"""What has a list → the notification that it has changed, and its name in a filter (MCP 2026-07-28)."""


class TranslatedWire:
    """A wire to a server of the other era.

    Args:
        wire: The wire itself.
        translator: Says what passes in the other era.
        upstream: What the server said of itself.
    """

    # Requests of the client's era that the server's does not have; a subclass serves some of them.
    strangers: frozenset[str] = frozenset()
    # Notifications of the client's era that the server's does not have.
    unheard: frozenset[str] = frozenset()

    def __init__(self, wire: Wire, translator: Translator, upstream: UpstreamHello) -> None:
        self.wire = wire
        self.translator = translator
        self.upstream = upstream
        # Takes what the server would tell by itself, if it were of the client's era.
        self.deliver: Callable[[str, Encoded | None], object] = lambda _method, _params: None

    # ---- what passes as it is

    @property
    def next_id(self) -> int:
        """The id of the next request."""
        return self.wire.next_id

    def respond(self, id: Id | None, *, result: Encoded | None = None, error: Encoded | None = None) -> None:  # noqa: A002 - the protocol's word
        """Answer a request of the server."""
        self.wire.respond(id, result=result, error=error)

    def forget(self, exchange: Exchange) -> None:
        """Nobody waits any more."""
        self.wire.forget(exchange)

    def withdraw(self, exchange: Exchange) -> bool:
        """Take a request back; whether nothing of it was written."""
        return self.wire.withdraw(exchange)

    def statistics(self) -> PeerStatistics:
        """A snapshot of the wire."""
        return self.wire.statistics()

    # ---- what is translated

    def begin(self) -> None:
        """The server may be asked from now on."""

    def incoming(self, method: str, params: msgspec.Raw | None) -> Iterable[Told]:
        """What a notification of the server is in the client's era."""
        return [(method, params)]

    def notify(self, method: str, params: Encoded | None, *, front: bool = False) -> None:
        """Send a notification, if the server's era has it."""
        if method not in self.unheard:
            self.wire.notify(method, params, front=front)

    def request(
        self,
        method: str,
        params: Encoded | None,
        *,
        on_response: Callable[[Response], object],
        on_ended: Callable[[Exchange, Ending], object] | None = None,
        on_progress: Callable[[msgspec.Raw], object] | None = None,
        claim: Callable[[], bool] | None = None,
    ) -> Exchange:
        """Send a request in the server's era."""
        here = partial(Exchange, id=0, method=method, on_response=on_response, on_ended=on_ended)
        try:
            if method in self.strangers:
                return self.served(here(), params)
            if method.startswith("tasks/"):
                return self.refused(
                    here(), INTERNAL_ERROR, f"{method}: tasks are another thing in the server's version"
                )
            up = self.translator.params_up(method, params)
        except msgspec.DecodeError:
            return self.refused(here(), INVALID_PARAMS, f"the parameters of {method} are not what this version has")
        return self.wire.request(
            method,
            up,
            on_response=lambda response: on_response(self._down(method, response)),
            on_ended=on_ended,
            on_progress=on_progress,
            claim=claim,
        )

    def _in_words(self, method: str, message: str) -> tuple[msgspec.Raw | None, msgspec.Raw | None]:
        """A refusal: of a call as a result, which a model can read, and of anything else as an error."""
        if method != "tools/call":
            return None, raw({"code": INTERNAL_ERROR, "message": message, "data": {"code": CROSS_ERA}})
        content = [{"type": "text", "text": f"{CROSS_ERA}: {message}"}]
        told = {"content": content, "structuredContent": {"error": {"code": CROSS_ERA, "message": message}}}
        return msgspec.Raw(self.translator.result_down(method, raw({**told, "isError": True}))), None

    def served(self, exchange: Exchange, params: Encoded | None) -> Exchange:
        """Answer what the server's era does not have."""
        del params
        return self.refused(exchange, METHOD_NOT_FOUND, f"this version of the protocol has no {exchange.method}")

    def _down(self, method: str, response: Response) -> Response:
        if response.result is None:
            return response
        try:
            down = self.translator.result_down(method, response.result)
        except CrossEra as error:
            return Response(response.id, *self._in_words(method, str(error)))
        return Response(response.id, msgspec.Raw(down))

    # ---- requests that are answered here

    def refused(self, exchange: Exchange, code: int, message: str) -> Exchange:
        """Answer a request with an error."""
        return self.answered(exchange, error=raw({"code": code, "message": message}))

    def pinged(self, exchange: Exchange, method: str, result: msgspec.Raw) -> Exchange:
        """Answer a request once the server has answered something else, whatever it says."""
        return self.wire.request(
            method,
            self.translator.params_up(method, None),
            on_response=lambda response: exchange.on_response(Response(response.id, result)),
            on_ended=exchange.on_ended,
        )

    def answered(
        self, exchange: Exchange, result: msgspec.Raw | None = None, error: msgspec.Raw | None = None
    ) -> Exchange:
        """Answer a request that the server never sees."""
        exchange.on_response(Response(exchange.id, result, error))
        return exchange


def fields_in(params: Encoded | None) -> Fields:
    """Parameters, taken apart; empty where there are none."""
    try:
        return {} if params is None else fields_of(params)
    except msgspec.DecodeError:
        return {}


def meta_in(params: Encoded | None) -> Fields:
    """Their `_meta`."""
    return object_in(fields_in(params), "_meta")


def stamped(fields: Fields, number: Id) -> bytes:
    """What comes on a stream, with the id by which its reader knows it."""
    meta = {**object_in(fields, "_meta"), SUBSCRIPTION_ID: raw(number)}
    return encode_fields({**fields, "_meta": msgspec.Raw(encode_fields(meta))})
