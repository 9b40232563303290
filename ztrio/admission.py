"""Allow or refuse: everything that is decided about a call before it waits for anything.

All of it is synchronous, from the first check to the place in the ticket table, so that calls are served in the
order in which they were made. The few metadata system calls that find a target's canonical path are made here for
the same reason: a thread hop would let a later call of the same session overtake.
"""

from __future__ import annotations

import copy
import datetime as dt
import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import trio

from ztrio.audit import AuditEvent
from ztrio.calls import CallContext, ProgressCallback, new_id
from ztrio.errors import (
    InvalidArguments,
    Outcome,
    OutputRefused,
    PermissionDenied,
    QueueFull,
    ShuttingDown,
    StoreUnavailable,
    ZtrioError,
)
from ztrio.execution import Execution
from ztrio.idempotency import Duplicate, KeyedCall, Keys, Runnable, check_key, digest_of
from ztrio.jobs import Job, Runtime
from ztrio.limits import Key
from ztrio.pending import reconcile_ids
from ztrio.plain import digest
from ztrio.policy import Policy
from ztrio.publication.targets import Target, refuse_overlap, resolve_input, resolve_output
from ztrio.reads import Read
from ztrio.session_tools import SESSION_TOOLS, SessionCall
from ztrio.sessions import check_name
from ztrio.store import JobRow
from ztrio.tools import Capability, Tool, Toolbox

__all__ = ["Admission", "ToolDescription"]


@attrs.frozen
class ToolDescription:
    """A tool as clients see it.

    Args:
        name: Its name.
        title: A short name for people, or None.
        description: What it does.
        capability: `read`, `write` or `destructive`.
        input_schema: JSON Schema of the arguments.
        output_schema: JSON Schema of the structured result, or None.
    """

    name: str
    title: str | None
    description: str
    capability: Capability
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None


