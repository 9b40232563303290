"""A legacy server, as a modern client sees it.

Each `subscriptions/listen` of the client is a stream of ours, onto which what the server tells everybody is put. A ping
carries it, so that its id is one of the connection's and its acknowledgement says that the server lives. The server is
asked to tell of a resource as long as a stream wants that.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

import attrs
import msgspec

from ztrio_mcp.gateway.asks import Wire
from ztrio_mcp.gateway.eras import Encoded, Translator, UpstreamHello, object_in
from ztrio_mcp.gateway.translated import (
    ACKNOWLEDGED,
    LISTEN,
    LISTS,
    UPDATED,
    URIS,
    Told,
    TranslatedWire,
    fields_in,
    stamped,
)
from ztrio_mcp.objects import Fields, encode_fields, fields_of, raw
from ztrio_mcp.peer import Exchange, Response

__all__ = ["LegacyServer"]

_text: Final = msgspec.json.Decoder(str)
_texts: Final = msgspec.json.Decoder(list[str] | None)

# What a legacy server tells and a modern client has no word for.
_UNTOLD: Final = frozenset(
    {"notifications/message", "notifications/elicitation/complete", "notifications/tasks/status"}
)


@attrs.define(eq=False)
class _Stream:
    """What a modern client listens to, of a legacy server."""

    # What the client holds; its id is that of the ping which carries it.
    exchange: Exchange
    lists: frozenset[str]
    uris: set[str]
    # Answers of the server that its acknowledgement waits for.
    waits: int = 0


class LegacyServer(TranslatedWire):
    """A legacy server, as a modern client sees it."""

    strangers = frozenset(
        {
            "initialize",
            "ping",
            "logging/setLevel",
            "resources/subscribe",
            "resources/unsubscribe",
            "server/discover",
            LISTEN,
        }
    )
    unheard = frozenset({"notifications/initialized", "notifications/progress", "notifications/roots/list_changed"})

    def __init__(self, wire: Wire, translator: Translator, upstream: UpstreamHello) -> None:
        super().__init__(wire, translator, upstream)
        # Id → stream, of those that the client listens to.
        self._streams: dict[int, _Stream] = {}

    def served(self, exchange: Exchange, params: Encoded | None) -> Exchange:
        """Answer what the legacy era has in another form."""
        if exchange.method == "server/discover":
            return self.pinged(exchange, "ping", self.translator.seen("").raw)
        if exchange.method == LISTEN:
            return self._open(exchange, object_in({} if params is None else fields_of(params), "notifications"))
        return super().served(exchange, params)

    def _open(self, exchange: Exchange, wanted: Fields) -> Exchange:
        lists = frozenset(
            method
            for kind, (method, name) in LISTS.items()
            # Ours are always there, and tools change with the process that has them.
            if bytes(wanted.get(name, b"")) == b"true" and (kind == "tools" or self.upstream.able(kind, "listChanged"))
        )
        given = _texts.decode(wanted.get(URIS, b"null")) or []
        uris = set(given) if self.upstream.able("resources", "subscribe") else set()
        fresh = [uri for uri in sorted(uris) if not self._subscribed(uri)]
        stream = _Stream(exchange, lists, uris, waits=1 + len(fresh))
        carrier = self.wire.request("ping", None, on_response=lambda _: self._acknowledge(stream))
        exchange.id = carrier.id
        self._streams[carrier.id] = stream
        for uri in fresh:
            self.wire.request(
                "resources/subscribe",
                encode_fields({"uri": raw(uri)}),
                on_response=partial(self._subscribes, stream, uri),
            )
        return exchange

    def _subscribed(self, uri: str) -> bool:
        return any(uri in stream.uris for stream in self._streams.values())

    def _subscribes(self, stream: _Stream, uri: str, response: Response) -> None:
        if response.result is None:
            stream.uris.discard(uri)
        self._acknowledge(stream)

    def _acknowledge(self, stream: _Stream) -> None:
        stream.waits -= 1
        if stream.waits or stream.exchange.id not in self._streams:
            return
        honoured: dict[str, object] = {name: True for method, name in LISTS.values() if method in stream.lists}
        if stream.uris:
            honoured[URIS] = sorted(stream.uris)
        self.deliver(ACKNOWLEDGED, stamped({"notifications": raw(honoured)}, stream.exchange.id))

    def forget(self, exchange: Exchange) -> None:
        """Nobody waits any more."""
        stream = self._streams.get(exchange.id)
        if stream is None or stream.exchange is not exchange:
            self.wire.forget(exchange)
            return
        del self._streams[exchange.id]
        for uri in sorted(stream.uris):
            if not self._subscribed(uri):
                params = encode_fields({"uri": raw(uri)})
                self.wire.request("resources/unsubscribe", params, on_response=lambda _response: None)

    def incoming(self, method: str, params: msgspec.Raw | None) -> Iterable[Told]:
        """What a notification is to a modern client: one for each stream that wants it, and none for nobody.

        Logs are not passed: a modern client wants those of a request, and of which one these are is not said.
        """
        if method in _UNTOLD:
            return []
        if method != UPDATED and not any(method == listed for listed, _ in LISTS.values()):
            return [(method, params)]
        fields = fields_in(params)
        about = bytes(fields.get("uri", b"")) if method == UPDATED else b""
        return [
            (method, stamped(fields, number))
            for number, stream in self._streams.items()
            if method in stream.lists or any(about.startswith(bytes(raw(uri))[:-1]) for uri in stream.uris if about)
        ]
