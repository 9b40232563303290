"""Shaking hands with a server in its client's name: in the client's own era, or else in the other.

In the client's era its own words go to the server as they are, so what the two agree on is what they would have agreed
on without us. `initialize` is never cancelled (MCP 2025-11-25, Cancellation); a server that does not answer is ended.

A server that does not know `server/discover` may say nothing at all, so `initialize` follows after a moment. A server
that is only slow to start then finds both in its input, and the first result decides: in the order in which a server
reads them that is its answer to `server/discover`, if it has one. The other question is left without an answer, and
what comes for it is dropped.
"""

from __future__ import annotations

import math
from typing import Any, Final

import attrs
import msgspec
import trio

from ztrio.errors import UpstreamUnavailable
from ztrio_mcp import jsonrpc
from ztrio_mcp.client import ClientRequest
from ztrio_mcp.gateway.asks import Wire, ask
from ztrio_mcp.gateway.eras import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    ENVELOPE,
    LEGACY_VERSIONS,
    METHOD_NOT_FOUND,
    MODERN_VERSIONS,
    PROTOCOL_VERSION,
    UNSUPPORTED_VERSION,
    ClientHello,
    Era,
    UpstreamHello,
    object_in,
)
from ztrio_mcp.objects import encode_fields, fields_of
from ztrio_mcp.peer import PeerClosed, PeerQueueFull, Response

__all__ = ["ClientHello", "Era", "UpstreamHello", "hello_of", "meet"]

_METHOD: Final[dict[Era, str]] = {"legacy": "initialize", "modern": "server/discover"}
_FOREVER: Final = 10 * 365 * 86400.0  # seconds; the start's own limit is the keeper's user's
_SILENCE: Final = 2.0  # seconds for `server/discover`, after which the other question is asked, too
# Refusals of `initialize` that may mean that the server has no such thing; what else it says is about this client.
_NO_SUCH: Final = frozenset({METHOD_NOT_FOUND, jsonrpc.INVALID_REQUEST, jsonrpc.INVALID_PARAMS, UNSUPPORTED_VERSION})

_text: Final = msgspec.json.Decoder(str)
_texts: Final = msgspec.json.Decoder(list[str])


def hello_of(request: ClientRequest) -> ClientHello | None:
    """What the first request of a client says of it; None for one that says nothing."""
    try:
        fields = {} if request.params is None else fields_of(request.params)
        if request.method == "initialize":
            return ClientHello(
                era="legacy",
                params=bytes(request.params or b"{}"),
                capabilities=object_in(fields, "capabilities"),
                version=_text.decode(fields.get("protocolVersion", b'""')),
                info=fields["clientInfo"].copy() if "clientInfo" in fields else None,
            )
        envelope = {key: value for key, value in object_in(fields, "_meta").items() if key in ENVELOPE}
        if PROTOCOL_VERSION not in envelope:
            return None
        return ClientHello(
            era="modern",
            params=encode_fields({"_meta": msgspec.Raw(encode_fields(envelope))}),
            capabilities=object_in(envelope, CLIENT_CAPABILITIES),
            version=_text.decode(envelope[PROTOCOL_VERSION]),
            info=envelope.get(CLIENT_INFO),
        )
    except msgspec.DecodeError:
        return None


async def meet(peer: Wire, client: ClientHello, name: str) -> UpstreamHello:
    """Ask a server what it is.

    Args:
        peer: The connection.
        client: What the client said.
        name: The server's name, for errors.

    Raises:
        UpstreamUnavailable: it refuses, or its connection ends.
    """
    meeting = _Meeting(peer, client)
    other: Era = "legacy" if client.era == "modern" else "modern"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(meeting.ask, client.era, nursery.cancel_scope)
        with trio.move_on_after(_SILENCE if client.era == "modern" else math.inf):
            await meeting.turned.wait()
        if meeting.goes_on:
            nursery.start_soon(meeting.ask, other, nursery.cancel_scope)
    if meeting.hello is None:
        raise UpstreamUnavailable(f"{name} {' and '.join(meeting.told)}. Nothing was sent.")
    if meeting.hello.era == "legacy":
        try:
            peer.notify("notifications/initialized", None)
        except (PeerClosed, PeerQueueFull):
            raise UpstreamUnavailable(f"{name} ended during the handshake. Nothing was sent.") from None
    return meeting.hello


@attrs.define(eq=False)
class _Meeting:
    """What is known of a server while it is asked, in one era or in both at once."""

    peer: Wire
    client: ClientHello
    # The first result; set once.
    hello: UpstreamHello | None = None
    # Whether asking in the other era makes sense.
    goes_on: bool = True
    # What the server has done instead of answering, in words, in the order in which it came.
    told: list[str] = attrs.field(factory=list)
    # The first question needs no more waiting for.
    turned: trio.Event = attrs.field(factory=trio.Event)

    async def ask(self, era: Era, both: trio.CancelScope) -> None:
        """Ask in one era; a result ends both questions."""
        method = _METHOD[era]
        response = await ask(self.peer, method, self.client.params_for(era), timeout=_FOREVER)
        if response is None:
            self.told.append(f"ended before it had answered {method}")
            self.goes_on = False
        elif response.result is None or (hello := _hello(era, response.result)) is None:
            code, said = _refusal(response)
            self.told.append(f"has refused {method} ({said})")
            self.goes_on = era == "modern" or code in _NO_SUCH
        else:
            self.hello, self.goes_on = hello, False
            both.cancel()
        self.turned.set()


def _hello(era: Era, result: msgspec.Raw) -> UpstreamHello | None:
    """What a result says of its server; None for one that says that it does not speak in this era."""
    try:
        fields = fields_of(result)
        versions = _texts.decode(fields.get("supportedVersions", b"[]")) if era == "modern" else LEGACY_VERSIONS
    except msgspec.DecodeError:
        return None
    if era == "modern" and not set(versions) & set(MODERN_VERSIONS):
        return None
    return UpstreamHello(era=era, raw=result.copy(), capabilities=object_in(fields, "capabilities"))


def _refusal(response: Response) -> tuple[int | None, str]:
    """The error's number, and what the server says, in words."""
    if response.error is None:
        return None, response.malformed or "what it says is no result of this version"
    try:
        told: Any = jsonrpc.decode(bytes(response.error))
        return told.get("code"), str(told.get("message"))
    except (ValueError, AttributeError):
        return None, "no reason given"
