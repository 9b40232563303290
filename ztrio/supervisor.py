"""The supervisor: accepts calls, runs each in a task of its own, and closes without leaving anything behind.

Two nurseries, because two lives have to be kept apart. The user's `async with` body belongs to the user: its
cancellation must reach the calls it makes, as a word, and never their cleanup. Everything the supervisor runs (the
backend, the jobs, the audit file) therefore lives in one service task under a shield that closing, and only closing,
puts a deadline on. Calls are jobs in that task; callers wait for them and say when they leave.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from ztrio.admission import Admission, ToolDescription
from ztrio.audit import AuditBus, AuditStatistics, may_see
from ztrio.audit_file import AuditFile
from ztrio.calls import LOCAL, CallContext, CallResult, Cause, ProgressCallback
from ztrio.errors import InvalidArguments, Outcome, UnsupportedPlatform
from ztrio.jobs import Blocking, Job, Runtime, Settings
from ztrio.limits import KeyedLimiter, KeyedLimiterStatistics
from ztrio.loading import function_ref
from ztrio.policy import Policy
from ztrio.publication.staging import Publisher
from ztrio.sessions import SessionPins
from ztrio.store import JobRow, MemoryStore, Store
from ztrio.tools import Toolbox
from ztrio.workers.backend import Backend, BackendFactory, BackendSettings, BackendStatistics

__all__ = ["Supervisor", "SupervisorStatistics", "open_supervisor"]

_FILE_THREADS = 16
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
    """

    calls: int
    tickets: KeyedLimiterStatistics
    slots_in_use: int
    slots: int
    backend: BackendStatistics
    audit: AuditStatistics


class Supervisor:
    """Runs the tools of one toolbox on one workspace. Made by `open_supervisor`.

    Attributes:
        toolbox: The tools.
        workspace: Where they work, absolute.
        audit: Every decision, as events.
    """

    def __init__(self, toolbox: Toolbox, runtime: Runtime, policy: Policy | None, lifetime: trio.CancelScope) -> None:
        self.toolbox = toolbox
        self.workspace = runtime.workspace
        self.audit = runtime.audit
        self._runtime = runtime
        self._admission = Admission(toolbox, runtime, policy)
        # Set when closing begins; nothing is accepted from then on.
        self._closing = trio.Event()
        # Set by the service task when everything it ran has ended.
        self._closed = trio.Event()
        # Everything the supervisor runs; its shield gets a deadline when closing begins.
        self._lifetime = lifetime

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

        Returns:
            The value with the call's id, outcome and published paths.

        Raises:
            ZtrioError: one of its subclasses, with code, job_id and outcome set; never wrapped in a group.
        """
        await self.audit.wait_room()
        job, row = self._admission.admit(
            tool,
            {} if arguments is None else arguments,
            session=session,
            timeout=timeout,
            queue_timeout=queue_timeout,
            context=context,
            on_progress=on_progress,
            capped=capped,
            closing=self._closing.is_set(),
        )
        self._runtime.nursery.start_soon(self._run, job, row)
        try:
            await job.answered.wait()
        except trio.Cancelled:
            job.stop((cause.text if cause is not None else None) or "cancelled by caller")
            with trio.move_on_after(job.settle_bound, shield=True):
                await job.answered.wait()
            if job.outcome is Outcome.COMMITTED:
                self.audit.publish(job.event("commit_unanswered", cause=cause.text if cause is not None else None))
            raise
        assert job.answer is not None
        return job.answer.unwrap()

    async def outcome(self, job_id: str, *, context: CallContext = LOCAL) -> Outcome | None:
        """What became of a call's effects; None for an unknown one and for another principal's."""
        described = await self.job(job_id, context=context)
        return None if described is None else Outcome(described["outcome"])

    async def job(self, job_id: str, *, context: CallContext = LOCAL) -> dict[str, Any] | None:
        """A call as a JSON-like object; None for an unknown one and for another principal's."""
        row = await self._runtime.store.job(job_id)
        if row is None or not (context.view.admin or row.principal == context.principal.id):
            return None
        running = self._admission.jobs.get(job_id)
        outcome = row.outcome or (Outcome.RUNNING if running is None else running.outcome)
        described = attrs.asdict(row) | {"outcome": str(outcome)}
        return {key: value for key, value in described.items() if value is not None}

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
        )

    async def aclose(self, cause: str = "shutdown") -> None:
        """Stop accepting calls, stop those in flight, wait for the end. From any task, any number of times.

        Ends within `Settings.shutdown_bound` and a second, whatever a tool or a disk does. A call that could not be
        settled by then is answered as unresolved.

        Args:
            cause: Why, for the audit: `shutdown`, `client_gone`, …
        """
        self._begin_closing(cause)
        with trio.move_on_at(self._lifetime.deadline, shield=True):
            await self._closed.wait()
        await trio.lowlevel.checkpoint_if_cancelled()

    def _begin_closing(self, cause: str) -> None:
        if not self._closing.is_set():
            self._closing.set()
            self._lifetime.deadline = trio.current_time() + self._runtime.settings.shutdown_bound + 1.0
        for job in self._admission.jobs.values():
            job.grace_limit = self._runtime.settings.shutdown_grace
            job.stop(cause)

    async def _run(self, job: Job, row: JobRow) -> None:
        try:
            await self._admission.execution(job, row).run()
        finally:
            self._admission.forget(job, settled=job.settled)

    async def _serve(self) -> None:
        """Wait until closing, then until the last call is settled, but not for ever."""
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


