"""Opening a supervisor: what it runs on, in which nurseries, and how that ends.

Two nurseries, because two lives have to be kept apart. The user's `async with` body belongs to the user: its
cancellation must reach the calls it makes, as a word, and never their cleanup. Everything the supervisor runs (the
backend, the jobs, the audit file) therefore lives in one service task under a shield that closing, and only closing,
puts a deadline on. Calls are jobs in that task; callers wait for them and say when they leave.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import attrs
import trio

from ztrio.audit import AuditBus, Subscription
from ztrio.audit_file import AuditFile
from ztrio.ending import write_again
from ztrio.errors import InvalidArguments, UnsupportedPlatform
from ztrio.findings import Recovery
from ztrio.jobs import Blocking, Runtime, Settings
from ztrio.limits import KeyedLimiter
from ztrio.loading import known_ref
from ztrio.memory_store import MemoryStore
from ztrio.pending import Mode as GateMode
from ztrio.pending import PendingSettings
from ztrio.policy import Policy
from ztrio.publication.staging import Publisher
from ztrio.redaction import Redactor
from ztrio.restart import recover, workspace_lock
from ztrio.sessions import SessionPins
from ztrio.store import Store
from ztrio.supervisor import Supervisor
from ztrio.tools import Toolbox
from ztrio.tracking.desk import Desk
from ztrio.tracking.notices import Notify
from ztrio.tracking.own_calls import OwnCalls, local_server
from ztrio.tracking.restoring import take_up
from ztrio.tracking.tracker import Tracker
from ztrio.workers.backend import Backend, BackendFactory, BackendSettings
from ztrio.workers.ladder import Containment, rungs_for
from ztrio.workers.sandbox import Mode, Sandbox, choose, undumpable
from ztrio.workers.selection import BACKENDS, open_backend

__all__ = ["open_supervisor"]

_FILE_THREADS = 16
_LAST_MOMENT = 0.4  # seconds for the audit file after everything else has ended
_LAST_WRITE = 0.2  # seconds for what the store is still to know of pending calls, before that


@attrs.define
class _Services:
    """Opens what a supervisor runs on, keeps it running, and takes it down in the opposite order."""

    toolbox: Toolbox
    workspace: Path
    settings: Settings
    store: Store
    factory: BackendFactory
    containment: str
    policy: Policy | None
    publisher: Publisher
    sandbox: Sandbox
    audit_file: Path | None
    redact: Redactor | None
    blocking: Blocking
    gate: PendingSettings
    notify: Notify | None
    # Whether the workspace is locked, so that what is found there belongs to nobody alive; set before `run`.
    locked: bool = False

    async def run(self, *, task_status: trio.TaskStatus[Supervisor]) -> None:
        audit = AuditBus(admitted=self.settings.admitted, recorder=self.store.record, redact=self.redact)
        self.store.watch(audit.follow_store)
        file = None if self.audit_file is None else AuditFile(self.audit_file)
        if file is not None:
            file.open()
        supervisor: Supervisor | None = None
        tracker = Tracker(self.gate, audit=audit, store=self.store, notify=self.notify)
        written = trio.Event()
        try:
            # Cancelling the user's body must not cut cleanup short: closing does, with a deadline of its own.
            with trio.CancelScope(shield=True) as lifetime:
                async with trio.open_nursery() as writers, AsyncExitStack() as stack:
                    stack.enter_context(undumpable())
                    if file is not None:
                        events = await stack.enter_async_context(audit.subscribe(durable=True, capacity=4096))
                        writers.start_soon(_write_all, file, audit, events, written)
                    backend = await stack.enter_async_context(self.factory(self._backend_settings(self.toolbox)))
                    try:
                        recovery = await self._recover(audit, tracker, lifetime)
                        async with trio.open_nursery() as nursery:
                            runtime = self._runtime(audit, backend, nursery, recovery, tracker)
                            supervisor = Supervisor(
                                self.toolbox, runtime, self.policy, lifetime, self._backend_settings
                            )
                            nursery.start_soon(supervisor.watch_audit)
                            nursery.start_soon(write_again, runtime)
                            nursery.start_soon(tracker.expire)
                            nursery.start_soon(tracker.records.run)
                            # Whoever opens it may have been cancelled meanwhile. Then this task would stay the
                            # opener's, who waits for its end, and nobody would ever close it.
                            lifetime.shield = False
                            await trio.lowlevel.checkpoint_if_cancelled()
                            lifetime.shield = True
                            task_status.started(supervisor)
                            await supervisor.run_until_idle()
                            nursery.cancel_scope.cancel()
                    finally:
                        # What ended the calls may be a failure of our own; their events are wanted all the more.
                        with trio.move_on_after(_LAST_WRITE, shield=True):
                            await tracker.records.flush()
                        audit.close()
                        if file is not None:
                            with trio.move_on_after(_LAST_MOMENT, shield=True):
                                await written.wait()
                    writers.cancel_scope.cancel()
        finally:
            if supervisor is not None:
                supervisor.closed.set()

    async def _recover(self, audit: AuditBus, tracker: Tracker, lifetime: trio.CancelScope) -> Recovery:
        """Put right what an earlier process left, before anybody is answered. Cut short, the next start goes on."""
        lifetime.shield = False  # and stays so when this is cancelled: then nothing here is to be kept
        found = Recovery()
        if self.locked:
            found = await recover(self.store, str(self.workspace), audit, blocking=self.blocking)
        await take_up(tracker, self.store, local_server(self.toolbox.name))
        lifetime.shield = True
        return found

    def _runtime(
        self, audit: AuditBus, backend: Backend, nursery: trio.Nursery, recovery: Recovery, tracker: Tracker
    ) -> Runtime:
        tickets = KeyedLimiter()
        for locked in recovery.locked:  # for as long as this supervisor runs: nothing that it does can settle them
            tickets.enter(locked.job_id, [("path", *Path(locked.path).parts)])
        desk = Desk(tracker, self.store.secret)
        return Runtime(
            settings=self.settings,
            workspace=self.workspace,
            store=self.store,
            audit=audit,
            tickets=tickets,
            recovery=recovery,
            slots=trio.CapacityLimiter(self.settings.workers),
            readers=trio.CapacityLimiter(self.settings.readers),
            pins=SessionPins(),
            backend=backend,
            publisher=self.publisher,
            sandbox=self.sandbox,
            tracker=tracker,
            desk=desk,
            own_calls=OwnCalls(tracker, desk, self.toolbox.name),
            blocking=self.blocking,
            nursery=nursery,
        )

    def _backend_settings(self, toolbox: Toolbox) -> BackendSettings:
        references = [known_ref(tool.function) for tool in toolbox if tool.in_worker]
        modules = dict.fromkeys((ref.module.name, ref.module.file) for ref in references)
        return BackendSettings(
            modules=tuple(modules),
            functions=tuple((ref.module.name, ref.name) for ref in references),
            workspace=str(self.workspace),
            prewarmed=min(2, self.settings.workers),
            start_timeout=self.settings.start_bound,
            containment=self.containment,
        )


async def _write_all(file: AuditFile, audit: AuditBus, events: Subscription, written: trio.Event) -> None:
    try:
        await file.write_all(audit, events)
    finally:
        written.set()


async def _in_thread(limiter: trio.CapacityLimiter, function: Any, *args: Any) -> Any:
    return await trio.to_thread.run_sync(function, *args, limiter=limiter)


@asynccontextmanager
async def open_supervisor(
    toolbox: Toolbox,
    *,
    workspace: str | Path,
    store: Store | None = None,
    backend: Literal["auto", "zygote", "spawn"] | BackendFactory = "auto",
    containment: Containment = "auto",
    sandbox: Mode = "auto",
    run_as: tuple[int, int] | None = None,
    policy: Policy | None = None,
    settings: Settings | None = None,
    audit_file: str | Path | None = None,
    redact: Redactor | None = None,
    publisher: Publisher | None = None,
    blocking: Blocking | None = None,
    gate: Literal["off", "warn", "enforce"] | PendingSettings = "warn",
    notify: Notify | None = None,
) -> AsyncIterator[Supervisor]:
    """Run a toolbox on a workspace for as long as the `async with` body lasts.

    Leaving the body stops calls in flight, rolls them back and waits, at most `Settings.shutdown_bound` and a second.
    An exception of the body leaves as it is, never wrapped in a group.

    Args:
        toolbox: The tools, from a module that a worker can import.
        workspace: An existing directory; every output is inside it.
        store: Where sessions, jobs and the audit log are kept; in memory when omitted.
        backend: How workers are made: `zygote` forks them from a process that has loaded the toolbox (Linux), `spawn`
            starts each anew, `auto` takes the first of them that works; or a factory.
        containment: How a worker is kept together with everything it starts, so that its end can be proven: `auto`
            takes the best that works here, `require` the best that sees every descendant; or `pidns`, `cgroup`,
            `job-init` or `group`. Refuses to open where that is not to be had.
        sandbox: Whether workers are kept from writing anything but their outputs, temporary files and what a tool
            declares: `auto` where the system can (Landlock), `require` refuses to open where it cannot, `off` never.
        run_as: (user id, group id) of the workers, when this process is root.
        policy: Who may use what; everybody everything when omitted.
        settings: The bounds.
        audit_file: Append the audit to this file, as JSON lines.
        redact: Replaces secrets in what tools and callers said, before it enters an audit event.
        publisher: How files are published; for tests.
        blocking: How blocking functions are run; in threads when omitted.
        gate: What is done about a call that changes something while nobody knows what became of an earlier one of the
            same caller: nothing, say so in its result (`CallResult.warning`), or refuse it. Or all of the settings.
        notify: Is told of calls that nobody knows about, for a log: called with a name, and facts by keyword.

    Raises:
        UnsupportedPlatform: this is not a POSIX system, or it cannot do what is required.
        InvalidArguments: the workspace is no directory, there is no such backend or gate, or `run_as` without being
            root.
        ToolboxError: a tool cannot be loaded by a worker, or a parameter's type has no JSON Schema.
        StoreUnavailable: the audit file cannot be opened, or what an earlier process left cannot be put right because
            the store does not answer.
        AlreadyInUse: WORKSPACE_BUSY, another supervisor works in this workspace.
    """
    if sys.platform == "win32":
        raise UnsupportedPlatform(
            "ztrio runs on Linux and macOS only: it has to end whole process groups and exchange files atomically. "
            "Nothing was started."
        )
    root = Path(workspace).resolve()  # noqa: ASYNC240 - once, before anything runs
    if not root.is_dir():  # noqa: ASYNC240 - the same
        raise InvalidArguments(f"The workspace {workspace} is not a directory. Nothing was started; make it first.")
    rungs_for(containment)  # an unknown one is refused before anything is made
    if isinstance(backend, str):
        if backend not in BACKENDS:
            raise InvalidArguments(f"There is no backend {backend!r}; choose from {', '.join(BACKENDS)}.")
        factory: BackendFactory = partial(open_backend, choice=backend)
    else:
        factory = backend
    confinement = choose(sandbox, run_as)
    pending = _gate_settings(gate)
    if blocking is None:
        threads = trio.CapacityLimiter(_FILE_THREADS)

        def blocking(function: Any, /, *args: Any) -> Any:
            return _in_thread(threads, function, *args)

    store = MemoryStore() if store is None else store
    publisher = Publisher(root, worker=run_as) if publisher is None else publisher
    publisher.sign(store.store_id, durable=store.durable)
    services = _Services(
        toolbox=toolbox,
        workspace=root,
        settings=settings or Settings(),
        store=store,
        factory=factory,
        containment=containment,
        policy=policy,
        publisher=publisher,
        sandbox=confinement,
        audit_file=None if audit_file is None else Path(audit_file),
        redact=redact,
        blocking=blocking,
        gate=pending,
        notify=notify,
    )
    for tool in toolbox:
        _ = tool.schema  # a broken type fails here, not in the middle of the first call
    failure: BaseException | None = None
    supervisor: Supervisor | None = None
    with workspace_lock(root) as services.locked:
        try:
            async with trio.open_nursery() as nursery:
                try:
                    supervisor = await nursery.start(services.run)
                    try:
                        yield supervisor
                    finally:
                        # The body's own exception leaves, also when it is being cancelled; closing has its own bound.
                        with trio.CancelScope(shield=True):
                            await supervisor.aclose()
                except BaseException as error:  # noqa: BLE001, ASYNC103 - raised again below, outside the nursery
                    failure = error
        except BaseExceptionGroup as group:
            raise _single(group) from None  # what the services raised: a failure of their own, or KeyboardInterrupt
        if failure is not None:
            raise _single(failure) if supervisor is None else failure


def _gate_settings(gate: str | PendingSettings) -> PendingSettings:
    if isinstance(gate, PendingSettings):
        return gate
    if gate not in list(GateMode):
        raise InvalidArguments(f"There is no gate {gate!r}; choose from {', '.join(GateMode)}.")
    return PendingSettings(mode=GateMode(gate))


def _single(error: BaseException) -> BaseException:
    """The one exception inside nested groups of one, as our own nurseries make them."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
