"""How a call that changed nothing ends: its error in words, and the transaction that says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ztrio.errors import Outcome, QueueTimeout, ShuttingDown, StoreUnavailable, ToolTimeout, ZtrioError
from ztrio.jobs import Job, Runtime
from ztrio.store import JobEnd

__all__ = ["finish", "reasons", "stop_error"]


async def finish(runtime: Runtime, job: Job, name: str, outcome: Outcome, **facts: Any) -> None:
    """End a call that changed nothing: one transaction, then the event.

    A store that cannot write this must not keep the caller from the truth: the event goes out on the bus all the
    same, and new mutating calls are refused until the store works.
    """
    event = runtime.audit.stamp(job.event(name, outcome=outcome, **facts))
    try:
        await runtime.store.finish(JobEnd(job_id=job.id, outcome=outcome, event=event))
    except Exception as error:  # noqa: BLE001 - any failure of the store means the same: it was not written
        runtime.audit.mark_unavailable("store", f"the store failed: {type(error).__name__}: {error}")
    else:
        runtime.audit.mark_available("store")
    runtime.audit.deliver(event)


def reasons(job: Job, error: ZtrioError) -> dict[str, Any]:
    """Why a call does not succeed, as audit events say it; one that somebody stopped has a cause and no code."""
    cause = job.cause.text
    if isinstance(error, ShuttingDown):
        return {"cause": cause}
    blamed = error.details.get("exception_type") or type(error.__cause__ or error).__name__
    return {"cause": cause, "code": error.code, "reason": error.message, "exception_type": blamed}


def stop_error(job: Job, details: Mapping[str, str]) -> ZtrioError | None:
    """The error of a call that was stopped, by its recorded cause; None when it was not."""
    cause = job.cause.text
    if cause is None:
        return None
    if cause == "queue_timeout":
        return QueueTimeout(
            f"The call waited {job.queue_timeout:g} s for its session, targets or a worker. Nothing ran; repeat later."
        )
    kept = "Everything it did was discarded" if not job.reads_only else "A read changes nothing"
    if cause == "timeout":
        return ToolTimeout(
            f"{job.tool.name} ran longer than {job.timeout:g} s and was stopped. {kept}; "
            "allow it more time or give it less to do.",
            timeout=job.timeout,
            **details,
        )
    if cause == "audit_unavailable":
        return StoreUnavailable(f"The audit cannot be written, so the call was stopped. {kept}; repeat when it works.")
    return ShuttingDown(f"The call was stopped ({cause}). {kept}; repeat it.", cause=cause, **details)
