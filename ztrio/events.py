"""What happened to a call, as one fact: what the audit bus carries, the store writes down and people are shown."""

from __future__ import annotations

import datetime as dt
from operator import attrgetter
from typing import Any, Final

import msgspec

from ztrio.calls import CallContext
from ztrio.errors import Outcome

__all__ = ["AuditEvent", "may_see"]


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One fact about a call. The attributes are named like the keys of its JSON form.

    A struct of msgspec's, because each call publishes several and a copy of one costs a tenth of what attrs takes.

    Args:
        event: What happened: `allow`, `deny`, `start`, `timeout`, `cancel`, `error`, `worker_terminated`, `commit`,
            `rollback`, `completed`, `queue_timeout`, `unresolved`, `settled`, `recovered`, `commit_unanswered`, `gap`.
        execution_job_id: The call's id; empty for `gap` and the others that have `pending`.
        tool: Name of the tool.
        session: The caller's name for the session.
        principal: Id of who called.
        request_id: The caller's own id of the request, with its JSON type.
        surface: Where the call came in.
        seq: Position in this process's sequence of events, from 1. A terminal event takes its number before its
            transaction, so events of two calls may be delivered out of numeric order; those of one call never.
        time: Wall clock, ISO 8601 in UTC.
        monotonic: Trio's clock in seconds; differences are durations.
        capability: `read`, `write` or `destructive`.
        timeout: The limit that applied, in seconds.
        duration: Seconds since the call was allowed.
        cause: Why the call was stopped, in the words of whoever stopped it.
        code: Error code of a failure or refusal.
        reason: The failure or refusal in a sentence. Like `cause` and `arguments` it is kept without what the bus's
            redactor takes for a secret.
        exception_type: Class name of the exception behind it.
        termination_confirmed: Whether the whole worker tree is proven dead; None where no worker was involved.
        proof: The proof of death: rung, pids, times, status.
        outcome: What became of the effects, on terminal events.
        targets: Published or intended paths, absolute.
        argument_digest: SHA-256 of the canonical arguments, as `sha256:<hex>`.
        arguments: The arguments, only where the operator asked for them.
        pid: Process id of the worker.
        sandbox: What keeps the worker from writing elsewhere, on `start`: `landlock`, `unavailable` or `off`.
        kept: Paths that a rollback left in place because somebody else had changed them.
        missed: How many events a viewer lost, on `gap`.
        pending: What happened to a pending call, on `pending_call`: `call_id`, `server`, `step`, `state`, ….
    """

    event: str
    execution_job_id: str = ""
    tool: str | None = None
    session: str | None = None
    principal: str | None = None
    request_id: str | int | None = None
    surface: str | None = None
    seq: int = 0
    time: str = ""
    monotonic: float = 0.0
    capability: str | None = None
    timeout: float | None = None
    duration: float | None = None
    cause: str | None = None
    code: str | None = None
    reason: str | None = None
    exception_type: str | None = None
    termination_confirmed: bool | None = None
    proof: dict[str, Any] | None = None
    outcome: Outcome | None = None
    targets: tuple[str, ...] | None = None
    argument_digest: str | None = None
    arguments: dict[str, Any] | None = None
    pid: int | None = None
    sandbox: str | None = None
    kept: tuple[str, ...] | None = None
    missed: int | None = None
    pending: dict[str, Any] | None = None

    def later(self, monotonic: float, **facts: Any) -> AuditEvent:
        """The same event, stamped already, as of now. From any thread.

        Args:
            monotonic: Trio's time by now.
            facts: What is known since.
        """
        time = dt.datetime.now(dt.UTC).isoformat(timespec="microseconds")
        duration = None if self.duration is None else self.duration + monotonic - self.monotonic
        return self.evolved(time=time, monotonic=monotonic, duration=duration, **facts)

    def evolved(self, **facts: Any) -> AuditEvent:
        """The same event with other facts."""
        return msgspec.structs.replace(self, **facts)

    def as_dict(self) -> dict[str, Any]:
        """The JSON object: `seq`, `event`, then what is known; absent facts are left out."""
        facts = zip(_NAMES, _values(self), strict=True)
        known = {"seq": self.seq, "event": self.event, **{name: value for name, value in facts if value is not None}}
        if self.outcome is not None:
            known["outcome"] = str(self.outcome)
        for name in ("targets", "kept"):
            if name in known:
                known[name] = list(known[name])
        return known


_NAMES: Final = AuditEvent.__struct_fields__
_values: Final = attrgetter(*_NAMES)


def may_see(context: CallContext, event: AuditEvent) -> bool:
    """Whether `context` is shown `event`: its own principal's events, an admin all, gaps always."""
    return context.view.admin or event.principal == context.principal.id or event.event == "gap"
