"""ztrio: a Trio runtime in which the end of a tool call says what became of its effects.

Layers, each importing only what stands below it:

    opening                             open_supervisor: what a supervisor runs on
    supervisor                          Supervisor: calls, questions, closing
    admission                           allow or refuse
    execution, reads, session_tools     one call, from the queue to its terminal event
    commit, ending, restart             what decides its effects, and those of calls that were cut short
    jobs                                a call in flight
    findings                            what was left of those, in words
    publication, workers, memory_store, sessions, limits, audit_file, policy
    store, locks
    reloading                           a toolbox again, from disk
    loading, tools, schema, policies, audit
    calls, errors, plain                pure: no trio
"""

from ztrio.audit import AuditBus, AuditEvent
from ztrio.calls import LOCAL, CallContext, CallResult, Cause, Outcome, Principal, View
from ztrio.errors import (
    AlreadyInUse,
    Busy,
    CommitFailed,
    IdempotencyConflict,
    InvalidArguments,
    LimitExceeded,
    OutputConflict,
    OutputRefused,
    OutputRejected,
    PermissionDenied,
    QueueFull,
    QueueTimeout,
    SessionDestroyedError,
    SessionNotFound,
    ShuttingDown,
    StoreRefused,
    StoreUnavailable,
    ToolboxError,
    ToolError,
    ToolTimeout,
    Unresolved,
    UnsupportedPlatform,
    WorkerFailed,
    ZtrioError,
)
from ztrio.jobs import Settings
from ztrio.loading import load_toolbox
from ztrio.memory_store import MemoryStore
from ztrio.opening import open_supervisor
from ztrio.policies import Input, Limits, Output
from ztrio.policy import Policy, allow
from ztrio.store import Store
from ztrio.supervisor import Supervisor
from ztrio.tools import Capability, Toolbox, ToolContext

__all__ = [
    "LOCAL",
    "AlreadyInUse",
    "AuditBus",
    "AuditEvent",
    "Busy",
    "CallContext",
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
    "Unresolved",
    "UnsupportedPlatform",
    "View",
    "WorkerFailed",
    "ZtrioError",
    "allow",
    "load_toolbox",
    "open_supervisor",
]
