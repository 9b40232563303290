"""A call in flight: what was asked, what may still stop it, and the one answer it gets.

A job runs in a task of the supervisor, not in its caller's. So nothing that happens to the caller, not even a second
cancellation, can reach its cleanup: the caller's leaving is a word (`Job.stop`), and what that word still changes is
decided here. Everything up to the complete result runs inside `Job.scope`; from the moment `deciding` is set the call
goes to its end whatever comes.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import attrs
import trio
from outcome import Error, Value
from outcome import Outcome as Captured

from ztrio.audit import AuditBus, AuditEvent
from ztrio.calls import CallContext, CallResult, Cause, ProgressCallback
from ztrio.errors import Outcome, ZtrioError
from ztrio.findings import Recovery
from ztrio.limits import KeyedLimiter, Ticket
from ztrio.publication.staging import Publisher
from ztrio.publication.targets import Target
from ztrio.sessions import SessionPin, SessionPins
from ztrio.store import JobEnd, JobRow, Store
from ztrio.tools import Capability, Tool
from ztrio.tracking.desk import Desk
from ztrio.tracking.own_calls import OwnCall, OwnCalls
from ztrio.tracking.tracker import Tracker
from ztrio.workers.backend import Backend
from ztrio.workers.sandbox import Sandbox

__all__ = ["Blocking", "Job", "Runtime", "Settings"]


class Blocking(Protocol):
    """Runs a blocking function away from the event loop; a wait for it cannot be cancelled."""

    def __call__(self, function: Callable[..., Any], /, *args: Any) -> Awaitable[Any]:
        """Run `function(*args)` and return its result."""


@attrs.frozen(kw_only=True)
class Settings:
    """The bounds of a supervisor.

    Args:
        workers: Worker processes at once.
        admitted: Calls queued or running at once.
        readers: Threads for synchronous reads at once.
        max_result: Bytes of the largest encoded result.
        max_state: Bytes of the largest encoded session state.
        start_bound: Seconds a worker may take to start and to receive its request.
        termination_bound: Seconds to wait for the proof of death after SIGKILL.
        commit_bound: Seconds from the proof of death to the answer; then the answer is "unresolved".
        shutdown_bound: Seconds that closing waits for calls in flight before it cuts their cleanup short.
        shutdown_grace: Seconds that a tool's `grace` is cut to while closing.
        audit_arguments: Put the arguments themselves into `allow` events.
    """

    workers: int = 64
    admitted: int = 1024
    readers: int = 40
    max_result: int = 8 * 2**20
    max_state: int = 4 * 2**20
    start_bound: float = 30.0
    termination_bound: float = 2.0
    commit_bound: float = 10.0
    shutdown_bound: float = 3.0
    shutdown_grace: float = 1.0
    audit_arguments: bool = False


@attrs.frozen(kw_only=True)
class Runtime:
    """What the calls of one supervisor share."""

    settings: Settings
    workspace: Path
    store: Store
    audit: AuditBus
    tickets: KeyedLimiter
    slots: trio.CapacityLimiter
    readers: trio.CapacityLimiter
    pins: SessionPins
    backend: Backend
    publisher: Publisher
    sandbox: Sandbox
    # What is not known of calls, who asks about that, and the gate that our own calls pass.
    tracker: Tracker
    desk: Desk
    own_calls: OwnCalls
    blocking: Blocking
    # Outlives every job; jobs and the timers of their commits run in it.
    nursery: trio.Nursery
    # What an earlier process left here; the targets that stay locked on account of it are in the ticket table as well.
    recovery: Recovery = attrs.field(factory=Recovery)
    # Ends that the store did not take, oldest first; while there are any it counts as unavailable, so no more calls
    # are admitted that could add to them.
    unwritten: deque[JobEnd] = attrs.field(factory=deque)
    # The newest mutating calls that ended without a commit, as rows: the store may not have written that yet. As many
    # as can be in flight when it stops working.
    ends: OrderedDict[str, JobRow] = attrs.field(factory=OrderedDict)

    def remember_end(self, row: JobRow, outcome: Outcome) -> None:
        """Know what became of a call while the store does not."""
        self.ends[row.job_id] = attrs.evolve(row, phase="ended", outcome=outcome)
        self.ends.move_to_end(row.job_id)
        while len(self.ends) > self.settings.admitted:
            self.ends.popitem(last=False)


@attrs.define(eq=False, kw_only=True)
class Job:
    """One accepted call."""

    id: str
    tool: Tool
    context: CallContext
    session: str
    arguments: Mapping[str, Any]
    targets: tuple[Target, ...]
    timeout: float
    queue_timeout: float
    on_progress: ProgressCallback | None
    allowed_at: float
    # How the store remembers it, as of its acceptance.
    row: JobRow
    # Its place in the ticket table; left when the call is settled, never for an unresolved one.
    ticket: Ticket
    # Its hold on the session's life at the time it was allowed.
    pin: SessionPin
    # Ids of pending calls that it names; they mean something for a read only.
    reconciles: tuple[str, ...] = ()
    # Its record, once it has passed the gate; None for a read that can settle nothing.
    call: OwnCall | None = None
    # Kills the worker at once; None while there is none that may be killed without grace.
    kill: Callable[[], None] | None = None
    # Everything that a stop may interrupt runs in here.
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    # Cleanup and commit run in here. Shielded without a deadline, because a commit that is overdue still has to be
    # settled; closing the supervisor sets the deadline.
    settling: trio.CancelScope = attrs.field(factory=lambda: trio.CancelScope(shield=True))
    # Seconds that the tool's grace is cut to; finite while the supervisor closes.
    grace_limit: float = math.inf
    # Whether the store has its row, so that there is something to end there.
    stored: bool = False
    # Why it cannot run; only of a call with an idempotency key, which may repeat one that did.
    refusal: ZtrioError | None = None
    # Whether its answer is that of the call that it repeats; then nothing of its own happened.
    repeated: bool = False
    # Why it is being stopped: the first word stands.
    cause: Cause = attrs.field(factory=Cause)
    # Set once, when the commit begins: from here on no stop is taken.
    deciding: bool = False
    # What became of the effects, as far as is known; final when the answer is there, but for "unresolved".
    outcome: Outcome = Outcome.RUNNING
    # False for an unresolved call that keeps its files, locks and slot when its task ends.
    settled: bool = True
    # Settles a call whose worker could not be proven dead within the bound, once it is; None for all others. It runs in
    # a task of its own that nobody waits for.
    undertaker: Callable[[], Awaitable[None]] | None = None
    # The answer; set once, before `answered`.
    answer: Captured[CallResult] | None = None
    answered: trio.Event = attrs.field(factory=trio.Event)

    @property
    def reads_only(self) -> bool:
        """Whether the tool is a read."""
        return self.tool.capability is Capability.READ

    @property
    def settle_bound(self) -> float:
        """Seconds, generously, in which a stopped call has an answer: the longest way through `settling`."""
        return self.tool.grace + 60.0

    def stop(self, cause: str) -> bool:
        """Ask the call to end without effects, for this reason; False when it is too late or already asked."""
        if self.deciding or self.answered.is_set() or not self.cause.record(cause):
            return False
        if self.kill is not None:
            self.kill()
        self.scope.cancel()
        return True

    def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Pass a progress report on, unless the call is being stopped or has its answer."""
        if self.on_progress is not None and self.cause.text is None and not self.answered.is_set():
            self.on_progress(progress, total, message)

    def succeed(self, value: Any, outcome_: Outcome, targets: Mapping[str, str]) -> None:
        """Answer with a value; nothing when there is an answer already."""
        self.outcome = outcome_
        warning = None if self.call is None else self.call.warning
        try:
            if self.call is not None:
                self.call.succeeded(outcome_)
        finally:
            self._reply(Value(CallResult(value, self.id, outcome_, targets, warning)))

    def fail(self, error: ZtrioError, outcome_: Outcome) -> None:
        """Answer with an error that says what became of the effects; nothing when there is an answer already."""
        self.outcome = outcome_
        error.job_id, error.outcome = self.id, outcome_
        try:
            if self.call is not None:
                self.call.failed(outcome_, error)
        finally:
            self._reply(Error(error))

    def answer_like(self, answer: Captured[CallResult], outcome_: Outcome) -> None:
        """Answer as the call that this one repeats was answered."""
        self.repeated = True
        self.outcome = outcome_
        self._reply(answer)

    def _reply(self, answer: Captured[CallResult]) -> None:
        if self.answer is None:
            self.answer = answer
            self.answered.set()

    def pass_gate(self, own_calls: OwnCalls) -> None:
        """Meet the gate: its turn has come.

        Raises:
            CallGated: an earlier call of this scope is unresolved, and the gate refuses others meanwhile.
            RegistryFull: the gate would have to refuse it if it were unresolved, and there is no room for that.
        """
        tool = self.tool
        self.call = own_calls.begin(
            self.id,
            tool.name,
            str(tool.capability),
            self.context,
            self.timeout,
            in_worker=tool.in_worker,
            external=tool.effects == "external",
            reconciles=self.reconciles,
        )

    def event(self, name: str, **facts: Any) -> AuditEvent:
        """An audit event about this call."""
        return AuditEvent(
            event=name,
            execution_job_id=self.id,
            tool=self.tool.name,
            session=self.session,
            principal=self.context.principal.id,
            request_id=self.context.request_id,
            surface=self.context.surface,
            capability=str(self.tool.capability),
            timeout=self.timeout,
            duration=trio.current_time() - self.allowed_at,
            **facts,
        )
