"""A request of the gateway's own to one side, and waiting for the response within a bound."""

from __future__ import annotations

from typing import Final

import trio

from ztrio_mcp.peer import Ending, Exchange, Peer, PeerClosed, PeerQueueFull, Response

__all__ = ["ask"]

_GONE: Final = (PeerClosed, PeerQueueFull)


async def ask(peer: Peer, method: str, params: bytes | None, *, timeout: float) -> Response | None:
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
