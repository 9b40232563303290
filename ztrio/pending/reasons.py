"""The words for what happened, in one place, because people match on them: reasons, codes, outcomes.

`REASONS` is the table that maps a reason to its code, to the state it is given in and to what it means; the
documentation prints it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from ztrio.pending.states import UNTRACKED, State

__all__ = [
    "CODES",
    "NOT_PROCESSED",
    "REASONS",
    "STATES",
    "ActorKind",
    "CancelError",
    "LateOutcome",
    "Mode",
    "Phase",
    "Proof",
    "Reason",
    "Tier",
    "Transport",
    "code_of",
    "codes_table",
    "not_processed_table",
    "reasons_table",
    "states_table",
]


class Tier(StrEnum):
    """How much a call may change; the order of the members is the order of caution."""

    READ = "read"
    WRITE = "write"
    DESTRUCTIVE = "destructive"


class Mode(StrEnum):
    """What the gate does about a write while another is unresolved: nothing, say so, refuse."""

    OFF = "off"
    WARN = "warn"
    ENFORCE = "enforce"


class Transport(StrEnum):
    """How a server is reached. `local` stands for our own tools, `sse` for the older two-endpoint HTTP transport."""

    STDIO = "stdio"
    HTTP = "http"
    SSE = "sse"
    LOCAL = "local"


class Phase(StrEnum):
    """Where a call was when it ended without having been sent."""

    QUEUE = "queue"
    ADMISSION = "admission"
    CONNECT = "connect"
    GATE = "gate"
    WRITE = "write"


class Reason(StrEnum):
    """Why nobody knows what became of a call."""

    DEADLINE_EXCEEDED = "deadline_exceeded"
    STILL_RUNNING = "still_running"
    CALLER_DEADLINE = "caller_deadline"
    CALLER_CANCELLED = "caller_cancelled"
    TRANSPORT_LOST = "transport_lost"
    WAITING_HUMAN = "waiting_human"
    EXTERNAL_EFFECTS = "external_effects"
    TERMINATION_UNCONFIRMED = "termination_unconfirmed"
    COMMIT_UNCONFIRMED = "commit_unconfirmed"


class LateOutcome(StrEnum):
    """What a response said that came after its caller had stopped waiting."""

    SUCCESS = "success"
    TOOL_ERROR = "tool_error"
    JSONRPC_ERROR = "jsonrpc_error"
    MALFORMED = "malformed"
    INPUT_REQUIRED = "input_required"
    TASK_ACCEPTED = "task_accepted"


class Proof(StrEnum):
    """What an upstream that keeps books knows about a call id. `running` settles nothing."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    NOT_STARTED = "not_started"
    RUNNING = "running"


class CancelError(StrEnum):
    """Why an upstream could not be told."""

    TRANSPORT_CLOSED = "transport_closed"
    UNSUPPORTED_TRANSPORT = "unsupported_transport"
    SEND_FAILED = "send_failed"
    ID_UNKNOWN = "id_unknown"


class ActorKind(StrEnum):
    """Who did something to a call."""

    CALLER = "caller"
    OPERATOR = "operator"
    UPSTREAM = "upstream"
    GATEWAY = "gateway"


REASONS: Final[Mapping[Reason, tuple[str, str]]] = MappingProxyType(
    {
        Reason.DEADLINE_EXCEEDED: ("CALL_UNRESOLVED", "the call's own timeout ran out and no response had come"),
        Reason.STILL_RUNNING: (
            "CALL_UNRESOLVED",
            "the same, but the upstream had reported progress within the last 30 s",
        ),
        Reason.CALLER_DEADLINE: ("CALL_UNRESOLVED", "the caller allowed less time than the call needed"),
        Reason.CALLER_CANCELLED: ("CALL_UNRESOLVED", "the caller cancelled, or left, after the call had been sent"),
        Reason.TRANSPORT_LOST: (
            "CALL_UNRESOLVED",
            "the connection ended without a response; `UPSTREAM_DIED` when the server's process did",
        ),
        Reason.WAITING_HUMAN: ("CALL_UNRESOLVED", "the call asked a person something, and nobody has answered"),
        Reason.EXTERNAL_EFFECTS: (
            "CALL_UNRESOLVED",
            "a tool of ours with effects elsewhere was killed; files and session state were rolled back",
        ),
        Reason.TERMINATION_UNCONFIRMED: (
            "TERMINATION_UNCONFIRMED",
            "a worker of ours cannot be proven dead; its session and targets stay locked",
        ),
        Reason.COMMIT_UNCONFIRMED: (
            "COMMIT_UNCONFIRMED",
            "a commit of ours takes too long, or cannot say whether it happened",
        ),
    }
)
"""Reason → code, meaning. All of them are given when a call becomes `unresolved`."""

