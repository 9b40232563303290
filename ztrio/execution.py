"""One call that runs in a worker, from the queue to its terminal event.

The shape is: a stretch that may be interrupted, then one that may not. `_until_result` queues, prepares, starts the
worker and waits for its result, inside `Job.scope`. Whatever ends it (a result, a failure, a stop), `_settle` follows
exactly once: prove that the worker and all it started are dead, then commit or undo, answer, release, clean up.
Nothing is published before the proof, on success too: a descendant that still runs could change what was inspected.

    success        allow → start → commit
    timeout        allow → start → timeout → worker_terminated → rollback
    cancellation   allow → start → cancel → worker_terminated → rollback
    tool raised    allow → start → error → rollback
    worker died, protocol, conflict, commit failed     allow → start → error → worker_terminated → rollback
    not started    allow → cancel | queue_timeout | deny(code)
    isolated read  allow → completed | error
    unresolved     … → unresolved, then once settled(outcome) if it can be settled
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import trio

from ztrio.commit import Committer, result_value
from ztrio.ending import commit_told, finish, proof_of_death, reasons, stop_error, tool_error
from ztrio.errors import (
    CommitFailed,
    LimitExceeded,
    Outcome,
    OutputRefused,
    SessionDestroyedError,
    ToolError,
    Unresolved,
    WorkerFailed,
    ZtrioError,
)
from ztrio.jobs import Job, Runtime
from ztrio.preparation import prepare, request, store_failed
from ztrio.publication.staging import Staging
from ztrio.store import SessionRow
from ztrio.workers.backend import Proof, Worker
from ztrio.workers.deaths import with_limit
from ztrio.workers.wire import Failure, Result

__all__ = ["Execution"]

_MAX_OUTPUT: Final = 4096  # characters of captured output attached to an error


class Execution:
    """Runs one job. Made for one `run`.

    Args:
        runtime: What the calls of the supervisor share.
        job: The call, allowed and with its place in the ticket table.
    """

    def __init__(self, runtime: Runtime, job: Job) -> None:
        self._runtime = runtime
        self._job = job
        self._session: SessionRow | None = None
        self._staging: Staging | None = None
        self._worker: Worker | None = None
        # Whether a worker slot is held; given back when the worker is proven dead.
        self._slot = False
        # Whether `start` was published: from then on the tool may have run.
        self._started = False
        # What the worker sent last.
        self._reply: Result | Failure | None = None
        # Why the call does not succeed; the first reason stands.
        self._error: ZtrioError | None = None
        # Whether the event that says why was published.
        self._announced = False

    async def run(self) -> None:
        """Run the call to its end; its answer is in the job. Raises only what is no `Exception`."""
        try:
            with self._job.scope:
                self._reply = await self._until_result()
        except ZtrioError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - whatever fails here, the call must still end in one known state
            self._error = _unexpected(error)
        finally:
            self._job.settled = False  # until it is decided
            with self._job.settling:
                try:
                    await self._settle()  # noqa: ASYNC102 - `settling` is the shield
                finally:
                    await self._clean_up()  # noqa: ASYNC102 - the same

    # ---- until the result: may be interrupted

    async def _until_result(self) -> Result | Failure | None:
        job = self._job
        with trio.move_on_after(job.queue_timeout) as waiting:
            await job.ticket.wait()
            await self._runtime.slots.acquire_on_behalf_of(job)
            self._slot = True
        if waiting.cancelled_caught:
            job.stop("queue_timeout")
            return None
        self._refuse_destroyed()
        self._job.pass_gate(self._runtime.own_calls)
        await self._start()
        return await self._run_tool()

    def _refuse_destroyed(self) -> None:
        if self._job.pin.destroyed:
            raise SessionDestroyedError(
                f"Session {self._job.session!r} was destroyed while the call waited. Nothing ran; open a new session."
            )

    async def _start(self) -> None:
        job, runtime = self._job, self._runtime
        self._advance("preparing")
        self._worker = worker = await runtime.backend.acquire()
        if job.tool.grace == 0:
            job.kill = worker.kill
        try:
            self._session, self._staging = await runtime.blocking(prepare, runtime, job, worker)
        except OSError as error:
            raise OutputRefused(
                f"The staging area cannot be made: {error}. Nothing ran.", code="OUTPUT_NOT_WRITABLE"
            ) from error
        self._refuse_destroyed()
        facts: dict[str, Any] = {
            "worker_pid": worker.pid,
            "worker_started_at": worker.started_at,
            "session_version": 0 if self._session is None else self._session.version,
            "journal": self._staging.journal() if runtime.store.durable else None,
        }
        if job.call is not None:
            job.call.starting()
        if job.tool.effects == "external" and runtime.store.durable:
            # What it does elsewhere cannot be found by looking, so that it ran is written before it does.
            try:
                await runtime.store.advance(job.id, "worker_running", **facts)
            except Exception as error:
                raise store_failed(error) from error
        else:
            self._advance("worker_running", **facts)
        self._started = True
        if not job.reads_only:
            runtime.audit.publish(
                job.event("start", pid=worker.pid, targets=_targets(job), sandbox=runtime.sandbox.label)
            )
        if job.call is not None:
            job.call.sent()
        with trio.move_on_after(runtime.settings.start_bound) as starting:
            await worker.send_request(request(runtime, job, self._session, self._staging))
        if starting.cancelled_caught:
            raise WorkerFailed(
                f"The worker did not take the call within {runtime.settings.start_bound} s and was killed. "
                "Nothing was published; repeat the call.",
                code="WORKER_START_FAILED",
            )

    async def _run_tool(self) -> Result | Failure | None:
        assert self._worker is not None
        with trio.move_on_after(self._job.timeout) as running:
            try:
                return await self._worker.receive(self._job.progress)
            except WorkerFailed as error:
                raise with_limit(error, self._job.tool.limits, self._worker.pid) from None
        if running.cancelled_caught:
            self._job.stop("timeout")
        return None

    def _advance(self, phase: str, **facts: Any) -> None:
        try:
            self._runtime.store.advance_nowait(self._job.id, phase, **facts)
        except Exception as error:
            raise store_failed(error) from error

    # ---- from here on nothing is interrupted

    async def _settle(self) -> None:
        job = self._job
        if self._reply is None and self._error is None:
            job.cause.record("shutdown")  # nobody stopped it, so the supervisor's own tasks are being cancelled
        self._judge()
        proof = await self._terminate()
        if self._worker is not None and proof is None:
            await self._give_up_on_death(self._worker)
            return
        self._free_slot()
        job.deciding = True
        self._judge()  # a stop may have come while the death was being proven
        if proof is None or not self._started:
            self._refuse()
        elif job.reads_only:
            self._end_read(proof)
        else:
            await self._decide(proof)

    async def _decide(self, proof: Proof) -> None:
        assert self._staging is not None
        committer = Committer(self._runtime, self._job, self._staging, self._session, proof)
        try:
            if self._error is None:
                assert isinstance(self._reply, Result)
                await committer.commit(self._reply)
            else:
                await committer.undo(self._error, killed=not isinstance(self._error, ToolError | LimitExceeded))
        finally:
            self._job.settled = committer.settled
            if committer.in_doubt:
                self._job.undertaker = partial(self._undertake_commit, committer)

    def _judge(self) -> None:
        """Find out whether the call failed, and publish why as soon as it is known; the first reason stands."""
        job = self._job
        stopped = stop_error(job, ran=self._started, **self._output())
        if self._error is None:
            self._error = stopped or tool_error(self._reply, self._output())
        elif self._announced:
            return
        if self._error is None or not self._started or job.reads_only:
            return
        self._announced = True
        name = "error"
        if stopped is not None and self._error is stopped:
            name = "timeout" if job.cause.text == "timeout" else "cancel"
        self._runtime.audit.publish(job.event(name, **reasons(job, self._error)))

    async def _terminate(self) -> Proof | None:
        if self._worker is None:
            return None
        stopped = self._job.cause.text is not None and self._reply is None
        grace = min(self._job.tool.grace, self._job.grace_limit) if stopped else 0.0
        try:
            return await self._worker.terminate(grace=grace, bound=self._runtime.settings.termination_bound)
        except Exception:  # noqa: BLE001 - whatever kept the backend from telling, nothing is proven
            return None

    async def _give_up_on_death(self, worker: Worker) -> None:
        """No proof within the bound: say so, and leave files, locks and slot alone, for the process may still act."""
        error = Unresolved(
            f"Worker {worker.pid} could not be proven dead within {self._runtime.settings.termination_bound:g} s "
            "after SIGKILL, so it may still act. Nothing was published; the session and targets stay locked. "
            "Look at the process before repeating the call.",
            reason="termination_unconfirmed",
            pid=worker.pid,
        )
        finish(
            self._runtime,
            self._job,
            "unresolved",
            Outcome.UNRESOLVED,
            partial(self._job.fail, error, Outcome.UNRESOLVED),
            cause=self._job.cause.text,
            code=error.code,
            reason=error.reason,
            termination_confirmed=False,
            pid=worker.pid,
        )
        self._error = self._error or error
        self._job.undertaker = partial(self._undertake, worker)

    async def _undertake(self, worker: Worker) -> None:
        """Wait for the proof of death without bound, then put everything back and release what the call holds."""
        assert self._staging is not None
        assert self._error is not None
        try:
            proof = await proof_of_death(worker)
        except BaseException:
            self._staging.close()
            raise
        await self._settle_again(partial(self._settle_dead, proof))

    async def _settle_dead(self, proof: Proof) -> None:
        job = self._job
        job.deciding = True
        if job.reads_only:
            assert self._error is not None
            job.settled = True
            answer = partial(job.fail, self._error, Outcome.COMPLETED)
            finish(self._runtime, job, "settled", Outcome.COMPLETED, answer, **_facts(proof))
        else:
            await self._decide(proof)

    async def _undertake_commit(self, committer: Committer) -> None:
        """Wait without bound until the store can tell what became of the commit, then go on as if it had at once."""
        assert self._staging is not None
        try:
            happened = await commit_told(self._runtime, self._job)
        except BaseException:
            self._staging.close()
            raise

        async def settle() -> None:
            try:
                await committer.told(happened=happened)
            finally:
                self._job.settled = committer.settled

        await self._settle_again(settle)

    async def _settle_again(self, settle: Callable[[], Awaitable[None]]) -> None:
        """From here on as any other call; closing the supervisor may have set a deadline already."""
        job = self._job
        job.undertaker = None
        job.settling = trio.CancelScope(shield=True, deadline=job.settling.deadline)
        with job.settling:
            try:
                await settle()
            finally:
                await self._clean_up()  # noqa: ASYNC102 - the shield is just above

    def _refuse(self) -> None:
        """The tool never ran: the terminal event is the refusal itself."""
        job, error = self._job, self._error
        assert error is not None
        job.settled = True
        name = {None: "deny", "queue_timeout": "queue_timeout"}.get(job.cause.text, "cancel")
        finish(
            self._runtime,
            job,
            "error" if job.reads_only else name,
            Outcome.NOT_STARTED,
            partial(job.fail, error, Outcome.NOT_STARTED),
            **reasons(job, error),
        )

    def _end_read(self, proof: Proof) -> None:
        job, error = self._job, self._error
        facts = _facts(proof)
        job.settled = True
        if error is None:
            assert isinstance(self._reply, Result)
            assert self._staging is not None
            try:
                value = result_value(self._staging, self._reply)
            except WorkerFailed as undecodable:
                error = undecodable
            else:
                answer = partial(job.succeed, value, Outcome.COMPLETED, {})
                finish(self._runtime, job, "completed", Outcome.COMPLETED, answer, **facts)
                return
        answer = partial(job.fail, error, Outcome.COMPLETED)
        finish(self._runtime, job, "error", Outcome.COMPLETED, answer, **reasons(job, error), **facts)

    async def _clean_up(self) -> None:
        """After the answer: release what the call held and remove its directory, unless nobody knows its outcome."""
        settled = self._job.settled
        if settled:
            self._job.ticket.leave()
            self._runtime.pins.unpin(self._job.pin)
            self._free_slot()
        if self._staging is None or self._job.undertaker is not None:
            return
        try:
            if settled:
                await self._runtime.blocking(self._staging.discard)
        except Exception:  # noqa: BLE001, S110 - a directory that stays harms nobody, and other calls go on
            pass
        finally:
            self._staging.close()

    def _free_slot(self) -> None:
        if self._slot:
            self._slot = False
            self._runtime.slots.release_on_behalf_of(self._job)

    # ---- words

    def _output(self) -> dict[str, str]:
        tail = "" if self._worker is None else self._worker.output_tail()[-_MAX_OUTPUT:]
        return {"output": tail} if tail else {}


def _facts(proof: Proof) -> dict[str, Any]:
    return {"termination_confirmed": True, "proof": proof.as_dict()}


def _targets(job: Job) -> tuple[str, ...]:
    return tuple(str(target.path) for target in job.targets)


def _unexpected(error: Exception) -> ZtrioError:
    failure = CommitFailed(
        f"An internal failure stopped the call ({type(error).__name__}: {error}). Nothing was published; "
        "please report it."
    )
    failure.__cause__ = error
    return failure
