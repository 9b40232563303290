"""`session_open`, `session_list` and `session_destroy`: tools like any other, run by the supervisor itself.

They are subject to the policy, leave the same audit sequence, and destruction queues for the session with everybody
else. There is no worker, so no proof of death stands in their events.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any, Final

import trio

from ztrio.audit import AuditEvent
from ztrio.ending import commit_told, finish, reasons, stop_error
from ztrio.errors import CommitFailed, Outcome, SessionNotFound, StoreUnavailable, Unresolved, ZtrioError
from ztrio.idempotency import kept_answer
from ztrio.jobs import Job, Runtime
from ztrio.schema import describe
from ztrio.sessions import mint_handle
from ztrio.store import EMPTY_STATE, AlreadyEnded, JobEnd, SessionWrite
from ztrio.tools import DEFAULT_QUEUE_TIMEOUT, DEFAULT_TIMEOUT, Capability, Tool

__all__ = ["SESSION_TOOLS", "SessionCall"]

_ABORT_BOUND: Final = 1.0  # seconds on top of the commit's own bound, for a store that says what became of it


def session_open() -> dict[str, Any]:
    """Open a new session and return its handle.

    The handle is unguessable and yours alone. Pass it as the `session` argument of other tools; destroyed, it can
    never be used again.
    """
    raise NotImplementedError  # the supervisor answers; the function is here for its signature


def session_list() -> dict[str, Any]:
    """List your sessions with their number of commits and the time they were opened."""
    raise NotImplementedError


def session_destroy() -> dict[str, Any]:
    """Destroy a session: its state is removed, and calls that still wait for it fail.

    A handle made by session_open is burnt for ever; a plain name starts anew, empty, when it is used again.
    """
    raise NotImplementedError


def _tool(function: Any, capability: Capability, title: str) -> Tool:
    return Tool(
        name=function.__name__,
        function=function,
        parameters=describe(function),
        capability=capability,
        title=title,
        description=inspect.cleandoc(function.__doc__ or ""),
        timeout=DEFAULT_TIMEOUT,
        queue_timeout=DEFAULT_QUEUE_TIMEOUT,
        max_timeout=DEFAULT_TIMEOUT,
        grace=0.0,
        env=(),
        effects="transactional",
        isolate=False,
        init=False,
        limits=None,
        writes=(),
    )


SESSION_TOOLS = {
    tool.name: tool
    for tool in (
        _tool(session_open, Capability.WRITE, "Open a session"),
        _tool(session_list, Capability.READ, "List sessions"),
        _tool(session_destroy, Capability.DESTRUCTIVE, "Destroy a session"),
    )
}


class SessionCall:
    """Runs one call of a session tool. Made for one `run`.

    Args:
        runtime: What the calls of the supervisor share.
        job: The call, allowed; the destroying one holds a ticket for the session.
    """

    def __init__(self, runtime: Runtime, job: Job) -> None:
        self._runtime = runtime
        self._job = job
        # What the call does to a session, decided under its ticket.
        self._write: SessionWrite | None = None
        self._value: dict[str, Any] = {}
        # Whether it was decided what to do; if not, there is an error or the call was stopped.
        self._decided = False
        self._error: ZtrioError | None = None

    async def run(self) -> None:
        """Run the call to its end; its answer is in the job. Raises only what is no `Exception`."""
        job = self._job
        try:
            with job.scope:
                await self._prepare()
                self._decided = True
        except ZtrioError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - whatever the store raises, nothing was written
            self._error = StoreUnavailable(
                f"The store failed ({type(error).__name__}: {error}). Nothing was changed; repeat when it works."
            )
            self._error.__cause__ = error
        finally:
            if not self._decided and self._error is None:
                job.cause.record("shutdown")  # nobody stopped it, so the supervisor's own tasks are being cancelled
            with job.settling:
                await self._settle()  # noqa: ASYNC102 - `settling` is the shield
            if job.settled:
                job.ticket.leave()
                self._runtime.pins.unpin(job.pin)

    async def _prepare(self) -> None:
        job, store = self._job, self._runtime.store
        principal = job.context.principal.id
        with trio.move_on_after(job.queue_timeout) as waiting:
            await job.ticket.wait()
        if waiting.cancelled_caught:
            job.stop("queue_timeout")
            return
        if job.tool.name == "session_list":
            rows = await store.sessions(principal)
            self._value = {
                "sessions": [{"name": row.name, "version": row.version, "opened_at": row.opened_at} for row in rows]
            }
        elif job.tool.name == "session_open":
            handle = mint_handle(store.secret, principal)
            self._write = SessionWrite(principal=principal, name=handle, incarnation=None, version=0, state=EMPTY_STATE)
            self._value = {"session": handle}
        else:
            row = await store.session(principal, job.session)
            if row is None or job.pin.destroyed:
                raise SessionNotFound(f"There is no session {job.session!r}. Nothing was changed.")
            self._write = SessionWrite(
                principal=principal, name=row.name, incarnation=row.incarnation, version=row.version, state=None
            )
            self._value = {"destroyed": row.name}

    async def _settle(self) -> None:
        job, audit = self._job, self._runtime.audit
        error = stop_error(job, ran=False) or self._error
        job.deciding = True
        if error is not None:
            self._fail(error)
        elif self._write is None:
            answer = partial(job.succeed, self._value, Outcome.COMPLETED, {})
            finish(self._runtime, job, "completed", Outcome.COMPLETED, answer)
        else:
            audit.publish(job.event("start"))
            event = audit.stamp(job.event("commit", outcome=Outcome.COMMITTED))
            kept = kept_answer(job, self._value, {})
            end = JobEnd(job_id=job.id, outcome=Outcome.COMMITTED, event=event, session=self._write, result=kept)
            job.settled = False  # until it is known what became of the transaction
            try:
                with trio.fail_after(self._runtime.settings.commit_bound):
                    await self._runtime.store.finish(end)
            except Exception as failure:  # noqa: BLE001 - whatever the store raises, it may not have been written
                await self._abort(event, _failed(failure))
                return
            self._committed(event)

    def _committed(self, event: AuditEvent) -> None:
        job = self._job
        assert self._write is not None
        job.settled = True
        if self._write.state is None:
            # No checkpoint since the transaction: whoever was allowed before it finds its life ended.
            self._runtime.pins.destroy(self._write.principal, self._write.name, by=job.pin)
        self._runtime.audit.deliver(event)
        job.succeed(self._value, Outcome.COMMITTED, {})

    async def _abort(self, event: AuditEvent, error: ZtrioError) -> None:
        """The transaction raised: see that it can never turn out to have happened, as `ztrio.commit` does."""
        job, audit = self._job, self._runtime.audit
        happened: bool | None = None
        try:
            with trio.move_on_after(_ABORT_BOUND):
                await self._runtime.store.abort(job.id)
                happened = False
        except AlreadyEnded as ended:
            happened = ended.outcome is Outcome.COMMITTED
        except Exception:  # noqa: BLE001, S110 - any failure means the same: nobody can tell
            pass
        if happened is not None:
            self._told(event, error, happened=happened)
            return
        audit.mark_unavailable(f"commit of {job.id}", "a commit could be neither confirmed nor aborted")
        unknown = Unresolved(
            "The store failed in the middle of the commit and cannot say whether it happened. List your sessions "
            "before repeating, or ask for the outcome of this job.",
            reason="commit_unconfirmed",
        )
        audit.publish(job.event("unresolved", code=unknown.code, reason=unknown.reason, outcome=Outcome.UNRESOLVED))
        job.fail(unknown, Outcome.UNRESOLVED)
        job.undertaker = partial(self._settle_later, event, error)

    async def _settle_later(self, event: AuditEvent, error: ZtrioError) -> None:
        """Go on as if the store had told at once what became of the transaction, when it does."""
        job = self._job
        happened = await commit_told(self._runtime, job)
        self._runtime.audit.mark_available(f"commit of {job.id}")
        self._told(event.evolved(event="settled"), error, happened=happened)
        job.ticket.leave()
        self._runtime.pins.unpin(job.pin)

    def _told(self, event: AuditEvent, error: ZtrioError, *, happened: bool) -> None:
        """Nobody is in doubt about the transaction any more."""
        if happened:
            self._committed(event)
            return
        job = self._job
        job.settled = True
        self._runtime.audit.publish(job.event("error", **reasons(job, error)))
        answer = partial(job.fail, error, Outcome.ROLLED_BACK)
        name = "settled" if job.answered.is_set() else "rollback"
        finish(self._runtime, job, name, Outcome.ROLLED_BACK, answer)

    def _fail(self, error: ZtrioError) -> None:
        job = self._job
        name = {None: "deny", "queue_timeout": "queue_timeout"}.get(job.cause.text, "cancel")
        if job.reads_only:
            name = "error"
        answer = partial(job.fail, error, Outcome.NOT_STARTED)
        finish(self._runtime, job, name, Outcome.NOT_STARTED, answer, **reasons(job, error))


def _failed(error: Exception) -> CommitFailed:
    failure = CommitFailed(f"The store failed ({type(error).__name__}: {error}). Nothing was changed; repeat it.")
    failure.__cause__ = error
    return failure
