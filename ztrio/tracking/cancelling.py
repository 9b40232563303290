"""Cancelling a pending call: claim, tell the upstream, say how that went.

One caller wins the claim and tells; whoever else asks meanwhile waits for the same answer. Telling takes time and must
not be cut short by the caller's leaving, since half a frame helps nobody, so it is shielded, with a bound of its own.
The gate stays shut all the while, and an answer that comes first wins: the registry sees to that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import attrs
import trio

from ztrio.pending import ActorKind, CancelError, Record, Rejected, State
from ztrio.tracking.tracker import Tracker

__all__ = ["Cancelled", "Canceller", "Line", "Told"]

_BOUND: Final = 5.0  # seconds that telling may take


@attrs.frozen
class Told:
    """How telling an upstream went.

    Args:
        told: Whether it was told.
        frame_sent: Whether a byte of it may have gone out.
        error: Why it was not told.
        method: How it was: `notification` or `stream_closed`.
    """

    told: bool
    frame_sent: bool = False
    error: CancelError | None = None
    method: str | None = None


class Line(Protocol):
    """The transport that a call went through."""

    async def cancel(self, record: Record) -> Told:
        """Tell the upstream to stop, under the call's latest id on the wire."""


@attrs.frozen
class Cancelled:
    """What came of asking for a cancel.

    Args:
        state: The call's state now.
        sent: Whether the upstream was told, by this cancel or an earlier one.
        error: Why not.
        method: How it was told.
    """

    state: State
    sent: bool
    error: CancelError | None = None
    method: str | None = None


class Canceller:
    """Cancels pending calls.

    Args:
        tracker: The calls.
        line: The transport of a call, or None when there is none any more. Our own tools have none.
    """

    def __init__(self, tracker: Tracker, line: Callable[[Record], Line | None]) -> None:
        self._tracker = tracker
        self._line = line
        # Calls that somebody is telling the upstream of → set when that is over, with what came of it.
        self._under_way: dict[str, tuple[trio.Event, list[Cancelled]]] = {}

    def reachable(self, record: Record) -> bool:
        """Whether somebody can be told."""
        return self._line(record) is not None

    async def cancel(self, call_id: str, actor: ActorKind) -> Cancelled:
        """Tell the upstream of a call to stop, unless somebody does already or it is over.

        Args:
            call_id: The call, which the caller may cancel.
            actor: Who wants it.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        under_way = self._under_way.get(call_id)
        if under_way is not None:
            ended, answers = under_way
            await ended.wait()
            return answers[0]
        try:
            answer = await self._cancel(call_id, actor)
        except Rejected as rejected:
            answer = Cancelled(rejected.state or State.NOT_SENT, False, _reason(rejected))
        await trio.lowlevel.cancel_shielded_checkpoint()
        return answer

    async def _cancel(self, call_id: str, actor: ActorKind) -> Cancelled:
        tracker, registry = self._tracker, self._tracker.registry
        record = registry.get(call_id)
        line = None if record is None else self._line(record)
        if record is not None and line is None and (record.open_end or record.held):
            return Cancelled(record.state, False, CancelError.UNSUPPORTED_TRANSPORT)
        [claimed, *_] = tracker.did(registry.claim_cancel(call_id, actor=actor, **tracker.moment()))
        if not claimed.changed or line is None or record is None:
            return Cancelled(claimed.after, record is not None and record.cancel_sent)
        ended, answers = self._under_way[call_id] = (trio.Event(), [])
        told = Told(told=False, frame_sent=True, error=CancelError.SEND_FAILED)  # what is so when telling is cut off
        try:
            with trio.move_on_after(_BOUND, shield=True):
                told = await line.cancel(record)
        except Exception:  # noqa: BLE001, S110 - whatever a transport stumbles over, the upstream was perhaps not told
            pass
        finally:
            finish = registry.finish_cancel(call_id, told=told.told, frame_sent=told.frame_sent, **tracker.moment())
            transitions = tracker.did(finish)
            state = transitions[0].after if transitions else record.state
            answers.append(Cancelled(state, told.told, told.error, told.method))
            del self._under_way[call_id]
            ended.set()
        return answers[0]


def _reason(rejected: Rejected) -> CancelError | None:
    return {"id_unknown": CancelError.ID_UNKNOWN, "already_sent": CancelError.SEND_FAILED}.get(rejected.why)
