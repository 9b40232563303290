"""A modern server, as a legacy client sees it.

What a legacy client is told unasked comes on one `subscriptions/listen` of ours. It is opened anew when the client
subscribes to a resource or leaves one: the new stream first, and only then the old one is let go, so that nothing is
missed in between. A subscription is answered when the server has acknowledged it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from ztrio_mcp.gateway.asks import Wire
from ztrio_mcp.gateway.eras import SUBSCRIPTION_ID, Encoded, Translator, UpstreamHello, object_in
from ztrio_mcp.gateway.translated import (
    ACKNOWLEDGED,
    CANCELLED,
    EMPTY,
    LISTEN,
    LISTS,
    URIS,
    Told,
    TranslatedWire,
    fields_in,
    meta_in,
)
from ztrio_mcp.jsonrpc import INTERNAL_ERROR
from ztrio_mcp.objects import Fields, encode_fields, fields_of, raw
from ztrio_mcp.peer import Ending, Exchange, PeerClosed, PeerQueueFull, Response

__all__ = ["ModernServer"]

_text: Final = msgspec.json.Decoder(str)
_texts: Final = msgspec.json.Decoder(list[str] | None)


class ModernServer(TranslatedWire):
    """A modern server, as a legacy client sees it."""

    strangers = frozenset(
        {"ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", "server/discover", LISTEN}
    )
    unheard = frozenset({"notifications/initialized", "notifications/progress", "notifications/roots/list_changed"})

    def __init__(self, wire: Wire, translator: Translator, upstream: UpstreamHello) -> None:
        super().__init__(wire, translator, upstream)
        # Resources that the client has subscribed to.
        self._uris: set[str] = set()
        # The stream that carries everything; None while there is nothing to be told.
        self._stream: Exchange | None = None
        # (URI, request) of subscriptions that the server has not acknowledged.
        self._asked: list[tuple[str, Exchange]] = []

    def begin(self) -> None:
        """Listen to what the server tells unasked."""
        try:
            self._listen()
        except (PeerClosed, PeerQueueFull):
            return  # its end is noticed elsewhere

    def served(self, exchange: Exchange, params: Encoded | None) -> Exchange:
        """Answer what the modern era has in another form."""
        fields = {} if params is None else fields_of(params)
        if exchange.method == "ping":
            return self.pinged(exchange, "server/discover", EMPTY)
        if exchange.method == "logging/setLevel" and self.upstream.able("logging"):
            self.translator.log_level = raw(_text.decode(fields.get("level", b"")))
            return self.answered(exchange, EMPTY)
        if exchange.method not in {"resources/subscribe", "resources/unsubscribe"}:
            return super().served(exchange, params)
        if not self.upstream.able("resources", "subscribe"):
            return super().served(exchange, params)
        uri = _text.decode(fields.get("uri", b""))
        if exchange.method == "resources/unsubscribe":
            self._uris.discard(uri)
            self._listen()
            return self.answered(exchange, EMPTY)
        self._uris.add(uri)
        self._asked.append((uri, exchange))
        self._listen()
        return exchange

    def forget(self, exchange: Exchange) -> None:
        """Nobody waits any more."""
        self._asked = [each for each in self._asked if each[1] is not exchange]
        self.wire.forget(exchange)

    def _listen(self) -> None:
        """Open the stream anew, and let go of the old one only then, so that nothing is missed in between."""
        wanted: dict[str, object] = {
            name: True for kind, (_, name) in LISTS.items() if self.upstream.able(kind, "listChanged")
        }
        if self._uris:
            wanted[URIS] = sorted(self._uris)
        old, self._stream = self._stream, None
        if wanted:
            params = self.translator.params_up(LISTEN, encode_fields({"notifications": raw(wanted)}))
            self._stream = self.wire.request(LISTEN, params, on_response=self._over, on_ended=self._gone)
        if old is not None:
            self.wire.forget(old)
            if old.sent:
                self.wire.notify(CANCELLED, encode_fields({"requestId": raw(old.id)}))

    def incoming(self, method: str, params: msgspec.Raw | None) -> Iterable[Told]:
        """What a notification is to a legacy client: without the stream that it came on."""
        if method == CANCELLED and self._is_stream(fields_in(params).get("requestId")):
            self._over(Response(0))
            return []
        if method == ACKNOWLEDGED:
            if self._is_stream(meta_in(params).get(SUBSCRIPTION_ID)):
                self._acknowledged(object_in(fields_in(params), "notifications"))
            return []
        if params is None or SUBSCRIPTION_ID not in meta_in(params):
            return [(method, params)]
        fields, meta = fields_in(params), meta_in(params)
        del meta[SUBSCRIPTION_ID], fields["_meta"]
        if meta:
            fields["_meta"] = msgspec.Raw(encode_fields(meta))
        return [(method, encode_fields(fields) if fields else None)]

    def _is_stream(self, id: msgspec.Raw | None) -> bool:  # noqa: A002 - the protocol's word
        return self._stream is not None and id is not None and bytes(id) == b"%d" % self._stream.id

    def _acknowledged(self, honoured: Fields) -> None:
        try:
            uris = _texts.decode(honoured.get(URIS, b"null")) or []
        except msgspec.DecodeError:
            uris = []
        asked, self._asked = self._asked, []
        for uri, exchange in asked:
            if uri in uris:
                self.answered(exchange, EMPTY)
            else:
                self._uris.discard(uri)
                self.refused(exchange, INTERNAL_ERROR, f"the server does not tell of changes of {uri}")

    def _over(self, response: Response) -> None:
        """The server has ended the stream. It is not asked for ever; the client's next subscription opens it again."""
        self._stream = None
        asked, self._asked = self._asked, []
        for uri, exchange in asked:
            self._uris.discard(uri)
            if response.error is not None:
                self.answered(exchange, error=response.error.copy())
            else:
                self.refused(exchange, INTERNAL_ERROR, f"the server has ended the subscription to {uri}")

    def _gone(self, _exchange: Exchange, ending: Ending) -> None:
        asked, self._asked = self._asked, []
        for _, exchange in asked:
            if exchange.on_ended is not None:
                exchange.on_ended(exchange, ending)
