"""What the writer can be asked to do, one class each. Each checks before its first change; see `ztrio.store.Store`."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, ClassVar, Final, NamedTuple

import attrs
import sqlalchemy as sa

from ztrio.calls import new_id
from ztrio.errors import Outcome
from ztrio.store import (
    KEY_LIFETIME,
    MAX_KEPT_RESULT,
    AlreadyEnded,
    Claim,
    JobRow,
    SessionWrite,
    StoreConflict,
    idempotency_conflict,
)
from ztrio_sql import reading
from ztrio_sql.chain import column
from ztrio_sql.prepared import Prepared
from ztrio_sql.tables import audit, jobs, results, sessions
from ztrio_sql.transaction import LogEntry, Transaction

__all__ = ["Abort", "Advance", "ClaimKey", "End", "InsertJob", "NeedRecovery", "Nothing", "Record", "Recover", "Touch"]

_ROW: Final = 500  # bytes of a row, roughly
_JOB: Final = jobs.c.job_id == sa.bindparam("job")

_KNOWN: Final = Prepared(sa.select(jobs.c.job_id).where(_JOB))
_STATE: Final = Prepared(sa.select(jobs.c.outcome, jobs.c.phase, jobs.c.ended_pos, jobs.c.idempotency_key).where(_JOB))
_ADVANCE: Final = sa.update(jobs).where(_JOB, jobs.c.ended_pos.is_(None))
_END: Final = Prepared(
    sa.update(jobs)
    .where(_JOB)
    .values(
        outcome=sa.bindparam("new_outcome"),
        phase="ended",
        ended_at=sa.bindparam("new_ended_at"),
        ended_pos=sa.bindparam("new_ended_pos"),
        needs_recovery=False,
        reason=None,
    )
)
_NEED: Final = Prepared(
    sa.update(jobs)
    .where(_JOB)
    .values(outcome=str(Outcome.UNRESOLVED), needs_recovery=True, reason=sa.bindparam("new_reason"))
)
_ABORT: Final = Prepared(sa.update(jobs).where(_JOB).values(phase="aborted"))
_GIVE_UP_KEY: Final = Prepared(sa.update(jobs).where(_JOB).values(idempotency_key=None))
_NEWEST_OF_CALL: Final = Prepared(
    sa.select(audit.c.event).where(audit.c.job_id == sa.bindparam("job")).order_by(audit.c.log_pos.desc()).limit(1)
)
_HOLDER: Final = sa.select(*reading.JOB_COLUMNS, jobs.c.ended_at).where(
    jobs.c.principal == sa.bindparam("owner"),
    jobs.c.tool == sa.bindparam("called"),
    jobs.c.idempotency_key == sa.bindparam("key"),
)
_KEEP_RESULT: Final = Prepared(sa.insert(results), results.c.keys())
_THIS_VERSION: Final = (
    sessions.c.principal == sa.bindparam("owner"),
    sessions.c.name == sa.bindparam("called"),
    sessions.c.incarnation == sa.bindparam("life"),
    sessions.c.version == sa.bindparam("read"),
)
_OPEN_SESSION: Final = Prepared(sa.insert(sessions), sessions.c.keys())
_NEXT_VERSION: Final = Prepared(
    sa.update(sessions).where(*_THIS_VERSION).values(state=sa.bindparam("new_state"), version=sessions.c.version + 1)
)
_DESTROY: Final = Prepared(sa.delete(sessions).where(*_THIS_VERSION))

_FREE: Final = (Outcome.ROLLED_BACK, Outcome.NOT_STARTED, Outcome.COMPLETED)


@cache
def _advance(names: tuple[str, ...]) -> Prepared:
    """The statement that changes these columns."""
    return Prepared(_ADVANCE.values({name: sa.bindparam(f"new_{name}") for name in names}))


class _State(NamedTuple):
    """What decides about a call; in the order of `_STATE`."""

    outcome: str | None
    phase: str
    ended_pos: int | None
    idempotency_key: str | None


def _state(transaction: Transaction, job_id: str | None) -> _State | None:
    row = transaction.row(_STATE, job=job_id)
    return None if row is None else _State(*row)


def _values(row: JobRow) -> dict[str, Any]:
    facts = {name: getattr(row, name) for name in reading.JOB_FIELDS}
    outcome = None if row.outcome is None else str(row.outcome)
    return facts | {"targets": json.dumps(row.targets), "outcome": outcome, "ended_at": None, "ended_pos": None}


@attrs.frozen
class _Base:
    job_id: str | None = None
    synced: ClassVar[bool] = False
    ends: ClassVar[bool] = False
    lazy: ClassVar[bool] = False
    size: ClassVar[int] = _ROW


@attrs.frozen
class Nothing(_Base):
    """Waits for its turn: whatever was handed over before it is written, or failed."""

    def apply(self, transaction: Transaction) -> None:
        """Do nothing."""


@attrs.frozen
class Touch(_Base):
    """Changes nothing, durably: finds out whether the store can be written, and leaves no doubt about the past."""

    synced: ClassVar[bool] = True

    def apply(self, transaction: Transaction) -> None:
        """Write."""
        transaction.touch()


@attrs.frozen
class Record(_Base):
    """Appends an event."""

    entry: LogEntry = attrs.field(kw_only=True)
    lazy: ClassVar[bool] = True

    def apply(self, transaction: Transaction) -> None:
        """Append it."""
        transaction.append(self.entry)


@attrs.frozen
class InsertJob(_Base):
    """Remembers an accepted call."""

    row: JobRow = attrs.field(kw_only=True)
    lazy: ClassVar[bool] = True

    def apply(self, transaction: Transaction) -> None:
        """Insert it; that it is known already, the database says."""
        transaction.insert(_values(self.row))


@attrs.frozen
class ClaimKey(_Base):
    """Remembers an accepted call if its idempotency key is free."""

    row: JobRow = attrs.field(kw_only=True)

    def apply(self, transaction: Transaction) -> Claim:
        """Claim the key, or tell who has it."""
        row, connection = self.row, transaction.connection
        assert row.idempotency_key is not None
        if transaction.row(_KNOWN, job=row.job_id) is not None:
            raise StoreConflict(f"job {row.job_id} is known already")
        found = transaction.execute(
            _HOLDER, owner=row.principal, called=row.tool, key=row.idempotency_key
        ).one_or_none()
        if found is None:
            transaction.insert(_values(row))
            return Claim(mine=True)
        earlier = reading.job_row(found)
        if found.ended_at is not None and transaction.now >= found.ended_at + KEY_LIFETIME:
            transaction.change(_GIVE_UP_KEY, job=earlier.job_id)
            transaction.insert(_values(row))
            return Claim(mine=True)
        if earlier.idempotency_digest != row.idempotency_digest:
            raise idempotency_conflict(row.idempotency_key, row.tool, earlier.job_id)
        if earlier.outcome not in _FREE:
            return Claim(mine=False, earlier=earlier, result=reading.kept_result(connection, earlier.job_id))
        transaction.change(_GIVE_UP_KEY, job=earlier.job_id)
        transaction.insert(_values(attrs.evolve(row, repeats=earlier.job_id)))
        return Claim(mine=True, earlier=earlier)


@attrs.frozen
class Advance(_Base):
    """Notes how far a call is.

    Args:
        changes: Column → value.
        synced: Whether to survive a power cut.
    """

    changes: dict[str, Any] = attrs.field(kw_only=True)
    synced: bool = attrs.field(default=False, kw_only=True)  # type: ignore[misc]

    @property
    def lazy(self) -> bool:  # type: ignore[override]
        """Whether it is a mere phase; that a worker has begun is what recovery goes by."""
        return self.changes.keys() == {"phase"}

    @property
    def size(self) -> int:  # type: ignore[override]
        """Bytes of the row with the journal."""
        return _ROW + len(self.changes.get("journal") or b"")

    def apply(self, transaction: Transaction) -> None:
        """Change the row."""
        row = transaction.unwritten(self.job_id)
        if row is not None and row["ended_pos"] is None:
            row.update(self.changes)
            return
        new = {f"new_{name}": value for name, value in self.changes.items()}
        if not transaction.change(_advance(tuple(self.changes)), job=self.job_id, **new):
            raise StoreConflict(f"job {self.job_id} is unknown or has ended")


@attrs.frozen
class End(_Base):
    """Ends a call: session, outcome, event and answer."""

    outcome: Outcome = attrs.field(kw_only=True)
    entry: LogEntry = attrs.field(kw_only=True)
    session: SessionWrite | None = attrs.field(default=None, kw_only=True)
    result: bytes | None = attrs.field(default=None, kw_only=True)
    ends: ClassVar[bool] = True

    @property
    def lazy(self) -> bool:  # type: ignore[override]
        """Whether it is a read, of which nothing has to be decided if this is lost."""
        return self.outcome is Outcome.COMPLETED

    @property
    def synced(self) -> bool:  # type: ignore[override]
        """Whether anything is committed: the rest can be found out again."""
        return self.outcome is Outcome.COMMITTED or self.session is not None

    @property
    def size(self) -> int:  # type: ignore[override]
        """Bytes of state and answer."""
        state = b"" if self.session is None else self.session.state or b""
        return 3 * _ROW + len(state) + len(self.result or b"")

    def apply(self, transaction: Transaction) -> None:
        """Check, then end it."""
        row = transaction.unwritten(self.job_id)
        if row is not None and (row["outcome"], row["idempotency_key"], self.session) == (None, None, None):
            end_job(transaction, self.job_id, self.outcome, self.entry)
            return
        state = _state(transaction, self.job_id)
        if state is None:
            raise StoreConflict(f"job {self.job_id} is unknown")
        if state.outcome is not None and self._is_done(transaction, state.outcome):
            return
        if state.ended_pos is not None:
            assert state.outcome is not None
            raise AlreadyEnded(f"job {self.job_id} has ended: {state.outcome}", Outcome(state.outcome))
        if state.phase == "aborted" and self.outcome is Outcome.COMMITTED:
            raise StoreConflict(f"job {self.job_id} was aborted and cannot be committed")
        if self.session is not None:
            _write_session(transaction, self.session, self.entry.time)
        end_job(transaction, self.job_id, self.outcome, self.entry)
        result = self.result if self.outcome is not Outcome.UNRESOLVED else None
        if state.idempotency_key is not None and result is not None and len(result) <= MAX_KEPT_RESULT:
            expires = transaction.now + KEY_LIFETIME
            transaction.change(_KEEP_RESULT, job_id=self.job_id, result=result, expires_at=expires)

    def _is_done(self, transaction: Transaction, outcome: str) -> bool:
        """Whether this very end is stored: the call's newest event is its event."""
        transaction.flush()
        newest = transaction.row(_NEWEST_OF_CALL, job=self.job_id)
        if newest is None or outcome != self.outcome:
            return False
        return str(newest[0]).partition(",")[2] == self.entry.facts


