"""Calls of which nobody knows whether they happened: a pure library, without event loop, clock, I/O or chance.

Layers, each using only what stands below it:

    shown                       one object and one text for every surface
    registry                    the way of a call: check, begin, claim, response, end of the wait
    restore                     what the store keeps, and what comes back from it
    settling                    how entries end
    books, gate                 accounts and the change of states; whether a call may go out, and what else can be done
    folding, reconcile, access  what gives way; which read settles what; who may see and cancel
    indexes, settings           finding records; what the operator decides
    bounds, transitions         how much is kept of whom; what an operation did
    records, tiers, principals  what is kept of a call; how much it may change; who calls
    reasons, states             the words, and the table of all moves
"""

from ztrio.pending.access import (
    cancellable,
    is_visible,
    look_up,
    may_cancel,
    may_release,
    unknown_call,
    visible,
)
from ztrio.pending.books import Busy
from ztrio.pending.bounds import Bounds
from ztrio.pending.gate import Action, GateWarning, Gating, Refusal, Way, refusal_error, warning_meta, ways_out
from ztrio.pending.principals import (
    anonymous_id,
    gate_scope_of,
    mint_scope_handle,
    open_lineage,
    open_scope_handle,
    principal_id,
    seal_lineage,
)
from ztrio.pending.reasons import (
    ActorKind,
    CancelError,
    LateOutcome,
    Mode,
    Phase,
    Proof,
    Reason,
    Tier,
    Transport,
    code_of,
)
from ztrio.pending.reconcile import reconcile_ids
from ztrio.pending.records import Blocker, Call, Lease, Record
from ztrio.pending.registry import Begun, Registry, RegistryStatistics
from ztrio.pending.restore import Restored, Resync
from ztrio.pending.settings import PendingSettings, ServerPolicy
from ztrio.pending.shown import PENDING_CALL_SCHEMA, describe, pending_call
from ztrio.pending.states import UNTRACKED, Event, Rejected, State
from ztrio.pending.tiers import Tiers, tier_of
from ztrio.pending.transitions import ActivityRow, JournalRow, Transition, activity_of, activity_row, journal_of

__all__ = [
    "PENDING_CALL_SCHEMA",
    "UNTRACKED",
    "Action",
    "ActivityRow",
    "ActorKind",
    "Begun",
    "Blocker",
    "Bounds",
    "Busy",
    "Call",
    "CancelError",
    "Event",
    "GateWarning",
    "Gating",
    "JournalRow",
    "LateOutcome",
    "Lease",
    "Mode",
    "PendingSettings",
    "Phase",
    "Proof",
    "Reason",
    "Record",
    "Refusal",
    "Registry",
    "RegistryStatistics",
    "Rejected",
    "Restored",
    "Resync",
    "ServerPolicy",
    "State",
    "Tier",
    "Tiers",
    "Transition",
    "Transport",
    "Way",
    "activity_of",
    "activity_row",
    "anonymous_id",
    "cancellable",
    "code_of",
    "describe",
    "gate_scope_of",
    "is_visible",
    "journal_of",
    "look_up",
    "may_cancel",
    "may_release",
    "mint_scope_handle",
    "open_lineage",
    "open_scope_handle",
    "pending_call",
    "principal_id",
    "reconcile_ids",
    "refusal_error",
    "seal_lineage",
    "tier_of",
    "unknown_call",
    "visible",
    "warning_meta",
    "ways_out",
]
