"""The seam: the one way by which a `tools/call` reaches a server, whatever surface it came from.

    allow     the caller's view, the state of the audit, an early word of the gate
    queue     a place among the calls that run on this server at once; fair, bounded
    connect   a connection that is ready now
    check     lease, gate and reservation, with no checkpoint in between; the journal
    write     the writer claims the frame just before its first byte
    wait      for the response, for progress, for the limits, for the caller to leave

A call that ends before the claim was not sent, and its error says so: repeat it. After the claim there are three ends:
a response; a server that died; and the end of the wait, by which the call becomes unresolved and gets a name. Nothing
here ever sends a call twice, except when its lease died before the claim: then it is checked once more and sent by the
next connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from ztrio.audit import AuditBus
from ztrio.calls import LOCAL, CallContext, new_id
from ztrio.errors import (
    NotSent,
    QueueFull,
    QueueTimeout,
    ZtrioError,
)
from ztrio.pending import (
    ActorKind,
    Phase,
    Refusal,
    State,
)
from ztrio.tracking.desk import Desk
from ztrio.tracking.tracker import Tracker
from ztrio_mcp.gateway.flights import Answer, Flight, Flights
from ztrio_mcp.gateway.passage import Passage
from ztrio_mcp.gateway.settings import GatewaySettings
from ztrio_mcp.gateway.story import CallRequest, Reply, Story
from ztrio_mcp.gateway.turns import Turns
from ztrio_mcp.gateway.upstream import Connection, Upstream

__all__ = ["Seam", "SeamHooks"]


class SeamHooks(Protocol):
    """What others have to say about calls of one server."""

    def waits_for_human(self, flight: Flight) -> bool:
        """Whether the server has asked the human about this very call, and has no answer yet."""

    def timed_out(self) -> None:
        """A call has become unresolved because its time was up."""

    def answered_in_time(self, call_id: str, answer: Answer) -> None:
        """A response came in time."""

    def kept(self, flight: Flight, answer: Answer) -> None:
        """A response came too late for its caller."""


class Seam:
    """The way to one server.

    Args:
        upstream: The server.
        settings: Its limits.
        tracker: The registry's shell.
        desk: How pending calls are told of.
        audit: Where everything is published.
        secret: The store's secret.
        hooks: What others have to say.
        sync: Makes what was noted survive the machine; None where the process is enough.
    """

    def __init__(
        self,
        upstream: Upstream,
        settings: GatewaySettings,
        *,
        tracker: Tracker,
        desk: Desk,
        audit: AuditBus,
        secret: bytes,
        hooks: SeamHooks,
        sync: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.server = upstream.name
        self._upstream = upstream
        self.settings = settings
        self.tracker = tracker
        self.desk = desk
        self.audit = audit
        self.secret = secret
        self.hooks = hooks
        self._sync = sync
        self.flights = Flights(upstream.name, tracker)
        self.turns = Turns(settings.concurrency, settings.queue)
        audit.add_reducer(self.flights.learn)
        upstream.on_death = self.flights.died

    # ---- the way of a call

    def enter(self, request: CallRequest, context: CallContext | None) -> Story:
        """Begin a call, and send it at once where nothing has to be waited for.

        Without a checkpoint, so calls run in the order in which they are entered.

        Args:
            request: The call.
            context: Who calls; a call without one is `local`'s and counts as destructive, whatever its tool says.

        Returns:
            The call, which `finish` must be given.

        Raises:
            NotSent, QueueFull: nothing was sent.
            InvalidArguments, PermissionDenied, StoreUnavailable, CallGated, RegistryFull: it was refused; nothing was
                sent.
        """
        turn = self.turns.take()
        story = Story(self, request, context or LOCAL, new_id("pc_"), turn, closed=context is None)
        story.publish("allow", timeout=story.limits.timeout)
        try:
            story.admit()
            if turn.refused:
                raise QueueFull(
                    f"{story.tool} was not sent: {self.turns.running} calls run on {self.server}, and "
                    f"{self.turns.waiting} wait. Nothing happened; repeat it later."
                )
            if turn.granted and self._upstream.connection is not None and self._sync is None:
                story.passage = self._begin(story, self._upstream.connection)
                if story.passage is not None:
                    story.passage.note()
                    story.passage.depart(request.params)
        except BaseException as error:
            turn.give_back()
            if isinstance(error, ZtrioError):
                story.failed(error)
            raise
        return story

    async def finish(self, story: Story) -> Reply:
        """Wait for what becomes of a call that was entered.

        Raises:
            NotSent, QueueTimeout, UpstreamUnavailable: nothing was sent.
            StoreUnavailable, CallGated, RegistryFull: it was refused when its turn had come; nothing was sent.
            Unresolved: it was sent, and nobody knows what became of it. The error names it.
        """
        try:
            with story.turn:
                return await self._through(story)
        except ZtrioError as error:
            story.failed(error)
            raise
        except trio.Cancelled:
            story.cancelled()
            raise

    async def call(self, request: CallRequest, context: CallContext | None) -> Reply:
        """Have a call made: `enter`, then `finish`."""
        return await self.finish(self.enter(request, context))

    async def _through(self, story: Story) -> Reply:
        await self._wait_for_turn(story)
        passage = story.passage or await self._depart(story)
        await passage.wait()
        if passage.flight.unsendable:  # its connection ended before its first byte: once more
            passage = await self._depart(story)
            await passage.wait()
        return passage.reply()

    async def _wait_for_turn(self, story: Story) -> None:
        if story.turn.granted:
            return
        with trio.move_on_after(self.settings.queue_timeout):
            await story.turn.wait()
            return
        raise QueueTimeout(
            f"{story.tool} was not sent: it had waited {self.settings.queue_timeout:g} s for one of the "
            f"{self.turns.running} calls that run on {self.server}. Nothing happened; repeat it later."
        )

    async def _connect(self) -> Connection:
        with trio.move_on_after(self.settings.start_timeout):
            return await self._upstream.ready()
        raise NotSent(
            f"{self.server} has not been ready for {self.settings.start_timeout:g} s. Nothing was sent; repeat it.",
            phase=str(Phase.CONNECT),
        )

    async def _depart(self, story: Story) -> Passage:
        """Send a call by the connection that is ready now, or is ready next."""
        for _ in range(2):  # its lease died before it was sent: one fresh lease, one fresh check
            passage = self._begin(story, self._upstream.connection or await self._connect())
            if passage is not None:
                break
        else:
            raise NotSent(
                f"The connection to {self.server} ended before {story.tool} was sent. Nothing happened; repeat it.",
                phase=str(Phase.CONNECT),
            )
        if passage.note() and self._sync is not None:
            try:
                await self._sync()
            except OSError as error:
                raise passage.unnoted(error) from error
            except trio.Cancelled:
                passage.abandon()
                raise
        passage.depart(story.request.params)
        return passage

    def _begin(self, story: Story, connection: Connection) -> Passage | None:
        """Check and reserve a call, all without a checkpoint.

        Returns:
            Its passage; None when the connection is gone already.

        Raises:
            CallGated, RegistryFull: refused.
        """
        tracker, call = self.tracker, story.call_on(connection)
        begun = tracker.registry.check_and_begin(call, **tracker.moment())
        if isinstance(begun, Refusal):
            if begun.code == "NOT_SENT":
                return None
            raise self.desk.refusal(begun, story.context)
        tracker.did(begun.transitions)
        warning = None
        if begun.warning is not None:
            record = tracker.registry.get(begun.warning.gating[0].call_id)
            warning = self.desk.warning(begun.warning, record, self.server, story.context)
        if not begun.tracked:
            principal = story.context.principal.id
            tracker.notices.say_rarely("call not tracked", server=self.server, principal=principal, now=tracker.now)
        now = trio.current_time()
        limits = story.limits
        flight = Flight(
            call=call,
            idle=limits.idle,
            ceiling=now + (limits.timeout if limits.idle is None else limits.ceiling),
            on_progress=story.request.on_progress,
            tracked=begun.tracked,
        )
        flight.limit.deadline = flight.ceiling if limits.idle is None else min(flight.ceiling, now + limits.idle)
        return Passage(story, flight, connection, warning)

    # ---- what others find out

    def forward_cancel(self, call_id: str) -> None:
        """A client has left a call of its own: tell the server, once, where the operator wants that."""
        if self.settings.forward_cancel != "explicit" or self.tracker.closing:
            return
        tracker, flight = self.tracker, self.flights.get(call_id)
        record = tracker.registry.get(call_id)
        if flight is None or flight.exchange is None or record is None or record.state is not State.UNRESOLVED:
            return
        connection = self._upstream.connection
        if connection is None or connection.epoch != flight.call.lease.epoch:
            return
        tracker.did(tracker.registry.claim_cancel(call_id, actor=ActorKind.CALLER, **tracker.moment()))
        told = connection.tell_cancelled(flight.exchange.id, "the client cancelled it")
        tracker.did(tracker.registry.finish_cancel(call_id, told=told, frame_sent=told, **tracker.moment()))
