"""Putting right what a dead process left, before the first call is answered.

What is to be done about files is decided in `publication.recovery` and done in `publication.leftovers`. Here the calls
are found, by their rows and by their directories, their orphaned workers are ended, and their outcomes are written.
For each call in this order, so that whatever kills recovery, the next one takes it up:

    look → move → look again → (sync) → one transaction {outcome, event} → remove the job directories

A directory says by `recovery.json` to which store it belongs; that alone is believed where the store is durable:

    the store knows the call                     its row decides
    it does not, and the directory is its own    nothing was published, the row would be there: the directory goes
    it is that of a store that forgot it all     its `recovery.json` decides: it is rolled back unless it committed
    it is that of another durable store          nothing is touched, its targets stay locked
    it is no job directory of ours at all        it is reported and left alone
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
import msgspec
import trio

from ztrio.audit import AuditBus
from ztrio.errors import Outcome, StoreUnavailable
from ztrio.findings import Action, LeftJob, Recovery
from ztrio.jobs import Blocking
from ztrio.locks import ProcessLock
from ztrio.publication.exchange import FileOps
from ztrio.publication.journal import Journal, JournalDamaged, decode_journal
from ztrio.publication.leftovers import Found, Leftovers
from ztrio.publication.recovery import Case, Fate
from ztrio.store import JobRow, Store
from ztrio.workers.orphans import end_orphan, is_alive

__all__ = ["recover", "workspace_lock"]

_BATCH: Final = 128  # calls put right before their outcomes are written together
_DEATH_BOUND: Final = 2.0  # seconds from SIGKILL until an orphan is given up
_ENDED: Final = (Outcome.ROLLED_BACK, Outcome.NOT_STARTED, Outcome.COMPLETED)


@contextmanager
def workspace_lock(workspace: Path) -> Iterator[bool]:
    """Keep other processes from working here: what they are at would look like what a dead one left.

    Yields:
        Whether it is held. Where nothing can be written there is nothing to keep apart and nothing to put right, and
        reads go on.

    Raises:
        AlreadyInUse: WORKSPACE_BUSY, somebody else does.
        StoreUnavailable: the lock cannot be taken, for whatever other reason.
    """
    folder = workspace / ".ztrio"
    lock = ProcessLock(folder / "workspace.lock", what=f"the workspace {workspace}", code="WORKSPACE_BUSY")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        lock.acquire()
    except (OSError, StoreUnavailable) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError) or cause.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
    try:
        yield lock.held
    finally:
        lock.release()


async def recover(
    store: Store,
    workspace: str,
    audit: AuditBus,
    *,
    blocking: Blocking,
    ops: FileOps | None = None,
    dry_run: bool = False,
    accept: Collection[str] = (),
) -> Recovery:
    """Put right what a dead process left in a workspace. Only while nobody else works in it, or with its store.

    Killed or cancelled anywhere, it can be run again, and finds what is left to be done.

    Args:
        store: Where its calls are kept.
        workspace: Canonical path of the workspace.
        audit: Publishes what became of the calls.
        blocking: Runs what blocks in a thread.
        ops: The file operations.
        dry_run: Only find out what would be done.
        accept: Ids of calls whose files the operator takes as they are.

    Raises:
        StoreUnavailable: the store cannot be read or written, or the workspace not be looked at.
    """
    shell = _Restart(store, workspace, audit, blocking, Leftovers(workspace, durable=store.durable, ops=ops))
    jobs = await shell.find(frozenset(accept))
    for start in range(0, len(jobs), _BATCH):
        batch = jobs[start : start + _BATCH]
        if dry_run:
            await blocking(shell.plan, batch)
        else:
            await shell.put_right(batch)
    locked = tuple(target for job in jobs for target in job.locked())
    return Recovery(findings=tuple(job.finding() for job in jobs), locked=locked)


@attrs.define
class _Restart:
    _store: Store
    _workspace: str
    _audit: AuditBus
    _blocking: Blocking
    _leftovers: Leftovers

    # ---- finding

    async def find(self, accept: frozenset[str]) -> list[LeftJob]:
        rows = {row.job_id: row for row in await self._store.unfinished()}
        try:
            directories: list[Found] = await self._blocking(self._leftovers.find)
        except OSError as error:
            raise StoreUnavailable(
                f"The workspace {self._workspace} cannot be searched for what an earlier process left: "
                f"{error.strerror}. Nothing ran; make it readable."
            ) from error
        found = {directory.job_id: directory for directory in directories}
        jobs = [self._known(row, found.pop(job_id, None), accept) for job_id, row in rows.items()]
        for job_id, directory in found.items():
            row = await self._store.job(job_id)
            jobs.append(self._strange(directory, accept) if row is None else self._known(row, directory, accept))
        return [job for job in jobs if job is not None]

    def _known(self, row: JobRow, found: Found | None, accept: frozenset[str]) -> LeftJob | None:
        """A call that the store knows: its row decides. None if there is nothing to be done about it here."""
        note = None if found is None else found.note
        journal, problem, advice = None, None, None
        try:
            journal = None if row.journal is None else decode_journal(row.journal)
        except JournalDamaged as error:
            problem, advice = f"its journal is damaged ({error}), so nobody can tell what it did", "look"
        if row.journal is None and note is not None and not self._store.durable:
            journal = note.journal
        if journal is not None and journal.workspace != self._workspace and found is None:
            return None  # its own workspace's supervisor puts it right
        if found is not None and found.foreign is not None:
            problem, advice = f"its job directory is not as it was made: {found.foreign}", "look"
        if note is not None and note.store_id not in (None, self._store.store_id):
            problem, advice = "its job directory belongs to another store", "other store"
        fate: Fate = "running"
        if row.outcome is not None and row.outcome is not Outcome.UNRESOLVED:
            fate = "ended" if row.outcome in _ENDED else "committed"
        accepted = row.job_id in accept
        # The row may be behind: that a worker was started is not waited for, and of a read it is not even noted. Better
        # "rolled back" and "completed" for what never ran.
        ran = row.capability == "read" or row.worker_pid is not None or row.phase not in ("queued", "preparing")
        if note is not None and not ran:
            ran = note.phase != "preparing" or (journal is not None and journal.external)
        if row.outcome is Outcome.UNRESOLVED and not (row.needs_recovery or accepted or found is not None):
            return None  # all is as before, but for effects elsewhere that only an operator can look at
        case = Case(
            job_id=row.job_id,
            fate=fate,
            ran=ran,
            journal=journal,
            problem=problem,
            accepted=accepted,
        )
        worker = _worker(row.worker_pid, row.worker_started_at) if fate == "running" else None
        return self._left(case, row, found, tuple(row.targets.values()), advice, worker)

    def _strange(self, found: Found, accept: frozenset[str]) -> LeftJob:
        """A directory whose call the store does not know."""
        note, problem, advice, worker = found.note, found.foreign or found.damage, None, None
        journal: Journal | None = None if note is None else note.journal
        fate: Fate = "unclaimed"
        if problem is not None:
            advice, accept = "foreign", frozenset()  # what nobody can read is not removed on anybody's word
        elif note is None:
            pass
        elif not note.durable:
            fate = "committed" if note.phase == "committed" else "running"
            worker = _worker(note.worker_pid, note.worker_started_at) if fate == "running" else None
        elif note.store_id != self._store.store_id:
            problem, advice = "it belongs to a call of another store", "other store"
        elif note.phase in ("preparing", "worker_running"):
            # Nothing was published: that is written into the row first. But something may lie in places beside.
            journal = None if note.journal is None else msgspec.structs.replace(note.journal, outputs=())
        case = Case(
            job_id=found.job_id,
            fate=fate,
            ran=note is not None and note.phase != "preparing",
            journal=journal,
            problem=problem,
            accepted=found.job_id in accept,
        )
        paths = () if note is None or note.journal is None else tuple(entry.path for entry in note.journal.outputs)
        targets = tuple("/".join((self._workspace, *path)) for path in paths)
        return self._left(case, None, found, targets, advice, worker)

    def _left(
        self,
        case: Case,
        row: JobRow | None,
        found: Found | None,
        targets: tuple[str, ...],
        advice: str | None,
        worker: tuple[int, float] | None,
    ) -> LeftJob:
        return LeftJob(
            workspace=self._workspace, case=case, row=row, found=found, targets=targets, advice=advice, worker=worker
        )

    # ---- doing

    def plan(self, jobs: Sequence[LeftJob]) -> None:
        for job in jobs:
            if job.worker is not None and job.case.problem is None and is_alive(*job.worker):
                job.orphan = job.worker[0]
            job.plan = self._leftovers.plan(job.case)

    async def put_right(self, jobs: Sequence[LeftJob]) -> None:
        for job in jobs:
            await self._end_orphan(job)
        await self._blocking(self._settle, jobs)
        failures: list[Exception] = []
        async with trio.open_nursery() as nursery:  # at once, so that one transaction of the writer takes many
            for job in jobs:
                nursery.start_soon(self._write, job, failures)
        if failures:
            raise failures[0]
        await self._blocking(self._remove, jobs)

    async def _end_orphan(self, job: LeftJob) -> None:
        if job.worker is None or job.case.problem is not None:
            return
        ended = await end_orphan(*job.worker, bound=_DEATH_BOUND)
        if ended is not None:
            job.orphan = job.worker[0]
        if ended is False:
            problem = f"its worker {job.orphan} is alive, and SIGKILL does not end it"
            job.case, job.advice = attrs.evolve(job.case, problem=problem, accepted=False), "worker"

    def _settle(self, jobs: Sequence[LeftJob]) -> None:
        for job in jobs:
            job.plan = self._leftovers.plan(job.case)
            if job.plan.steps:
                job.actions += [job.action(step.entry.path, str(step.move), step.reason) for step in job.plan.moves]
                job.plan = self._leftovers.settle(job.case)

    async def _write(self, job: LeftJob, failures: list[Exception]) -> None:
        if job.case.fate != "running":
            return
        if job.row is None:  # nobody keeps it
            self._audit.publish(job.event("recovered" if job.decided.problem is None else "unresolved"))
            return
        try:
            await self._write_row(job, job.row)
        except Exception as error:  # noqa: BLE001 - raised by `put_right`, alone and not in a group
            failures.append(error)

    async def _write_row(self, job: LeftJob, row: JobRow) -> None:
        told = any(event.event == "unresolved" for _, event in await self._store.job_events(job.case.job_id))
        if job.decided.problem is None:
            event = self._audit.stamp(job.event("settled" if told else "recovered"))
            if await self._store.recovered(row.job_id, job.outcome, event):
                self._audit.deliver(event)
        elif not row.needs_recovery or row.reason != job.why:
            first = None if told else self._audit.stamp(job.event("unresolved"))
            if await self._store.need_recovery(row.job_id, job.why, first) and first is not None:
                self._audit.deliver(first)

    def _remove(self, jobs: Sequence[LeftJob]) -> None:
        for job in jobs:
            if job.decided.remove:
                left = self._leftovers.remove(job.case.job_id, job.case.journal, job.targets)
                job.actions += [Action(path=path, what="leave", reason="it could not be removed") for path in left]


def _worker(pid: int | None, born: float | None) -> tuple[int, float] | None:
    return None if pid is None or born is None else (pid, born)
