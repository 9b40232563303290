"""What the server tells by itself, on its way to the client; and the streams that a modern client opens for that.

In the legacy era a notification is for the client as it is. In the modern one it comes on a stream, which is a request
of the client's that stays open, and says the id of that request: the server says the connection's id, the client knows
its own. A stream outlives the server's process: it is opened again with the next one, and because nobody knows what
changed in between, everything that it is about is told to have changed.

Progress that belongs to no request of this connection is dropped. Its token is a number of the connection's, and the
client may have given the same one to another request (R47).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import attrs
import msgspec

from ztrio_mcp.client import Client, ClientRequest
from ztrio_mcp.gateway.eras import SUBSCRIPTION_ID, Encoded, object_in
from ztrio_mcp.gateway.translated import ACKNOWLEDGED, LISTEN, LISTS, UPDATED, fields_in, stamped
from ztrio_mcp.gateway.upstream import Connection
from ztrio_mcp.jsonrpc import INTERNAL_ERROR
from ztrio_mcp.objects import Fields, fields_of
from ztrio_mcp.peer import Exchange, PeerClosed, PeerQueueFull, Response

__all__ = ["LISTEN", "Listening"]

_PROGRESS: Final = "notifications/progress"

_id: Final = msgspec.json.Decoder(int)
_texts: Final = msgspec.json.Decoder(list[msgspec.Raw] | None)


@attrs.define(eq=False)
class _Stream:
    """A `subscriptions/listen` of the client's."""

    request: ClientRequest
    # Its request on the present connection; None while there is none.
    exchange: Exchange | None = None
    # The client has been told that it is open; never goes back.
    acknowledged: bool = False


class Listening:
    """Passes notifications to one client.

    Args:
        client: The client.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._connection: Connection | None = None
        # Streams that the client has not left and the server has not ended, oldest first.
        self._streams: list[_Stream] = []
        # A connection has been ready before, so the client may know what another process said.
        self._again = False

    # ---- from the client

    def request(self, request: ClientRequest) -> None:
        """Open a stream, now or when the server is ready."""
        stream = _Stream(request)
        self._streams.append(stream)
        request.on_cancel = partial(self._left, stream)
        if self._connection is not None:
            self._open(stream, self._connection)

    def _open(self, stream: _Stream, connection: Connection) -> None:
        try:
            stream.exchange = connection.peer.request(
                LISTEN, stream.request.params, on_response=partial(self._ended, stream)
            )
        except (PeerClosed, PeerQueueFull):
            return  # the next connection has it

    def _left(self, stream: _Stream, reason: str) -> None:
        self._streams.remove(stream)
        exchange, connection = stream.exchange, self._connection
        if exchange is None or connection is None:
            return
        connection.peer.forget(exchange)
        if exchange.sent:
            connection.tell_cancelled(exchange.id, reason)

    # ---- from the server

    def notification(self, method: str, params: Encoded | None) -> None:
        """The server tells something, in the client's era."""
        if method == _PROGRESS:
            return
        if params is None or SUBSCRIPTION_ID.encode() not in bytes(params):
            self._client.notify(method, params)
            return
        fields = fields_in(params)
        number = object_in(fields, "_meta").get(SUBSCRIPTION_ID)
        if number is None:  # it is in a text
            self._client.notify(method, params)
            return
        stream = self._stream_of(number)
        if stream is None:
            return
        if method != ACKNOWLEDGED or not stream.acknowledged:
            stream.acknowledged = stream.acknowledged or method == ACKNOWLEDGED
            self._tell(stream, method, fields)
            return
        for changed, about in _everything(object_in(fields, "notifications")):
            self._tell(stream, changed, about)

    def ended(self, params: msgspec.Raw | None) -> bool:
        """The server has cancelled something; whether that was a stream, which is over then."""
        stream = self._stream_of(fields_in(params).get("requestId"))
        if stream is None:
            return False
        assert self._connection is not None
        assert stream.exchange is not None
        self._connection.peer.forget(stream.exchange)
        self._ended(stream, Response(stream.exchange.id, msgspec.Raw(b'{"resultType":"complete"}')))
        return True

    def ready(self, connection: Connection) -> None:
        """A connection can be used; what the client was told by an earlier process may not hold any more."""
        self._connection = connection
        if self._again and connection.hello.era == "legacy":
            for kind, (changed, _) in LISTS.items():
                if kind == "tools" or connection.hello.able(kind, "listChanged"):
                    self._client.notify(changed, None)
        self._again = True
        for stream in self._streams:
            self._open(stream, connection)

    def lost(self) -> None:
        """The connection is gone."""
        self._connection = None
        for stream in self._streams:
            stream.exchange = None

    def _ended(self, stream: _Stream, response: Response) -> None:
        """The server has ended a stream."""
        self._streams.remove(stream)
        request = stream.request
        if response.error is not None:
            request.fail(response.error)
        elif response.result is None:
            request.refuse(INTERNAL_ERROR, f"the server has ended the stream with no response: {response.malformed}")
        else:
            try:
                request.answer(stamped(fields_of(response.result), request.id))
            except msgspec.DecodeError:
                request.answer(response.result)

    def _stream_of(self, id: msgspec.Raw | None) -> _Stream | None:  # noqa: A002 - the protocol's word
        try:
            number = _id.decode(b"" if id is None else id)
        except msgspec.DecodeError:
            return None
        found = (each for each in self._streams if each.exchange is not None and each.exchange.id == number)
        return next(found, None)

    def _tell(self, stream: _Stream, method: str, fields: Fields) -> None:
        self._client.notify(method, stamped(fields, stream.request.id))


def _everything(honoured: Fields) -> Iterator[tuple[str, Fields]]:
    """All that a stream is about, as changes."""
    for changed, name in LISTS.values():
        if bytes(honoured.get(name, b"")) == b"true":
            yield changed, {}
    try:
        uris = _texts.decode(honoured.get("resourceSubscriptions", b"null")) or []
    except msgspec.DecodeError:
        return
    for uri in uris:
        yield UPDATED, {"uri": uri}
