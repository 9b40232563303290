"""The exceptions of ztrio: one class per decision a caller can take, each failure with a stable code.

Why a tree of decisions and not one class per code: `except` is a decision. Nobody treats `OUTPUT_OVERLAP` and
`OUTPUT_IS_SYMLINK` differently in code (both mean "fix the call"), while `QueueFull` and `ToolError` are worlds
apart. The code stays on the instance for people, logs and wire formats.

Every error says what happened to the caller's data (`outcome`) and its message ends with what to do next.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar

__all__ = [
    "AlreadyInUse",
    "AnswerNotKept",
    "Busy",
    "CallGated",
    "CommitFailed",
    "IdempotencyConflict",
    "InvalidArguments",
    "LimitExceeded",
    "NotSent",
    "Outcome",
    "OutputConflict",
    "OutputRefused",
    "OutputRejected",
    "PermissionDenied",
    "QueueFull",
    "QueueTimeout",
    "RegistryFull",
    "SessionDestroyedError",
    "SessionNotFound",
    "ShuttingDown",
    "StoreRefused",
    "StoreUnavailable",
    "ToolError",
    "ToolTimeout",
    "ToolboxError",
    "UnknownCall",
    "Unresolved",
    "UnsupportedPlatform",
    "UpstreamUnavailable",
    "WorkerFailed",
    "ZtrioError",
]


class Outcome(StrEnum):
    """What happened to the effects of a call.

    `COMPLETED`: a read, answered; it had no effects. `COMMITTED`: files and session state are as the tool left
    them. `ROLLED_BACK`: the tool ran and everything is as before. `NOT_STARTED`: the tool never ran. `RUNNING`:
    not decided yet. `UNRESOLVED`: cannot be known now; do not repeat blindly.
    """

    COMPLETED = "completed"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    NOT_STARTED = "not_started"
    RUNNING = "running"
    UNRESOLVED = "unresolved"


class ZtrioError(Exception):
    """Base of every failure that ztrio reports.

    Args:
        message: One or two sentences: what happened, what became of the caller's data, what to do.
        code: Stable identifier, one of the class's `codes`; the first of them when omitted.
        details: Further JSON-like facts for machines (paths, limits, the tail of captured output).

    Attributes:
        code: The stable identifier, for example `"TOOL_TIMEOUT"`.
        message: The sentence given.
        details: The facts given.
        job_id: The call's id, or None where no call was accepted; set when the error leaves the supervisor.
        outcome: What became of the call's effects; set when the error leaves the supervisor.

    Raises:
        ValueError: `code` does not belong to this class.
    """

    codes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, message: str, *, code: str | None = None, **details: Any) -> None:
        if code is None:
            code = self.codes[0]
        elif code not in self.codes:
            raise ValueError(f"{type(self).__name__} has no code {code!r}")
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details
        self.job_id: str | None = None
        self.outcome: Outcome | None = None

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def as_dict(self) -> dict[str, Any]:
        """The error as the JSON object that every surface shows: code, message, job_id, outcome, then details."""
        known = {
            "code": self.code,
            "message": self.message,
            "job_id": self.job_id,
            "outcome": None if self.outcome is None else str(self.outcome),
        }
        return {**{key: value for key, value in known.items() if value is not None}, **self.details}


class InvalidArguments(ZtrioError):
    """The call itself is wrong: an unknown tool, a bad argument, a timeout beyond what is allowed. Fix the call."""

    codes = ("INVALID_ARGUMENTS",)


class OutputRefused(ZtrioError):
    """An `Output` or `Input` path cannot be used; refused before the tool started. Choose another path."""

    codes = (
        "OUTPUT_OUTSIDE_WORKSPACE",
        "OUTPUT_OVERLAP",
        "OUTPUT_IS_SYMLINK",
        "OUTPUT_NOT_WRITABLE",
        "OUTPUT_EXISTS",
        "TARGET_LOCKED",
    )


class PermissionDenied(ZtrioError):
    """The policy does not let this principal use this capability. Ask the operator."""

    codes = ("PERMISSION_DENIED",)


class Busy(ZtrioError):
    """There is no room now; nothing ran. Safe to repeat later."""


class QueueTimeout(Busy):
    """The call waited `queue_timeout` seconds for its session, its targets or a worker slot."""

    codes = ("QUEUE_TIMEOUT",)


class QueueFull(Busy):
    """As many calls as the supervisor admits are queued or running."""

    codes = ("QUEUE_FULL",)


class RegistryFull(Busy):
    """As many calls of this caller are in flight or unresolved as are kept for it; nothing was sent. Repeat later."""

    codes = ("PENDING_REGISTRY_FULL",)


class NotSent(ZtrioError):
    """The call ended before anything of it was sent, see `details["phase"]`; nothing happened. Safe to repeat."""

    codes = ("NOT_SENT",)


class UpstreamUnavailable(ZtrioError):
    """The server behind the gateway does not run, or cannot be talked to. Nothing was sent."""

    codes = ("UPSTREAM_UNAVAILABLE",)


class CallGated(ZtrioError):
    """An earlier call of this scope may or may not have happened, so this one was not sent. Settle that one first."""

    codes = ("PENDING_CALL_UNRESOLVED",)


class UnknownCall(ZtrioError):
    """There is no pending call of this id that this caller may see. Nothing was done."""

    codes = ("PENDING_CALL_NOT_FOUND",)


class ShuttingDown(ZtrioError):
    """The supervisor is closing. A call in flight was rolled back; see `outcome`."""

    codes = ("SHUTTING_DOWN",)


class StoreUnavailable(ZtrioError):
    """State or audit cannot be written, so mutating calls are refused and running ones rolled back; reads go on."""

    codes = ("STORE_UNAVAILABLE",)


class StoreRefused(ZtrioError):
    """The file is no store that this version can use; it was left as it is. Do as the message says, or name another."""

    codes = ("STORE_FOREIGN", "STORE_NEWER", "STORE_DAMAGED")


class AlreadyInUse(ZtrioError):
    """Another process works on this workspace, store or gateway; nothing was started. End it, or choose another."""

    codes = ("WORKSPACE_BUSY", "STORE_BUSY", "GATEWAY_BUSY")


class IdempotencyConflict(ZtrioError):
    """The idempotency key stands for a call with other arguments; nothing ran. Use a new key for a new call."""

    codes = ("IDEMPOTENCY_CONFLICT",)


class AnswerNotKept(ZtrioError):
    """A call of this idempotency key has committed and its answer is gone; nothing ran again. Look at its targets."""

    codes = ("ANSWER_NOT_KEPT",)


class SessionNotFound(ZtrioError):
    """No session of this name is open for this principal. Open one, or use another name."""

    codes = ("SESSION_NOT_FOUND",)


class SessionDestroyedError(ZtrioError):
    """The session was destroyed after this call was allowed (or its handle is burnt). Open a new session."""

    codes = ("SESSION_DESTROYED",)


class ToolTimeout(ZtrioError):
    """The tool ran longer than its `timeout`; it was killed and everything it did in staging was discarded."""

    codes = ("TOOL_TIMEOUT",)


class ToolError(ZtrioError):
    """The tool raised, or returned something that cannot be a result. `details` has exception_type, traceback."""

    codes = ("TOOL_ERROR",)


class WorkerFailed(ZtrioError):
    """The worker process did not start, died, or broke its protocol; nothing was published."""

    codes = ("WORKER_DIED", "WORKER_START_FAILED", "WORKER_PROTOCOL_ERROR")


class LimitExceeded(ZtrioError):
    """The tool produced more than its bounds allow; nothing was published. Produce less, or raise the bound."""

    codes = ("RESULT_TOO_LARGE", "STATE_TOO_LARGE", "OUTPUT_TOO_LARGE")


class OutputRejected(ZtrioError):
    """What the tool left in staging cannot be published; nothing was. The tool needs mending."""

    codes = ("OUTPUT_MISSING", "OUTPUT_UNSAFE")


class OutputConflict(ZtrioError):
    """Somebody changed a target while the tool ran; theirs was kept. Look at the target, then repeat."""

    codes = ("OUTPUT_CONFLICT",)


class CommitFailed(ZtrioError):
    """Publication or the store failed; files and state were put back as they were. Safe to repeat."""

    codes = ("COMMIT_FAILED",)


class Unresolved(ZtrioError):
    """Nobody can say now whether the call's effects happened. Do not repeat blindly: look at the targets first.

    Args:
        reason: Why: `termination_unconfirmed`, `external_effects`, `deadline_exceeded`, …; decides the code.
        died: Whether it is because the process of an upstream server died.
    """

    codes = ("CALL_UNRESOLVED", "TERMINATION_UNCONFIRMED", "COMMIT_UNCONFIRMED", "UPSTREAM_DIED")

    def __init__(self, message: str, *, reason: str, died: bool = False, **details: Any) -> None:
        code = "UPSTREAM_DIED" if died else reason.upper()
        super().__init__(message, code=code if code in self.codes else "CALL_UNRESOLVED", reason=reason, **details)
        self.reason = reason


class ToolboxError(ZtrioError):
    """A toolbox cannot be loaded or a tool cannot be registered; nothing was served. Mend the named line."""

    codes = ("TOOLBOX_INVALID",)


class UnsupportedPlatform(ZtrioError):
    """This platform cannot keep the promises; nothing was started."""

    codes = ("UNSUPPORTED_PLATFORM",)