def end_job(transaction: Transaction, job_id: str | None, outcome: Outcome, entry: LogEntry) -> None:
    """Append the terminal event and set the outcome; an unresolved call stays open."""
    position = transaction.append(entry)
    final = outcome is not Outcome.UNRESOLVED
    ended_at, ended_pos = (transaction.now, position) if final else (None, None)
    row = transaction.unwritten(job_id)
    if row is None:
        new = {"new_outcome": str(outcome), "new_ended_at": ended_at, "new_ended_pos": ended_pos}
        transaction.change(_END, job=job_id, **new)
    else:
        row.update(outcome=str(outcome), phase="ended", ended_at=ended_at, ended_pos=ended_pos)


def _write_session(transaction: Transaction, write: SessionWrite, time: str) -> None:
    this = {"owner": write.principal, "called": write.name, "life": write.incarnation, "read": write.version}
    if write.incarnation is None and write.version == 0:
        found = reading.session(transaction.connection, write.principal, write.name)
        if found is None and write.state is not None:
            transaction.change(
                _OPEN_SESSION,
                principal=write.principal,
                name=write.name,
                incarnation=new_id("si_"),
                version=1,
                opened_at=time,
                state=write.state,
            )
            return
        if found is None:
            return  # destroyed before it was ever there
    elif write.state is None:
        if transaction.change(_DESTROY, **this):
            return
    elif transaction.change(_NEXT_VERSION, new_state=write.state, **this):
        return
    raise StoreConflict(f"session {write.name!r} is not at version {write.version}: its ticket was not held")


