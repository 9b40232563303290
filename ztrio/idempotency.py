"""Idempotency keys: a caller's own name for a call, under which it happens at most once.

A client that lost an answer repeats the call with the same key and gets the answer of the first one, or a call that
really runs if the first had no effects:

    the call that has the key        one with the same key and the same arguments
    runs                             waits for its end, within its own timeout; leaving cancels nothing
    has committed                    gets its kept answer, with its job id
    is unresolved                    gets the same unresolved answer
    was rolled back, never started   runs, and is linked to it (`repeats`)
    had other arguments or session   IDEMPOTENCY_CONFLICT

A key belongs to a principal and a tool. It is claimed twice, because no single place can do it: here, without a
checkpoint, when the call takes its place in the queue, so that of two calls at once the second one finds the first;
and in the store, as the first step of the call's own task, so that a call of a process that is dead is found too. The
place in the queue is taken before the store is asked, else a later call of the session could overtake; so what turns
out to be a repetition gives its place back, and it has left no trace: no row, no event.

An output that may not exist yet is there after the first call, so a repetition of it would be refused before its key
was looked at. Therefore such a refusal of a call with a key waits for the store's word, too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

import attrs
import trio
from outcome import Error, Value
from outcome import Outcome as Captured

from ztrio.calls import CallResult
from ztrio.ending import finish, reasons
from ztrio.errors import (
    AnswerNotKept,
    IdempotencyConflict,
    InvalidArguments,
    Outcome,
    QueueTimeout,
    ShuttingDown,
    StoreUnavailable,
    Unresolved,
    ZtrioError,
)
from ztrio.jobs import Job, Runtime
from ztrio.plain import decode, digest, encode
from ztrio.store import Claim, JobRow, idempotency_conflict

__all__ = ["MAX_KEY", "Duplicate", "KeyedCall", "Keys", "Runnable", "check_key", "digest_of", "kept_answer"]

MAX_KEY: Final = 256
"""Characters of the longest idempotency key."""

_FREE: Final = (Outcome.ROLLED_BACK, Outcome.NOT_STARTED)
_REASONS: Final = ("termination_unconfirmed", "commit_unconfirmed", "external_effects")


def check_key(key: object) -> str:
    """Return `key` if it may be an idempotency key.

    Raises:
        InvalidArguments: not a string of 1 to `MAX_KEY` printable characters.
    """
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY or not key.isprintable():
        raise InvalidArguments(
            f"The idempotency key must be a string of 1 to {MAX_KEY} printable characters. Nothing ran."
        )
    return key


def digest_of(arguments: Mapping[str, Any], session: str) -> str:
    """What tells a repetition from another call under the same key: validated arguments and session, digested."""
    return digest({"arguments": dict(arguments), "session": session})


def kept_answer(job: Job, value: Any, targets: Mapping[str, str]) -> bytes | None:
    """What the transaction that commits a call keeps of its answer; None for a call that nobody can repeat.

    Args:
        job: The call.
        value: Its value, JSON-like.
        targets: Parameter name → published path.
    """
    return None if job.row.idempotency_key is None else encode([value, dict(targets)])


class Runnable(Protocol):
    """What runs a job to its end."""

    async def run(self) -> None:
        """Run it."""


class Keys:
    """The keys of calls that run in this process and have no answer yet.

    Attributes:
        waiting: Duplicates that wait for one of them.
    """

    def __init__(self) -> None:
        self.waiting = 0
        # (principal, tool, key) → the call that has it; until its task has ended, or another one took it over.
        self._holders: dict[tuple[str, str, str | None], Job] = {}

    def holder(self, principal: str, tool: str, key: str, digest_: str) -> Job | None:
        """The call that runs under this key, or None.

        Raises:
            IdempotencyConflict: it is another call than the one that is asked for.
        """
        found = self._holders.get((principal, tool, key))
        if found is None or found.answered.is_set():
            return None  # what is answered, the store knows
        if found.row.idempotency_digest != digest_:
            raise idempotency_conflict(key, tool, found.id)
        return found

    def hold(self, job: Job) -> None:
        """The key is this call's, without a checkpoint since `holder` said that nobody has it."""
        self._holders[_place(job)] = job

    def release(self, job: Job) -> None:
        """The task of this call has ended."""
        place = _place(job)
        if self._holders.get(place) is job:
            del self._holders[place]


def _place(job: Job) -> tuple[str, str, str | None]:
    return job.row.principal, job.row.tool, job.row.idempotency_key


@attrs.frozen
class Duplicate:
    """A call that finds its key with one that runs.

    Args:
        holder: That one.
        timeout: Seconds that this one may take.
        keys: Where it waits.
    """

    holder: Job
    timeout: float
    keys: Keys

    async def wait(self, since: float) -> Captured[CallResult] | None:
        """The other call's answer; None when it had no effects, so that this one may run.

        Args:
            since: Trio time at which this call was made.

        Raises:
            QueueTimeout: the other one is not through in time; it goes on.
        """
        holder = self.holder
        self.keys.waiting += 1
        try:
            with trio.move_on_at(since + self.timeout):
                await holder.answered.wait()
        finally:
            self.keys.waiting -= 1
        if not holder.answered.is_set():
            error = QueueTimeout(
                f"Call {holder.id} has the same idempotency key and still runs; it goes on. Ask for its outcome, or "
                "repeat with the same key."
            )
            error.job_id, error.outcome = holder.id, Outcome.RUNNING
            raise error
        return None if holder.outcome in _FREE else _twin(holder.answer)