@attrs.define
class _Services:
    """Opens what a supervisor runs on, keeps it running, and takes it down in the opposite order."""

    toolbox: Toolbox
    workspace: Path
    settings: Settings
    store: Store
    factory: BackendFactory
    policy: Policy | None
    publisher: Publisher
    audit_file: Path | None
    blocking: Blocking

    async def run(self, *, task_status: trio.TaskStatus[Supervisor]) -> None:
        audit = AuditBus(admitted=self.settings.admitted, recorder=self.store.record)
        file = None if self.audit_file is None else AuditFile(self.audit_file)
        if file is not None:
            file.open()
        supervisor: Supervisor | None = None
        try:
            # Cancelling the user's body must not cut cleanup short: closing does, with a deadline of its own.
            with trio.CancelScope(shield=True) as lifetime:
                async with trio.open_nursery() as writers, AsyncExitStack() as stack:
                    if file is not None:
                        events = await stack.enter_async_context(audit.subscribe(durable=True, capacity=4096))
                        writers.start_soon(file.write_all, audit, events)
                    backend = await stack.enter_async_context(self.factory(self._backend_settings()))
                    async with trio.open_nursery() as nursery:
                        runtime = self._runtime(audit, backend, nursery)
                        supervisor = Supervisor(self.toolbox, runtime, self.policy, lifetime)
                        nursery.start_soon(_watch_audit, supervisor)
                        task_status.started(supervisor)
                        await supervisor._serve()
                        nursery.cancel_scope.cancel()
                    audit.close()
                    writers.cancel_scope.deadline = trio.current_time() + _LAST_MOMENT
        finally:
            if supervisor is not None:
                supervisor._closed.set()

    def _runtime(self, audit: AuditBus, backend: Backend, nursery: trio.Nursery) -> Runtime:
        return Runtime(
            settings=self.settings,
            workspace=self.workspace,
            store=self.store,
            audit=audit,
            tickets=KeyedLimiter(),
            slots=trio.CapacityLimiter(self.settings.workers),
            readers=trio.CapacityLimiter(self.settings.readers),
            pins=SessionPins(),
            backend=backend,
            publisher=self.publisher,
            blocking=self.blocking,
            nursery=nursery,
        )

    def _backend_settings(self) -> BackendSettings:
        references = [function_ref(tool.function) for tool in self.toolbox if tool.in_worker]
        modules = dict.fromkeys((ref.module.name, ref.module.file) for ref in references)
        return BackendSettings(
            modules=tuple(modules),
            functions=tuple((ref.module.name, ref.name) for ref in references),
            workspace=str(self.workspace),
            prewarmed=min(2, self.settings.workers),
            start_timeout=self.settings.start_bound,
        )


