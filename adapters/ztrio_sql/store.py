"""`SqlStore`: the store that survives the process and the machine; the face that trio sees of writer and reader.

Whatever writes becomes a ticket for the writer. Whoever awaits one sleeps until the writer's thread has the answer; one
wake-up serves a whole batch. Questions go to connections that only read, in threads of their own; when something was
submitted and not written yet, they wait for that first, so that everybody finds what they wrote.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import trio
from outcome import Outcome as Captured

from ztrio.activity import ActivityRow, JournalRow, LeftPending, PendingSnapshot, PendingWrite
from ztrio.audit import AuditEvent
from ztrio.errors import Outcome, StoreUnavailable
from ztrio.store import AlreadyEnded, Claim, JobEnd, JobRow, SessionRow, SessionWrite
from ztrio_sql.chain import Verification
from ztrio_sql.operations import Abort, Advance, ClaimKey, End, InsertJob, NeedRecovery, Nothing, Record, Recover
from ztrio_sql.pending import AppendPending, ResyncPending, WritePending
from ztrio_sql.reader import StoreReader
from ztrio_sql.retention import Retain, Retention, SetRetention
from ztrio_sql.transaction import LogEntry, Operation
from ztrio_sql.writer import Ticket, Writer, WriterStatistics

__all__ = ["SqlStore"]

_MAX_WAITING: Final = 50_000  # operations that nobody waits for and that are kept while the store cannot be written
_READERS: Final = 4  # threads
_MAX_SESSIONS: Final = 256  # sessions that are remembered
_MAX_STATE: Final = 64 * 1024  # bytes of the state of one that is


@attrs.define(eq=False)
class _TaskTicket(Ticket):
    # The task that sleeps until the answer; None once it was woken or has gone.
    task: trio.lowlevel.Task | None = None


@attrs.define(eq=False)
class _ThreadTicket(Ticket):
    answered: threading.Event = attrs.field(factory=threading.Event)


class SqlStore:
    """A durable store. Made by `open_store`; see `ztrio.store.Store`.

    Attributes:
        store_id: Identifies this store for ever.
        secret: 32 random bytes that live as long as the store.
    """

    durable = True

    def __init__(self, reader: StoreReader, writer: Callable[..., Writer], retention: Retention) -> None:
        self.store_id = reader.store_id
        self.secret = reader.secret
        self._reader = reader
        self._token = trio.lowlevel.current_trio_token()
        self._retention = retention
        self._writer = writer(deliver=self._deliver, report=self._report, chore=lambda: Retain(retention))
        self._watcher: Callable[[str | None], None] | None = None
        self._readers = trio.CapacityLimiter(_READERS)
        # Events that were not taken because too much was waiting; a `gap` event will say so.
        self._lost = 0
        # The sessions of the newest calls as the database has them. An entry is taken out before the session is written
        # and comes back when that is known to have succeeded; whoever reads or writes one holds its ticket.
        self._sessions: OrderedDict[tuple[str, str], SessionRow] = OrderedDict()

    def watch(self, report: Callable[[str | None], None]) -> None:
        self._watcher = report
        if self._writer.trouble is not None:
            report(self._writer.trouble)

    def statistics(self) -> WriterStatistics:
        """A snapshot of the writer."""
        return self._writer.statistics()

    def write(self) -> None:
        """The writer's thread."""
        self._writer.run()

    def close(self) -> None:
        """Take no more writes; the thread ends when those that were submitted are done or failed."""
        self._writer.close()

    # ---- questions

    async def session(self, principal: str, name: str) -> SessionRow | None:
        return await self._ask(self._reader.session, principal, name)  # type: ignore[no-any-return]

    def read_session(self, principal: str, name: str) -> SessionRow | None:
        row = self._sessions.get((principal, name))
        if row is None:
            row = self._reader.session(principal, name)
            if row is not None:
                self._remember(row)
        return row

    async def sessions(self, principal: str) -> list[SessionRow]:
        return await self._ask(self._reader.sessions, principal)  # type: ignore[no-any-return]

    async def job(self, job_id: str) -> JobRow | None:
        return await self._ask(self._reader.job, job_id)  # type: ignore[no-any-return]

    async def job_by_key(self, principal: str, tool: str, key: str) -> JobRow | None:
        return await self._ask(self._reader.job_by_key, principal, tool, key)  # type: ignore[no-any-return]

    async def unfinished(self) -> list[JobRow]:
        return await self._ask(self._reader.unfinished)  # type: ignore[no-any-return]

    async def events(self, *, principal: str | None, after: int, limit: int) -> list[tuple[int, AuditEvent]]:
        return await self._ask(  # type: ignore[no-any-return]
            lambda: self._reader.events(principal=principal, after=after, limit=limit)
        )

    async def job_events(self, job_id: str) -> list[tuple[int, AuditEvent]]:
        return await self._ask(self._reader.job_events, job_id)  # type: ignore[no-any-return]

    async def verify(self) -> Verification:
        """Follow the hash chain of the audit log to its end, or to its first bad link."""
        return await self._ask(self._reader.verify)  # type: ignore[no-any-return]

    async def activity(self, call_id: str) -> ActivityRow | None:
        return await self._ask(self._reader.activity, call_id)  # type: ignore[no-any-return]

    async def activities(self, *, principal: str | None, limit: int) -> list[ActivityRow]:
        return await self._ask(  # type: ignore[no-any-return]
            lambda: self._reader.activities(principal=principal, limit=limit)
        )

    async def left_pending(self) -> LeftPending:
        return await self._ask(self._reader.left_pending)  # type: ignore[no-any-return]

    # ---- writes

    async def insert_job(self, row: JobRow) -> None:
        await self._do(InsertJob(row.job_id, row=row))

    def insert_job_nowait(self, row: JobRow) -> None:
        self._keep(InsertJob(row.job_id, row=row))

    async def claim(self, row: JobRow) -> Claim:
        return await self._do(ClaimKey(row.job_id, row=row))  # type: ignore[no-any-return]

    async def advance(self, job_id: str, phase: str, **facts: Any) -> None:
        await self._do(_advance(job_id, phase, facts))

    def advance_nowait(self, job_id: str, phase: str, **facts: Any) -> None:
        self._keep(_advance(job_id, phase, facts))

    def write_intent(self, job_id: str, journal: bytes) -> None:
        changes = {"phase": "publishing_outputs", "journal": journal}
        self._do_here(Advance(job_id, changes=changes, synced=True))

    async def finish(self, end: JobEnd) -> None:
        before = self._forget(end.session)
        await self._do(_end(end))
        self._follow(before, end.session)

    def write_end(self, end: JobEnd) -> None:
        before = self._forget(end.session)
        self._do_here(_end(end))
        self._follow(before, end.session)

    def finish_nowait(self, end: JobEnd) -> None:
        assert end.outcome is not Outcome.COMMITTED and end.session is None
        self._keep(_end(end))

    async def abort(self, job_id: str) -> None:
        if await self._do(Abort(job_id)) is Outcome.COMMITTED:
            raise AlreadyEnded(f"job {job_id} cannot be aborted, it is committed", Outcome.COMMITTED)

    async def recovered(self, job_id: str, outcome: Outcome, event: AuditEvent) -> bool:
        return await self._do(Recover(job_id, outcome=outcome, entry=LogEntry.of(event)))  # type: ignore[no-any-return]

    async def need_recovery(self, job_id: str, reason: str, event: AuditEvent | None) -> bool:
        entry = None if event is None else LogEntry.of(event)
        return await self._do(NeedRecovery(job_id, reason=reason, entry=entry))  # type: ignore[no-any-return]

    def record(self, event: AuditEvent) -> None:
        entry = LogEntry.of(event)
        try:
            if self._lost:
                self._keep(Record(entry=self._gap()))
                self._lost = 0
            self._keep(Record(entry=entry))
        except StoreUnavailable:
            self._lost += 1
            raise
        why = self._writer.trouble
        if why is not None:
            raise StoreUnavailable(f"The audit log cannot be written: {why}. The event is kept and written later.")

    def set_retention_nowait(self, retention: Retention) -> None:
        """Write down how much of the audit log is kept, for whoever opens the store next, without waiting."""
        self._keep(SetRetention(retention))

    async def retain(self) -> None:
        """Remove what is no longer kept of the audit log, now and completely."""
        while await self._do(Retain(self._retention)):
            pass

    async def write_pending(self, writes: Sequence[PendingWrite]) -> None:
        await self._do(WritePending(tuple(writes)))

    async def resync_pending(self, snapshot: PendingSnapshot) -> None:
        await self._do(ResyncPending(snapshot))

    def append_pending_nowait(self, row: JournalRow) -> None:
        self._keep(AppendPending(row))

    async def append_pending(self, row: JournalRow, *, synced: bool = False) -> None:
        """Note an upstream write that is about to be sent.

        Args:
            row: The write.
            synced: Whether the note must survive a power cut.
        """
        await self._do(AppendPending(row, synced))

    # ---- between trio and the threads

    async def _do(self, operation: Operation) -> Any:
        """Have an operation done. Cancelled before it was taken, it is not done; after that nobody can tell."""
        await trio.lowlevel.checkpoint_if_cancelled()
        ticket = _TaskTicket(operation, awaited=True, task=trio.lowlevel.current_task())
        self._writer.submit(ticket)

        def leave(_: Any) -> trio.lowlevel.Abort:
            ticket.task = None
            self._writer.withdraw(ticket)
            return trio.lowlevel.Abort.SUCCEEDED

        return await trio.lowlevel.wait_task_rescheduled(leave)

    def _do_here(self, operation: Operation) -> None:
        """Have an operation done, from a thread that may block."""
        ticket = _ThreadTicket(operation, awaited=True)
        self._writer.do(ticket)
        ticket.answered.wait()
        assert ticket.answer is not None
        ticket.answer.unwrap()

    def _forget(self, write: SessionWrite | None) -> SessionRow | None:
        """Do not know a session any more that is about to be written; what was known."""
        return None if write is None else self._sessions.pop((write.principal, write.name), None)

    def _follow(self, before: SessionRow | None, write: SessionWrite | None) -> None:
        """Know a session as it has been written."""
        if before is None or write is None or write.state is None:
            return
        if (before.incarnation, before.version) == (write.incarnation, write.version):  # else it was done before
            self._remember(attrs.evolve(before, version=before.version + 1, state=write.state))

    def _remember(self, row: SessionRow) -> None:
        if len(row.state) <= _MAX_STATE:
            self._sessions[row.principal, row.name] = row
            while len(self._sessions) > _MAX_SESSIONS:
                self._sessions.popitem(last=False)

    def _keep(self, operation: Operation) -> None:
        if self._writer.waiting >= _MAX_WAITING:
            raise StoreUnavailable(
                f"{_MAX_WAITING} writes wait for the store already"
                f"{'' if self._writer.trouble is None else f', because {self._writer.trouble}'}. Nothing was written."
            )
        self._writer.submit(Ticket(operation, awaited=False))

    async def _ask(self, question: Callable[..., Any], *args: Any) -> Any:
        if self._writer.idle:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            try:
                await self._do(Nothing())
            except StoreUnavailable:
                pass  # what waits cannot be written; what is there can be read
        return await trio.to_thread.run_sync(question, *args, limiter=self._readers, abandon_on_cancel=True)

    def _deliver(self, tickets: list[Ticket]) -> None:
        """In the writer's thread: wake whoever waits."""
        asleep = []
        for ticket in tickets:
            if isinstance(ticket, _ThreadTicket):
                ticket.answered.set()
            elif isinstance(ticket, _TaskTicket):
                asleep.append(ticket)
        if asleep:
            self._run_soon(lambda: _wake(asleep))

    def _report(self, why: str | None) -> None:
        """In the writer's thread: tell the watcher."""

        def report() -> None:
            if self._watcher is not None:
                self._watcher(why)

        self._run_soon(report)

    def _run_soon(self, function: Callable[[], None]) -> None:
        try:
            self._token.run_sync_soon(function)
        except trio.RunFinishedError:
            pass  # nobody is left who could be told

    def _gap(self) -> LogEntry:
        now = dt.datetime.now(dt.UTC).isoformat(timespec="microseconds")
        return LogEntry.of(AuditEvent(event="gap", missed=self._lost, time=now, monotonic=trio.current_time()))


def _wake(tickets: list[_TaskTicket]) -> None:
    for ticket in tickets:
        if ticket.task is not None:
            answer: Captured[Any] | None = ticket.answer
            assert answer is not None
            trio.lowlevel.reschedule(ticket.task, answer)
            ticket.task = None


def _advance(job_id: str, phase: str, facts: dict[str, Any]) -> Advance:
    return Advance(
        job_id, changes={"phase": phase} | {name: value for name, value in facts.items() if value is not None}
    )


def _end(end: JobEnd) -> End:
    return End(end.job_id, outcome=end.outcome, entry=LogEntry.of(end.event), session=end.session, result=end.result)
