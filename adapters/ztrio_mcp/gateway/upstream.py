"""The server behind the gateway: which of its connections is alive, and what each agreed on.

The keeper starts its process, and starts it again; here each of those generations becomes a connection once the
handshake is done and its catalogue has been asked for. The catalogue comes first, because the gate goes by what a tool
is said to do: a call that overtook it would count as destructive. A server that is slow to list its tools is waited for
only briefly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import attrs
import msgspec
import trio

from ztrio.audit import AuditBus, AuditEvent
from ztrio.pending import Lease, Transport
from ztrio.tracking.tracker import EPOCH_ENDED
from ztrio.upstream import Command, Death, Generation, Keeper, RestartPolicy, Timing
from ztrio_mcp.gateway.asks import Wire
from ztrio_mcp.gateway.eras import UpstreamHello
from ztrio_mcp.objects import Fields, encode_fields
from ztrio_mcp.peer import Handler, Peer, PeerClosed, PeerQueueFull

__all__ = ["Connected", "Connection", "Upstream"]

_CATALOGUE: Final = 2.0  # seconds that a new connection waits for the list of its tools


@attrs.frozen(eq=False, kw_only=True)
class Connection:
    """One connection generation, from its handshake on.

    Args:
        epoch: Its number; of this process, never given twice.
        lease: The right to send through it.
        peer: The wire, in the client's era.
        hello: What the server said of itself, in the client's era.
        envelope: `_meta` of a request of ours, encoded, as the era wants it; None where it wants none.
    """

    epoch: int
    lease: Lease
    peer: Wire
    hello: UpstreamHello
    envelope: bytes | None

    def own_params(self, fields: Fields) -> bytes | None:
        """Parameters of a request of ours."""
        if self.envelope is None:
            return encode_fields(fields) if fields else None
        return encode_fields({**fields, "_meta": msgspec.Raw(self.envelope)})

    def tell_cancelled(self, wire_id: int, reason: str) -> bool:
        """Tell the server that a request of ours is not wanted any more, past any queue; whether that could be done."""
        params = msgspec.json.encode({"requestId": wire_id, "reason": reason})
        try:
            self.peer.notify("notifications/cancelled", params, front=True)
        except (PeerClosed, PeerQueueFull):
            return False
        return True


class Connected(Protocol):
    """What others do with the connections of a server."""

    def handler(self, generation: int) -> Handler:
        """Who takes what the server sends by itself."""

    async def meet(self, peer: Peer) -> tuple[Wire, UpstreamHello, bytes | None]:
        """Shake hands; the wire and what the server said, in the client's era, and the envelope of requests of ours.

        Raises:
            UpstreamUnavailable: it cannot be done; the message says what the server said.
        """

    async def welcome(self, connection: Connection) -> None:
        """Ask what is to be known before the first call; returns when it is known, or has failed."""

    def ready(self, connection: Connection) -> None:
        """Calls may go through it from now on."""

    def lost(self, generation: int) -> None:
        """Its process is dead, or it is given up."""


class Upstream:
    """A stdio server under supervision.

    Args:
        name: Its name.
        command: What is started.
        connected: What is done with its connections.
        audit: Where the end of a generation is published.
        epochs: Gives each generation its number.
        timing: How long starting and stopping may take.
        policy: When it is started again.
        on_state: Told when the keeper's state changes.
    """

    def __init__(
        self,
        name: str,
        command: Command,
        *,
        connected: Connected,
        audit: AuditBus,
        epochs: Callable[[], int],
        timing: Timing | None = None,
        policy: RestartPolicy | None = None,
        on_state: Callable[[str], None] | None = None,
    ) -> None:
        self.name = name
        self.connection: Connection | None = None
        # Told of a proven death, before the registry is.
        self.on_death: Callable[[Death], None] = lambda _death: None
        self._connected = connected
        self._audit = audit
        options: dict[str, Any] = {"timing": timing, "policy": policy, "on_state": on_state}
        self.keeper = Keeper(
            name,
            command,
            serve=self._serve,
            on_death=self._buried,
            epochs=epochs,
            **{name: value for name, value in options.items() if value is not None},
        )

    async def ready(self) -> Connection:
        """The connection that calls may go through, when there is one.

        Raises:
            UpstreamUnavailable: the server has been given up, or cannot be started.
        """
        while True:
            connection = self.connection
            if connection is not None:
                await trio.lowlevel.checkpoint()
                return connection
            await self.keeper.ready()

    async def _serve(self, generation: Generation) -> None:
        """One generation, until its stdout ends."""
        peer = Peer(
            stdin=generation.process.stdin,
            stdout=generation.process.stdout,
            handler=self._connected.handler(generation.epoch),
            label=self.name,
        )
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._run, peer, nursery.cancel_scope)
                wire, hello, envelope = await self._connected.meet(peer)
                lease = Lease(f"{self.name}#{generation.epoch}", generation.epoch)
                connection = Connection(epoch=generation.epoch, lease=lease, peer=wire, hello=hello, envelope=envelope)
                with trio.move_on_after(_CATALOGUE):
                    await self._connected.welcome(connection)
                self.connection = connection
                generation.ready()
                self._connected.ready(connection)
        finally:
            self.connection = None
            self._connected.lost(generation.epoch)

    @staticmethod
    async def _run(peer: Peer, over: trio.CancelScope) -> None:
        await peer.run()
        over.cancel()

    def _buried(self, death: Death) -> None:
        """A process tree is proven dead. First whoever waits learns why, then the registry that nothing can come."""
        self.on_death(death)
        facts = {"server": self.name, "epoch": death.epoch, "transport": str(Transport.STDIO)}
        self._audit.publish(AuditEvent(event=EPOCH_ENDED, reason=death.how, pending=facts))
