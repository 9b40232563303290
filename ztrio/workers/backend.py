"""What the supervisor needs from whoever makes workers. Two kinds implement it: `spawn` and `zygote`.

The backend owns a worker from its making until `acquire` returns it, and owns all control I/O of making one, so a
caller that leaves while its worker is being made leaves nothing behind: the backend kills what arrives. After the
hand-over the call owns the worker and must end it with `terminate`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import attrs

from ztrio.workers.ladder import ContainmentReport
from ztrio.workers.wire import Failure, Request, Result

__all__ = ["Backend", "BackendFactory", "BackendSettings", "BackendStatistics", "Proof", "Worker"]


@attrs.frozen(kw_only=True)
class Proof:
    """Evidence that a worker and everything it started is dead.

    Args:
        rung: The rung of the containment ladder that gives the evidence, see `ladder`.
        complete: Whether the rung sees *every* descendant. `group` does not: one that made its own session escapes,
            and the call is labelled `containment: partial`.
        pid: The process id on the host, of the worker or of what ends with it.
        status: Exit status of the worker, negative for the signal that ended it (as `subprocess` has it); None where
            nobody is left who could tell.
        killed_at: Trio time when SIGKILL was sent.
        proven_at: Trio time when the tree was seen empty.
        survivors_killed: Live members of the group found after the leader's exit, which SIGKILL then ended.
        escalated: Whether SIGKILL had to follow SIGTERM because the grace period ran out.
        namespace: Inode number of the PID namespace that was seen to end, or None.
        cgroup: Path of the cgroup that was seen empty, or None.
    """

    rung: str
    complete: bool
    pid: int
    status: int | None
    killed_at: float
    proven_at: float
    survivors_killed: int = 0
    escalated: bool = False
    namespace: int | None = None
    cgroup: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The proof as it stands in audit events."""
        facts = {name: value for name, value in attrs.asdict(self).items() if value is not None or name == "status"}
        return {**facts, "containment": "full" if self.complete else "partial"}


class Worker(Protocol):
    """One worker process, good for one call."""

    @property
    def pid(self) -> int:
        """Process id on the host."""

    @property
    def started_at(self) -> float:
        """The process's start time, seconds since the epoch; with the pid it names the process for ever."""

    async def send_request(self, request: Request) -> None:
        """Hand over the call and wait until the worker has it (its `Started` frame).

        Raises:
            ztrio.InvalidArguments: arguments and session state together are larger than a frame.
            ztrio.WorkerFailed: it died or broke the protocol.
        """

    async def receive(self, on_progress: Callable[[float, float | None, str | None], None]) -> Result | Failure:
        """Wait for the complete result frame, reporting progress on the way.

        Raises:
            ztrio.WorkerFailed: WORKER_DIED with the exit status, or WORKER_PROTOCOL_ERROR.
        """

    def kill(self) -> None:
        """Send SIGKILL, to as many as that reaches, now: `terminate`, which proves the end, follows.

        So whoever stops many calls ends all of their tools before doing anything else. Their tools would take the
        processor from the first one's clean-up.
        """

    async def terminate(self, *, grace: float, bound: float) -> Proof | None:
        """End the worker and its descendants and prove it.

        Cancellation-safe in this sense: the caller shields it; it ends by itself within `grace + bound` seconds. May
        be called again: after None it tries again, after a proof it returns the same.

        Args:
            grace: Seconds between SIGTERM and SIGKILL; 0 sends SIGKILL at once.
            bound: Seconds to wait for the proof after SIGKILL; may be infinite.

        Returns:
            The proof, or None when none was to be had within the bound.
        """

    def output_tail(self) -> str:
        """The last of what the worker wrote to stdout and stderr, decoded, bounded."""


@attrs.frozen
class BackendStatistics:
    """A snapshot of a backend.

    Args:
        name: Name of the backend.
        idle: Workers made and not yet handed over.
        starting: Workers being made.
        handed_over: Workers handed over so far.
        unproven: Workers whose death could not be proven within the bound, and was not since.
    """

    name: str
    idle: int
    starting: int
    handed_over: int
    unproven: int


class Backend(Protocol):
    """Makes workers.

    Attributes:
        report: How they are contained, and why so.
    """

    report: ContainmentReport

    async def acquire(self) -> Worker:
        """A fresh worker that has everything loaded.

        Raises:
            ztrio.WorkerFailed: WORKER_START_FAILED, with what the worker printed.
        """

    def statistics(self) -> BackendStatistics:
        """A snapshot."""

    async def reload(self, settings: BackendSettings) -> None:
        """Load everything anew from disk, for workers that are handed over from now on.

        Raises:
            ztrio.WorkerFailed: something cannot be loaded; then everything stays as it was.
        """


@attrs.frozen(kw_only=True)
class BackendSettings:
    """What every backend needs to know.

    Args:
        modules: (name, file or None) of the modules to load.
        functions: (module name, function name) of the tools.
        workspace: Absolute path of the workspace.
        prewarmed: Workers to keep ready.
        containment: How workers are to be contained, see `ladder.Containment`.
        start_timeout: Seconds a worker may take until it is ready.
        output_limit: Bytes of captured output kept per worker.
    """

    modules: tuple[tuple[str, str | None], ...]
    functions: tuple[tuple[str, str], ...]
    workspace: str
    prewarmed: int = 2
    containment: str = "auto"
    start_timeout: float = 30.0
    output_limit: int = 64 * 1024


BackendFactory = Callable[[BackendSettings], AbstractAsyncContextManager[Backend]]
"""Opens a backend: its tasks run inside the context and every worker it still owns is ended on leaving it."""
