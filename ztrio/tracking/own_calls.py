"""Our own tools at the gate: what ztrio itself may not know of a call that it ran is kept like anybody's.

A toolbox is the server `local:<name>`. A mutating call passes the gate twice: when it is admitted, which may only
refuse it, and when its turn has come, which is what counts: a call that waited behind one which became unresolved
meanwhile meets the gate as it is then. It counts as sent just before a worker gets it. What becomes of it is told by
its answer: known effects take the record off the books, an `Unresolved` makes it an entry, and whoever settles the call
later proves the entry.

Its id is that of its job under another prefix, so that each is found from the other, also after a crash. While it runs
its job row is its journal; only a call that may do something elsewhere gets a journal row too, written before the call
starts, since no recovery can find out about those effects.

Reads shall cost nothing, so one is on the books only if it names calls that it settles, or runs in a worker whose death
may be left unproven.
"""

from __future__ import annotations

import math
from typing import Any, Final

from ztrio.calls import CallContext
from ztrio.errors import Outcome, Unresolved, ZtrioError
from ztrio.pending import (
    Call,
    Lease,
    Proof,
    Reason,
    Refusal,
    State,
    Tier,
    Transport,
)
from ztrio.tracking.desk import Desk
from ztrio.tracking.tracker import Tracker

__all__ = ["OwnCall", "OwnCalls", "call_id_of", "job_id_of", "local_server"]

_PROOFS: Final = {
    Outcome.COMMITTED: Proof.COMMITTED,
    Outcome.ROLLED_BACK: Proof.ROLLED_BACK,
    Outcome.NOT_STARTED: Proof.NOT_STARTED,
    Outcome.COMPLETED: Proof.ROLLED_BACK,
}
# Where somebody still finds out, whoever looked does not know better.
_WATCHED: Final = frozenset({Reason.TERMINATION_UNCONFIRMED, Reason.COMMIT_UNCONFIRMED})


def local_server(toolbox: str) -> str:
    """The name under which a toolbox is a server."""
    return f"local:{toolbox}"


def call_id_of(job_id: str) -> str:
    """The id of a job's call."""
    return "pc_" + job_id.removeprefix("job_")


def job_id_of(call_id: str) -> str:
    """The id of a call's job."""
    return "job_" + call_id.removeprefix("pc_")


class OwnCalls:
    """The seam of our own tools.

    Args:
        tracker: The calls.
        desk: How they are told of.
        toolbox: Name of the toolbox.
    """

    def __init__(self, tracker: Tracker, desk: Desk, toolbox: str) -> None:
        self._tracker = tracker
        self._desk = desk
        self.server = local_server(toolbox)

    def refuse_gated(self, job_id: str, tool: str, capability: str, context: CallContext) -> None:
        """An early word at admission.

        Raises:
            CallGated: the gate would refuse the call now.
        """
        refusal = self._tracker.registry.check(self._call(job_id, tool, capability, context, None))
        if refusal is not None:
            raise self._desk.refusal(refusal, context)

    def begin(
        self,
        job_id: str,
        tool: str,
        capability: str,
        context: CallContext,
        timeout: float,
        *,
        in_worker: bool,
        external: bool = False,
        reconciles: tuple[str, ...] = (),
    ) -> OwnCall | None:
        """The check that counts; the call's turn has come.

        Args:
            job_id: The job.
            tool: Name of its tool.
            capability: Its capability.
            context: Who calls.
            timeout: Seconds that it may run.
            in_worker: Whether it runs in a worker, which may have to be given up on.
            external: Whether it may do something elsewhere.
            reconciles: Ids of calls that it settles, if it is a read that succeeds.

        Returns:
            The call; None for a read that can neither settle anything nor become unresolved.

        Raises:
            CallGated: the gate refuses it.
            RegistryFull: the gate is set to `enforce`, and the caller has as many calls on its books as fit.
        """
        tracker, principal = self._tracker, context.principal.id
        reads = capability == Tier.READ
        if reads and not (reconciles or in_worker):
            return None
        tracker.callers.know([principal])
        call = self._call(job_id, tool, capability, context, timeout)
        begun = tracker.registry.check_and_begin(call, **tracker.moment())
        if isinstance(begun, Refusal):
            if reads:
                return None  # it settles nothing then, and goes ahead
            raise self._desk.refusal(begun, context)
        tracker.did(begun.transitions)
        warning = None
        if begun.warning is not None:
            record = tracker.registry.get(begun.warning.gating[0].call_id)
            warning = self._desk.warning(begun.warning, record, self.server, context)
        if not begun.tracked:
            tracker.notices.say_rarely("call not tracked", server=self.server, principal=principal, now=tracker.now)
        tracked = begun.tracked
        return OwnCall(tracker, self._desk, call, context, warning, reconciles, tracked=tracked, external=external)

    def _call(self, job_id: str, tool: str, capability: str, context: CallContext, timeout: float | None) -> Call:
        return Call(
            call_id=call_id_of(job_id),
            server=self.server,
            transport=Transport.LOCAL,
            lease=Lease("", 0),
            principal=context.principal.id,
            gate_scope=context.gate_scope,
            tool=tool,
            admission_tier=Tier(capability),
            gate_tier=Tier(capability),
            ceiling=math.inf if timeout is None else timeout,
        )