CODES: Final[Mapping[str, tuple[str, str, str]]] = MappingProxyType(
    {
        "NOT_SENT": ("not_sent", "nothing was sent; `phase` says where the call ended", "repeat it"),
        "CALL_UNRESOLVED": ("unresolved", "it was sent and may have happened", "look, or wait; do not repeat blindly"),
        "UPSTREAM_DIED": (
            "unresolved, then connection_reset",
            "the server's process died in the middle of the call; exit status and stderr are in `details`",
            "look at what the call was to change, then reconcile or release",
        ),
        "TERMINATION_UNCONFIRMED": ("unresolved", "a worker of ours cannot be proven dead", "look at the process"),
        "COMMIT_UNCONFIRMED": ("unresolved", "a commit of ours cannot say whether it happened", "ask again later"),
        "PENDING_CALL_UNRESOLVED": (
            "the refused call has none; nothing of it was sent",
            "the gate: an earlier write of the same scope is unresolved",
            "one of the ways out that the error names",
        ),
        "PENDING_REGISTRY_FULL": (
            "the refused call has none; nothing of it was sent",
            "this caller has as many calls on its books as fit",
            "repeat after a second, settle old calls",
        ),
    }
)
"""Code → state of the call, what happened, what to do."""

STATES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        State.RESERVED: ("no", "checked, not written yet"),
        State.SENT: ("no", "a byte of it may have reached the upstream; somebody waits for the response"),
        State.UNRESOLVED: ("yes", "nobody waits any more and nobody knows; a late response may still come"),
        State.CANCELLING: ("yes", "the upstream is being told to stop"),
        State.COMPLETED: ("no", "answered in time"),
        State.NOT_SENT: ("no", "never sent, or refused by the upstream before it was processed"),
        State.COMPLETED_LATE: ("no", "answered after the caller had stopped waiting; `late_outcome` says how"),
        State.CANCELLED: ("no", "the upstream was told; whether it happened is not known"),
        State.CONNECTION_RESET: (
            "held for writes, unless `on_reset: open`",
            "the connection it was sent on is gone, so no response can come",
        ),
        State.PROVEN: ("no", "the upstream's own record says what became of it"),
        State.RECONCILED: ("no", "a later read of the same server and scope succeeded"),
        State.RELEASED: ("no", "the operator said so"),
        State.EXPIRED: ("only with `on_expire: hold`", "no response came until its last moment"),
        UNTRACKED: ("no", "in the activity record only: nobody knows any more"),
    }
)
"""State → whether it gates, meaning."""


NOT_PROCESSED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "connection refused": "no connection, so no request",
        "401": "not authenticated",
        "403": "not permitted",
        "404": "no such endpoint or session",
        "413": "larger than the server reads",
        "429": "too many requests",
    }
)
"""Answers to a request that prove that it was not processed, when they come before any of its response."""


def code_of(reason: Reason, *, died: bool = False) -> str:
    """The error code that a caller gets for `reason`; `died` when the upstream's process did."""
    if died and reason is Reason.TRANSPORT_LOST:
        return "UPSTREAM_DIED"
    return REASONS[reason][0]


def _rows(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ("---",) * len(head), *rows))


def reasons_table() -> str:
    """The reasons as Markdown, for the documentation."""
    return _rows(
        ("reason", "code", "state", "meaning"),
        [(f"`{reason}`", f"`{code}`", "`unresolved`", text) for reason, (code, text) in REASONS.items()],
    )


def codes_table() -> str:
    """The codes as Markdown, for the documentation."""
    return _rows(
        ("code", "state", "what happened", "what to do"),
        [(f"`{code}`", *facts) for code, facts in CODES.items()],
    )


def not_processed_table() -> str:
    """The answers that prove that nothing happened as Markdown, for the documentation."""
    return _rows(("answer", "why nothing happened"), list(NOT_PROCESSED.items()))


def states_table() -> str:
    """The states as Markdown, for the documentation."""
    return _rows(
        ("state", "final", "gates", "meaning"),
        [
            (f"`{state}`", "yes" if isinstance(state, State) and state.terminal else "no", *facts)
            for state, facts in STATES.items()
        ],
    )