class Admission:
    """Decides about calls and knows those in flight.

    Args:
        toolbox: The tools.
        runtime: What the calls share.
        policy: Who may use what, or None for everybody everything.

    Attributes:
        jobs: Call id → call, for calls accepted and not settled.
    """

    def __init__(self, toolbox: Toolbox, runtime: Runtime, policy: Policy | None) -> None:
        self._toolbox = toolbox
        self._runtime = runtime
        self._policy = policy
        self.jobs: dict[str, Job] = {}
        self._keys = Keys()
        # Calls whose task is running; unresolved ones may stay in `jobs` without one.
        self._active = 0
        self._idle = trio.Event()

    def describe_tools(self) -> list[ToolDescription]:
        """Every tool with its schemas, the session tools last."""
        described = [
            ToolDescription(
                tool.name,
                tool.title,
                tool.description,
                tool.capability,
                copy.deepcopy(tool.schema.input_schema),
                copy.deepcopy(tool.schema.output_schema),
            )
            for tool in (*self._toolbox, *SESSION_TOOLS.values())
        ]
        for tool in described:
            if tool.name in ("session_open", "session_list"):
                del tool.input_schema["properties"]["session"]
        return described

    def admit(
        self,
        tool_name: str,
        arguments: Mapping[str, Any],
        *,
        session: str,
        timeout: float | None,
        queue_timeout: float | None,
        context: CallContext,
        on_progress: ProgressCallback | None,
        capped: bool,
        closing: bool,
        idempotency_key: str | None = None,
        reconciles: Sequence[str] = (),
    ) -> Job | Duplicate:
        """Accept a call and give it its place in the queue, or refuse it. See `Supervisor.call`.

        Returns:
            The call, or the one that it has to wait for because that has the same idempotency key and runs.

        Raises:
            ZtrioError: refused; the refusal is in the audit and nothing else has changed.
        """
        job_id = new_id("job_")
        tool = self._toolbox.get(tool_name) or SESSION_TOOLS.get(tool_name)
        try:
            if closing:
                raise ShuttingDown("The supervisor is closing. Nothing ran; call it when it is back.")
            if tool is None:
                raise InvalidArguments(f"There is no tool {tool_name!r}. Nothing ran; list the tools.")
            self._permit(tool, context)
            check_name(self._runtime.store.secret, context.principal.id, session)
            values = tool.schema.validate(arguments)
            seconds = _limit("timeout", timeout, tool.timeout, tool.max_timeout if capped else math.inf)
            patience = _limit("queue_timeout", queue_timeout, tool.queue_timeout, math.inf)
            named = reconcile_ids(reconciles) if reconciles != () else ()
            identity, refusal = None, None
            if idempotency_key is not None:
                identity = (check_key(idempotency_key), digest_of(values, session))
                holder = self._keys.holder(context.principal.id, tool.name, *identity)
                if holder is not None:
                    self._below_bound(self._keys.waiting)
                    return Duplicate(holder, seconds, self._keys)
            try:
                targets, values = self._resolve(tool, values)
            except ZtrioError as error:
                if identity is None:
                    raise
                targets, refusal = (), error
            self._have_room(tool)
            if identity is None and tool.capability is not Capability.READ and tool.name not in SESSION_TOOLS:
                self._runtime.own_calls.refuse_gated(job_id, tool.name, str(tool.capability), context)
            row = _row(job_id, tool, context, session, targets, *identity or (None, None))
            stored = identity is None and self._remember(tool, row)
        except ZtrioError as error:
            self._deny(job_id, tool_name, tool, session, context, error)
            raise
        job = self._accept(tool, context, values, targets, seconds, patience, on_progress, row, stored=stored)
        job.reconciles = named
        if identity is None:
            self._allow(job)
        else:
            job.refusal = refusal
            self._keys.hold(job)
        return job

    def execution(self, job: Job) -> Runnable:
        """What runs this job to its end."""
        if job.row.idempotency_key is not None:
            return KeyedCall(self._runtime, job, known=self.jobs, allow=self._allow, execution=self._execution)
        return self._execution(job)

    def _execution(self, job: Job) -> Runnable:
        if job.tool.name in SESSION_TOOLS:
            return SessionCall(self._runtime, job)
        if job.tool.in_worker:
            return Execution(self._runtime, job)
        return Read(self._runtime, job)

    def forget(self, job: Job, *, settled: bool) -> None:
        """The task of this job has ended. A call that is not settled stays known: it still holds its keys."""
        self._active -= 1
        self._keys.release(job)
        if settled:
            del self.jobs[job.id]
        if not self._active:
            self._idle.set()
            self._idle = trio.Event()

    def settle(self, job: Job) -> None:
        """An unresolved call may have been settled; then it holds nothing any more."""
        if job.settled:
            self.jobs.pop(job.id, None)

    def replace_toolbox(self, toolbox: Toolbox) -> None:
        """Allow calls of these tools from now on."""
        self._toolbox = toolbox

    async def wait_idle(self) -> None:
        """Wait until no job's task is running."""
        while self._active:
            await self._idle.wait()

    def read_tools(self, context: CallContext, server: str) -> list[str]:
        """The tools that only read and that a caller may use now, if `server` is this toolbox."""
        if server != self._runtime.own_calls.server:
            return []
        reads = (tool for tool in self._toolbox if tool.capability is Capability.READ)
        return [tool.name for tool in reads if self._policy is None or self._policy(context, tool) is None]

    def _permit(self, tool: Tool, context: CallContext) -> None:
        view, capability = context.view, tool.capability
        if capability not in view.tiers or (view.read_only and capability is not Capability.READ):
            raise PermissionDenied(f"{tool.name}: this caller may not use {capability} tools. Nothing ran.")
        reason = None if self._policy is None else self._policy(context, tool)
        if reason is not None:
            raise PermissionDenied(f"{tool.name}: {reason}. Nothing ran; ask the operator.")

    def _have_room(self, tool: Tool) -> None:
        unavailable = self._runtime.audit.unavailable
        if unavailable is not None and tool.capability is not Capability.READ:
            raise StoreUnavailable(f"Mutating calls are refused, because {unavailable}. Nothing ran; reads go on.")
        self._below_bound(len(self.jobs))

    def _below_bound(self, calls: int) -> None:
        admitted = self._runtime.settings.admitted
        if calls >= admitted:
            raise QueueFull(f"{admitted} calls are queued or running already. Nothing ran; repeat later.")

    def _resolve(self, tool: Tool, values: dict[str, Any]) -> tuple[tuple[Target, ...], dict[str, Any]]:
        """The targets, and the arguments with input paths made absolute."""
        workspace, parameters = self._runtime.workspace, tool.parameters
        targets, resolved = [], dict(values)
        for name, raw in tool.schema.path_arguments(values).items():
            if name in parameters.outputs:
                targets.append(resolve_output(workspace, name, raw, parameters.outputs[name]))
            else:
                resolved[name] = str(resolve_input(workspace, name, raw, parameters.inputs[name]))
        refuse_overlap(targets)
        for target in targets:
            locked = self._runtime.recovery.locking(target.path)
            if locked is not None:
                raise OutputRefused(
                    f"{target.parameter}: {target.path} is locked, because call {locked.job_id} was cut short and "
                    f"could not be undone: {locked.reason} Nothing was started.",
                    code="TARGET_LOCKED",
                    parameter=target.parameter,
                    path=str(target.path),
                    locked_by=locked.job_id,
                )
        return tuple(targets), resolved

    def _remember(self, tool: Tool, row: JobRow) -> bool:
        """Hand the row to the store, which writes it before anything else of the call: `allow` never stands alone.

        Returns:
            Whether it took it. Reads go on without; nobody can ask for their outcome then.
        """
        try:
            self._runtime.store.insert_job_nowait(row)
        except Exception as error:
            if tool.capability is Capability.READ:
                return False
            raise StoreUnavailable(
                f"The store failed ({type(error).__name__}: {error}). Nothing ran; repeat when it works."
            ) from error
        return True

    def _accept(
        self,
        tool: Tool,
        context: CallContext,
        values: dict[str, Any],
        targets: tuple[Target, ...],
        seconds: float,
        patience: float,
        on_progress: ProgressCallback | None,
        row: JobRow,
        *,
        stored: bool,
    ) -> Job:
        runtime = self._runtime
        principal, session = row.principal, row.session
        job = Job(
            id=row.job_id,
            tool=tool,
            context=context,
            session=session,
            arguments=values,
            targets=targets,
            timeout=seconds,
            queue_timeout=patience,
            on_progress=on_progress,
            allowed_at=trio.current_time(),
            row=row,
            stored=stored,
            ticket=runtime.tickets.enter(row.job_id, _keys(tool, principal, session, targets)),
            pin=runtime.pins.pin(principal, session),
        )
        self.jobs[job.id] = job
        self._active += 1
        return job

    def _allow(self, job: Job) -> None:
        self._runtime.audit.publish(
            job.event(
                "allow",
                argument_digest=digest({"arguments": dict(job.arguments), "session": job.session}),
                arguments=dict(job.arguments) if self._runtime.settings.audit_arguments else None,
                targets=tuple(job.row.targets.values()) or None,
            )
        )

    def _deny(
        self, job_id: str, name: str, tool: Tool | None, session: object, context: CallContext, error: ZtrioError
    ) -> None:
        error.job_id, error.outcome = job_id, Outcome.NOT_STARTED
        self._runtime.audit.publish(
            AuditEvent(
                event="deny",
                execution_job_id=job_id,
                tool=name,
                session=session if isinstance(session, str) else None,
                principal=context.principal.id,
                request_id=context.request_id,
                surface=context.surface,
                capability=None if tool is None else str(tool.capability),
                code=error.code,
                reason=error.message,
                outcome=Outcome.NOT_STARTED,
            )
        )


