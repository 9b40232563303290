"""What surfaces ask about pending calls, each on behalf of a caller: list, look up, cancel, release.

Every answer goes by the caller's view as it is now, and every surface shows the same objects. Whoever may not see a
call gets the answer for an id that never was, from the same code. That takes the store into account as well: it is
asked first, whoever asks and whatever is in memory, so not even the time it takes says anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ztrio.calls import CallContext
from ztrio.errors import InvalidArguments, PermissionDenied, ZtrioError
from ztrio.pending import (
    ActivityRow,
    ActorKind,
    CancelError,
    GateWarning,
    Record,
    Refusal,
    Rejected,
    State,
    Way,
    cancellable,
    describe,
    look_up,
    may_release,
    pending_call,
    refusal_error,
    unknown_call,
    visible,
    warning_meta,
    ways_out,
)
from ztrio.tracking.cancelling import Cancelled, Canceller, Line
from ztrio.tracking.tracker import Tracker, TrackerStatistics

__all__ = ["Desk", "ReadTools"]

ReadTools = Callable[[CallContext, str], Sequence[str]]
"""The tools of a server that only read and that a caller may call now."""

_MAX_REASON: Final = 500  # characters of an operator's words

_NOTES: Final = {
    CancelError.UNSUPPORTED_TRANSPORT: "There is nobody to be told: the tool was stopped already. Look at what it was "
    "to change, then reconcile or release the call.",
    CancelError.TRANSPORT_CLOSED: "The connection that the call went through is gone, so its upstream was not told.",
    CancelError.SEND_FAILED: "The upstream was perhaps told, and perhaps not; it is not told again.",
    CancelError.ID_UNKNOWN: "This stands for several calls whose ids are not kept, so nothing was sent. Reconcile or "
    "release it.",
}
_TOLD: Final = "The upstream was told to stop. Whether the call had any effect is not known."
_OVER: Final = "Nothing was sent: the call is over."


class Desk:
    """Answers about pending calls.

    Args:
        tracker: The calls.
        secret: The store's secret; scopes are shown under a hash made with it.
    """

    def __init__(self, tracker: Tracker, secret: bytes) -> None:
        self._tracker = tracker
        self._secret = secret
        # Which reads of a server a caller may make; replaced by whoever knows the servers.
        self.read_tools: ReadTools = lambda _context, _server: ()
        # The transport that a call went through; replaced by whoever has transports.
        self.line: Callable[[Record], Line | None] = lambda _record: None
        self._canceller = Canceller(tracker, self._line)

    def _line(self, record: Record) -> Line | None:
        return self.line(record)

    def statistics(self) -> TrackerStatistics:
        """A snapshot."""
        return self._tracker.statistics()

    def calls(self, context: CallContext) -> list[dict[str, Any]]:
        """The pending calls that a caller may see, oldest first."""
        return [self.describe(record, context) for record in visible(self._tracker.registry, context)]

    async def call(self, call_id: str, context: CallContext) -> dict[str, Any]:
        """One call, by an id; that of a folded call is answered with what it was folded into.

        Raises:
            UnknownCall: there is none that this caller may see.
        """
        row = await self._tracker.row(call_id)
        return self.describe(look_up(self._tracker.registry, context, call_id, row), context)

    async def owner(self, call_id: str, context: CallContext) -> tuple[str, str, str]:
        """The id of a call, or of what it was folded into, its principal, and its gate scope.

        Raises:
            UnknownCall: there is none that this caller may see.
        """
        row = await self._tracker.row(call_id)
        found = look_up(self._tracker.registry, context, call_id, row)
        if isinstance(found, ActivityRow):
            return found.call_id, found.principal, found.gate_scope
        return found.call.call_id, found.call.principal, found.call.gate_scope

    async def cancel(self, call_id: str, context: CallContext) -> dict[str, Any]:
        """Tell the upstream of a call to stop.

        Returns:
            `call_id`, `state`, `cancel_sent`, a `note`, and `cancel_error` where it could not be told.

        Raises:
            UnknownCall: there is none that this caller may see and cancel.
        """
        row = await self._tracker.row(call_id)
        record = cancellable(self._tracker.registry, context, call_id, row)
        answer = await self._canceller.cancel(record.call.call_id, self.actor(context))
        shown: dict[str, Any] = {
            "call_id": record.call.call_id,
            "state": str(answer.state),
            "cancel_sent": answer.sent,
            "note": _note(answer),
        }
        if answer.error is not None:
            shown["cancel_error"] = str(answer.error)
        if answer.method is not None:
            shown["method"] = answer.method
        return shown

    async def release(self, call_id: str, reason: str, context: CallContext) -> dict[str, Any]:
        """Open the gate of a call on an operator's word.

        Args:
            call_id: The call.
            reason: Why, for the audit.
            context: The operator.

        Raises:
            PermissionDenied: the caller is no operator.
            InvalidArguments: no reason is given, or it is too long; or the call is being cancelled or in flight.
            UnknownCall: there is no such call.
        """
        if not may_release(context):
            await self._tracker.row(call_id)
            raise PermissionDenied("Only an operator can release a call. Nothing was done.")
        if not reason.strip() or len(reason) > _MAX_REASON:
            raise InvalidArguments(f"Say why, in at most {_MAX_REASON} characters. Nothing was done.")
        row = await self._tracker.row(call_id)
        tracker = self._tracker
        found = look_up(tracker.registry, context, call_id, row)
        if isinstance(found, Record):
            try:
                moves = tracker.registry.release(found.call.call_id, actor=ActorKind.OPERATOR, **tracker.moment())
            except Rejected as rejected:
                raise InvalidArguments(_REJECTED.get(rejected.why, str(rejected)), why=rejected.why) from None
            tracker.did(moves, cause=reason)
        return self.describe(found, context)

    # ---- how they are shown

    def describe(self, found: Record | ActivityRow, context: CallContext) -> dict[str, Any]:
        """A call as every surface shows it."""
        tracker = self._tracker
        ways = [] if isinstance(found, ActivityRow) else self.ways(found, context)
        return pending_call(found, context=context, ways=ways, secret=self._secret, wall=tracker.wall, now=tracker.now)

    def ways(self, record: Record, context: CallContext) -> list[Way]:
        """What a caller can do about a call now."""
        return ways_out(
            record,
            context=context,
            read_tools=self.read_tools(context, record.call.server),
            reachable=self._canceller.reachable(record),
        )

    def refusal(self, refusal: Refusal, context: CallContext) -> ZtrioError:
        """What a caller is told whose call may not go out."""
        tracker, ways = self._tracker, list[Way]()
        tracker.refused += 1
        record = tracker.registry.get(refusal.gating[0].call_id) if refusal.gating else None
        if record is not None:
            ways = self.ways(record, context)
        tracker.notices.say_rarely(
            "call refused",
            server=refusal.call.server,
            principal=refusal.call.principal,
            now=tracker.now,
            code=refusal.code,
            tool=refusal.call.tool,
            because=[each.call_id for each in refusal.gating[:1]] or None,
        )
        error = refusal_error(refusal, ways=ways, now=tracker.now)
        if record is not None:
            error.details["pending_call"] = self.describe(record, context)
        return error

    def attach(self, error: ZtrioError, record: Record, context: CallContext) -> None:
        """Let an error say what is known of the call, and what can be done about it."""
        ways, now = self.ways(record, context), self._tracker.now
        shown = error.details["pending_call"] = self.describe(record, context)
        error.message = f"{error.message} {describe(shown, ways=ways, now=now)}"

    def warning(self, warning: GateWarning, record: Record | None, server: str, context: CallContext) -> dict[str, Any]:
        """What a caller is told whose call goes out although another is unresolved."""
        tracker = self._tracker
        tracker.notices.say_rarely(
            "call sent although another is unresolved",
            server=server,
            principal=context.principal.id,
            now=tracker.now,
            tool=None if record is None else record.call.tool,
            because=[each.call_id for each in warning.gating[:1]] or None,
        )
        return warning_meta(warning, now=tracker.now)

    @staticmethod
    def actor(context: CallContext) -> ActorKind:
        """As what a caller acts. A client of a process is the operator's own, and yet not the operator."""
        return ActorKind.OPERATOR if may_release(context) and context.surface == "cli" else ActorKind.CALLER


_REJECTED: Final = {
    "not_unresolved": "The call is in flight; somebody waits for its answer. Nothing was done.",
    "being_cancelled": "The call is being cancelled. Nothing was done; ask again in a moment.",
    "unknown": unknown_call().message,
}


def _note(answer: Cancelled) -> str:
    if answer.error is not None:
        return _NOTES[answer.error]
    if answer.state is State.CANCELLED or answer.sent:
        return _TOLD
    return _OVER
