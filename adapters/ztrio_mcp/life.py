"""How a stdio process lives and ends: one word ends it, everything in flight rolls back, and it is gone in time.

    end of input, or a write that fails      cause client_gone    exit status 0
    SIGINT, SIGTERM, SIGHUP                  cause shutdown       exit status 128 + signal
    a failure of the server itself           cause shutdown       exit status 1

The first of these stands. Then the same steps follow in every case: calls in flight are stopped and rolled back, the
answers that can still be written are written, workers are ended, the process exits, all within `EXIT_BOUND`. Whoever
does not want to wait sends a second signal: live workers are killed and the process ends at once with 128 + signal.
The same happens when the bound runs out; the status is then the one that was promised.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Final, NoReturn

import attrs
import trio

from ztrio.audit import AuditEvent

__all__ = [
    "EXIT_BOUND",
    "FAILURE_STATUS",
    "SIGNALS",
    "Ending",
    "LiveWorkers",
    "bounded_exit",
    "force_exit",
    "live",
    "watch_signals",
]

EXIT_BOUND: Final = 4.8
"""Seconds from the first word to the forced exit; MCP clients wait about 5 before they kill."""

FAILURE_STATUS: Final = 1
"""Exit status after a failure of the server itself."""

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@attrs.define(eq=False)
class Ending:
    """Why a serving process ends and with which status; the first word stands."""

    # Both are set together, once.
    cause: str | None = None
    status: int | None = None
    _requested: trio.Event = attrs.field(factory=trio.Event, init=False)
    # Called by the first word, before anybody else hears of it.
    on_request: Callable[[], object] | None = None

    def request(self, cause: str, status: int) -> bool:
        """Ask for the end; True if this was the first word.

        Args:
            cause: `client_gone` or `shutdown`; goes into the audit of the calls that are stopped.
            status: Exit status of the process.
        """
        if self.cause is not None:
            return False
        self.cause, self.status = cause, status
        if self.on_request is not None:
            self.on_request()
        self._requested.set()
        return True

    async def wait(self) -> str:
        """Wait for the first word; the cause."""
        await self._requested.wait()
        assert self.cause is not None
        return self.cause


class LiveWorkers:
    """A reducer of the audit bus that knows which worker process groups are running.

    A forced exit kills them by name instead of leaving them to find out that their supervisor is gone.
    """

    _ENDS: Final = frozenset({"worker_terminated", "commit", "rollback", "completed", "error", "deny", "unresolved"})

    def __init__(self) -> None:
        # Job id -> process group of its worker, from `start` until the proof of death is published.
        self._groups: dict[str, int] = {}

    def __call__(self, event: AuditEvent) -> None:
        """Take an event into account."""
        if event.event == "start" and event.pid is not None:
            self._groups[event.execution_job_id] = event.pid
        elif event.event in self._ENDS and event.termination_confirmed:
            self._groups.pop(event.execution_job_id, None)

    def groups(self) -> tuple[int, ...]:
        """The process groups."""
        return tuple(self._groups.values())

    def kill(self) -> None:
        """SIGKILL every group."""
        for group in self.groups():
            try:
                os.killpg(group, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass  # it ended by itself; its proof was on the way


def force_exit(workers: LiveWorkers, status: int) -> NoReturn:
    """Kill the workers and end the process now, without any cleanup."""
    workers.kill()
    os._exit(status)


async def watch_signals(
    ending: Ending, workers: LiveWorkers, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Turn the first signal into the end of serving and a second one into the end of the process. Never returns.

    Args:
        ending: Told about the first signal.
        workers: Killed by the second.
        task_status: Started when signals are being received.
    """

    def force(signum: int, _frame: FrameType | None) -> None:
        force_exit(workers, 128 + signum)

    with trio.open_signal_receiver(*SIGNALS) as received:
        task_status.started()
        async for signum in received:
            ending.request("shutdown", 128 + signum)
            # From the handler itself, so that it works even when the event loop is stuck. The receiver puts the
            # former handlers back when it closes.
            for each in SIGNALS:
                signal.signal(each, force)


@contextmanager
def bounded_exit(ending: Ending, workers: LiveWorkers) -> Iterator[None]:
    """Force the exit `EXIT_BOUND` seconds after the first word, unless the block has been left by then.

    SIGALRM needs neither a thread, which might not be had, nor the event loop, which might be what is stuck. For the
    same reason the clock is started by the word itself and not by a task that hears of it.

    Args:
        ending: Starts the clock, and knows the status.
        workers: Killed by a forced exit.
    """

    def force(_signum: int, _frame: FrameType | None) -> None:
        force_exit(workers, FAILURE_STATUS if ending.status is None else ending.status)

    former = signal.signal(signal.SIGALRM, force)
    ending.on_request = partial(signal.setitimer, signal.ITIMER_REAL, EXIT_BOUND)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


async def live(serve: Callable[[Ending, LiveWorkers, Callable[[], object]], Awaitable[object]]) -> int:
    """Serve until the end is asked for, with signals that ask for it and a bounded exit; the exit status.

    A signal while `serve` starts cancels it; once it runs, a signal ends the serving instead.

    Args:
        serve: Starts, calls the last of its arguments, and serves until the first of them is asked for.

    Raises:
        Exception: whatever `serve` failed with, itself and in no group.
    """
    ending, workers = Ending(), LiveWorkers()
    failure: Exception | None = None
    with bounded_exit(ending, workers):
        async with trio.open_nursery() as nursery:
            await nursery.start(watch_signals, ending, workers)
            starting, watching = trio.CancelScope(), trio.CancelScope()
            nursery.start_soon(_cancel_when_ending, ending, starting, watching)
            try:
                with starting:
                    await serve(ending, workers, watching.cancel)
            except Exception as error:  # noqa: BLE001 - raised outside the nursery, which would wrap it in a group
                failure = error
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return FAILURE_STATUS if ending.status is None else ending.status


async def _cancel_when_ending(ending: Ending, starting: trio.CancelScope, watching: trio.CancelScope) -> None:
    with watching:
        await ending.wait()
        starting.cancel()
