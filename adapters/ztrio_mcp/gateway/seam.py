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

from collections.abc import Callable
from typing import Final, Protocol

import attrs
import msgspec
import trio

from ztrio.audit import AuditBus, AuditEvent
from ztrio.calls import CallContext, new_id
from ztrio.errors import (
    InvalidArguments,
    NotSent,
    Outcome,
    PermissionDenied,
    QueueFull,
    QueueTimeout,
    StoreUnavailable,
    Unresolved,
    ZtrioError,
)
from ztrio.pending import (
    ActorKind,
    Call,
    Lease,
    Phase,
    Refusal,
    State,
    Tier,
    Transport,
    open_scope_handle,
)
from ztrio.tracking.desk import Desk
from ztrio.tracking.tracker import Tracker
from ztrio_mcp.gateway.flights import Answer, Flight, Flights
from ztrio_mcp.gateway.passage import Passage
from ztrio_mcp.gateway.settings import GatewaySettings, ToolLimits
from ztrio_mcp.gateway.upstream import Connection, Upstream
from ztrio_mcp.gateway.wire import CallParams

__all__ = ["CallRequest", "Reply", "Seam", "SeamHooks"]

_ENDED: Final = "The connection to {server} ended before {tool} was sent. Nothing happened; repeat it."


@attrs.frozen(kw_only=True)
class CallRequest:
    """What a surface asks for.

    Args:
        params: The parameters of the `tools/call`.
        on_progress: Told of the call's progress while its caller waits; None for a caller who wants none.
        lineage: The call that this one continues, and what its server gave to continue it with.
        handed: Told the call's id before anything is waited for.
    """

    params: CallParams
    on_progress: Callable[[msgspec.Raw], None] | None = None
    lineage: str | None = None
    handed: Callable[[str], object] | None = None


@attrs.frozen(kw_only=True)
class Reply:
    """What a server answered.

    Args:
        call_id: The call.
        answer: The response.
        connection: The connection that it came from.
        warning: What the caller is told about other calls, or None.
        tier: The tier that the gate took the call for.
    """

    call_id: str
    answer: Answer
    connection: Connection
    warning: dict[str, object] | None = None


