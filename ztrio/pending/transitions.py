"""What an operation did, as values: the audit, the rows of the store and the transport learn of it from these alone.

A transition is a snapshot, because the record goes on changing. It says too what it means for the journal: there is a
row exactly for each write that is in flight or gating, so that a restart finds the gate as it was, and a folded call's
row gives way to its blocker's, so that the journal is as bounded as the registry.
"""

from __future__ import annotations

import math
from typing import Final

import attrs
import msgspec

from ztrio.pending.reasons import ActorKind, LateOutcome, Reason, Tier, code_of
from ztrio.pending.records import Blocker, Call, Record
from ztrio.pending.states import State

__all__ = [
    "ANNOTATE",
    "BEGIN",
    "FOLD",
    "FORGET",
    "MEMBER",
    "MERGE",
    "SETTLE",
    "ActivityRow",
    "JournalRow",
    "Transition",
    "activity_of",
    "activity_row",
    "journal_of",
    "report",
]

BEGIN: Final = "begin"
FOLD: Final = "fold"
MERGE: Final = "merge"
FORGET: Final = "forget"
ANNOTATE: Final = "annotate"
SETTLE: Final = "settle"
MEMBER: Final = "member"


class Transition(msgspec.Struct, frozen=True):
    """One thing that happened to one call or blocker.

    A struct of msgspec's, which is made in a tenth of the time of an attrs class: each call makes several.

    Args:
        event: An `Event`, or `begin`, `fold`, `merge`, `forget`, `annotate`, `settle`, `member`.
        call: Whose it is; a blocker's id begins with `pcb_`.
        before: The state before; None at the beginning.
        after: The state now.
        changed: False for a no-op, which nobody needs to hear of but who asked.
        seq: The sequence number given; the revision of the row.
        at: Monotonic seconds.
        gate_tier: The tier for the gate.
        gating: Whether the gate is shut for it now.
        observable: Whether a late response is waited for now.
        reason: Why it is not known what became of it.
        code: The error code of that.
        late_outcome: What a late response said.
        blocker: The blocker that it was folded, or merged, into.
        settled_by: Who ended its gate, and how.
        cancel_requested: Whether a cancel was asked for.
        actor: Who did this.
        sent_at: Monotonic seconds; also the next three.
        unresolved_at: When its wait ended.
        expires_at: When it ends by itself; infinite for never.
        resolved_at: When its state became final.
        members: How many unsettled calls it stands for.
        tiers: The admission tiers of these.
        wire_ids: Its ids on the wire.
        parked: The response stream is to be kept open, and what comes thrown away.
        forgotten: It left memory although its row does not say how it ended.
        journal_put: Its journal row is to be written, or written anew.
        journal_drop: The ids whose journal rows are to be removed, in the same transaction.
    """

    event: str
    call: Call
    before: State | None
    after: State
    changed: bool
    seq: int
    at: float
    gate_tier: Tier
    gating: bool = False
    observable: bool = False
    reason: Reason | None = None
    code: str | None = None
    late_outcome: LateOutcome | None = None
    blocker: str | None = None
    settled_by: str | None = None
    cancel_requested: bool = False
    actor: ActorKind | None = None
    sent_at: float | None = None
    unresolved_at: float | None = None
    expires_at: float = math.inf
    resolved_at: float | None = None
    members: int = 1
    tiers: frozenset[Tier] = frozenset()
    wire_ids: tuple[str | int, ...] = ()
    parked: bool = False
    forgotten: bool = False
    journal_put: bool = False
    journal_drop: tuple[str, ...] = ()

    @property
    def recorded(self) -> bool:
        """Whether the activity record is to know: from unresolved on."""
        return self.changed and (self.unresolved_at is not None or self.after is State.COMPLETED_LATE)


def report(
    record: Record,
    event: str,
    before: State | None,
    *,
    at: float,
    changed: bool = True,
    blocker: str | None = None,
    parked: bool = False,
    forgotten: bool = False,
    journal_put: bool = False,
    journal_drop: tuple[str, ...] = (),
) -> Transition:
    """A snapshot of `record` as it is now."""
    folded = isinstance(record, Blocker)
    return Transition(
        event=event,
        call=record.call,
        before=before,
        after=record.state,
        changed=changed,
        seq=record.revision,
        at=at,
        gate_tier=record.gate_tier,
        gating=record.gating,
        observable=record.observable,
        reason=record.reason,
        code=None if record.reason is None else code_of(record.reason, died=record.died),
        late_outcome=record.late_outcome,
        blocker=blocker,
        settled_by=record.settled_by,
        cancel_requested=record.cancel_requested,
        actor=record.actor,
        sent_at=record.sent_at,
        unresolved_at=record.unresolved_at,
        expires_at=record.ends_at,
        resolved_at=record.resolved_at,
        members=record.count if isinstance(record, Blocker) else 1,
        tiers=record.tiers if isinstance(record, Blocker) else frozenset({record.call.admission_tier}),
        wire_ids=() if folded else record.wire_ids,
        parked=parked,
        forgotten=forgotten,
        journal_put=journal_put,
        journal_drop=journal_drop,
    )


