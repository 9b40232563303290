"""The gateway between one client and one server: who is told what, and in which order everything begins and ends."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Any, Final

import attrs
import msgspec
import trio

from ztrio.audit import AuditBus
from ztrio.pending import CancelError, Record
from ztrio.tracking.cancelling import Line, Told
from ztrio.tracking.desk import Desk
from ztrio.tracking.notices import Notify
from ztrio.tracking.tracker import Tracker
from ztrio.upstream import Command, RestartPolicy, Timing
from ztrio_mcp.client import Client, ClientRequest
from ztrio_mcp.gateway.asking import Asking
from ztrio_mcp.gateway.asks import Wire
from ztrio_mcp.gateway.batch import Batch
from ztrio_mcp.gateway.calls import ToolCalls
from ztrio_mcp.gateway.catalogue import Catalogue
from ztrio_mcp.gateway.crossing import cross
from ztrio_mcp.gateway.eras import METHOD_NOT_FOUND, MODERN_VERSIONS, UNSUPPORTED_VERSION, ClientHello, Translator
from ztrio_mcp.gateway.flights import Answer, Flight
from ztrio_mcp.gateway.handshake import UpstreamHello, hello_of, meet
from ztrio_mcp.gateway.health import Health
from ztrio_mcp.gateway.held import LateResults
from ztrio_mcp.gateway.listening import Listening
from ztrio_mcp.gateway.own_tools import OWN_TOOLS, OwnTools
from ztrio_mcp.gateway.passing import Passing, capabilities_shown
from ztrio_mcp.gateway.proving import Prover
from ztrio_mcp.gateway.seam import Seam
from ztrio_mcp.gateway.settings import GatewaySettings
from ztrio_mcp.gateway.subject import GatewaySubject
from ztrio_mcp.gateway.translated import CANCELLED, LISTEN, TranslatedWire
from ztrio_mcp.gateway.upstream import Connection, Upstream
from ztrio_mcp.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST
from ztrio_mcp.objects import fields_of
from ztrio_mcp.peer import LINE_LIMIT, Handler, Id, Peer, PeerClosed, PeerQueueFull

__all__ = ["Gateway"]

_HELLO: Final = {"initialize": "legacy", "server/discover": "modern"}
_POLL: Final = 0.005  # seconds between looks at what is still to be answered, at the end


class Gateway:
    """Stands between one client and one server.

    Args:
        command: The server's program and its arguments.
        settings: What the operator has set.
        tracker: The registry's shell.
        desk: How pending calls are told of.
        audit: Where everything is published.
        secret: The store's secret.
        fds: File descriptors of the client's frames and of ours.
        nursery: Where everything runs.
        tell: The log.
        sync: Makes the journal survive the machine; None where the process is enough.
        timing: How long starting and stopping may take.
        policy: When the server is started again.
    """

    def __init__(
        self,
        command: tuple[str, ...],
        settings: GatewaySettings,
        *,
        tracker: Tracker,
        desk: Desk,
        audit: AuditBus,
        secret: bytes,
        fds: tuple[int, int],
        nursery: trio.Nursery,
        tell: Notify | None = None,
        sync: Callable[[], Awaitable[None]] | None = None,
        timing: Timing | None = None,
        policy: RestartPolicy | None = None,
    ) -> None:
        self._settings = settings
        self._tracker = tracker
        self._nursery = nursery
        self._tell: Notify = tell or (lambda *_args, **_facts: None)
        # What the client said first; None before that.
        self._hello: ClientHello | None = None
        self._met = trio.Event()
        self._asking: Asking | None = None
        # Between the two, where the server speaks in the other era.
        self._crossing: TranslatedWire | None = None
        self.client = Client(
            stdin=fds[0],
            stdout=fds[1],
            on_request=self._request,
            on_notification=self._notification,
            line_limit=LINE_LIMIT,
        )
        self._listening = Listening(self.client)
        epochs = itertools.count(1)
        self.upstream = Upstream(
            settings.name,
            Command(command),
            connected=self,
            audit=audit,
            epochs=lambda: next(epochs),
            timing=timing,
            policy=policy,
        )
        self._held = LateResults(enabled=settings.late_results)
        self.health = Health(self.upstream, tracker, interval=settings.health_interval, tell=self._tell)
        self._prover = Prover(settings.name, tracker, audit)
        self.seam = Seam(
            self.upstream, settings, tracker=tracker, desk=desk, audit=audit, secret=secret, hooks=self, sync=sync
        )
        self._catalogue = Catalogue(
            {name: msgspec.json.encode(tool) for name, tool in OWN_TOOLS.items()},
            lambda tools: tracker.registry.tiers.observe(settings.name, tools, seq=tracker.next_seq()),
        )
        self._calls = ToolCalls(self.seam, self.client, secret=secret, nursery=nursery)
        self._calls.own = OwnTools(desk, self._held, Batch(self._calls.one))
        self._passing = Passing(
            self.client, self.upstream, self._catalogue, patience=settings.start_timeout, nursery=nursery
        )
        desk.read_tools = lambda _context, _server: [
            name for name in self._catalogue.names() if tracker.registry.tiers.tier(settings.name, name) == "read"
        ]
        desk.line = self._line
        self.subject = GatewaySubject(
            settings.name,
            desk=desk,
            tiers=tracker.registry.tiers,
            keeper=self.upstream.keeper,
            call=self._calls.one,
            listed=self._catalogue,
            describe=self._describe,
        )

    # ---- how it begins and ends

    def start(self) -> None:
        """Start the server, and what watches it."""
        self._nursery.start_soon(self.upstream.keeper.run)
        self._nursery.start_soon(self.health.run)

    async def answered(self) -> None:
        """Wait until everything that the client asked is answered, but for what never ends by itself."""
        while any(request.method != LISTEN for request in self.client.in_flight()):  # noqa: ASYNC110 - once, at the end
            await trio.sleep(_POLL)

    def leave_calls(self) -> None:
        """Nobody waits for calls any more."""
        self._calls.leave()

    async def stop(self) -> None:
        """Stop the server, in order. Bounded."""
        await self.upstream.keeper.stop()

    # ---- from the client

    def _request(self, request: ClientRequest) -> None:
        if request.method == "ping":
            request.answer(b"{}")
            return
        if self._hello is None:
            self._hello = hello_of(request)
            if self._hello is None:
                request.refuse(INVALID_REQUEST, "say `initialize` first, or send the envelope of the later protocol")
                return
            if self._hello.era == "modern":
                self._calls.own_result = _modern
                self._calls.envelope = fields_of(self._hello.envelope or b"{}")
            self._met.set()
        if request.method in _HELLO:
            if _HELLO[request.method] == self._hello.era:
                self._nursery.start_soon(self._answer_hello, request)
            else:
                _refuse_era(request, self._hello)
        elif request.method == LISTEN and self._hello.era == "modern":
            self._listening.request(request)
        elif request.method == "tools/call":
            self._calls.request(request)
        else:
            self._passing.request(request)

    async def _answer_hello(self, request: ClientRequest) -> None:
        with trio.move_on_after(self._settings.start_timeout):
            try:
                connection = await self.upstream.ready()
            except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
                request.refuse(INTERNAL_ERROR, str(error))
                return
            request.answer(capabilities_shown(connection.hello))
            return
        death = self.upstream.keeper.last_death
        last = "" if death is None else f" It {death.how}. {death.stderr_tail[-500:]}"
        request.refuse(
            INTERNAL_ERROR,
            f"{self._settings.name} was not ready within {self._settings.start_timeout:g} s.{last}",
            {"code": "UPSTREAM_UNAVAILABLE", "server": self._settings.name},
        )

    def _notification(self, method: str, params: msgspec.Raw | None) -> None:
        connection = self.upstream.connection
        if method == "notifications/initialized" or connection is None:
            return  # the server has been told already; one that starts asks anew
        try:
            connection.peer.notify(method, params)
        except (PeerClosed, PeerQueueFull):
            return

    # ---- the server's connections: `Connected`

    def handler(self, generation: int) -> Handler:
        """Who takes what the server sends by itself."""
        del generation
        assert self._hello is None or self._asking is None
        return _FromServer(self)

    async def meet(self, peer: Peer) -> tuple[Wire, UpstreamHello, bytes | None]:
        """Shake hands, once the client has said who it is."""
        await self._met.wait()
        hello, name = self._hello, self._settings.name
        assert hello is not None
        # No server asks a client of the later era: it answers that it wants input.
        self._asking = Asking(self.client, hello.capabilities if hello.era == "legacy" else {}, self._only_call)
        self._asking.peer = peer
        with trio.fail_after(self._settings.start_timeout):
            said = await meet(peer, hello, name)
        translator = Translator(hello, said)
        crossing = self._crossing = cross(peer, translator, said)
        if crossing is None:
            return peer, said, hello.envelope
        crossing.deliver = self._listening.notification
        crossing.begin()
        return crossing, translator.seen(name), hello.envelope

    async def welcome(self, connection: Connection) -> None:
        """Ask for its tools before anything of them can be called."""
        if "tools" in connection.hello.capabilities:
            await self._catalogue.refresh(connection, connection.envelope)

    def ready(self, connection: Connection) -> None:
        """Calls may go through it."""
        self._passing.tell_again(connection)
        self._listening.ready(connection)
        self._nursery.start_soon(self._look_after, connection)

    async def _look_after(self, connection: Connection) -> None:
        await self._prover.ask_all(connection)
        while connection is self.upstream.connection:
            if self._catalogue.stale:
                await self._catalogue.keep_good(connection, connection.envelope)
            await trio.sleep(1.0)

    def lost(self, generation: int) -> None:
        """Its process is dead, or it is given up."""
        del generation
        if self._asking is not None:
            self._asking.end()
            self._asking = None
        self._crossing = None
        self._listening.lost()

    def from_server(self, method: str, params: msgspec.Raw | None) -> None:
        """The server tells something."""
        if method == "notifications/tools/list_changed":
            self._catalogue.changed()
        told = [(method, params)] if self._crossing is None else self._crossing.incoming(method, params)
        for said, about in told:
            if said != CANCELLED:
                self._listening.notification(said, about)
            elif not self._listening.ended(params) and self._asking is not None:
                self._asking.cancelled(params)

    def asked(self, id: Id, method: str, params: msgspec.Raw | None) -> None:  # noqa: A002 - the protocol's word
        """The server asks something."""
        if self._asking is not None:
            self._asking.request(id, method, params)

    def skipped(self, why: str, sample: bytes) -> None:
        """The server wrote a line that is no message."""
        if why != "blank":
            self._tracker.notices.say_rarely(
                "server wrote what is no message",
                server=self._settings.name,
                principal="",
                now=trio.current_time(),
                because=why,
                sample=sample[:80].decode(errors="replace"),
            )

    # ---- what others have to say about calls: `SeamHooks`

    def _only_call(self) -> str | None:
        return self.seam.flights.only

    def waits_for_human(self, flight: Flight) -> bool:
        """Whether the human has been asked about this very call and has not answered."""
        return self._asking is not None and self._asking.waits_for_human(flight.call.call_id)

    def timed_out(self) -> None:
        """A call has become unresolved because its time was up."""
        self.health.timed_out()

    def kept(self, flight: Flight, answer: Answer) -> None:
        """A response came too late for its caller."""
        if answer.result is not None:
            call = flight.call
            self._held.keep(call.call_id, call.principal, answer.result, trio.current_time())

    def answered_in_time(self, call_id: str, answer: Answer) -> None:
        """A response came in time."""
        connection = self.upstream.connection
        if answer.result is not None and self._prover.answered(call_id, answer.result) and connection is not None:
            self._nursery.start_soon(self._prover.ask_all, connection)

    # ---- operators

    def _line(self, record: Record) -> Line | None:
        connection, flight = self.upstream.connection, self.seam.flights.get(record.call.call_id)
        if connection is None or connection.epoch != record.call.lease.epoch or flight is None:
            return None
        return _Wire(connection)

    def _describe(self) -> dict[str, Any]:
        keeper, catalogue = self.upstream.keeper, self._catalogue
        connection, death = self.upstream.connection, keeper.last_death
        age = catalogue.age
        return {
            "kind": "wrap",
            "name": self._settings.name,
            "server": attrs.asdict(keeper.statistics()),
            "last_death": None if death is None else attrs.asdict(death),
            "health": attrs.asdict(self.health.statistics()),
            "busy": attrs.asdict(self._tracker.registry.busy(self._settings.name)),
            "catalogue": {
                "tools": len(catalogue.names()),
                "age": None if age is None else round(age, 1),
                "stale": catalogue.stale,
            },
            "wire": None if connection is None else attrs.asdict(connection.peer.statistics()),
            "client": attrs.asdict(self.client.statistics()),
            "counters": attrs.asdict(self._tracker.statistics()),
        }


class _FromServer:
    """The handler of one connection."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def request(self, id: Id, method: str, params: msgspec.Raw | None) -> None:  # noqa: A002 - the protocol's word
        self._gateway.asked(id, method, params)

    def notification(self, method: str, params: msgspec.Raw | None) -> None:
        self._gateway.from_server(method, params)

    def skipped(self, why: str, sample: bytes) -> None:
        self._gateway.skipped(why, sample)


