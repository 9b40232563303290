"""A wire to a server and a client, both in memory: what is sent is kept, and answered when a test says so."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import msgspec
import trio

from ztrio.pending import Lease
from ztrio_mcp.gateway.asks import Wire
from ztrio_mcp.gateway.eras import ClientHello, UpstreamHello, object_in
from ztrio_mcp.gateway.upstream import Connection
from ztrio_mcp.objects import fields_of
from ztrio_mcp.peer import Ending, Exchange, Id, PeerClosed, PeerStatistics, Response

Plain = Mapping[str, Any]
VERSIONS = {"legacy": "2025-11-25", "modern": "2026-07-28"}
ENVELOPE = "io.modelcontextprotocol/"
STREAM = "io.modelcontextprotocol/subscriptionId"


def raw(value: Any) -> msgspec.Raw:
    """A plain value as it is on the wire; bytes are on it already."""
    return msgspec.Raw(value if isinstance(value, bytes) else json.dumps(value, separators=(",", ":")).encode())


def plain(data: bytes | msgspec.Raw | None) -> Any:
    """What is on the wire, as a plain value."""
    return None if data is None else json.loads(bytes(data))


@attrs.define
class Sent:
    """A request that was sent."""

    exchange: Exchange
    params: Any
    data: bytes | None


class FakeWire:
    """The server's end of a connection.

    Attributes:
        sent: The requests, oldest first.
        told: The notifications, oldest first: method and parameters.
        responses: The answers to the server's own requests.
        forgotten: Ids of the requests that nobody waits for.
        closed: Whether the connection has ended.
    """

    def __init__(self) -> None:
        self.next_id = 1
        self.sent: list[Sent] = []
        self.told: list[tuple[str, Any]] = []
        self.responses: list[dict[str, Any]] = []
        self.forgotten: list[int] = []
        self.closed = False

    def _open(self) -> None:
        if self.closed:
            raise PeerClosed("closed")

    def request(
        self,
        method: str,
        params: bytes | msgspec.Raw | None,
        *,
        on_response: Callable[[Response], object],
        on_ended: Callable[[Exchange, Ending], object] | None = None,
        on_progress: Callable[[msgspec.Raw], object] | None = None,
        claim: Callable[[], bool] | None = None,
    ) -> Exchange:
        del claim
        self._open()
        exchange = Exchange(
            id=self.next_id,
            method=method,
            on_response=on_response,
            on_ended=on_ended,
            on_progress=on_progress,
            sent=True,
        )
        self.next_id += 1
        self.sent.append(Sent(exchange, plain(params), None if params is None else bytes(params)))
        return exchange

    def notify(self, method: str, params: bytes | msgspec.Raw | None, *, front: bool = False) -> None:
        del front
        self._open()
        self.told.append((method, plain(params)))

    def respond(
        self,
        id: Id | None,  # noqa: A002 - the protocol's word
        *,
        result: bytes | msgspec.Raw | None = None,
        error: bytes | msgspec.Raw | None = None,
    ) -> None:
        self._open()
        self.responses.append({"id": id, "result": plain(result), "error": plain(error)})

    def forget(self, exchange: Exchange) -> None:
        self.forgotten.append(exchange.id)

    def withdraw(self, exchange: Exchange) -> bool:
        return not exchange.sent

    def statistics(self) -> PeerStatistics:
        return PeerStatistics(
            received=0, written=len(self.sent), queued=0, in_flight=0, skipped={}, unknown=0, stale=len(self.forgotten)
        )

    # ---- what a test does

    def of(self, method: str) -> list[Sent]:
        """The requests of a method."""
        return [each for each in self.sent if each.exchange.method == method]

    def answer(self, method: str, result: Any = None, *, error: Any = None, index: int = -1) -> None:
        """Answer a request of a method, by default the last one, unless nobody waits for it."""
        exchange = self.of(method)[index].exchange
        if exchange.id not in self.forgotten:
            found = raw({} if result is None else result) if error is None else None
            exchange.on_response(Response(exchange.id, found, None if error is None else raw(error)))

    def end(self) -> None:
        """The connection ends, with every request still open."""
        self.closed = True
        for each in self.sent:
            if each.exchange.id not in self.forgotten and each.exchange.on_ended is not None:
                each.exchange.on_ended(each.exchange, Ending("eof"))


class FakeRequest:
    """A request of the client: answered at most once, and never after it was cancelled."""

    def __init__(self, method: str, params: Any = None, *, id: Id = 7) -> None:  # noqa: A002 - the protocol's word
        self.id = id
        self.method = method
        self.params = None if params is None else raw(params)
        self.in_flight = True
        self.on_cancel: Callable[[str], object] | None = None
        self.data: bytes | None = None
        self.result: Any = None
        self.error: Any = None

    def answer(self, result: bytes | msgspec.Raw) -> None:
        if self.in_flight:
            self.in_flight, self.data, self.result = False, bytes(result), plain(result)

    def fail(self, error: bytes | msgspec.Raw) -> None:
        if self.in_flight:
            self.in_flight, self.error = False, plain(error)

    def refuse(self, code: int, message: str, data: object = None) -> None:
        self.fail(json.dumps({"code": code, "message": message, "data": data}).encode())

    def cancel(self, reason: str = "") -> None:
        self.in_flight = False
        assert self.on_cancel is not None
        self.on_cancel(reason)


class FakeClient:
    """The client's end.

    Attributes:
        told: The notifications, oldest first: method and parameters.
        asked: The requests of the server's that it was sent.
        withdrawn: Ids of those that are not wanted any more.
    """

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []
        self.wire = FakeWire()
        self.wire.next_id = 500
        self.withdrawn: list[int] = []

    def notify(self, method: str, params: bytes | msgspec.Raw | None) -> None:
        self.told.append((method, plain(params)))

    def ask(
        self,
        method: str,
        params: bytes | msgspec.Raw | None,
        *,
        on_response: Callable[[Response], object],
        on_ended: Callable[[Exchange, Ending], object],
    ) -> Exchange:
        return self.wire.request(method, params, on_response=on_response, on_ended=on_ended)

    def withdraw(self, exchange: Exchange, _reason: str) -> None:
        self.wire.forget(exchange)
        self.withdrawn.append(exchange.id)


class FakeUpstream:
    """A server that is ready, or not."""

    name = "fake"

    def __init__(self, connection: Connection | None = None) -> None:
        self.connection = connection

    async def ready(self) -> Connection:
        while self.connection is None:
            await trio.sleep(0.1)
        return self.connection


def client_hello(era: str, capabilities: Plain | None = None) -> ClientHello:
    """What a client of an era says first."""
    can, info = capabilities or {}, {"name": "c", "version": "1"}
    if era == "legacy":
        params: Plain = {"protocolVersion": VERSIONS[era], "capabilities": can, "clientInfo": info}
    else:
        named = {"protocolVersion": VERSIONS[era], "clientInfo": info, "clientCapabilities": can}
        params = {"_meta": {ENVELOPE + key: value for key, value in named.items()}}
    return ClientHello(
        era="legacy" if era == "legacy" else "modern",
        params=bytes(raw(params)),
        capabilities=fields_of(raw(can)),
        version=VERSIONS[era],
        info=raw(info),
    )


def upstream_hello(era: str, capabilities: Plain | None = None) -> UpstreamHello:
    """What a server of an era says of itself."""
    said: dict[str, Any] = {
        "capabilities": {"tools": {}} if capabilities is None else capabilities,
        "instructions": "be kind",
    }
    info = {"name": "s", "version": "2"}
    if era == "legacy":
        said |= {"protocolVersion": VERSIONS[era], "serverInfo": info}
    else:
        said |= {"supportedVersions": [VERSIONS[era]], "resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
        said["_meta"] = {ENVELOPE + "serverInfo": info}
    told = raw(said)
    return UpstreamHello(
        era="legacy" if era == "legacy" else "modern", raw=told, capabilities=object_in(fields_of(told), "capabilities")
    )


def connected(wire: Wire, hello: UpstreamHello, client: ClientHello, *, epoch: int = 1) -> Connection:
    """A connection that is ready."""
    return Connection(
        epoch=epoch, lease=Lease(f"fake#{epoch}", epoch), peer=wire, hello=hello, envelope=client.envelope
    )
