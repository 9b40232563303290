"""From the proof of death to the answer: publish and commit, or put everything back.

One rule decides every failure here: before the store's transaction is issued everything goes back, whatever the class
of the exception; after it returned, only forward. In between, when the transaction raised, nobody knows: a failed
COMMIT may turn out committed after a restart. So a durable `abort` must succeed before any file moves back. If it says
that the transaction has happened after all, the call is committed; if nobody can tell, nothing is touched, the call is
unresolved, and it is settled when the store can tell, in this process (`told`) or by recovery.

The answer has a bound, the work has none: a thread in a system call cannot be stopped, and rolling back beside it
would be worse than waiting. When the bound runs out the caller gets `Unresolved("commit_unconfirmed")`, this task
goes on, and only when it has settled are the locks released.

Before its answer a call has at most two turns in other threads: it is prepared in one, and in the other it is published
and, where the store is durable, committed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import attrs
import trio

from ztrio.audit import AuditEvent
from ztrio.ending import finish, has_committed, reasons
from ztrio.errors import CommitFailed, Outcome, StoreUnavailable, Unresolved, WorkerFailed, ZtrioError
from ztrio.idempotency import kept_answer
from ztrio.jobs import Job, Runtime
from ztrio.plain import NotPlain, decode, plain
from ztrio.publication.staging import Staging
from ztrio.store import EMPTY_STATE, JobEnd, SessionRow, SessionWrite
from ztrio.workers.backend import Proof
from ztrio.workers.wire import Result

__all__ = ["Committer", "result_value"]


class Committer:
    """Owns the files and locks of one call once its worker is dead.

    Args:
        runtime: What the calls of the supervisor share.
        job: The call; its `deciding` is set.
        staging: Its staging area.
        session: The session as it was read, or None.
        proof: The worker's proof of death.

    Attributes:
        settled: Committed, or everything was put back; else files, locks and staging stay as they are.
        in_doubt: Whether the transaction was issued and nobody can tell what became of it; `told` must follow.
    """

    def __init__(self, runtime: Runtime, job: Job, staging: Staging, session: SessionRow | None, proof: Proof) -> None:
        self._runtime = runtime
        self._job = job
        self._staging = staging
        self._session = session
        self._facts: dict[str, Any] = {"termination_confirmed": True, "proof": proof.as_dict()}
        self.settled = False
        self.in_doubt = False
        # What is answered if the transaction has happened; None until it is issued, by whichever thread.
        self._success: _Success | None = None
        # Why the transaction raised; set while in doubt.
        self._failure: ZtrioError | None = None
        # Ends the bound of the answer.
        self._overdue = trio.CancelScope()

    async def commit(self, reply: Result) -> None:
        """Publish, commit, answer; or undo and answer with the error."""
        self._runtime.nursery.start_soon(self._answer_when_overdue)
        try:
            await self._commit(reply)
        except StoreUnavailable as error:
            await self._fail(_commit_failed(error))
        except ZtrioError as error:
            await self._fail(error)
        except Exception as error:  # noqa: BLE001 - the rule: whatever the class, everything goes back
            await self._fail(_commit_failed(error))
        except BaseException as error:
            await self._fail(_commit_failed(error))  # noqa: ASYNC102 - `Job.settling` is the shield
            raise
        else:
            await self._succeed()
        finally:
            self._overdue.cancel()

    async def told(self, *, happened: bool) -> None:
        """The store can tell by now what became of a transaction in doubt: go on as if it had told at once."""
        assert self._failure is not None
        self.in_doubt = False
        self._runtime.audit.mark_available(f"commit of {self._job.id}")
        if happened:
            await self._succeed()
        else:
            await self._fail(self._failure)

    async def _succeed(self) -> None:
        """Committed: from here on only forward."""
        assert self._success is not None
        success = self._success
        self.settled = True
        try:
            if success.targets and not self._runtime.store.durable:
                # Only recovery reads it, after a crash between here and the clean-up; a full disk must not undo.
                with contextlib.suppress(Exception):
                    await self._runtime.blocking(self._staging.record, "committed")
        finally:
            event = success.event
            if self._job.answered.is_set():
                event = event.evolved(event="settled")  # the bound ran out during the transaction
            self._runtime.audit.deliver(event)
            self._job.succeed(success.value, Outcome.COMMITTED, success.targets)

    async def _commit(self, reply: Result) -> None:
        job, runtime, staging = self._job, self._runtime, self._staging
        value = result_value(staging, reply)
        event = runtime.audit.stamp(job.event(self._terminal("commit"), outcome=Outcome.COMMITTED, **self._facts))
        end = partial(self._end_of, value, event, self._session_write(reply), trio.lowlevel.current_clock())
        problem: Exception | None = None
        try:
            if not staging.paths:
                await runtime.store.finish(end({}))
            elif runtime.store.durable:
                await runtime.blocking(self._publish_and_commit, end)
            else:
                await runtime.store.advance(job.id, "publishing_outputs")
                await runtime.store.finish(end(await runtime.blocking(_publish, staging)))
        except Exception as error:  # noqa: BLE001 - whatever it is, the transaction may have happened all the same
            problem = error
        except BaseException:
            if self._success is not None and await self._has_happened():  # noqa: ASYNC102 - `Job.settling` is the shield
                await self._succeed()  # noqa: ASYNC102 - the same
            raise
        if problem is not None and (self._success is None or not await self._has_happened()):
            raise problem

    def _publish_and_commit(self, end: Callable[[Mapping[str, str]], JobEnd]) -> None:
        """Everything that has to be on the disk before the answer. Blocks."""
        store, staging = self._runtime.store, self._staging
        staging.inspect()
        store.write_end(end(staging.publish(partial(store.write_intent, self._job.id))))

    def _end_of(
        self,
        value: Any,
        event: AuditEvent,
        session: SessionWrite | None,
        clock: trio.abc.Clock,
        targets: Mapping[str, str],
    ) -> JobEnd:
        """The transaction of a call that has published, in whichever thread; from here on it may have happened."""
        name = self._terminal("commit")
        event = event.later(clock.current_time(), event=name, targets=tuple(targets.values()))
        self._success = _Success(value, targets, event)
        return JobEnd(
            job_id=self._job.id,
            outcome=Outcome.COMMITTED,
            event=event,
            session=session,
            result=kept_answer(self._job, value, targets),
        )

    async def undo(self, error: ZtrioError, *, killed: bool) -> None:
        """The call did not succeed: put everything back and answer with `error`.

        Args:
            error: Why; its event was published.
            killed: Whether the worker was stopped in the middle, as opposed to telling that the tool raised.
        """
        job = self._job
        if killed and not job.answered.is_set():
            self._runtime.audit.publish(job.event("worker_terminated", cause=job.cause.text, **self._facts))
        self._runtime.nursery.start_soon(self._answer_when_overdue)
        try:
            await self._roll_back(error, external=killed and self._job.tool.effects == "external")
        finally:
            self._overdue.cancel()

    async def _fail(self, error: ZtrioError) -> None:
        """The commit did not happen, or nobody knows."""
        if self.settled:
            return
        if self.in_doubt:
            self._failure = error
            self._runtime.audit.mark_unavailable(
                f"commit of {self._job.id}", "a commit could be neither confirmed nor aborted"
            )
            self._unresolve(
                Unresolved(
                    "The store failed in the middle of the commit and cannot say whether it happened. Files stay "
                    "published and locked until it can; ask for the outcome of this job before repeating.",
                    reason="commit_unconfirmed",
                )
            )
            return
        audit, job = self._runtime.audit, self._job
        audit.publish(job.event("error", **reasons(job, error)))
        audit.publish(job.event("worker_terminated", **self._facts))
        # The tool itself had succeeded, so what it does elsewhere has happened.
        await self._roll_back(error, external=job.tool.effects == "external")

    async def _has_happened(self) -> bool:
        """The transaction raised: make sure that it can never turn out to have happened, unless it has."""
        self.in_doubt = True  # whatever interrupts the next step, nobody can tell then
        happened = await has_committed(self._runtime, self._job)
        self.in_doubt = happened is None
        return bool(happened)

    async def _roll_back(self, error: ZtrioError, *, external: bool) -> None:
        kept: tuple[str, ...] = ()
        try:
            if self._staging.begun:
                kept = await self._runtime.blocking(self._staging.roll_back)
        except Exception as failure:  # noqa: BLE001 - whatever kept the files from going back, their state is unknown
            self._unresolve(
                Unresolved(
                    f"Putting the files back failed ({type(failure).__name__}: {failure}). The originals are in the "
                    "job directory; the targets stay locked. Look at them before repeating.",
                    reason="commit_unconfirmed",
                    targets=[str(target.path) for target in self._job.targets],
                )
            )
            return
        self.settled = True
        if kept:
            error.details["kept"] = list(kept)
        if external:
            self._end("unresolved", Outcome.UNRESOLVED, _external(error), reason="external_effects")
        else:
            self._end("rollback", Outcome.ROLLED_BACK, error, kept=kept or None)

    def _end(self, name: str, outcome: Outcome, error: ZtrioError, **facts: Any) -> None:
        self._overdue.cancel()  # what is left does not wait
        finish(
            self._runtime,
            self._job,
            self._terminal(name),
            outcome,
            partial(self._job.fail, error, outcome),
            cause=self._job.cause.text,
            **self._facts,
            **facts,
        )

    def _terminal(self, name: str) -> str:
        """The name of the terminal event: an unresolved call is settled, not ended a second time."""
        return "settled" if self._job.answered.is_set() else name

    async def _answer_when_overdue(self) -> None:
        with self._overdue:
            await trio.sleep(self._runtime.settings.commit_bound)
            self._unresolve(
                Unresolved(
                    f"The commit has not ended within {self._runtime.settings.commit_bound:g} s and goes on. Ask for "
                    "the outcome of this job before repeating.",
                    reason="commit_unconfirmed",
                )
            )

    def _unresolve(self, error: Unresolved) -> None:
        job = self._job
        if job.answered.is_set():
            return
        self._runtime.audit.publish(
            job.event("unresolved", code=error.code, reason=error.reason, outcome=Outcome.UNRESOLVED, **self._facts)
        )
        job.fail(error, Outcome.UNRESOLVED)

    def _session_write(self, reply: Result) -> SessionWrite | None:
        state = reply.session
        if state is None and self._session is None:
            state = EMPTY_STATE  # the first commit under a name opens the session
        if state is None:
            return None
        return SessionWrite(
            principal=self._job.context.principal.id,
            name=self._job.session,
            incarnation=None if self._session is None else self._session.incarnation,
            version=0 if self._session is None else self._session.version,
            state=state,
        )


@attrs.frozen
class _Success:
    """What a call that is committed is answered with."""

    value: Any
    targets: Mapping[str, str]
    # The terminal event, stamped.
    event: AuditEvent


def _publish(staging: Staging) -> Mapping[str, str]:
    staging.inspect()
    targets = staging.publish()
    staging.record("committing_state")
    return targets


def result_value(staging: Staging, reply: Result) -> Any:
    """The tool's return value with staged paths made public.

    Raises:
        WorkerFailed: WORKER_PROTOCOL_ERROR, the worker sent something that is no encoded value.
    """
    try:
        if reply.session is not None and not isinstance(plain(decode(reply.session), rich=True), dict):
            raise NotPlain("$: the session state is no dict")
        return staging.public(plain(decode(reply.value)))
    except NotPlain as error:
        raise WorkerFailed(
            f"The worker's result does not decode ({error}). Nothing was published.", code="WORKER_PROTOCOL_ERROR"
        ) from error


def _commit_failed(error: BaseException) -> ZtrioError:
    what = error.message if isinstance(error, ZtrioError) else f"{type(error).__name__}: {error}"
    failure = CommitFailed(
        f"The commit failed ({what}). Files and session state are as they were before the call; it is safe to repeat."
    )
    failure.__cause__ = error
    return failure


def _external(error: ZtrioError) -> Unresolved:
    return Unresolved(
        f"The call ended with {error.code}. Files and session state were rolled back, but the tool has effects "
        "elsewhere that may or may not have happened. Check there before repeating.",
        reason="external_effects",
        stopped_by=error.code,
        because=error.message.partition(". ")[0].rstrip(".") + ".",  # that it is safe to repeat does not hold here
    )
