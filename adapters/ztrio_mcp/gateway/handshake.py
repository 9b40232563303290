"""Shaking hands with a server in its client's name, in the era that the client speaks.

The client's own words go to the server as they are, so what the two agree on is what they would have agreed on without
us. `initialize` is never cancelled (MCP 2025-11-25, Cancellation): a server that does not answer it is ended.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import attrs
import msgspec

from ztrio.errors import UpstreamUnavailable
from ztrio_mcp import jsonrpc
from ztrio_mcp.client import ClientRequest
from ztrio_mcp.gateway.asks import ask
from ztrio_mcp.objects import Fields, fields_of
from ztrio_mcp.peer import Peer, PeerClosed, PeerQueueFull

__all__ = ["VERSION_META", "ClientHello", "Era", "UpstreamHello", "hello_of", "meet"]

Era = Literal["legacy", "modern"]
"""2025-11-25 and before, with `initialize`; 2026-07-28, with an envelope in each request's `_meta`."""

VERSION_META: Final = "io.modelcontextprotocol/protocolVersion"

_METHOD: Final = {"legacy": "initialize", "modern": "server/discover"}
_FOREVER: Final = 10 * 365 * 86400.0  # seconds; the start's own limit is the keeper's user's


@attrs.frozen(kw_only=True)
class ClientHello:
    """What the client said first.

    Args:
        era: How it speaks.
        params: The parameters by which a server is asked what it is: of `initialize`, or the envelope alone.
        capabilities: What the client can do, raw.
    """

    era: Era
    params: bytes
    capabilities: Fields


@attrs.frozen(kw_only=True)
class UpstreamHello:
    """What the server said of itself.

    Args:
        era: How it speaks.
        raw: The whole result.
        capabilities: What it can do, raw.
    """

    era: Era
    raw: msgspec.Raw
    capabilities: Fields


def hello_of(request: ClientRequest) -> ClientHello | None:
    """What the first request of a client says of it; None for one that says nothing."""
    try:
        fields = {} if request.params is None else fields_of(request.params)
        if request.method == "initialize":
            return ClientHello(
                era="legacy",
                params=bytes(request.params or b"{}"),
                capabilities=_object(fields.get("capabilities")),
            )
        meta = _object(fields.get("_meta"))
        if VERSION_META not in meta:
            return None
        envelope = {key: value for key, value in meta.items() if key.startswith("io.modelcontextprotocol/")}
        params = msgspec.json.encode({"_meta": envelope})
        capabilities = _object(envelope.get("io.modelcontextprotocol/clientCapabilities"))
    except msgspec.DecodeError:
        return None
    return ClientHello(era="modern", params=params, capabilities=capabilities)


async def meet(peer: Peer, client: ClientHello, name: str) -> UpstreamHello:
    """Ask a server what it is, as the client asked.

    Args:
        peer: The connection.
        client: What the client said.
        name: The server's name, for errors.

    Raises:
        UpstreamUnavailable: it refuses, or its connection ends.
    """
    method = _METHOD[client.era]
    response = await ask(peer, method, client.params, timeout=_FOREVER)
    if response is None:
        raise UpstreamUnavailable(f"{name} ended before it had answered {method}. Nothing was sent.")
    if response.result is None:
        said = response.malformed or _said(response.error)
        raise UpstreamUnavailable(
            f"{name} has refused {method} ({said}), so it does not speak the protocol of this client. Nothing was sent."
        )
    fields = fields_of(response.result)
    if client.era == "legacy":
        try:
            peer.notify("notifications/initialized", None)
        except (PeerClosed, PeerQueueFull):
            raise UpstreamUnavailable(f"{name} ended during the handshake. Nothing was sent.") from None
    return UpstreamHello(era=client.era, raw=response.result.copy(), capabilities=_object(fields.get("capabilities")))


def _object(value: msgspec.Raw | None) -> Fields:
    return {} if value is None else {key: each.copy() for key, each in fields_of(value).items()}


def _said(error: msgspec.Raw | None) -> str:
    try:
        told: Any = jsonrpc.decode(bytes(error or b"{}"))
        return str(told.get("message"))
    except (ValueError, AttributeError):
        return "no reason given"
