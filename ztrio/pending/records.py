"""What is kept of a call: who called what, over which connection, and what is known. Never its arguments.

A record is one object from the check to the end, rewritten in place. What never changes is the frozen `Call` in it, so
that a transition can carry that without a copy. A `Blocker` is a record that stands for several calls of one scope; its
`Call` has the id `pcb_…` and the tool `*`.
"""

from __future__ import annotations

import math
from typing import Any, Final

import attrs
import msgspec

from ztrio.pending.reasons import ActorKind, LateOutcome, Reason, Tier, Transport
from ztrio.pending.states import HOLDABLE, State

__all__ = [
    "ANY_TOOL",
    "BLOCKER_PREFIX",
    "CALL_PREFIX",
    "EVERY_SCOPE",
    "Blocker",
    "Call",
    "Lease",
    "Record",
    "blocker_id",
]

CALL_PREFIX: Final = "pc_"
BLOCKER_PREFIX: Final = "pcb_"
ANY_TOOL: Final = "*"
"""The tool of a blocker."""
EVERY_SCOPE: Final = "*"
"""The gate scope of a blocker that gates all scopes of its principal on its server."""


class Lease(msgspec.Struct, frozen=True):
    """The right to send through one transport.

    Args:
        instance: Name of the transport object, unique in this process.
        epoch: Number of the connection generation, from a counter of the process that never repeats.
    """

    instance: str
    epoch: int


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A call as its check sees it.

    Args:
        call_id: `pc_` and 16 base32 characters.
        server: The upstream server's name; `local:<toolbox>` for our own tools.
        transport: How it is reached.
        lease: The connection that the call may go through, and no other.
        principal: Id of who calls.
        gate_scope: What the gate is keyed on.
        tool: The tool's name there.
        admission_tier: The tier under which the caller was let in.
        gate_tier: The tier for the gate; None to go by the tool's annotations.
        ceiling: Seconds that the call's timeout can be at most.
        every_scope: Whether it comes without session and without scope handle, so that every scope of its principal
            counts for it.
        lineage: The call that this one continues, as its sealed `requestState` says; None for a new one.
    """

    call_id: str
    server: str
    transport: Transport
    lease: Lease
    principal: str
    gate_scope: str
    tool: str
    admission_tier: Tier
    gate_tier: Tier | None = None
    ceiling: float = 30.0
    every_scope: bool = False
    lineage: str | None = None

    def evolved(self, **facts: Any) -> Call:
        """The same call with other facts."""
        return msgspec.structs.replace(self, **facts)

    @property
    def root(self) -> str:
        """The first call of its lineage."""
        return self.call_id if self.lineage is None else self.lineage


@attrs.define(eq=False)
class Record:
    """What is known of a call. Changed by the registry alone."""

    call: Call
    # Never below what the annotations said; decided by the check, then constant.
    gate_tier: Tier
    # The sequence number of the check; the order of lists.
    begun_seq: int
    # The sequence number of the newest change; also the revision of the activity row.
    revision: int
    # Only moves along the table.
    state: State = State.RESERVED
    # What the gate reads, and nothing else. True only in unresolved, cancelling and, held, in HOLDABLE states.
    gating: bool = False
    # A wait for the late response is alive and charged to the principal. True only in unresolved and cancelling.
    observable: bool = False
    # Typed, in the order of rounds, the newest last; at most ROUNDS.
    wire_ids: tuple[str | int, ...] = ()
    # Set by the claim, and by the end of the wait; 0 before.
    sent_seq: int = 0
    unresolved_seq: int = 0
    # Monotonic seconds. `expires_at` is fixed by the claim; infinite before it, and for our own tools.
    sent_at: float | None = None
    unresolved_at: float | None = None
    resolved_at: float | None = None
    expires_at: float = math.inf
    last_progress: float = -math.inf
    # Set once, when the wait ended.
    reason: Reason | None = None
    died: bool = False
    # The first response that came after the end of the wait; never changes after that.
    late_outcome: LateOutcome | None = None
    # Who cancelled or settled it last.
    actor: ActorKind | None = None
    # Somebody has the right to tell the upstream. True in cancelling, or on a held record; at most one at a time.
    claimed: bool = False
    # A byte of a cancel may have gone out; never goes back, so that there is at most one.
    cancel_sent: bool = False
    # Somebody asked for a cancel; never goes back.
    cancel_requested: bool = False
    # Who ended its gate, and how; None while it gates.
    settled_by: str | None = None
    # Whether the journal has its row.
    journaled: bool = False
    # The newest revision that the store has acknowledged.
    acknowledged: int = 0
    # Its newest entry in the heap of what is due, and when that is; 0 when there is none.
    timer: int = 0
    timer_at: float = math.inf
    # Its time as a settled call is up, and only the store's acknowledgement is missing.
    overdue: bool = False

    @property
    def held(self) -> bool:
        """Whether it is final and gating all the same."""
        return self.gating and self.state in HOLDABLE

    @property
    def ends_at(self) -> float:
        """When it stops gating by itself, in monotonic seconds; infinite for never."""
        return math.inf if self.held else self.expires_at

    @property
    def in_flight(self) -> bool:
        """Whether somebody still waits for its response."""
        return self.state is State.RESERVED or self.state is State.SENT

    @property
    def open_end(self) -> bool:
        """Whether it is unresolved, or being cancelled."""
        return self.state is State.UNRESOLVED or self.state is State.CANCELLING

    @property
    def foldable(self) -> bool:
        """Whether it may be folded into a blocker: it gates, and nobody is about to tell its upstream anything."""
        return self.gating and not self.claimed


@attrs.define(eq=False, kw_only=True)
class Blocker(Record):
    """Several gating calls of one scope, or of all scopes of a principal, as one record."""

    # How many of its calls are not settled; the blocker resolves with the last one.
    count: int
    # Since when the scope is gated without a break.
    since_seq: int
    # The earliest epoch of its calls that has not ended; the latest one is that of its lease.
    min_epoch: int
    # Of all calls that ever were in it.
    tiers: frozenset[Tier]
    # Whether a late response of any of its calls was waited for.
    was_observable: bool
    # Whether it stays until somebody settles it, because a member did.
    stays: bool

    @property
    def ends_at(self) -> float:
        """When it stops gating by itself, in monotonic seconds; infinite for never."""
        return math.inf if self.stays else self.expires_at

    @property
    def wide(self) -> bool:
        """Whether it gates all scopes of its principal on its server."""
        return self.call.gate_scope == EVERY_SCOPE


def blocker_id(call_id: str) -> str:
    """The id of the blocker whose first member is `call_id`: unique, because a call folds at most once."""
    return BLOCKER_PREFIX + call_id.removeprefix(CALL_PREFIX)