class SeamHooks(Protocol):
    """What others have to say about calls of one server."""

    def waits_for_human(self, flight: Flight) -> bool:
        """Whether the server has asked the human about this very call, and has no answer yet."""

    def timed_out(self) -> None:
        """A call has become unresolved because its time was up."""

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
    ) -> None:
        self.server = upstream.name
        self._upstream = upstream
        self._settings = settings
        self._tracker = tracker
        self._desk = desk
        self._audit = audit
        self._secret = secret
        self._hooks = hooks
        self.flights = Flights(upstream.name, tracker)
        self._running = trio.CapacityLimiter(settings.concurrency)
        audit.add_reducer(self.flights.learn)
        upstream.on_death = self.flights.died

    # ---- the way of a call

    async def call(self, request: CallRequest, context: CallContext) -> Reply:
        """Have a call made.

        Args:
            request: The call.
            context: Who calls; whoever brings none is `local`, and its call counts as destructive.

        Raises:
            NotSent, QueueTimeout, QueueFull, UpstreamUnavailable: nothing was sent.
            InvalidArguments, PermissionDenied, StoreUnavailable, CallGated, RegistryFull: it was refused; nothing was
                sent.
            Unresolved: it was sent, and nobody knows what became of it. The error names it.
        """
        story = _Story(self, request, context, new_id("pc_"))
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

    async def _in_turn(self, story: _Story) -> Reply:
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

    async def _queue(self, story: _Story) -> None:
        running, most = self._running, self._settings.queue
        if running.statistics().tasks_waiting >= most:
            await trio.lowlevel.checkpoint()
            raise QueueFull(
                f"{story.tool} was not sent: {running.total_tokens:g} calls run on {self.server}, and {most} wait. "
                "Nothing happened; repeat it later."
            )
        with trio.move_on_after(self._settings.queue_timeout):
            await running.acquire_on_behalf_of(story)
            return
        raise QueueTimeout(
            f"{story.tool} was not sent: it had waited {self._settings.queue_timeout:g} s for one of the "
            f"{running.total_tokens:g} calls that run on {self.server}. Nothing happened; repeat it later."
        )

    async def _connect(self) -> Connection:
        with trio.move_on_after(self._settings.start_timeout):
            return await self._upstream.ready()
        raise NotSent(
            f"{self.server} has not been ready for {self._settings.start_timeout:g} s. Nothing was sent; repeat it.",
            phase=str(Phase.CONNECT),
        )

    async def _send(self, story: _Story, connection: Connection) -> Reply:
        passage = self.begin(story, connection)
        if passage is None:  # its lease died before it was sent: one fresh lease, one fresh check
            connection = self._upstream.connection or await self._connect()
            passage = self.begin(story, connection)
        if passage is None:
            raise NotSent(_ENDED.format(server=self.server, tool=story.tool), phase=str(Phase.CONNECT))
        await passage.wait()
        if passage.flight.unsendable and not story.again:
            story.again = True
            return await self._send(story, self._upstream.connection or await self._connect())
        answer = passage.answer()
        story.completed(answer, passage)
        return Reply(call_id=story.call_id, answer=answer, connection=connection, warning=passage.warning)

    def begin(self, story: _Story, connection: Connection) -> Passage | None:
        """Check and reserve a call, note it, and hand its frame to the writer, all without a checkpoint.

        Returns:
            Its passage; None when the connection is gone already.

        Raises:
            CallGated, RegistryFull: refused.
            StoreUnavailable: it cannot be noted.
            NotSent: too much is queued in front of it.
        """
        tracker, call = self._tracker, story.call_on(connection)
        begun = tracker.registry.check_and_begin(call, **tracker.moment())
        if isinstance(begun, Refusal):
            if begun.code == "NOT_SENT":
                return None
            raise self._desk.refusal(begun, story.context)
        tracker.did(begun.transitions)
        warning = None
        if begun.warning is not None:
            record = tracker.registry.get(begun.warning.gating[0].call_id)
            warning = self._desk.warning(begun.warning, record, self.server, story.context)
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
        passage = Passage(self, flight, connection, story.context, warning, caller_limit=story.caller_limit)
        passage.depart(story.request.params)
        return passage

    # ---- what others find out

    def forward_cancel(self, call_id: str) -> None:
        """A client has cancelled a call of its own, and the server is to be told, past any queue, once."""
        tracker, flight = self._tracker, self.flights.get(call_id)
        record = tracker.registry.get(call_id)
        if flight is None or flight.exchange is None or record is None or record.state is not State.UNRESOLVED:
            return
        connection = self._upstream.connection
        if connection is None or connection.epoch != flight.call.lease.epoch:
            return
        tracker.did(tracker.registry.claim_cancel(call_id, actor=ActorKind.CALLER, **tracker.moment()))
        told = connection.tell_cancelled(flight.exchange.id, "the client cancelled it")
        tracker.did(tracker.registry.finish_cancel(call_id, told=told, frame_sent=told, **tracker.moment()))

    @property
    def forwards_cancel(self) -> bool:
        """Whether a client's own cancel reaches the server."""
        return self._settings.forward_cancel == "explicit"

    # ---- for passages

    @property
    def tracker(self) -> Tracker:
        """The registry's shell."""
        return self._tracker

    @property
    def desk(self) -> Desk:
        """How pending calls are told of."""
        return self._desk

    @property
    def hooks(self) -> SeamHooks:
        """What others have to say."""
        return self._hooks


