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
from typing import Final, Protocol

import attrs
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
from ztrio_mcp.gateway.story import CallRequest, Story
from ztrio_mcp.gateway.upstream import Connection, Upstream

__all__ = ["Reply", "Seam", "SeamHooks"]

_ENDED: Final = "The connection to {server} ended before {tool} was sent. Nothing happened; repeat it."


@attrs.frozen(kw_only=True)
class Reply:
    """What a server answered.

    Args:
        call_id: The call.
        answer: The response.
        warning: What the caller is told about other calls, or None.
    """

    call_id: str
    answer: Answer
    warning: dict[str, object] | None = None


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
        self._running = trio.CapacityLimiter(settings.concurrency)
        audit.add_reducer(self.flights.learn)
        upstream.on_death = self.flights.died

    # ---- the way of a call

    async def call(self, request: CallRequest, context: CallContext | None) -> Reply:
        """Have a call made.

        Args:
            request: The call.
            context: Who calls; a call without one is `local`'s and counts as destructive, whatever its tool says.

        Raises:
            NotSent, QueueTimeout, QueueFull, UpstreamUnavailable: nothing was sent.
            InvalidArguments, PermissionDenied, StoreUnavailable, CallGated, RegistryFull: it was refused; nothing was
                sent.
            Unresolved: it was sent, and nobody knows what became of it. The error names it.
        """
        story = Story(self, request, context or LOCAL, new_id("pc_"), closed=context is None)
        if request.handed is not None:
            request.handed(story.call_id)
        story.publish("allow", timeout=story.limits.timeout)
        try:
            story.admit()
            return await self._in_turn(story)
        except ZtrioError as error:
            story.failed(error)
            raise
        except trio.Cancelled:
            story.cancelled()
            raise

    async def _in_turn(self, story: Story) -> Reply:
        running = self._running
        try:
            running.acquire_on_behalf_of_nowait(story)
        except trio.WouldBlock:
            await self._queue(story)
        try:
            connection = self._upstream.connection or await self._connect()
            return await self._send(story, connection)
        finally:
            running.release_on_behalf_of(story)

    async def _queue(self, story: Story) -> None:
        running, most = self._running, self.settings.queue
        if running.statistics().tasks_waiting >= most:
            await trio.lowlevel.checkpoint()
            raise QueueFull(
                f"{story.tool} was not sent: {running.total_tokens:g} calls run on {self.server}, and {most} wait. "
                "Nothing happened; repeat it later."
            )
        with trio.move_on_after(self.settings.queue_timeout):
            await running.acquire_on_behalf_of(story)
            return
        raise QueueTimeout(
            f"{story.tool} was not sent: it had waited {self.settings.queue_timeout:g} s for one of the "
            f"{running.total_tokens:g} calls that run on {self.server}. Nothing happened; repeat it later."
        )

    async def _connect(self) -> Connection:
        with trio.move_on_after(self.settings.start_timeout):
            return await self._upstream.ready()
        raise NotSent(
            f"{self.server} has not been ready for {self.settings.start_timeout:g} s. Nothing was sent; repeat it.",
            phase=str(Phase.CONNECT),
        )

    async def _send(self, story: Story, connection: Connection) -> Reply:
        passage = self.begin(story, connection)
        if passage is None:  # its lease died before it was sent: one fresh lease, one fresh check
            connection = self._upstream.connection or await self._connect()
            passage = self.begin(story, connection)
        if passage is None:
            raise NotSent(_ENDED.format(server=self.server, tool=story.tool), phase=str(Phase.CONNECT))
        await self._depart(story, passage)
        await passage.wait()
        if passage.flight.unsendable and not story.again:
            story.again = True
            return await self._send(story, self._upstream.connection or await self._connect())
        answer = passage.answer()
        story.completed(answer, passage)
        self.hooks.answered_in_time(story.call_id, answer)
        return Reply(call_id=story.call_id, answer=answer, warning=passage.warning)

    def begin(self, story: Story, connection: Connection) -> Passage | None:
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
        return Passage(self, flight, connection, story.context, warning, caller_limit=story.caller_limit)

    async def _depart(self, story: Story, passage: Passage) -> None:
        """Note a call, and hand its frame to the writer."""
        noted = passage.note()
        if noted and self._sync is not None:
            try:
                await self._sync()
            except OSError as error:
                raise passage.unnoted(error) from error
            except trio.Cancelled:
                passage.abandon()
                raise
        passage.depart(story.request.params)

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