class KeyedCall:
    """Runs a job that has an idempotency key: claims the key in the store, then runs it, or answers like another.

    Args:
        runtime: What the calls share.
        job: The call, with its place in the ticket table.
        known: Call id → call, for the calls of this process that are not settled.
        allow: Says that it is allowed.
        execution: What runs it then.
    """

    def __init__(
        self,
        runtime: Runtime,
        job: Job,
        *,
        known: Mapping[str, Job],
        allow: Callable[[Job], None],
        execution: Callable[[Job], Runnable],
    ) -> None:
        self._runtime = runtime
        self._job = job
        self._known = known
        self._allow = allow
        self._execution = execution

    async def run(self) -> None:
        """Run the call to its end; its answer is in the job. Raises only what is no `Exception`."""
        job = self._job
        runs = False
        try:
            runs = await self._claim()
        except ZtrioError as error:
            self._refuse(error)
        except trio.Cancelled:
            job.stored = True  # as it may be
            self._refuse(ShuttingDown("The supervisor ended before the call began. Nothing ran; repeat it."))
            raise
        finally:
            if not runs:
                job.ticket.leave()
                self._runtime.pins.unpin(job.pin)
        if runs:
            self._allow(job)
            await self._execution(job).run()

    async def _claim(self) -> bool:
        """Claim the key; whether the call is to run. If not, and nothing is raised, it has its answer.

        A stop does not interrupt it, for what was cut short may have happened; it takes a moment and counts after that.
        """
        job, bound = self._job, min(self._job.queue_timeout, self._runtime.settings.commit_bound)
        claim: Claim | None = None
        try:
            with trio.move_on_after(bound):
                claim = await self._runtime.store.claim(job.row)
        except IdempotencyConflict:
            raise
        except Exception as error:
            if job.reads_only and job.refusal is None:
                return True  # reads go on when the store cannot be written
            raise job.refusal or _store_failed(error) from error
        if claim is None:
            job.stored = True  # as it may be; then it ends there as soon as the store answers
            raise StoreUnavailable(f"The store did not answer within {bound:g} s. Nothing ran; repeat when it works.")
        if not claim.mine:
            assert claim.earlier is not None
            answer, outcome = await self._answer_of(claim.earlier, claim.result)
            job.answer_like(answer, outcome)
            return False
        job.stored = True
        if claim.earlier is not None:
            job.row = attrs.evolve(job.row, repeats=claim.earlier.job_id)
        if job.refusal is not None:
            raise job.refusal
        return True

    def _refuse(self, error: ZtrioError) -> None:
        job = self._job
        answer = partial(job.fail, error, Outcome.NOT_STARTED)
        finish(self._runtime, job, "deny", Outcome.NOT_STARTED, answer, **reasons(job, error))

    async def _answer_of(self, earlier: JobRow, result: bytes | None) -> tuple[Captured[CallResult], Outcome]:
        """The answer of the call that has the key, and what became of its effects.

        Raises:
            StoreUnavailable: its end is not in the store yet.
        """
        known = self._known.get(earlier.job_id)
        if known is not None and known.answer is not None and known.outcome not in _FREE:
            return _twin(known.answer), known.outcome
        error: ZtrioError
        if earlier.outcome is Outcome.COMMITTED:
            if result is not None:
                value, targets = decode(result)
                return Value(CallResult(value, earlier.job_id, Outcome.COMMITTED, targets)), Outcome.COMMITTED
            error = AnswerNotKept(
                f"Call {earlier.job_id} has committed under this idempotency key, but its answer was not kept. "
                "Nothing ran again; look at its targets.",
                targets=dict(earlier.targets),
            )
        elif earlier.outcome is Outcome.UNRESOLVED:
            error = await self._unresolved(earlier)
        else:
            raise StoreUnavailable(
                f"Call {earlier.job_id} has the same idempotency key, and the store does not know its end yet. "
                "Nothing ran; repeat when the store works."
            )
        error.job_id, error.outcome = earlier.job_id, earlier.outcome
        return Error(error), earlier.outcome

    async def _unresolved(self, earlier: JobRow) -> Unresolved:
        """What a call was answered that nobody has settled."""
        try:
            events = [event for _, event in await self._runtime.store.job_events(earlier.job_id)]
        except Exception as error:
            raise _store_failed(error) from error
        said = next((event.reason for event in reversed(events) if event.event == "unresolved"), None)
        why = earlier.reason or "nobody can say whether its effects happened."
        return Unresolved(
            f"Call {earlier.job_id} has the same idempotency key and is unresolved: {why} Nothing ran again; look at "
            "its targets before repeating it under another key.",
            reason=said if said in _REASONS else "commit_unconfirmed",
        )


def _store_failed(error: Exception) -> StoreUnavailable:
    return StoreUnavailable(f"The store failed ({type(error).__name__}: {error}). Nothing ran; repeat when it works.")


def _twin(answer: Captured[CallResult] | None) -> Captured[CallResult]:
    """The same answer for another caller: its own error to raise, its own value to change."""
    if isinstance(answer, Value):
        result: CallResult = answer.value
        return Value(attrs.evolve(result, value=copy.deepcopy(result.value)))
    assert isinstance(answer, Error)
    error = answer.error
    twin = type(error).__new__(type(error), *error.args)
    twin.__dict__.update(error.__dict__)
    return Error(twin)