@attrs.frozen
class Abort(_Base):
    """Sees that a call can never turn out committed; answers with the outcome if it is."""

    synced: ClassVar[bool] = True

    def apply(self, transaction: Transaction) -> Outcome | None:
        """Look at the call again and mark it."""
        state = _state(transaction, self.job_id)
        if state is not None and state.outcome == Outcome.COMMITTED:
            transaction.touch()  # with it, what is there is synced for certain
            return Outcome.COMMITTED
        if state is not None and state.ended_pos is None:
            transaction.change(_ABORT, job=self.job_id)
        else:
            transaction.touch()
        return None


@attrs.frozen
class Recover(_Base):
    """Recovery's end of a call, if it has none; answers whether it had none."""

    outcome: Outcome = attrs.field(kw_only=True)
    entry: LogEntry = attrs.field(kw_only=True)
    synced: ClassVar[bool] = True
    ends: ClassVar[bool] = True

    def apply(self, transaction: Transaction) -> bool:
        """End it."""
        state = _state(transaction, self.job_id)
        if state is None or state.ended_pos is not None:
            return False
        end_job(transaction, self.job_id, self.outcome, self.entry)
        return True


@attrs.frozen
class NeedRecovery(_Base):
    """Says that recovery must not decide about a call; answers whether it was still open."""

    reason: str = attrs.field(kw_only=True)
    entry: LogEntry | None = attrs.field(kw_only=True)
    synced: ClassVar[bool] = True

    def apply(self, transaction: Transaction) -> bool:
        """Mark it."""
        state = _state(transaction, self.job_id)
        if state is None or state.ended_pos is not None:
            return False
        transaction.change(_NEED, job=self.job_id, new_reason=column(self.reason))
        if self.entry is not None:
            transaction.append(self.entry)
        return True