async def _watch_audit(supervisor: Supervisor) -> None:
    """When the audit cannot be written, running mutating calls roll back: what cannot be recorded must not happen."""
    while True:
        await supervisor.audit.wait_unavailable()
        for job in supervisor._admission.jobs.values():
            if not job.reads_only:
                job.stop("audit_unavailable")
        await supervisor.audit.wait_available()


def _spawn(settings: BackendSettings) -> Any:
    from ztrio.workers.spawn import open_spawn_backend  # noqa: PLC0415 - imports what only POSIX has

    return open_spawn_backend(settings)


_BACKENDS: dict[str, BackendFactory] = {"auto": _spawn, "spawn": _spawn}


async def _in_thread(limiter: trio.CapacityLimiter, function: Any, *args: Any) -> Any:
    return await trio.to_thread.run_sync(function, *args, limiter=limiter)


@asynccontextmanager
async def open_supervisor(
    toolbox: Toolbox,
    *,
    workspace: str | Path,
    store: Store | None = None,
    backend: str | BackendFactory = "auto",
    policy: Policy | None = None,
    settings: Settings | None = None,
    audit_file: str | Path | None = None,
    publisher: Publisher | None = None,
    blocking: Blocking | None = None,
) -> AsyncIterator[Supervisor]:
    """Run a toolbox on a workspace for as long as the `async with` body lasts.

    Leaving the body stops calls in flight, rolls them back and waits, at most `Settings.shutdown_bound` and a second.
    An exception of the body leaves as it is, never wrapped in a group.

    Args:
        toolbox: The tools, from a module that a worker can import.
        workspace: An existing directory; every output is inside it.
        store: Where sessions, jobs and the audit log are kept; in memory when omitted.
        backend: `auto`, `spawn`, or a factory.
        policy: Who may use what; everybody everything when omitted.
        settings: The bounds.
        audit_file: Append the audit to this file, as JSON lines.
        publisher: How files are published; for tests.
        blocking: How blocking functions are run; in threads when omitted.

    Raises:
        UnsupportedPlatform: this is not a POSIX system.
        InvalidArguments: the workspace is no directory, or there is no such backend.
        ToolboxError: a tool cannot be loaded by a worker, or a parameter's type has no JSON Schema.
        StoreUnavailable: the audit file cannot be opened.
    """
    if sys.platform == "win32":
        raise UnsupportedPlatform(
            "ztrio runs on Linux and macOS only: it has to end whole process groups and exchange files atomically. "
            "Nothing was started."
        )
    root = Path(workspace).resolve()  # noqa: ASYNC240 - once, before anything runs
    if not root.is_dir():  # noqa: ASYNC240 - the same
        raise InvalidArguments(f"The workspace {workspace} is not a directory. Nothing was started; make it first.")
    factory = _BACKENDS.get(backend) if isinstance(backend, str) else backend
    if factory is None:
        raise InvalidArguments(f"There is no backend {backend!r}; choose from {', '.join(_BACKENDS)}.")
    if blocking is None:
        threads = trio.CapacityLimiter(_FILE_THREADS)

        def blocking(function: Any, /, *args: Any) -> Any:
            return _in_thread(threads, function, *args)

    services = _Services(
        toolbox=toolbox,
        workspace=root,
        settings=settings or Settings(),
        store=MemoryStore() if store is None else store,
        factory=factory,
        policy=policy,
        publisher=Publisher(root) if publisher is None else publisher,
        audit_file=None if audit_file is None else Path(audit_file),
        blocking=blocking,
    )
    for tool in toolbox:
        _ = tool.schema  # a broken type fails here, not in the middle of the first call
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        try:
            supervisor: Supervisor = await nursery.start(services.run)
            try:
                yield supervisor
            finally:
                await supervisor.aclose()
        except BaseException as error:  # noqa: BLE001, ASYNC103 - raised again below, outside the nursery
            failure = error
    if failure is not None:
        raise failure
