"""Rows and events that tests of stores use, and questions that they ask."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from ztrio.audit import AuditEvent
from ztrio.errors import Outcome
from ztrio.plain import encode
from ztrio.store import JobEnd, JobRow, SessionRow, SessionWrite, Store

OpenStore = Callable[[], AbstractAsyncContextManager[Store]]


def job_row(number: int, *, principal: str = "ann", session: str = "default", **facts: Any) -> JobRow:
    """An accepted call."""
    return JobRow(
        job_id=f"job_{number}",
        principal=principal,
        tool="export",
        session=session,
        capability="write",
        phase="queued",
        outcome=None,
        targets={"out": f"/ws/out{number}"},
        created_at="2024-01-02T03:04:05.000000+00:00",
        **facts,
    )


def event(name: str, number: int, *, principal: str | None = "ann", **facts: Any) -> AuditEvent:
    """A stamped event."""
    return AuditEvent(
        event=name,
        execution_job_id=f"job_{number}",
        principal=principal,
        seq=number,
        time=f"2024-01-02T03:04:{number % 60:02}.000000+00:00",
        monotonic=float(number),
        **facts,
    )


def write(
    state: Any, *, incarnation: str | None = None, version: int = 0, principal: str = "ann", name: str = "default"
) -> SessionWrite:
    """The next state of a session; None destroys it."""
    return SessionWrite(
        principal=principal,
        name=name,
        incarnation=incarnation,
        version=version,
        state=None if state is None else encode(state),
    )


def commit_of(number: int, version: int = 0, incarnation: str | None = None) -> JobEnd:
    """The commit of a call that writes to its session."""
    return JobEnd(
        job_id=f"job_{number}",
        outcome=Outcome.COMMITTED,
        event=event("commit", number, outcome=Outcome.COMMITTED),
        session=write({"n": number}, version=version, incarnation=incarnation),
    )


async def end(
    store: Store, number: int, outcome: Outcome = Outcome.COMMITTED, session: SessionWrite | None = None
) -> AuditEvent:
    """A call that is accepted and ends at once; its terminal event."""
    principal = "ann" if session is None else session.principal
    await store.insert_job(job_row(number, principal=principal))
    terminal = event("commit", number, principal=principal, outcome=outcome)
    await store.finish(JobEnd(job_id=f"job_{number}", outcome=outcome, event=terminal, session=session))
    return terminal


async def log(store: Store, *, principal: str | None = None, after: int = 0, limit: int = 1000) -> list[AuditEvent]:
    """The events, without their positions."""
    return [found for _, found in await store.events(principal=principal, after=after, limit=limit)]


async def present(store: Store, name: str = "default", principal: str = "ann") -> SessionRow:
    """The session, which is there."""
    row = await store.session(principal, name)
    assert row is not None
    return row


class Clock:
    """A wall clock that stands still."""

    def __init__(self) -> None:
        self.time = 1_700_000_000.0

    def __call__(self) -> float:
        """The time, in seconds since the epoch."""
        return self.time
