"""ztrio: a Trio runtime in which the end of a tool call says what became of its effects.

Layers, each importing only what stands below it:

    management, opening                 how an operator reaches it; open_supervisor: what it runs on
    supervisor                          Supervisor: calls, questions, closing
    admission                           allow or refuse
    execution, reads, session_tools     one call, from the queue to its terminal event
    preparation, commit, ending, idempotency, restart
                                        what decides its effects, and those of calls repeated or cut short
    jobs                                a call in flight
    findings, tracking                  what was left of those, in words; calls that nobody knows about, under trio
    publication, workers, upstream, memory_activity, memory_store, sessions, limits, audit_file, policy
    store, locks
    activity                            what is stored of pending calls
    reloading                           a toolbox again, from disk
    loading, tools, binding, schema, policies, audit
    events, pending                     what happened to a call; calls of which nobody knows whether they happened; both
                                        pure as well
    calls, errors, plain, redaction     pure: no trio

What a file of tools needs is imported with the package. The rest, which is for servers, is imported when it is first
asked for: a worker that carries a supervisor and trio costs twice the time to fork, run and end, and megabytes.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from ztrio.calls import LOCAL, CallContext, CallResult, Cause, Outcome, Principal, View
from ztrio.errors import (
    AlreadyInUse,
    AnswerNotKept,
    Busy,
    CallGated,
    CommitFailed,
    IdempotencyConflict,
    InvalidArguments,
    LimitExceeded,
    NotSent,
    OutputConflict,
    OutputRefused,
    OutputRejected,
    PermissionDenied,
    QueueFull,
    QueueTimeout,
    RegistryFull,
    SessionDestroyedError,
    SessionNotFound,
    ShuttingDown,
    StoreRefused,
    StoreUnavailable,
    ToolboxError,
    ToolError,
    ToolTimeout,
    UnknownCall,
    Unresolved,
    UnsupportedPlatform,
    UpstreamUnavailable,
    WorkerFailed,
    ZtrioError,
)
from ztrio.loading import load_toolbox
from ztrio.policies import Input, Limits, Output
from ztrio.tools import Capability, Toolbox, ToolContext

if TYPE_CHECKING:
    from ztrio.audit import AuditBus, AuditEvent
    from ztrio.jobs import Settings
    from ztrio.memory_store import MemoryStore
    from ztrio.opening import open_supervisor
    from ztrio.policy import Policy, allow
    from ztrio.store import Store
    from ztrio.supervisor import Supervisor
else:

    def __getattr__(name: str) -> object:
        """What is for servers, when it is asked for. Unknown to type checkers, which are to know what there is not."""
        if name not in _FOR_SERVERS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"ztrio.{_FOR_SERVERS[name]}"), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_FOR_SERVERS})


__all__ = [
    "LOCAL",
    "AlreadyInUse",
    "AnswerNotKept",
    "AuditBus",
    "AuditEvent",
    "Busy",
    "CallContext",
    "CallGated",
    "CallResult",
    "Capability",
    "Cause",
    "CommitFailed",
    "IdempotencyConflict",
    "Input",
    "InvalidArguments",
    "LimitExceeded",
    "Limits",
    "MemoryStore",
    "NotSent",
    "Outcome",
    "Output",
    "OutputConflict",
    "OutputRefused",
    "OutputRejected",
    "PermissionDenied",
    "Policy",
    "Principal",
    "QueueFull",
    "QueueTimeout",
    "RegistryFull",
    "SessionDestroyedError",
    "SessionNotFound",
    "Settings",
    "ShuttingDown",
    "Store",
    "StoreRefused",
    "StoreUnavailable",
    "Supervisor",
    "ToolContext",
    "ToolError",
    "ToolTimeout",
    "Toolbox",
    "ToolboxError",
    "UnknownCall",
    "Unresolved",
    "UnsupportedPlatform",
    "UpstreamUnavailable",
    "View",
    "WorkerFailed",
    "ZtrioError",
    "allow",
    "load_toolbox",
    "open_supervisor",
]

_FOR_SERVERS = {
    "AuditBus": "audit",
    "AuditEvent": "audit",
    "Settings": "jobs",
    "open_supervisor": "opening",
    "Policy": "policy",
    "allow": "policy",
    "MemoryStore": "memory_store",
    "Store": "store",
    "Supervisor": "supervisor",
}