def _row(
    job_id: str,
    tool: Tool,
    context: CallContext,
    session: str,
    targets: tuple[Target, ...],
    key: str | None,
    key_digest: str | None,
) -> JobRow:
    return JobRow(
        job_id=job_id,
        principal=context.principal.id,
        tool=tool.name,
        session=session,
        capability=str(tool.capability),
        phase="queued",
        outcome=None,
        targets={target.parameter: str(target.path) for target in targets},
        created_at=dt.datetime.now(dt.UTC).isoformat(timespec="microseconds"),
        idempotency_key=key,
        idempotency_digest=key_digest,
    )


def _keys(tool: Tool, principal: str, session: str, targets: tuple[Target, ...]) -> list[Key]:
    """What the call must have for itself: nothing for a read or a new session, else the session and the targets."""
    if tool.capability is Capability.READ or tool.name == "session_open":
        return []
    return [("session", principal, session), *(target.key for target in targets)]


def _limit(name: str, asked: float | None, default: float, most: float) -> float:
    if asked is None:
        return default
    wrong = f"{name} must be a finite number of seconds above 0, not {asked!r}. Nothing ran."
    if isinstance(asked, bool) or not isinstance(asked, int | float):
        raise InvalidArguments(wrong)
    try:
        seconds = float(asked)
    except OverflowError:
        raise InvalidArguments(wrong) from None
    if not math.isfinite(seconds) or seconds <= 0:
        raise InvalidArguments(wrong)
    if seconds > most:
        raise InvalidArguments(f"{name} is {seconds:g} s, at most {most:g} s are allowed. Nothing ran.")
    return seconds