class OwnCall:
    """One call of ours on the books.

    Attributes:
        warning: What its caller is told about others.
    """

    def __init__(
        self,
        tracker: Tracker,
        desk: Desk,
        call: Call,
        context: CallContext,
        warning: dict[str, Any] | None,
        reconciles: tuple[str, ...],
        *,
        tracked: bool,
        external: bool,
    ) -> None:
        self._tracker = tracker
        self._desk = desk
        self._call = call
        self._context = context
        self._external = external
        self.warning = warning
        self._reconciles = reconciles
        # Whether the registry is still to be told of it.
        self._tracked = tracked
        # Whether only its slot in the count of those on no books is left.
        self._counted = not tracked

    def starting(self) -> None:
        """Before a worker is made ready: note it, if what it does elsewhere could outlive us."""
        if self._tracked and self._external:
            tracker = self._tracker
            row = tracker.registry.journal_row(self._call.call_id, now=tracker.now, wall=tracker.wall)
            tracker.records.journal(row)

    def sent(self) -> None:
        """A worker is about to get it."""
        tracker, call_id = self._tracker, self._call.call_id
        record = tracker.registry.get(call_id) if self._tracked else None
        if record is not None and record.state is State.RESERVED:
            tracker.did(tracker.registry.claim(call_id, wire_id=call_id, **tracker.moment()))

    def succeeded(self, outcome: Outcome) -> None:
        """It is answered with a value."""
        self._end_count()
        self._ended(outcome, succeeded=True)

    def failed(self, outcome: Outcome, error: ZtrioError) -> None:
        """It is answered with an error, which from then on has what is known of the call."""
        self._end_count()
        if outcome is Outcome.UNRESOLVED:
            self._unresolved(error)
        else:
            self._ended(outcome, succeeded=False)
        if self.warning is not None:
            error.details.setdefault("pending_call_warning", self.warning)

    def _end_count(self) -> None:
        if self._counted:
            self._counted = False
            self._tracker.registry.end_untracked(self._call.server)

    def _ended(self, outcome: Outcome, *, succeeded: bool) -> None:
        if not self._tracked:
            return
        tracker, registry, call_id = self._tracker, self._tracker.registry, self._call.call_id
        record = registry.get(call_id)
        if record is not None and record.state is State.RESERVED:
            tracker.did(registry.not_sent(call_id, **tracker.moment()))
        elif record is not None and record.state is State.SENT:
            named, actor, moment = self._reconciles, self._desk.actor(self._context), tracker.moment()
            tracker.did(registry.complete(call_id, succeeded=succeeded, reconciles=named, actor=actor, **moment))
        else:
            tracker.proven(call_id, _PROOFS[outcome])

    def _unresolved(self, error: ZtrioError) -> None:
        tracker, registry, call_id = self._tracker, self._tracker.registry, self._call.call_id
        reason = Reason(error.reason) if isinstance(error, Unresolved) else Reason.COMMIT_UNCONFIRMED
        watched = reason in _WATCHED
        if not self._tracked:
            error.details["tracked"] = False
            error.message = (
                f"{error.message} It is on no list of pending calls, because more calls were under way than are kept "
                "for this caller; its job id still answers."
            )
            return
        record = registry.get(call_id)
        if record is None or tracker.closing:
            return
        if not record.in_flight:
            if not watched:
                tracker.did(registry.lose_sight(call_id, **tracker.moment()))
            return
        self.sent()  # whoever cannot say what became of it cannot say that it was not sent
        [first, *_] = tracker.did(
            registry.mark_unresolved(self._call, reason=reason, observable=watched, **tracker.moment())
        )
        if watched:
            tracker.follow(call_id, first.blocker)
        where = registry.get(call_id if first.blocker is None else first.blocker)
        if where is not None:
            self._desk.attach(error, where, self._context)
