"""The wire to the client: each of its requests is answered exactly once, under its own id, or not at all.

A request is *in flight* until it is answered or its cancel was honoured; what is said about it afterwards goes nowhere,
so whoever serves it need not know which came first (MCP, Cancellation: no response after a cancel). Ids keep their JSON
type: `7` and `"7"` are two requests.

A line that is no message gets an error whose id is null, because its own cannot be trusted (JSON-RPC 2.0, section 5).
So does a request under an id that is in flight: an error under that id would end the first one in the client's eyes
while it still runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import attrs
import msgspec

from ztrio_mcp import jsonrpc
from ztrio_mcp.jsonrpc import INVALID_REQUEST, PARSE_ERROR
from ztrio_mcp.peer import Ending, Exchange, Peer, PeerClosed, PeerQueueFull, Response

__all__ = ["MAX_IN_FLIGHT", "Client", "ClientRequest", "ClientStatistics"]

MAX_IN_FLIGHT: Final = 4096
"""Requests of one client that may be in flight; well above what runs and waits on a server."""

_QUEUE: Final = 4 * MAX_IN_FLIGHT  # frames that wait for a client that does not read; then what is news is dropped
_CANCELLED: Final = "notifications/cancelled"

_encoder: Final = msgspec.json.Encoder()


class _Cancel(msgspec.Struct, rename="camel"):
    request_id: msgspec.Raw
    reason: str | None = None


_cancel: Final = msgspec.json.Decoder(_Cancel)

Id = int | str


class ClientRequest:
    """A request of the client.

    Args:
        client: Whose it is.
        id: The client's id, with its JSON type.
        method: What is asked.
        params: The parameters as they came, or None.

    Attributes:
        in_flight: Whether it is still to be answered.
        on_cancel: Told the client's reason when it cancels the request; None while it cannot be cancelled.
    """

    __slots__ = ("_client", "id", "in_flight", "method", "on_cancel", "params")

    def __init__(self, client: Client, id: Id, method: str, params: msgspec.Raw | None) -> None:  # noqa: A002 - the protocol's word
        self._client = client
        self.id = id
        self.method = method
        self.params = params
        self.in_flight = True
        self.on_cancel: Callable[[str], object] | None = None

    def answer(self, result: bytes | msgspec.Raw) -> None:
        """Answer it with an encoded result."""
        self._client._respond(self, result=result)

    def fail(self, error: bytes | msgspec.Raw) -> None:
        """Answer it with an encoded JSON-RPC error."""
        self._client._respond(self, error=error)

    def refuse(self, code: int, message: str, data: object = None) -> None:
        """Answer it with a JSON-RPC error.

        Args:
            code: The error's number.
            message: A sentence.
            data: Facts for programs, plain; None for none.
        """
        error: dict[str, object] = {"code": code, "message": message}
        self.fail(_encoder.encode(error if data is None else error | {"data": data}))


@attrs.frozen(kw_only=True)
class ClientStatistics:
    """Counts of one connection.

    Args:
        in_flight: Requests that are being served.
        requests: Requests so far.
        refused: Lines and requests so far that were answered with an error at once.
        cancelled: Requests so far that the client cancelled.
        unmatched: Cancels so far of nothing in flight.
        dropped: Messages so far that a client which is gone, or does not read, was not sent.
    """

    in_flight: int
    requests: int
    refused: int
    cancelled: int
    unmatched: int
    dropped: int


class Client:
    """The connection to one client.

    Args:
        stdin: File descriptor that the client's frames are read from.
        stdout: File descriptor that ours are written to.
        on_request: Takes each request; must not wait.
        on_notification: Takes each notification but cancels; must not wait.
        line_limit: Bytes of the longest line that is read.
    """

    def __init__(
        self,
        *,
        stdin: int,
        stdout: int,
        on_request: Callable[[ClientRequest], object],
        on_notification: Callable[[str, msgspec.Raw | None], object],
        line_limit: int,
    ) -> None:
        self._on_request = on_request
        self._on_notification = on_notification
        # The client's id → request; at most MAX_IN_FLIGHT.
        self._requests: dict[Id, ClientRequest] = {}
        self._count = 0
        self._refused = 0
        self._cancelled = 0
        self._unmatched = 0
        self._dropped = 0
        # A client may stand still for as long as it likes: a suspended laptop is no reason to end anything.
        self.peer = Peer(
            stdin=stdout,
            stdout=stdin,
            handler=self,
            label="client",
            line_limit=line_limit,
            queue_limit=_QUEUE,
            write_stall=math.inf,
        )

    async def run(self) -> Ending:
        """Read what the client sends until its input ends, or the connection breaks."""
        return await self.peer.run()

    def in_flight(self) -> list[ClientRequest]:
        """The requests that are being served, oldest first."""
        return list(self._requests.values())

    def statistics(self) -> ClientStatistics:
        """A snapshot."""
        return ClientStatistics(
            in_flight=len(self._requests),
            requests=self._count,
            refused=self._refused,
            cancelled=self._cancelled,
            unmatched=self._unmatched,
            dropped=self._dropped,
        )

    # ---- to the client

    def notify(self, method: str, params: bytes | msgspec.Raw | None) -> None:
        """Send a notification. A client that is gone, or takes nothing, is not told."""
        try:
            self.peer.notify(method, params)
        except (PeerClosed, PeerQueueFull):
            self._dropped += 1

    def ask(
        self,
        method: str,
        params: bytes | msgspec.Raw | None,
        *,
        on_response: Callable[[Response], object],
        on_ended: Callable[[Exchange, Ending], object],
    ) -> Exchange:
        """Send a request of the server's to the client.

        Raises:
            PeerClosed: the client is gone.
            PeerQueueFull: it takes nothing.
        """
        return self.peer.request(method, params, on_response=on_response, on_ended=on_ended)

    def withdraw(self, exchange: Exchange, reason: str) -> None:
        """A request to the client is not wanted any more."""
        self.peer.forget(exchange)
        self.notify(_CANCELLED, _encoder.encode({"requestId": exchange.id, "reason": reason}))

    def _respond(
        self,
        request: ClientRequest,
        *,
        result: bytes | msgspec.Raw | None = None,
        error: bytes | msgspec.Raw | None = None,
    ) -> None:
        if not request.in_flight:
            return
        request.in_flight = False
        del self._requests[request.id]
        try:
            self.peer.respond(request.id, result=result, error=error)
        except (PeerClosed, PeerQueueFull):
            self._dropped += 1  # it is gone, or reads nothing; what became of its call is on the books

    # ---- from the client; called by the reader

    def request(self, id: Id, method: str, params: msgspec.Raw | None) -> None:  # noqa: A002 - the protocol's word
        """A request came."""
        if id in self._requests:
            self._refuse(INVALID_REQUEST, f"a request with the id {id!r} is in flight already")
            return
        if len(self._requests) >= MAX_IN_FLIGHT:
            self._refuse(INVALID_REQUEST, f"{MAX_IN_FLIGHT} requests are in flight; wait for their answers", id)
            return
        self._count += 1
        request = self._requests[id] = ClientRequest(self, id, method, params)
        self._on_request(request)

    def notification(self, method: str, params: msgspec.Raw | None) -> None:
        """A notification came."""
        if method == _CANCELLED:
            self._cancel(params)
        else:
            self._on_notification(method, params)

    def skipped(self, why: str, _sample: bytes, /) -> None:
        """A line came that is no message, or one that cannot be answered under its own id."""
        if why != "blank":
            self._refuse(PARSE_ERROR if why in _UNREADABLE else INVALID_REQUEST, _SKIPPED.get(why, why))

    def _refuse(self, code: int, message: str, id: Id | None = None) -> None:  # noqa: A002 - the protocol's word
        self._refused += 1
        error = _encoder.encode({"code": code, "message": message})
        try:
            self.peer.respond(id, error=error)
        except (PeerClosed, PeerQueueFull):
            self._dropped += 1

    def _cancel(self, params: msgspec.Raw | None) -> None:
        try:
            cancel = _cancel.decode(params if params is not None else b"null")
            id = jsonrpc.decode(bytes(cancel.request_id))  # noqa: A001 - the protocol's word
        except (msgspec.DecodeError, ValueError):
            self._unmatched += 1
            return
        request = self._requests.get(id) if jsonrpc.is_request_id(id) else None
        if request is None or request.on_cancel is None:
            self._unmatched += 1
            return
        self._cancelled += 1
        request.in_flight = False
        del self._requests[request.id]
        request.on_cancel(cancel.reason or "")


_UNREADABLE: Final = frozenset({"not_json", "not_utf8"})
_SKIPPED: Final = {
    "not_json": "the line is no JSON",
    "not_utf8": "the line is no UTF-8",
    "batch": "batches are not part of the protocol; send one message a line",
    "not_object": "the line is no JSON object",
    "not_message": "the line is no JSON-RPC 2.0 message",
    "oversized": "the line is longer than is read here",
    "invalid_id": "an id is a string or an integer",
}
