"""What the server asks its client: passed on under an id of this connection, and the answer under the server's own.

A ping is answered here. A client that did not declare a capability is not asked for it; the server gets what such a
client would say. When the server has gone, or has thought better of it, the client is told to drop the question.

Which call a question belongs to is not said by the protocol's handshake era. It is known only where one call was under
way on the connection when the question came, and never guessed (P5).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import attrs
import msgspec

from ztrio_mcp import jsonrpc
from ztrio_mcp.client import Client
from ztrio_mcp.objects import Fields
from ztrio_mcp.peer import Ending, Exchange, Id, Peer, PeerClosed, PeerQueueFull, Response

__all__ = ["Asking"]

_NEEDS: Final = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
_NO_METHOD: Final = -32601  # JSON-RPC 2.0, section 5.1

_encoder: Final = msgspec.json.Encoder()

_Encoded = bytes | msgspec.Raw | None


class _Cancel(msgspec.Struct, rename="camel"):
    request_id: msgspec.Raw


_cancel: Final = msgspec.json.Decoder(_Cancel)


@attrs.define(eq=False)
class _Question:
    exchange: Exchange
    # The call that it is known to belong to, or None.
    call_id: str | None


class Asking:
    """Passes the questions of one connection generation to the client.

    Args:
        client: The client.
        capabilities: What the client can do.
        only_call: The call that is under way, if exactly one is.
    """

    def __init__(self, client: Client, capabilities: Fields, only_call: Callable[[], str | None]) -> None:
        self.peer: Peer | None = None
        self._client = client
        self._capabilities = capabilities
        self._only_call = only_call
        # The server's id → question that the client has not answered.
        self._open: dict[Id, _Question] = {}

    def waits_for_human(self, call_id: str) -> bool:
        """Whether the human has been asked about this very call and has not answered."""
        return any(question.call_id == call_id for question in self._open.values())

    def request(self, id: Id, method: str, params: msgspec.Raw | None) -> None:  # noqa: A002 - the protocol's word
        """The server asks something."""
        if method == "ping":
            self._respond(id, result=b"{}")
            return
        if id in self._open:
            self._respond(id, error=_encoder.encode({"code": jsonrpc.INVALID_REQUEST, "message": f"{id!r} is in use"}))
            return
        needed = _NEEDS.get(method)
        if needed is None or needed not in self._capabilities:
            error = _encoder.encode({"code": _NO_METHOD, "message": f"this client knows no {method}"})
            self._respond(id, error=error)
            return
        try:
            exchange = self._client.ask(
                method, params, on_response=partial(self._answered, id), on_ended=partial(self._gone, id)
            )
        except (PeerClosed, PeerQueueFull):
            return  # the client is gone, and with it everything ends
        call_id = self._only_call() if method == "elicitation/create" else None
        self._open[id] = _Question(exchange, call_id)

    def cancelled(self, params: msgspec.Raw | None) -> None:
        """The server does not want an answer any more."""
        try:
            id = jsonrpc.decode(bytes(_cancel.decode(params or b"null").request_id))  # noqa: A001 - the protocol's word
        except (msgspec.DecodeError, ValueError):
            return
        question = self._open.pop(id, None) if jsonrpc.is_request_id(id) else None
        if question is not None:
            self._client.withdraw(question.exchange, "the server has withdrawn it")

    def end(self) -> None:
        """The connection is gone."""
        while self._open:
            _, question = self._open.popitem()
            self._client.withdraw(question.exchange, "the server has ended")

    def _answered(self, id: Id, response: Response) -> None:  # noqa: A002 - the protocol's word
        if self._open.pop(id, None) is None:
            return
        if response.result is not None:
            self._respond(id, result=response.result)
        elif response.error is not None:
            self._respond(id, error=response.error)
        else:
            error = {"code": jsonrpc.INTERNAL_ERROR, "message": "the client's answer is no response"}
            self._respond(id, error=_encoder.encode(error))

    def _gone(self, id: Id, _exchange: Exchange, _ending: Ending) -> None:  # noqa: A002 - the protocol's word
        self._open.pop(id, None)

    def _respond(self, id: Id, *, result: _Encoded = None, error: _Encoded = None) -> None:  # noqa: A002 - as above
        if self.peer is None:
            return
        try:
            self.peer.respond(id, result=result, error=error)
        except (PeerClosed, PeerQueueFull):
            return  # its end is noticed elsewhere
