"""The supervisor: accepts calls, runs each in a task of its own, answers questions about them, and closes.

A call is a job in a task of the supervisor; its caller waits for the answer and says when it leaves. Closing stops
the calls in flight and puts a bound on everything that is left.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import attrs
import trio

from ztrio.admission import Admission, ToolDescription
from ztrio.audit import AuditStatistics, may_see
from ztrio.calls import LOCAL, CallContext, CallResult, Cause, ProgressCallback
from ztrio.ending import never_silent
from ztrio.errors import Outcome, ToolboxError, WorkerFailed, ZtrioError
from ztrio.findings import Recovery
from ztrio.idempotency import check_key
from ztrio.jobs import Job, Runtime
from ztrio.limits import KeyedLimiterStatistics
from ztrio.policy import Policy
from ztrio.reloading import Reloaded, reload_toolbox
from ztrio.tools import Toolbox
from ztrio.tracking.desk import Desk
from ztrio.tracking.tracker import TrackerStatistics
from ztrio.workers.backend import BackendSettings, BackendStatistics
from ztrio.workers.ladder import ContainmentReport

__all__ = ["Supervisor", "SupervisorStatistics"]

_LAST_MOMENT = 0.4  # seconds for what is left after the bound of closing: cleanup, then the audit file


@attrs.frozen
class SupervisorStatistics:
    """A snapshot of a supervisor.

    Args:
        calls: Calls accepted and not settled, unresolved ones included.
        tickets: The ticket table.
        slots_in_use: Worker slots held.
        slots: Worker slots in all.
        backend: The backend.
        audit: The audit bus.
        pending: The calls that nobody knows about, and those in flight that may become so.
    """

    calls: int
    tickets: KeyedLimiterStatistics
    slots_in_use: int
    slots: int
    backend: BackendStatistics
    audit: AuditStatistics
    pending: TrackerStatistics


class Supervisor:
    """Runs the tools of one toolbox on one workspace. Made by `open_supervisor`.

    Attributes:
        toolbox: The tools.
        workspace: Where they work, absolute.
        audit: Every decision, as events.
        reloaded: Set when `toolbox` becomes another; then there is a new event for the next time.
    """

    def __init__(
        self,
        toolbox: Toolbox,
        runtime: Runtime,
        policy: Policy | None,
        lifetime: trio.CancelScope,
        backend_settings: Callable[[Toolbox], BackendSettings],
    ) -> None:
        self.toolbox = toolbox
        self.workspace = runtime.workspace
        self.audit = runtime.audit
        self._runtime = runtime
        self._admission = Admission(toolbox, runtime, policy)
        runtime.desk.read_tools = self._admission.read_tools
        # Set when closing begins; nothing is accepted from then on.
        self._closing = trio.Event()
        # Set by whoever opened it when everything it ran has ended.
        self.closed = trio.Event()
        self.reloaded = trio.Event()
        # Everything the supervisor runs; its shield gets a deadline when closing begins.
        self._lifetime = lifetime
        # What a backend is to load for a toolbox.
        self._backend_settings = backend_settings
        # One reload at a time.
        self._reloading = trio.Lock()

    def describe_tools(self) -> list[ToolDescription]:
        """Every tool with its schemas, the session tools last.

        Raises:
            ToolboxError: a parameter's type has no JSON Schema.
        """
        return self._admission.describe_tools()

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        session: str = "default",
        timeout: float | None = None,  # noqa: ASYNC109 - a limit for the worker, not for this wait
        queue_timeout: float | None = None,
        context: CallContext = LOCAL,
        cause: Cause | None = None,
        on_progress: ProgressCallback | None = None,
        capped: bool = False,
        idempotency_key: str | None = None,
        reconciles: Sequence[str] = (),
    ) -> CallResult:
        """Call a tool and wait for its end.

        Cancelling this wait stops the call: `trio.Cancelled` leaves only after the worker is proven dead and
        everything was rolled back; or, when the commit had begun, after it ended (`commit_unanswered` in the audit).

        Args:
            tool: Name of the tool.
            arguments: Its arguments, JSON-like.
            session: Name or handle of the session.
            timeout: Seconds the tool may run; the tool's own when omitted.
            queue_timeout: Seconds the call may wait for its turn; the tool's own when omitted.
            context: Who calls, from where.
            cause: Where the caller records why it cancels, before it does.
            on_progress: Receives the tool's progress reports.
            capped: Refuse a `timeout` beyond the tool's `max_timeout`, as for remote callers.
            idempotency_key: The caller's own name for the call, under which it is committed at most once: a repetition
                gets the first one's answer. It waits for one that runs, `timeout` seconds at most.
            reconciles: Ids of pending calls that this one settles, if it is a read that succeeds: you have looked.

        Returns:
            The value with the call's id, outcome and published paths; of a repetition those of the call it repeats.

        Raises:
            ZtrioError: one of its subclasses, with code, job_id and outcome set; never wrapped in a group.
        """
        if self.audit.behind:
            await self.audit.wait_room()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        since = trio.current_time()
        while True:
            try:
                job = self._admission.admit(
                    tool,
                    {} if arguments is None else arguments,
                    session=session,
                    timeout=timeout,
                    queue_timeout=queue_timeout,
                    context=context,
                    on_progress=on_progress,
                    capped=capped,
                    closing=self._closing.is_set(),
                    idempotency_key=idempotency_key,
                    reconciles=reconciles,
                )
            except ZtrioError:
                # A call that is accepted lets others run while it waits for its answer; one that is refused, here.
                await trio.lowlevel.cancel_shielded_checkpoint()
                raise
            if isinstance(job, Job):
                break
            answer = await job.wait(since)
            if answer is not None:
                return answer.unwrap()
        self._runtime.nursery.start_soon(self._run, job)
        try:
            await job.answered.wait()
        except trio.Cancelled:
            job.stop((cause.text if cause is not None else None) or "cancelled by caller")
            with trio.move_on_after(job.settle_bound, shield=True):
                await job.answered.wait()
            if job.outcome is Outcome.COMMITTED and not job.repeated:
                self.audit.publish(job.event("commit_unanswered", cause=cause.text if cause is not None else None))
            raise
        assert job.answer is not None
        return job.answer.unwrap()

    async def outcome(self, job_id: str, *, context: CallContext = LOCAL) -> Outcome | None:
        """What became of a call's effects; None for an unknown one and for another principal's."""
        described = await self.job(job_id, context=context)
        return None if described is None else Outcome(described["outcome"])

    async def outcome_by_key(self, tool: str, key: str, *, context: CallContext = LOCAL) -> Outcome | None:
        """What became of the newest call of a tool that this principal made under an idempotency key, or None."""
        described = await self.job_by_key(tool, key, context=context)
        return None if described is None else Outcome(described["outcome"])

    async def job_by_key(self, tool: str, key: str, *, context: CallContext = LOCAL) -> dict[str, Any] | None:
        """The newest call of a tool that this principal made under an idempotency key, as a JSON-like object, or None.

        Raises:
            InvalidArguments: it cannot be a key.
        """
        principal = context.principal.id
        row = await self._runtime.store.job_by_key(principal, tool, check_key(key)) if tool.isprintable() else None
        return None if row is None else await self.job(row.job_id, context=context)

    async def job(self, job_id: str, *, context: CallContext = LOCAL) -> dict[str, Any] | None:
        """A call as a JSON-like object; None for an unknown one and for another principal's."""
        row = await self._runtime.store.job(job_id) if job_id.isascii() else None
        ended, running = self._runtime.ends.get(job_id), self._admission.jobs.get(job_id)
        known = row or ended or (None if running is None else running.row)
        if known is None or not (context.view.admin or known.principal == context.principal.id):
            return None
        outcome = known.outcome
        if running is not None and running.outcome is Outcome.UNRESOLVED:  # whatever a commit in doubt looks like
            outcome = Outcome.UNRESOLVED
        elif outcome in (None, Outcome.UNRESOLVED):  # a store that cannot be written is behind
            outcome = (ended and ended.outcome) or outcome or (Outcome.RUNNING if running is None else running.outcome)
        return known.as_dict() | {"outcome": str(outcome)}

    async def events(
        self, *, context: CallContext = LOCAL, after: int = 0, limit: int = 10_000
    ) -> list[dict[str, Any]]:
        """The audit log as JSON-like objects, oldest first, each with its `log_pos`.

        Args:
            context: Shows this principal's events; an admin's view shows all.
            after: Only events after this log position.
            limit: The newest that many.
        """
        principal = None if context.view.admin else context.principal.id
        events = await self._runtime.store.events(principal=principal, after=after, limit=limit)
        return [{**event.as_dict(), "log_pos": position} for position, event in events if may_see(context, event)]

    @property
    def pending(self) -> Desk:
        """Calls of which nobody knows whether they happened: ask about them, cancel or release them."""
        return self._runtime.desk

    def statistics(self) -> SupervisorStatistics:
        """A snapshot."""
        runtime = self._runtime
        return SupervisorStatistics(
            calls=len(self._admission.jobs),
            tickets=runtime.tickets.statistics(),
            slots_in_use=runtime.slots.borrowed_tokens,
            slots=int(runtime.slots.total_tokens),
            backend=runtime.backend.statistics(),
            audit=self.audit.statistics(),
            pending=runtime.tracker.statistics(),
        )

    @property
    def recovery(self) -> Recovery:
        """What an earlier process left in the workspace, and what was done about it before the first call."""
        return self._runtime.recovery

    @property
    def containment(self) -> ContainmentReport:
        """How workers are contained, and why so."""
        return self._runtime.backend.report

    async def reload(self) -> None:
        """Load the toolbox anew from disk. Calls made from now on use the new code, running ones end with the old.

        Tools, their schemas and everything a worker loads are new. Modules that the toolbox's own modules import are
        new in workers, and stay as they are in this process, where reads run.

        Raises:
            ToolboxError: it cannot be loaded, naming file, line and reason; everything stays as it was.
        """
        async with self._reloading:
            fresh: Reloaded = await self._runtime.blocking(reload_toolbox, self.toolbox)
            try:
                await self._runtime.backend.reload(self._backend_settings(fresh.toolbox))
            except WorkerFailed as error:
                fresh.undo()
                reason = error.details.get("reason", error.message)
                where = _innermost(error.details.get("output", ""))
                raise ToolboxError(f"{where}{reason}. Nothing has changed; mend it, then reload.") from error
            except BaseException:
                fresh.undo()
                raise
            self.toolbox = fresh.toolbox
            self._admission.replace_toolbox(fresh.toolbox)
            self.reloaded.set()
            self.reloaded = trio.Event()

    async def aclose(self, cause: str = "shutdown") -> None:
        """Stop accepting calls, stop those in flight, wait for the end. From any task, any number of times.

        Ends within `Settings.shutdown_bound` and a second, whatever a tool or a disk does. A call that could not be
        settled by then is answered as unresolved.

        Args:
            cause: Why, for the audit: `shutdown`, `client_gone`, …
        """
        self._begin_closing(cause)
        with trio.move_on_at(self._lifetime.deadline, shield=True):
            await self.closed.wait()
        await trio.lowlevel.checkpoint_if_cancelled()

    def _begin_closing(self, cause: str) -> None:
        if not self._closing.is_set():
            self._closing.set()
            self._runtime.tracker.closing = True
            self._lifetime.deadline = trio.current_time() + self._runtime.settings.shutdown_bound + 1.0
        for job in self._admission.jobs.values():
            job.grace_limit = self._runtime.settings.shutdown_grace
            job.stop(cause)

    async def _run(self, job: Job) -> None:
        try:
            await self._admission.execution(job).run()
        finally:
            never_silent(self._runtime, job)
            self._admission.forget(job, settled=job.settled)
            if job.undertaker is not None:
                self._runtime.nursery.start_soon(self._undertake, job, job.undertaker)

    async def _undertake(self, job: Job, undertaker: Callable[[], Awaitable[None]]) -> None:
        try:
            await undertaker()
        finally:
            self._admission.settle(job)

    async def run_until_idle(self) -> None:
        """Wait until closing, then until the last call is settled, but not for ever. Run by whoever opened it."""
        try:
            await self._closing.wait()
            with trio.move_on_after(self._runtime.settings.shutdown_bound):
                await self._admission.wait_idle()
        finally:
            # Here too when a task of ours failed and everything is being cancelled: cleanup gets a last moment.
            self._begin_closing("shutdown")
            deadline = trio.current_time() + _LAST_MOMENT
            for job in self._admission.jobs.values():
                job.settling.deadline = deadline
                job.scope.cancel()

    async def watch_audit(self) -> None:
        """Stop running mutating calls whenever the audit cannot be written. Run by whoever opened it.

        What cannot be recorded must not happen: they roll back.
        """
        while True:
            await self.audit.wait_unavailable()
            for job in self._admission.jobs.values():
                if not job.reads_only:
                    job.stop("audit_unavailable")
            await self.audit.wait_available()


def _innermost(output: str) -> str:
    """`file:line: ` of the last frame of the traceback that a worker printed, or empty."""
    frames = re.findall(r'^  File "(?!<)([^"]+)", line (\d+)', output, re.MULTILINE)
    return f"{frames[-1][0]}:{frames[-1][1]}: " if frames else ""
