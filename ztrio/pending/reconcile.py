"""A later read of the same scope settles what nobody knows: which reads, and which calls.

Only order counts, and order is the sequence number: a read that was *sent* after the call became unresolved has seen
what there was to see. Where a late response may still come, or the upstream was just heard working, a read proves
nothing by itself, and the caller has to say that it looked: by naming the calls. So it has to for calls of our own
tools: what is not known of these is what they did somewhere else, or what our own record will say.
"""

from __future__ import annotations

import re
from typing import Any, Final

from ztrio.errors import InvalidArguments
from ztrio.pending.bounds import MAX_RECONCILES
from ztrio.pending.reasons import Transport
from ztrio.pending.records import Blocker, Record
from ztrio.pending.states import TABLE, Effect, Event

__all__ = ["qualifies", "reconcile_ids"]

_ID: Final = re.compile(r"pcb?_[a-z2-7]{16}")


def reconcile_ids(value: Any) -> tuple[str, ...]:
    """The ids that a read names, as a surface received them; never part of the tool's arguments.

    Args:
        value: What came in `_meta["ztrio/reconciles"]`, the batch item or the command.

    Raises:
        InvalidArguments: not a list of at most 16 ids of pending calls.
    """
    named = isinstance(value, list | tuple) and len(value) <= MAX_RECONCILES
    if not named or not all(isinstance(each, str) and _ID.fullmatch(each) for each in value):
        raise InvalidArguments(
            f"reconciles must be a list of at most {MAX_RECONCILES} ids of pending calls (pc_… or pcb_…). Nothing ran."
        )
    return tuple(value)


def qualifies(record: Record, read: Record, *, named: bool, now: float, progress: float) -> bool:
    """Whether the successful `read` settles `record`.

    Args:
        record: A call, or a blocker, that is perhaps unresolved.
        read: The record of the read, which is of the read tier, as it was when its response came.
        named: Whether the read named it.
        now: Monotonic seconds.
        progress: Seconds for which a report of progress counts as recent.
    """
    call, other = record.call, read.call
    if (call.server, call.principal) != (other.server, other.principal):
        return False
    wide = isinstance(record, Blocker) and record.wide
    if call.gate_scope != other.gate_scope and not wide:
        return False
    moves = TABLE[record.state, Event.RECONCILE].effect is Effect.MOVE
    if not moves and (not record.held or record.claimed):
        return False
    if read.sent_seq <= record.unresolved_seq:
        return False
    if named:
        return True
    observed = record.was_observable if isinstance(record, Blocker) else record.observable
    return not (observed or now - record.last_progress < progress or call.transport is Transport.LOCAL)
