"""One read that runs in the server process: concurrently, without tickets, without effects.

    allow → completed | error

Async tools run as a task of the supervisor, synchronous ones in a thread under a limiter of their own, so that no
number of slow reads can keep a mutating call from its files. A thread cannot be stopped: a synchronous read that
times out is answered and left to finish by itself, still counted by the limiter. Where that will not do, declare
the tool with `isolate=True`.
"""

from __future__ import annotations

import traceback
from functools import partial
from typing import Any

import trio

from ztrio.calls import CallContext
from ztrio.ending import finish, reasons, stop_error
from ztrio.errors import Outcome, SessionDestroyedError, StoreUnavailable, ToolError, ZtrioError
from ztrio.jobs import Job, Runtime
from ztrio.plain import decode
from ztrio.sessions import HANDLE_PREFIX
from ztrio.store import EMPTY_STATE, SessionRow
from ztrio.tools import ToolContext

__all__ = ["Read"]

_MAX_TRACEBACK = 16 * 1024


class Read:
    """Runs one read job in this process. Made for one `run`.

    Args:
        runtime: What the calls of the supervisor share.
        job: The call, allowed.
    """

    def __init__(self, runtime: Runtime, job: Job) -> None:
        self._runtime = runtime
        self._job = job
        # Whether the tool's function was entered; decides which of the two deadlines has passed.
        self._tool_started = False
        # Whether the tool was through, so that there is a value or an error.
        self._ended = False
        # Why there is no value; the first reason stands.
        self._error: ZtrioError | None = None

    async def run(self) -> None:
        """Run the read to its end; its answer is in the job. Raises only what is no `Exception`."""
        job = self._job
        value: Any = None
        try:
            with job.scope:
                value = await self._value()
                self._ended = True
            if not self._ended:  # stopped, or one of the deadlines has passed: then nobody has said a word yet
                job.stop("timeout" if self._tool_started else "queue_timeout")
        except ZtrioError as error:
            self._error = error
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool may raise anything, and must not end the server
            self._error = _tool_error(job.tool.name, error)
        finally:
            if not self._ended and self._error is None:
                job.cause.record("shutdown")  # nobody stopped it, so the supervisor's own tasks are being cancelled
            self._answer(value)

    async def _session(self) -> SessionRow | None:
        job = self._job
        try:
            return await self._runtime.store.session(job.context.principal.id, job.session)
        except Exception as error:
            raise StoreUnavailable(
                f"The session cannot be read ({type(error).__name__}: {error}). Repeat when the store works."
            ) from error

    async def _value(self) -> Any:
        job = self._job
        schema = job.tool.schema
        context = job.tool.parameters.context
        handle = job.session.startswith(HANDLE_PREFIX)
        row = await self._session() if handle or context is not None else None
        if job.pin.destroyed or (row is None and handle):
            raise SessionDestroyedError(f"Session {job.session!r} was destroyed. Nothing ran; open a new session.")
        arguments = schema.bind(job.arguments)
        if context is not None:
            state = decode(EMPTY_STATE if row is None else row.state)
            arguments[context] = self._context(job.context, state)
        # One deadline for both waits: it is the queue's until the tool starts, then the tool's.
        if job.tool.is_async:
            self._start_clock()
            return schema.result(await job.tool.function(**arguments))
        job.scope.deadline = trio.current_time() + job.queue_timeout
        return await trio.to_thread.run_sync(
            self._in_thread, arguments, abandon_on_cancel=True, limiter=self._runtime.readers
        )

    def _in_thread(self, arguments: dict[str, Any]) -> Any:
        trio.from_thread.run_sync(self._start_clock)
        schema = self._job.tool.schema
        return schema.result(self._job.tool.function(**arguments))

    def _start_clock(self) -> None:
        self._tool_started = True
        self._job.pass_gate(self._runtime.own_calls)
        if self._job.call is not None:
            self._job.call.sent()
        self._job.scope.deadline = trio.current_time() + self._job.timeout

    def _context(self, context: CallContext, state: dict[str, Any]) -> ToolContext:
        job = self._job
        report = job.progress if job.tool.is_async else self._report_from_thread
        return ToolContext(
            job_id=job.id,
            tool=job.tool.name,
            session=state,
            session_name=job.session,
            principal=context.principal.id,
            workspace=self._runtime.workspace,
            tmp=None,
            request_id=context.request_id,
            report=report,
        )

    def _report_from_thread(self, progress: float, total: float | None, message: str | None) -> None:
        trio.from_thread.run_sync(self._job.progress, progress, total, message)

    def _answer(self, value: Any) -> None:
        job = self._job
        error = stop_error(job, ran=self._tool_started) or self._error
        job.deciding = True
        if error is None:
            answer = partial(job.succeed, value, Outcome.COMPLETED, {})
            finish(self._runtime, job, "completed", Outcome.COMPLETED, answer)
        else:
            answer = partial(job.fail, error, Outcome.COMPLETED)
            finish(self._runtime, job, "error", Outcome.COMPLETED, answer, **reasons(job, error))
        job.ticket.leave()
        self._runtime.pins.unpin(job.pin)


def _tool_error(name: str, error: BaseException) -> ToolError:
    # The first frame is ours.
    frames = error.__traceback__ and error.__traceback__.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    failure = ToolError(
        f"{name} raised {type(error).__name__}: {error}. A read changes nothing; mend the arguments or the tool.",
        exception_type=type(error).__name__,
        traceback=text[-_MAX_TRACEBACK:],
    )
    failure.__cause__ = error
    return failure
