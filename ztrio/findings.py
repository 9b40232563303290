"""What recovery found, in words: for its report, for the audit, and for errors that name a locked target."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import attrs

from ztrio.audit import AuditEvent
from ztrio.errors import Outcome
from ztrio.publication.leftovers import Found
from ztrio.publication.recovery import Case, Plan, directory_of, slot_path
from ztrio.store import JobRow

__all__ = ["ADVICE", "Action", "Finding", "LeftJob", "LockedTarget", "Recovery"]

ADVICE: Final = {
    "look": "Look at the targets and into the job directory, take what you need, then run "
    "`ztrio recover --accept {job}`; until then no call may touch them.",
    "external": "Look there, then run `ztrio recover --accept {job}`.",
    "other store": "Start ztrio with the store that the call belongs to, or take the files as they are with "
    "`ztrio recover --accept {job}`.",
    "worker": "End the process, then run `ztrio recover`.",
    "foreign": "It was left alone. Remove it if you know that nothing in it is needed.",
    "kept": "Take it from there, then remove the job directory.",
}
"""What an operator does, by what is the matter."""

_PHASES: Final = {
    "queued": "was waiting for its turn",
    "preparing": "was being prepared",
    "worker_running": "its tool was running",
    "publishing_outputs": "its outputs were being published",
    "committing_state": "it was being committed",
    "aborted": "its commit had failed and was being undone",
    "ended": "was unresolved",
}


@attrs.frozen(kw_only=True)
class Action:
    """What is done about one file or directory.

    Args:
        path: The target, or what else it is about.
        what: `exchange back`, `take back`, `exchange forward`, `put forward`, `restore mode`, `kill`, `remove`,
            `leave` or `nothing`.
        reason: What was seen, and why this follows.
    """

    path: str
    what: str
    reason: str


@attrs.frozen(kw_only=True)
class Finding:
    """One call that a dead process left, or one directory that looks like it.

    Args:
        job_id: The call's id, or what the directory has in its place.
        tool: Name of the tool, if known.
        session: The caller's name for the session, if known.
        directory: The job directory in the workspace, whether it is still there or not.
        found: What was found, in a sentence.
        actions: What is done, in order.
        outcome: The outcome that the call has then; None where nobody can tell.
        problem: Why somebody has to look, or None.
        advice: What to do about it, or None.
    """

    job_id: str
    tool: str | None = None
    session: str | None = None
    directory: str
    found: str
    actions: tuple[Action, ...] = ()
    outcome: Outcome | None = None
    problem: str | None = None
    advice: str | None = None


@attrs.frozen(kw_only=True)
class LockedTarget:
    """A target that no call may touch until somebody has looked.

    Args:
        path: Its absolute path.
        job_id: The call that left it so.
        reason: Why, and what to do.
    """

    path: str
    job_id: str
    reason: str


@attrs.frozen(kw_only=True)
class Recovery:
    """What recovery found and did.

    Args:
        findings: The calls, oldest first as far as they have rows, then by directory.
        locked: The targets that stay locked.
    """

    findings: tuple[Finding, ...] = ()
    locked: tuple[LockedTarget, ...] = ()

    def locking(self, path: Path) -> LockedTarget | None:
        """The locked target that a path is, contains or lies in, or None."""
        for target in self.locked:
            if path.is_relative_to(target.path) or Path(target.path).is_relative_to(path):
                return target
        return None


@attrs.define(kw_only=True)
class LeftJob:
    """A call on its way through recovery.

    Args:
        workspace: Path of the workspace.
        case: What is known of it.
        row: How the store remembers it, if it does.
        found: Its job directory in the workspace, if it is there.
        targets: Absolute paths of its targets.
        advice: Which of `ADVICE` applies to the case's problem.
        worker: Process id and start time of a worker that may be alive.
    """

    workspace: str
    case: Case
    row: JobRow | None
    found: Found | None
    targets: tuple[str, ...]
    advice: str | None = None
    worker: tuple[int, float] | None = None
    # Set when the worker was found alive.
    orphan: int | None = None
    # The latest decision; it has no moves once everything was put right.
    plan: Plan | None = None
    # What was moved and what could not be removed, in order; only grows.
    actions: list[Action] = attrs.field(factory=list)

    @property
    def decided(self) -> Plan:
        """The latest decision."""
        assert self.plan is not None
        return self.plan

    @property
    def outcome(self) -> Outcome:
        """The outcome that the call has then."""
        row, fate = self.row, self.case.fate
        if row is not None and row.outcome is not None and fate != "running":
            return row.outcome
        if fate == "committed":
            return Outcome.COMMITTED
        if self.decided.problem is not None:
            return Outcome.UNRESOLVED
        if row is not None and row.capability == "read" and self.case.ran:
            return Outcome.COMPLETED
        return self.decided.outcome or Outcome.NOT_STARTED

    @property
    def kept(self) -> tuple[str, ...]:
        """Paths in the job directories of what somebody could need."""
        return tuple(slot_path(self.workspace, self.case.job_id, entry) for entry in self.decided.kept)

    @property
    def why(self) -> str:
        """Why somebody has to look, and what to do."""
        kind = self.advice or ("look" if self.decided.locked else "external")
        return f"{self.decided.problem}. {ADVICE[kind].format(job=self.case.job_id)}"

    def action(self, path: tuple[str, ...], what: str, reason: str) -> Action:
        """Something done about a path relative to the workspace."""
        return Action(path=str(Path(self.workspace, *path)), what=what, reason=reason)

    def finding(self) -> Finding:
        """The call for the report."""
        plan, job_id = self.decided, self.case.job_id
        actions = list(self.actions)
        moved = {action.path for action in actions}
        if self.orphan is not None:
            actions.insert(0, Action(path=f"worker {self.orphan}", what="kill", reason="it outlived its supervisor"))
        for step in (*plan.moves, *(step for step in plan.steps if step.move is None)):
            action = self.action(step.entry.path, step.move or ("leave" if step.stuck else "nothing"), step.reason)
            if step.stuck or action.path not in moved:
                actions.append(action)
        directory = directory_of(self.workspace, job_id)
        if plan.remove and self.found is not None and directory not in moved:
            actions.append(Action(path=directory, what="remove", reason="nothing in it is needed any more"))
        problem, advice = plan.problem, None
        if problem is not None:
            advice = ADVICE[self.advice or ("look" if plan.locked else "external")]
        elif self.kept:
            problem, advice = f"what somebody could need lies in {', '.join(self.kept)}", ADVICE["kept"]
        source = self.row if self.row is not None else None if self.found is None else self.found.note
        return Finding(
            job_id=job_id,
            tool=None if source is None else source.tool,
            session=None if source is None else source.session,
            directory=directory,
            found=self._seen(),
            actions=tuple(actions),
            outcome=None if self.case.fate == "unclaimed" and self.row is None else self.outcome,
            problem=problem,
            advice=None if advice is None else advice.format(job=job_id),
        )

    def locked(self) -> list[LockedTarget]:
        """The targets that stay locked on account of this call."""
        plan = self.decided
        if plan.problem is None:
            return []
        paths = [str(Path(self.workspace, *entry.path)) for entry in plan.locked]
        if self.case.problem is not None:
            paths = [path for path in self.targets if Path(path).is_relative_to(self.workspace)]
        return [LockedTarget(path=path, job_id=self.case.job_id, reason=self.why) for path in paths]

    def event(self, name: str) -> AuditEvent:
        """An audit event about it."""
        row, problem = self.row, self.decided.problem
        source = row if row is not None else None if self.found is None else self.found.note
        return AuditEvent(
            event=name,
            execution_job_id=self.case.job_id,
            tool=None if source is None else source.tool,
            session=None if source is None else source.session,
            principal=None if source is None else source.principal,
            capability=None if row is None else row.capability,
            cause="the process that ran the call ended",
            code=None if problem is None else "NEEDS_RECOVERY",
            reason=None if problem is None else self.why,
            outcome=self.outcome,
            targets=self.targets or None,
            kept=self.kept or None,
        )

    def _seen(self) -> str:
        row, note = self.row, None if self.found is None else self.found.note
        if self.case.fate == "committed":
            return "committed; its job directory was left"
        if self.case.fate == "ended":
            return f"ended as {self.outcome}; its job directory was left"
        if self.case.fate == "unclaimed":
            if self.case.problem is not None:
                return "a directory that no call of this store has"
            return "a job directory without a call: nothing ran"
        if row is not None and row.needs_recovery:
            return "needs recovery"
        phase = row.phase if row is not None else "" if note is None else note.phase
        return _PHASES.get(phase, "was running")
