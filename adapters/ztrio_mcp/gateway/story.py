"""One call as its caller asked for it and as the audit tells it: `allow`, then exactly one terminal event.

Whether a caller may make a call at all is decided here, before it takes a place in the queue; that is an early word,
which may refuse and never admits. What counts is the check at the seam.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
import msgspec
import trio

from ztrio.audit import AuditEvent
from ztrio.calls import CallContext
from ztrio.errors import (
    InvalidArguments,
    Outcome,
    PermissionDenied,
    QueueTimeout,
    StoreUnavailable,
    Unresolved,
    ZtrioError,
)
from ztrio.pending import Call, Lease, State, Tier, Transport, open_scope_handle
from ztrio_mcp.gateway.flights import Answer
from ztrio_mcp.gateway.passage import Passage
from ztrio_mcp.gateway.settings import ToolLimits
from ztrio_mcp.gateway.turns import Turn
from ztrio_mcp.gateway.upstream import Connection
from ztrio_mcp.gateway.wire import CallParams

if TYPE_CHECKING:
    from ztrio_mcp.gateway.seam import Seam

__all__ = ["CallRequest", "Reply", "Story"]


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


@attrs.frozen(kw_only=True)
class CallRequest:
    """What a surface asks for.

    Args:
        params: The parameters of the `tools/call`.
        on_progress: Told of the call's progress while its caller waits; None for a caller who wants none.
        lineage: The call that this one continues, and what its server gave to continue it with.
        on_reply: Given the answer in the very step in which it is read, which a task would be a turn of the event
            loop later; must not wait, and must not raise. None for a caller who takes what `finish` returns.
    """

    params: CallParams
    on_progress: Callable[[msgspec.Raw], None] | None = None
    lineage: str | None = None
    on_reply: Callable[[Reply], object] | None = None


@attrs.define(eq=False)
class Story:
    """One call, as the audit tells it: `allow`, then one terminal event."""

    seam: Seam
    request: CallRequest
    context: CallContext
    call_id: str
    turn: Turn
    # It came without a context, so the gate takes it for the worst.
    closed: bool = attrs.field(default=False, kw_only=True)
    # Its frame, where it was sent as soon as it was entered.
    passage: Passage | None = attrs.field(init=False, default=None)
    limits: ToolLimits = attrs.field(init=False)
    caller_limit: bool = attrs.field(init=False, default=False)
    _began: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._began = trio.current_time()
        self.limits = self.seam.settings.limits_of(self.tool)

    @property
    def tool(self) -> str:
        """The tool's name."""
        return self.request.params.tool

    @property
    def tier(self) -> Tier:
        """The tier of the tool as its server describes it."""
        return Tier.DESTRUCTIVE if self.closed else self.seam.tracker.registry.tiers.tier(self.seam.server, self.tool)

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
        why = self.seam.audit.unavailable
        if why is not None and tier is not Tier.READ:
            raise StoreUnavailable(f"{self.tool} was not sent: {why}. Calls that only read go on.")
        refusal = self.seam.tracker.registry.check(self.call_on(None))
        if refusal is not None:
            raise self.seam.desk.refusal(refusal, self.context)

    def call_on(self, connection: Connection | None) -> Call:
        """The call as the registry takes it; None for an early word only."""
        context, scope = self.context, self.request.params.scope
        opened = None
        if scope is not None:
            opened = open_scope_handle(self.seam.secret, context.principal.id, scope)
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
            gate_tier=Tier.DESTRUCTIVE if self.closed else None,
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
        self.seam.audit.publish(
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

    def completed(self, answer: Answer, warning: dict[str, Any] | None, *, succeeded: bool) -> Reply:
        """It is answered, also when the answer is an error; what its caller is given, and has been."""
        code = None
        if not succeeded:
            code = "TOOL_ERROR" if answer.result is not None else "JSONRPC_ERROR"
        self.publish("completed", code=code, outcome=Outcome.COMPLETED)
        self.seam.hooks.answered_in_time(self.call_id, answer)
        reply = Reply(call_id=self.call_id, answer=answer, warning=warning)
        if self.request.on_reply is not None:
            self.request.on_reply(reply)
        return reply

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
        record = self.seam.tracker.registry.get(self.call_id)
        sent = record is not None and record.state not in (State.RESERVED, State.NOT_SENT)
        event, outcome = ("unresolved", Outcome.UNRESOLVED) if sent else ("cancel", Outcome.NOT_STARTED)
        self.publish(event, code="CALL_UNRESOLVED" if sent else None, cause="the caller left", outcome=outcome)