@attrs.define(eq=False)
class _Story:
    """One call, as the audit tells it: `allow`, then one terminal event."""

    seam: Seam
    request: CallRequest
    context: CallContext
    call_id: str
    # Set once, by the first try that was not sent because its lease had died.
    again: bool = False
    limits: ToolLimits = attrs.field(init=False)
    caller_limit: bool = attrs.field(init=False, default=False)
    _began: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._began = trio.current_time()
        self.limits = self.seam._settings.limits_of(self.tool)

    @property
    def tool(self) -> str:
        """The tool's name."""
        return self.request.params.tool

    @property
    def tier(self) -> Tier:
        """The tier of the tool as its server describes it."""
        return self.seam._tracker.registry.tiers.tier(self.seam.server, self.tool)

    def admit(self) -> None:
        """Whether the caller may make the call at all. May refuse, never admits.

        Raises:
            PermissionDenied, InvalidArguments, StoreUnavailable, CallGated: no.
        """
        view, tier, asked = self.context.view, self.tier, self.request.params.timeout
        if str(tier) not in view.tiers or (view.servers is not None and self.seam.server not in view.servers):
            raise PermissionDenied(f"{self.tool} is not among the tools that you may call. Nothing was sent.")
        if asked is not None:
            most = self.limits.ceiling
            if asked > most:
                raise InvalidArguments(
                    f"{self.tool} may take {most:g} s at most, not {asked:g}. Nothing was sent; the operator can raise "
                    "the limit with --max-timeout."
                )
            self.caller_limit = asked <= self.limits.timeout or self.limits.idle is not None
            self.limits = attrs.evolve(self.limits, timeout=asked, ceiling=asked)
        why = self.seam._audit.unavailable
        if why is not None and tier is not Tier.READ:
            raise StoreUnavailable(f"{self.tool} was not sent: {why}. Calls that only read go on.")
        refusal = self.seam._tracker.registry.check(self.call_on(None))
        if refusal is not None:
            raise self.seam._desk.refusal(refusal, self.context)

    def call_on(self, connection: Connection | None) -> Call:
        """The call as the registry takes it; None for an early word only."""
        context, scope = self.context, self.request.params.scope
        opened = None
        if scope is not None:
            opened = open_scope_handle(self.seam._secret, context.principal.id, scope)
            if opened is None:
                raise InvalidArguments("This scope was not handed to you. Nothing was sent.")
        return Call(
            call_id=self.call_id,
            server=self.seam.server,
            transport=Transport.STDIO,
            lease=Lease("", 2**62) if connection is None else connection.lease,
            principal=context.principal.id,
            gate_scope=opened or context.gate_scope,
            tool=self.tool,
            admission_tier=self.tier,
            ceiling=self.limits.ceiling,
            lineage=self.request.lineage,
        )

    # ---- the audit

    def publish(
        self,
        event: str,
        *,
        timeout: float | None = None,
        code: str | None = None,
        reason: str | None = None,
        cause: str | None = None,
        outcome: Outcome | None = None,
    ) -> None:
        """Publish an event of this call."""
        context = self.context
        self.seam._audit.publish(
            AuditEvent(
                event=event,
                execution_job_id=self.call_id,
                tool=self.tool,
                principal=context.principal.id,
                request_id=context.request_id,
                surface=context.surface,
                capability=str(self.tier),
                timeout=timeout,
                duration=None if event == "allow" else trio.current_time() - self._began,
                code=code,
                reason=reason,
                cause=cause,
                outcome=outcome,
            )
        )

    def completed(self, answer: Answer, passage: Passage) -> None:
        """It is answered, also when the answer is an error."""
        code = None
        if not passage.succeeded:
            code = "TOOL_ERROR" if answer.result is not None else "JSONRPC_ERROR"
        self.publish("completed", code=code, outcome=Outcome.COMPLETED)

    def failed(self, error: ZtrioError) -> None:
        """It was refused, or not sent, or nobody knows."""
        error.details.setdefault("call_id", self.call_id)
        if isinstance(error, Unresolved):
            error.outcome = Outcome.UNRESOLVED
            self.publish("unresolved", code=error.code, reason=error.message, outcome=error.outcome)
            return
        error.outcome = Outcome.NOT_STARTED
        event = "queue_timeout" if isinstance(error, QueueTimeout) else "deny"
        self.publish(event, code=error.code, reason=error.message, outcome=error.outcome)

    def cancelled(self) -> None:
        """Its caller has left. What is known of it then is on the books."""
        record = self.seam._tracker.registry.get(self.call_id)
        sent = record is not None and record.state not in (State.RESERVED, State.NOT_SENT)
        event, outcome = ("unresolved", Outcome.UNRESOLVED) if sent else ("cancel", Outcome.NOT_STARTED)
        self.publish(event, code="CALL_UNRESOLVED" if sent else None, cause="the caller left", outcome=outcome)
