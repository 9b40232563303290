"""A request of the gateway's own to one side, and waiting for the response within a bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import msgspec
import trio

from ztrio_mcp.peer import Ending, Exchange, Id, PeerClosed, PeerQueueFull, PeerStatistics, Response

__all__ = ["Wire", "ask"]

_GONE: Final = (PeerClosed, PeerQueueFull)

_Encoded = bytes | msgspec.Raw


class Wire(Protocol):
    """A connection to a server as the gateway uses it; see `Peer`, which is one."""

    @property
    def next_id(self) -> int:
        """The id of the next request."""

    def request(
        self,
        method: str,
        params: _Encoded | None,
        *,
        on_response: Callable[[Response], object],
        on_ended: Callable[[Exchange, Ending], object] | None = None,
        on_progress: Callable[[msgspec.Raw], object] | None = None,
        claim: Callable[[], bool] | None = None,
    ) -> Exchange:
        """Send a request."""

    def notify(self, method: str, params: _Encoded | None, *, front: bool = False) -> None:
        """Send a notification."""

    def respond(self, id: Id | None, *, result: _Encoded | None = None, error: _Encoded | None = None) -> None:  # noqa: A002 - the protocol's word
        """Answer a request of the other side."""

    def forget(self, exchange: Exchange) -> None:
        """Nobody waits any more."""

    def withdraw(self, exchange: Exchange) -> bool:
        """Take a request back; whether nothing of it was written."""

    def statistics(self) -> PeerStatistics:
        """A snapshot."""


async def ask(peer: Wire, method: str, params: bytes | None, *, timeout: float) -> Response | None:
    """Send a request and wait for its response.

    Args:
        peer: The connection.
        method: What is asked.
        params: Encoded parameters, or None.
        timeout: Seconds to wait.

    Returns:
        The response; None when none came in time, or the connection ended. A response that comes later is dropped.
    """
    over = trio.Event()
    found: list[Response] = []

    def on_response(response: Response) -> None:
        found.append(response)
        over.set()

    def on_ended(_exchange: Exchange, _ending: Ending) -> None:
        over.set()

    try:
        exchange = peer.request(method, params, on_response=on_response, on_ended=on_ended)
    except _GONE:
        await trio.lowlevel.checkpoint()
        return None
    try:
        with trio.move_on_after(timeout):
            await over.wait()
    finally:
        if not found:
            peer.forget(exchange)
    return found[0] if found else None