@attrs.frozen(kw_only=True)
class ActivityRow:
    """What the activity record says of a call. Times are seconds since the epoch.

    Args:
        call_id: Its id.
        principal: Id of who called.
        gate_scope: What the gate is keyed on.
        server: The upstream server's name.
        tool: The tool's name.
        revision: Grows with every update of the row, over restarts as well.
        pending_state: Its state.
        reason: Why it is not known what became of it.
        late_outcome: What a late response said.
        blocker: Id of the blocker that it was folded into.
        settled_by: Who ended its gate, and how.
        sent_at: When it was sent.
        unresolved_at: When its wait ended.
        expires_at: When it stops gating by itself; None for never.
        resolved_at: When its state became final.
    """

    call_id: str
    principal: str
    gate_scope: str
    server: str
    tool: str
    revision: int
    pending_state: str
    reason: str | None = None
    late_outcome: str | None = None
    blocker: str | None = None
    settled_by: str | None = None
    sent_at: float | None = None
    unresolved_at: float | None = None
    expires_at: float | None = None
    resolved_at: float | None = None


@attrs.frozen(kw_only=True)
class JournalRow:
    """A write that may be on its way, or several folded into one.

    Args:
        call_id: Its id, or the blocker's.
        seq: Position in the process-wide sequence; for a blocker that of its latest member.
        server: The upstream server's name.
        transport: How it was reached.
        epoch: The connection generation; for a blocker the latest of its members.
        principal: Id of who called.
        gate_scope: What the gate is keyed on; `*` for all scopes of the principal.
        tool: The tool's name, `*` for a blocker.
        gate_tier: The tier for the gate.
        admission_tier: The tier under which the caller was let in; for a blocker all of them, separated by spaces.
        wire_ids: Its ids on the wire, with their types.
        sent_at: Seconds since the epoch.
        expires_at: When it stops gating by itself, seconds since the epoch; None for never.
        members: How many unsettled calls it stands for.
    """

    call_id: str
    seq: int
    server: str
    transport: str
    epoch: int
    principal: str
    gate_scope: str
    tool: str
    gate_tier: str
    admission_tier: str
    wire_ids: tuple[str | int, ...]
    sent_at: float
    expires_at: float | None
    members: int = 1


def _wall(at: float | None, wall: float) -> float | None:
    return None if at is None or math.isinf(at) else at + wall


def activity_row(transition: Transition, *, wall: float) -> ActivityRow:
    """The row that a transition of a call leaves; `wall` is the wall clock minus the monotonic one, in seconds."""
    call = transition.call
    return ActivityRow(
        call_id=call.call_id,
        principal=call.principal,
        gate_scope=call.gate_scope,
        server=call.server,
        tool=call.tool,
        revision=transition.seq,
        pending_state=transition.after.value,
        reason=None if transition.reason is None else transition.reason.value,
        late_outcome=None if transition.late_outcome is None else transition.late_outcome.value,
        blocker=transition.blocker,
        settled_by=transition.settled_by,
        sent_at=_wall(transition.sent_at, wall),
        unresolved_at=_wall(transition.unresolved_at, wall),
        expires_at=_wall(transition.expires_at, wall),
        resolved_at=_wall(transition.resolved_at, wall),
    )


def activity_of(record: Record, *, wall: float) -> ActivityRow:
    """The row that a record should have now."""
    return activity_row(report(record, "", record.state, at=0.0), wall=wall)


def journal_of(transition: Transition, *, wall: float) -> JournalRow | None:
    """The journal row to write for a transition, None when there is none to write."""
    if not transition.journal_put:
        return None
    call = transition.call
    return JournalRow(
        call_id=call.call_id,
        seq=transition.seq,
        server=call.server,
        transport=call.transport.value,
        epoch=call.lease.epoch,
        principal=call.principal,
        gate_scope=call.gate_scope,
        tool=call.tool,
        gate_tier=transition.gate_tier.value,
        admission_tier=" ".join(sorted(transition.tiers)),
        wire_ids=transition.wire_ids,
        sent_at=(transition.at if transition.sent_at is None else transition.sent_at) + wall,
        expires_at=_wall(transition.expires_at, wall),
        members=transition.members,
    )