class _Wire:
    """The connection that a call went through, by which its server can be told."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def cancel(self, record: Record) -> Told:
        """Tell the server to stop."""
        await trio.lowlevel.checkpoint()
        wire_id = record.wire_ids[-1] if record.wire_ids else None
        if not isinstance(wire_id, int):
            return Told(told=False, error=CancelError.ID_UNKNOWN)
        told = self._connection.tell_cancelled(wire_id, "cancelled by its caller or the operator")
        error = None if told else CancelError.TRANSPORT_CLOSED
        return Told(told=told, frame_sent=told, error=error, method="notification" if told else None)


def _modern(result: dict[str, Any]) -> dict[str, Any]:
    """A result of our own in the later era (MCP 2026-07-28, Base Protocol, Responses)."""
    return {**result, "resultType": "complete"}


def _refuse_era(request: ClientRequest, hello: ClientHello) -> None:
    """The connection's era was decided by its first request; an SDK asks again in the right one when it is told so."""
    if hello.era == "legacy":
        request.refuse(METHOD_NOT_FOUND, f"this connection has been initialized; it has no {request.method}")
    else:
        data = {"supported": list(MODERN_VERSIONS), "requested": ""}
        request.refuse(UNSUPPORTED_VERSION, "this connection speaks a protocol without initialize", data)
