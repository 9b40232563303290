"""How a call that changed nothing ends: its error in words, and the transaction that says so.

Such a transaction only tells what became of the call; whether it succeeds changes nothing about that. So nobody waits
for it: it is handed to the store, the event goes out and the caller is answered, also when the store fails, stalls or
the supervisor ends meanwhile. New mutating calls are refused then, and what was not written is written as soon as the
store works again.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import trio

from ztrio.errors import (
    LimitExceeded,
    Outcome,
    QueueTimeout,
    ShuttingDown,
    StoreUnavailable,
    ToolError,
    ToolTimeout,
    Unresolved,
    ZtrioError,
)
from ztrio.jobs import Job, Runtime
from ztrio.store import AlreadyEnded, JobEnd, StoreConflict
from ztrio.workers.backend import Proof, Worker
from ztrio.workers.wire import Failure, Result

__all__ = [
    "commit_told",
    "finish",
    "has_committed",
    "never_silent",
    "proof_of_death",
    "reasons",
    "stop_error",
    "tool_error",
    "write_again",
]

_PROOF_RETRY: Final = 1.0  # seconds between attempts to prove a death that a backend failed to see
_RETRY: Final = 0.5  # seconds between attempts to write what a store did not take


def finish(runtime: Runtime, job: Job, name: str, outcome: Outcome, answer: Callable[[], None], **facts: Any) -> None:
    """End a call that changed nothing: one transaction, then the event and the answer, whatever befalls the store.

    Args:
        runtime: What the calls share.
        job: The call.
        name: Name of the terminal event.
        outcome: What became of the effects.
        answer: Answers the caller.
        facts: Further facts of the event.
    """
    if not job.stored:
        runtime.audit.publish(job.event(name, outcome=outcome, **facts))
        answer()
        return
    event = runtime.audit.stamp(job.event(name, outcome=outcome, **facts))
    end = JobEnd(job_id=job.id, outcome=outcome, event=event)
    problem: str | None = "was interrupted"
    try:
        runtime.store.finish_nowait(end)
        problem = None
    except Exception as error:  # noqa: BLE001 - any failure of the store means the same: it was not written
        problem = f"failed: {type(error).__name__}: {error}"
    finally:
        if not job.reads_only:
            runtime.remember_end(job.row, outcome)
        if problem is not None:
            runtime.audit.mark_unavailable("store", f"the store {problem}")
            if not job.reads_only:
                runtime.unwritten.append(end)
        runtime.audit.deliver(event)
        answer()


async def write_again(runtime: Runtime) -> None:
    """Write what the store did not take, as soon as it takes it. Runs as long as the supervisor."""
    while True:
        await runtime.audit.wait_unavailable()
        while runtime.audit.unavailable is not None:  # whoever fails now, the store may be next
            await trio.sleep(_RETRY)
            if not runtime.audit.failing("store"):
                continue
            try:
                with trio.move_on_after(runtime.settings.commit_bound):
                    while runtime.unwritten:
                        with contextlib.suppress(StoreConflict):  # it makes no sense, and never will
                            await runtime.store.finish(runtime.unwritten[0])
                        runtime.unwritten.popleft()
                    runtime.audit.mark_available("store")
            except Exception:  # noqa: BLE001, S112 - as in `finish`; it is known already
                continue


async def has_committed(runtime: Runtime, job: Job) -> bool | None:
    """Whether a transaction that raised has happened, if the store can tell; if it has not, it never will any more."""
    try:
        await runtime.store.abort(job.id)
    except AlreadyEnded as ended:
        return ended.outcome is Outcome.COMMITTED
    except Exception:  # noqa: BLE001 - any failure means the same: it cannot tell
        return None
    return False


async def commit_told(runtime: Runtime, job: Job) -> bool:
    """Wait until the store can tell whether a transaction in doubt happened, and make sure that it stays so.

    Returns:
        Whether it happened.
    """
    while True:
        await trio.sleep(_RETRY)
        happened = await has_committed(runtime, job)
        if happened is not None:
            return happened


def never_silent(runtime: Runtime, job: Job) -> None:
    """Answer a call whose settling was cut short by the end of the supervisor, or broke."""
    if job.answered.is_set():
        return
    if job.reads_only:
        error: ZtrioError = ShuttingDown("The supervisor ended before the call did. A read changes nothing; repeat it.")
        name, outcome = "error", Outcome.COMPLETED
    else:
        reason = "commit_unconfirmed" if job.deciding else "termination_unconfirmed"
        error = Unresolved(
            "The supervisor ended before the call was settled. Look at the targets before repeating.", reason=reason
        )
        name, outcome = "unresolved", Outcome.UNRESOLVED
    runtime.audit.publish(job.event(name, outcome=outcome, **reasons(job, error)))
    job.fail(error, outcome)


async def proof_of_death(worker: Worker) -> Proof:
    """Wait for the proof of death, however long it takes and whatever a backend stumbles over meanwhile."""
    while True:
        try:
            proof = await worker.terminate(grace=0.0, bound=math.inf)
        except Exception:  # noqa: BLE001 - whatever it is, nothing is proven by that
            proof = None
        if proof is not None:
            return proof
        await trio.sleep(_PROOF_RETRY)


def reasons(job: Job, error: ZtrioError) -> dict[str, Any]:
    """Why a call does not succeed, as audit events say it; one that somebody stopped has a cause and no code."""
    cause = job.cause.text
    if isinstance(error, ShuttingDown):
        return {"cause": cause}
    blamed = error.details.get("exception_type") or type(error.__cause__ or error).__name__
    return {"cause": cause, "code": error.code, "reason": error.message, "exception_type": blamed}


def stop_error(job: Job, *, ran: bool, **details: str) -> ZtrioError | None:
    """The error of a call that was stopped, by its recorded cause; None when it was not.

    Args:
        job: The call.
        ran: Whether its tool may have run.
        details: Facts for the error.
    """
    cause = job.cause.text
    if cause is None:
        return None
    if cause == "queue_timeout":
        return QueueTimeout(
            f"The call waited {job.queue_timeout:g} s for its session, targets or a worker. Nothing ran; repeat later."
        )
    kept = "Nothing ran"
    if ran:
        kept = "A read changes nothing" if job.reads_only else "Everything it did was discarded"
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


def tool_error(reply: Result | Failure | None, output: Mapping[str, str]) -> ZtrioError | None:
    """The error that a worker's answer stands for, or None.

    Args:
        reply: What the worker sent last.
        output: `output`, what the tool printed last, or nothing.
    """
    if not isinstance(reply, Failure):
        return None
    known = {name: getattr(reply, name) for name in ("exception_type", "traceback", "path", "limit")}
    details: dict[str, Any] = {**{name: value for name, value in known.items() if value}, **output}
    if reply.code in LimitExceeded.codes:
        return LimitExceeded(reply.message, code=reply.code, **details)
    return ToolError(reply.message, **details)
