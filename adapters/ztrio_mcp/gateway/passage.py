"""One frame's passage: from the writer's queue to the end of the caller's wait, and what the caller is told then.

Who ended the wait decides what the call becomes, and is known from facts and not from exceptions: a response
(`answer`), the proof that the process is dead (`death`), a frame that could not be written any more (`unsendable`), the
limit, or else the caller's own scope, whose `Cancelled` passes through here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import trio

from ztrio.errors import NotSent, StoreUnavailable, Unresolved
from ztrio.pending import Phase, Reason, State, Transition
from ztrio.upstream import Death
from ztrio_mcp.gateway.flights import Answer, Flight
from ztrio_mcp.gateway.upstream import Connection
from ztrio_mcp.gateway.wire import CallParams, late_outcome_of, shape_of
from ztrio_mcp.peer import Ending, Exchange, PeerClosed, PeerQueueFull, Response

if TYPE_CHECKING:
    from ztrio_mcp.gateway.story import Reply, Story

__all__ = ["Passage"]

_TOLD: Final = {
    Reason.DEADLINE_EXCEEDED: "{tool} has not answered within its limit of {seconds:.3g} s.",
    Reason.STILL_RUNNING: "{tool} was still reporting progress when its limit of {seconds:.3g} s was reached.",
    Reason.CALLER_DEADLINE: "{tool} has not answered within the {seconds:.3g} s that its caller gave it.",
    Reason.WAITING_HUMAN: "{tool} is waiting for an answer of the human, and its limit of {seconds:.3g} s was reached.",
    Reason.TRANSPORT_LOST: "The connection to {server} was lost while {tool} was running.",
}


class Passage:
    """The passage of one call through one connection.

    Args:
        story: The call.
        flight: Its entry.
        connection: The connection that it may go through, and no other.
        warning: What the caller is told about other calls, or None.
    """

    def __init__(self, story: Story, flight: Flight, connection: Connection, warning: dict[str, Any] | None) -> None:
        self.flight = flight
        self._story = story
        self._seam = story.seam
        self._connection = connection
        self._warning = warning
        self._began = trio.current_time()
        # What is answered, once there is a response in time.
        self._reply: Reply | None = None
        # Ids that the call settles, if it is a read that succeeds.
        self._reconciles: tuple[str, ...] = ()
        # What became of the call when its server died; None for one on no books.
        self._became: Transition | None = None
        flight.lost = self._lost

    # ---- out

    def note(self) -> bool:
        """Note the call in the journal, if it needs that; whether it does.

        Raises:
            StoreUnavailable: it cannot be noted.
        """
        tracker = self._seam.tracker
        if not self.flight.tracked:
            return False
        row = tracker.registry.journal_row(
            self.flight.call.call_id, now=tracker.now, wall=tracker.wall, wire_id=self._connection.peer.next_id
        )
        try:
            tracker.records.journal(row)
        except OSError as error:
            raise self.unnoted(error) from error
        return row is not None

    def unnoted(self, error: OSError) -> StoreUnavailable:
        """The journal cannot be written, so the call is not sent."""
        self.abandon()
        return StoreUnavailable(
            f"{self.flight.call.tool} was not sent: its journal cannot be written ({error.strerror}). Calls that only "
            "read go on."
        )

    def depart(self, params: CallParams) -> None:
        """Hand its frame to the writer.

        Raises:
            NotSent: too much is queued in front of it.
        """
        flight, peer = self.flight, self._connection.peer
        call, wire_id = flight.call, peer.next_id
        self._reconciles = params.reconciles
        wants = flight.on_progress is not None or flight.idle is not None
        data = params.encoded(call.call_id, token=wire_id if wants else None)
        self._seam.flights.add(flight)
        try:
            exchange = peer.request(
                "tools/call",
                data,
                on_response=self._responded,
                on_ended=self._ended,
                on_progress=self._progressed if wants else None,
                claim=self._claim,
            )
        except PeerClosed:
            self.abandon()
            flight.unsendable = True
            return
        except PeerQueueFull as error:
            self.abandon()
            raise NotSent(
                f"{call.tool} was not sent: {call.server} does not take what it is sent, and too much is waiting. "
                "Nothing happened; repeat it later.",
                phase=str(Phase.WRITE),
            ) from error
        flight.exchange = exchange
        flight.forget = lambda: peer.forget(exchange)

    def _claim(self) -> bool:
        """The writer is about to write the first byte."""
        flight, tracker = self.flight, self._seam.tracker
        if not flight.tracked:
            return not flight.left
        claimed = tracker.did(
            tracker.registry.claim(
                flight.call.call_id,
                wire_id=self._connection.peer.next_id if flight.exchange is None else flight.exchange.id,
                cancelled=flight.left,
                deadline=flight.limit.deadline,
                **tracker.moment(),
            )
        )
        return bool(claimed) and claimed[0].after is State.SENT

    def abandon(self) -> None:
        """It is not sent, and never will be."""
        flight, tracker = self.flight, self._seam.tracker
        self._seam.flights.remove(flight)
        if flight.tracked:
            tracker.did(tracker.registry.not_sent(flight.call.call_id, **tracker.moment()))
        else:
            tracker.registry.end_untracked(flight.call.server)

    # ---- in; called by the reader of the connection

    def _responded(self, response: Response) -> None:
        flight, tracker, call = self.flight, self._seam.tracker, self.flight.call
        answer = Answer(response.result, response.error, response.malformed)
        if flight.left:
            self._seam.hooks.kept(flight, answer)
            if flight.tracked:
                tracker.late(call.call_id, late_outcome_of(answer.result, answer.error))
            self._seam.flights.remove(flight)
            return
        flight.answer = answer
        shape = None if answer.result is None else shape_of(answer.result)
        succeeded = shape is not None and not shape.is_error and not shape.wants_input
        if flight.tracked:
            tracker.did(
                tracker.registry.complete(
                    call.call_id,
                    succeeded=succeeded,
                    reconciles=self._reconciles,
                    actor=self._seam.desk.actor(self._story.context),
                    **tracker.moment(),
                )
            )
        self._seam.flights.remove(flight)
        self._reply = self._story.completed(answer, self._warning, succeeded=succeeded)
        flight.wake()

    def _progressed(self, params: msgspec.Raw) -> None:
        flight, now = self.flight, trio.current_time()
        if flight.tracked:
            self._seam.tracker.registry.progress(flight.call.call_id, now=now)
        flight.progressed(now)
        if flight.on_progress is not None and not flight.left:
            flight.on_progress(params)

    def _ended(self, exchange: Exchange, _ending: Ending) -> None:
        """The connection is gone. What was sent waits for the proof that its process is dead; the rest never goes."""
        if exchange.sent or self.flight.left:
            return
        self.abandon()
        self.flight.unsendable = True
        self.flight.wake()

    def _lost(self, death: Death) -> None:
        """The process is proven dead. The caller's wait ends before the registry is told that the connection did."""
        flight = self.flight
        if flight.exchange is None or not flight.exchange.sent:
            self.abandon()
            flight.unsendable = True
        else:
            flight.death, flight.left = death, True
            self._became = self._leave(Reason.TRANSPORT_LOST, died=True)
        flight.wake()

    # ---- the wait

    async def wait(self) -> None:
        """Until the response, or until nothing is to be waited for any more.

        Raises:
            NotSent: the frame was never written.
            Unresolved: nobody knows what became of it.
        """
        flight = self.flight
        try:
            with flight.limit:
                await flight.wait()
        except BaseException:
            flight.left = True  # a cancellation that came before the sleep was never seen by it
            if not flight.over:
                self._leave_for_good(Reason.CALLER_CANCELLED)
            raise
        if flight.answer is not None or flight.unsendable:
            return
        if flight.death is not None:
            raise self._unresolved(self._became)
        flight.left = True
        reason = Reason.CALLER_DEADLINE if self._story.caller_limit else Reason.DEADLINE_EXCEEDED
        if self._seam.hooks.waits_for_human(flight):
            reason = Reason.WAITING_HUMAN
        became = self._leave_for_good(reason)
        if became is None and not self._was_sent:
            raise NotSent(
                f"{self.flight.call.tool} was not sent: {self.flight.call.server} did not take it in time. Nothing "
                "happened; repeat it.",
                phase=str(Phase.WRITE),
            )
        if became is not None and became.after is State.UNRESOLVED:
            self._seam.hooks.timed_out()
        raise self._unresolved(became)

    @property
    def _was_sent(self) -> bool:
        """Whether a byte of its frame may have gone out."""
        return self.flight.exchange is not None and self.flight.exchange.sent

    def _leave_for_good(self, reason: Reason) -> Transition | None:
        """The caller goes; what became of the call, or None for one that was not sent or is on no books."""
        exchange = self.flight.exchange
        if exchange is not None and not exchange.sent:
            self._connection.peer.withdraw(exchange)
            self.abandon()
            return None
        return self._leave(reason)

    def _leave(self, reason: Reason, *, died: bool = False) -> Transition | None:
        """The wait is over without a response; what became of the call, or None for one on no books."""
        flight, tracker, call = self.flight, self._seam.tracker, self.flight.call
        if not flight.tracked:
            tracker.registry.end_untracked(call.server)
            self._seam.flights.remove(flight)
            flight.forget()
            return None
        if tracker.closing:  # calls in flight stay in the journal
            self._seam.flights.remove(flight)
            return None
        [became, *_] = tracker.did(
            tracker.registry.mark_unresolved(
                call, reason=reason, died=died, observable=flight.death is None, **tracker.moment()
            )
        )
        if flight.death is not None or became.after is not State.UNRESOLVED:
            self._seam.flights.remove(flight)
        else:
            self._seam.flights.leave(flight, became.blocker)
        return became

    def _unresolved(self, became: Transition | None) -> Unresolved:
        """What the caller is told."""
        flight, call, seam = self.flight, self.flight.call, self._seam
        reason = Reason.TRANSPORT_LOST if flight.death is not None else None
        reason = reason or (Reason.DEADLINE_EXCEEDED if became is None else became.reason) or Reason.DEADLINE_EXCEEDED
        seconds = trio.current_time() - self._began
        said = _TOLD[reason].format(tool=call.tool, server=call.server, seconds=seconds)
        details: dict[str, Any] = {}
        if flight.death is not None:
            said = f"{call.server} {flight.death.how} while {call.tool} was running."
            details = {"exit_status": flight.death.status, "stderr": flight.death.stderr_tail}
        if became is not None and became.after is State.COMPLETED_LATE:
            said += f" Its response came a moment too late ({became.late_outcome})."
        error = Unresolved(said, reason=str(reason), died=flight.death is not None, **details)
        if became is None:
            error.details["tracked"] = False
            error.message += (
                " It may have happened, or not: do not repeat it blindly. It is on no list of pending calls: more "
                "calls were under way than are kept."
            )
            return error
        registry = seam.tracker.registry
        record = registry.get(call.call_id if became.blocker is None else became.blocker)
        if record is not None:
            seam.desk.attach(error, record, self._story.context)
        return error

    def reply(self) -> Reply:
        """What is answered.

        Raises:
            NotSent: the connection ended before the frame was written.
        """
        if self._reply is None:
            call = self.flight.call
            raise NotSent(
                f"The connection to {call.server} ended before {call.tool} was sent. Nothing happened; repeat it.",
                phase=str(Phase.CONNECT),
            )
        return self._reply
