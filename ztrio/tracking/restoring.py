"""What an earlier process left of pending calls: back on the books before the first call is answered.

Of upstream calls the journal and the activity record are all there is. Of our own calls there are the rows of their
jobs, about which recovery has decided by now: what it settled is proven, whatever the journal thought; what it could
not settle is unresolved, also where the process died before it could say so.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

import attrs

from ztrio.errors import Outcome, StoreUnavailable
from ztrio.pending import UNTRACKED, ActivityRow, JournalRow, Proof, Reason, State, Tier, Transport
from ztrio.store import JobRow, Store
from ztrio.tracking.own_calls import call_id_of, job_id_of
from ztrio.tracking.tracker import Tracker

__all__ = ["take_up"]

_PROOFS = {
    Outcome.COMMITTED: Proof.COMMITTED,
    Outcome.ROLLED_BACK: Proof.ROLLED_BACK,
    Outcome.NOT_STARTED: Proof.NOT_STARTED,
}


async def take_up(tracker: Tracker, store: Store, server: str) -> None:
    """Put what an earlier process left on the books. After recovery, before the first call.

    Args:
        tracker: The calls; there are none yet.
        store: What it left.
        server: The name of our own tools as a server.

    Raises:
        StoreUnavailable: the store cannot be read, so that nobody knows which gates are shut.
    """
    try:
        left = await store.left_pending()
        tracker.start_above(left.revision)
        activity = {call_id: row for call_id, row in left.activity.items() if row.pending_state != UNTRACKED}
        journal = {row.call_id: row for row in left.journal}
        for job in await store.unfinished():
            if job.outcome is Outcome.UNRESOLVED and job.capability != Tier.READ:
                await _add(job, server, store, journal, activity)
        for row in journal.values():
            known = activity.get(row.call_id)
            if row.transport == Transport.LOCAL and (known is None or known.reason is None):
                # That it may have had effects elsewhere is why it had a row in the journal before anybody knew more.
                activity[row.call_id] = attrs.evolve(known or _unresolved(row), reason=str(Reason.EXTERNAL_EFFECTS))
        proofs = await _proofs(journal, store)
    except OSError as error:
        raise StoreUnavailable(
            f"The store cannot be read ({error}), so nobody knows which calls are unresolved. Nothing was started."
        ) from error
    tracker.callers.know(sorted({row.principal for row in journal.values()}))
    now, wall = tracker.now, tracker.wall
    rows = [_as_known(row, activity.get(row.call_id)) for row in sorted(journal.values(), key=lambda row: row.seq)]
    restored = tracker.registry.restore(rows, activity, now=now, wall=wall, seq=tracker.next_seq())
    told = {call_id: row.pending_state for call_id, row in left.activity.items()}
    tracker.restored(restored, [row.call_id for row in rows], told)
    for call_id, proof in proofs.items():
        tracker.proven(call_id, proof)


async def _add(
    job: JobRow, server: str, store: Store, journal: dict[str, JournalRow], activity: dict[str, ActivityRow]
) -> None:
    """A call of ours of which recovery could not say what became of it."""
    call_id = call_id_of(job.job_id)
    if call_id in journal:
        return
    known = await store.activity(call_id)
    if known is not None and known.pending_state != UNTRACKED and State(known.pending_state).terminal:
        return  # somebody settled it: reconciled, released
    if known is not None and known.blocker in journal:
        return  # it comes back with that
    row = journal[call_id] = JournalRow(
        call_id=call_id,
        seq=0,
        server=server,
        transport=str(Transport.LOCAL),
        epoch=0,
        principal=job.principal,
        gate_scope=job.principal if known is None else known.gate_scope,
        tool=job.tool,
        gate_tier=job.capability,
        admission_tier=job.capability,
        wire_ids=(),
        sent_at=_seconds(job.created_at),
        expires_at=None,
    )
    activity[call_id] = attrs.evolve(
        known or _unresolved(row), pending_state=str(State.UNRESOLVED), reason=str(Reason.COMMIT_UNCONFIRMED)
    )


async def _proofs(journal: Mapping[str, JournalRow], store: Store) -> dict[str, Proof]:
    """Which of our own calls are settled by now, by recovery or by a commit that was in doubt."""
    found = {}
    for row in journal.values():
        if row.transport == Transport.LOCAL:
            job = await store.job(job_id_of(row.call_id))
            if job is not None and job.outcome in _PROOFS:
                found[row.call_id] = _PROOFS[job.outcome]
    return found


def _as_known(row: JournalRow, known: ActivityRow | None) -> JournalRow:
    """A journal row is written before its call is sent; afterwards it may be known better when that was."""
    return row if known is None or known.sent_at is None else attrs.evolve(row, sent_at=known.sent_at)


def _unresolved(row: JournalRow) -> ActivityRow:
    return ActivityRow(
        call_id=row.call_id,
        principal=row.principal,
        gate_scope=row.gate_scope,
        server=row.server,
        tool=row.tool,
        revision=0,
        pending_state=str(State.UNRESOLVED),
        sent_at=row.sent_at,
    )


def _seconds(iso: str) -> float:
    return dt.datetime.fromisoformat(iso).timestamp()
