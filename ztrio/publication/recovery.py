"""What is to be done about a call that a dead process left: decided from what is there, and from nothing else.

Nobody knows how far a killed process was. What it wrote about its deeds was written before or after them, and doing
one of them twice undoes it: two exchanges are none. So each output is judged by *which object* stands at the target
and which lies in the slot, the old one or the new one; then every decision is the same however often it is taken, and
recovery itself may be killed anywhere.

    not committed    target  slot              what is done
                     old     any               nothing; it is as before
                     new     something else    exchange back: what lies in the slot stood at the target
                     new     nothing           take it back, if nothing stood there before; else the old one is gone
                     absent  new or nothing    nothing; it is as before
                     other   new               nothing; it was never published, or taken back, and this is somebody's
                     else                      leave both, for somebody else was here: the target stays locked

    committed        new     any               nothing; it is published
                     old     new               exchange forward
                     absent  new               put it there
                     other   new               leave both: what was committed lies in the slot
                     else                      nothing; somebody changed it since, which they may

Everything here is pure. Looking and doing are in `leftovers`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

import attrs

from ztrio.errors import Outcome
from ztrio.publication.jobdir import JOB_PREFIX
from ztrio.publication.journal import Entry, Journal

__all__ = [
    "Case",
    "Fate",
    "Move",
    "Plan",
    "Presence",
    "Sight",
    "Step",
    "directory_of",
    "plan",
    "slot_path",
]

Presence = Literal["old", "new", "absent", "other", "unknown"]
"""Which object is there: the old one, the new one, none, somebody else's; `unknown` where one cannot look any more."""

Move = Literal["exchange back", "take back", "exchange forward", "put forward", "restore mode"]

Fate = Literal["running", "ended", "committed", "unclaimed"]
"""What is known of the call: it has no final outcome; it ended without effects; it committed; nobody knows it."""


@attrs.frozen(kw_only=True)
class Sight:
    """What was seen of one output.

    Args:
        target: What stands at the target; `unknown` if its directory is gone or another one now.
        slot: What lies in the slot under the target's name.
        edited: What lies in the slot is the new one, and was changed after it had been inspected.
        lent: The old directory stands at its target and still has the write permission it was lent for the exchange.
        failure: Why it could not be looked at, or what was decided could not be done.
    """

    target: Presence
    slot: Presence
    edited: bool = False
    lent: bool = False
    failure: str | None = None


@attrs.frozen(kw_only=True)
class Case:
    """A call that a dead process left.

    Args:
        job_id: Its id.
        fate: What is known of it.
        ran: Whether its tool may have run.
        journal: What it was about to do; None if nothing was to be published yet.
        problem: Why nothing may be decided about it, whatever is seen.
        accepted: Whether the operator has looked, and takes the files as they are.
    """

    job_id: str
    fate: Fate
    ran: bool
    journal: Journal | None = None
    problem: str | None = None
    accepted: bool = False


@attrs.frozen(kw_only=True)
class Step:
    """What is to be done about one output.

    Args:
        entry: The output.
        move: What is done, or None for nothing.
        reason: What was seen, and why this follows.
        stuck: Whether somebody has to look; the target stays locked.
        keep: Whether the slot holds what somebody could still need.
    """

    entry: Entry
    move: Move | None
    reason: str
    stuck: bool = False
    keep: bool = False


@attrs.frozen(kw_only=True)
class Plan:
    """What is to be done about one call.

    Args:
        case: The call.
        steps: One for each output.
        outcome: The outcome that the call gets, or None where it has one or nobody may decide.
        problem: Why somebody has to look, or None.
        remove: Whether its job directories go.
        locked: The outputs whose targets stay locked.
        kept: The outputs whose slots hold what somebody could still need.
    """

    case: Case
    steps: tuple[Step, ...]
    outcome: Outcome | None
    problem: str | None
    remove: bool
    locked: tuple[Entry, ...] = ()
    kept: tuple[Entry, ...] = ()

    @property
    def moves(self) -> tuple[Step, ...]:
        """The steps that change something, in the order in which they are done: the last output first."""
        return tuple(step for step in reversed(self.steps) if step.move is not None)


def plan(case: Case, sights: Sequence[Sight]) -> Plan:
    """Decide about a call.

    Args:
        case: The call.
        sights: What was seen of each output of its journal, in that order.
    """
    entries = () if case.journal is None else case.journal.outputs
    if case.problem is not None and not case.accepted:
        return Plan(case=case, steps=(), outcome=None, problem=case.problem, remove=False, locked=entries)
    judge = _forward if case.fate == "committed" else _back
    steps = tuple(judge(entry, sight) for entry, sight in zip(entries, sights, strict=True))
    if case.problem is not None:  # accepted: nothing is known that could be acted on
        steps = ()
    stuck = tuple(step.entry for step in steps if step.stuck)
    kept = tuple(step.entry for step in steps if step.keep)
    if case.fate == "unclaimed":
        return _unclaimed(case, steps, kept)
    problem = None
    if stuck and not case.accepted:
        problem = "; ".join(f"{'/'.join(step.entry.path)}: {step.reason}" for step in steps if step.stuck)
    outcome = None
    if case.fate == "running":
        outcome = Outcome.ROLLED_BACK if case.ran else Outcome.NOT_STARTED
        if problem is not None:
            outcome = None
        elif case.ran and case.journal is not None and case.journal.external and not case.accepted:
            outcome, problem = (
                None,
                "its files are as before, but the tool has effects elsewhere that may have happened",
            )
    keep = (bool(stuck) or bool(kept)) and not case.accepted
    return Plan(
        case=case,
        steps=steps,
        outcome=outcome,
        problem=None if case.fate == "ended" else problem,
        remove=not keep,
        locked=() if case.accepted or case.fate == "ended" else stuck,
        kept=() if case.accepted else kept,
    )


def _unclaimed(case: Case, steps: Sequence[Step], kept: tuple[Entry, ...]) -> Plan:
    """A call of ours that the store has forgotten: what is clearly nothing goes, and nothing is moved."""
    still = tuple(attrs.evolve(step, move=None) for step in steps)
    if case.accepted or not any(step.move or step.stuck or step.keep for step in steps):
        return Plan(case=case, steps=still, outcome=None, problem=None, remove=True)
    problem = "the store does not know the call any more, and its directory holds what somebody could need"
    return Plan(case=case, steps=still, outcome=None, problem=problem, remove=False, kept=kept)


def _back(entry: Entry, sight: Sight) -> Step:
    """An output of a call that did not commit."""

    def step(move: Move | None, reason: str, *, stuck: bool = False, keep: bool = False) -> Step:
        return Step(entry=entry, move=move, reason=reason, stuck=stuck, keep=keep)

    if entry.new is None:
        return step(None, "nothing was about to be published")
    if sight.failure is not None:
        return step(None, sight.failure, stuck=True, keep=True)
    target, slot = sight.target, sight.slot
    edited = "; somebody had edited what was published, and that copy is kept" if sight.edited else ""
    if target == "old":
        # Else it is what somebody put there at the very moment of an exchange that was not undone.
        theirs = "" if slot != "other" else "; somebody else's lies in the job directory"
        move: Move | None = "restore mode" if sight.lent else None
        return step(move, f"it is as before{edited}{theirs}", keep=sight.edited or slot == "other")
    if target == "new":
        if slot in ("old", "other"):
            return step("exchange back", "the new one stands there and the call did not commit")
        if entry.old is None:
            return step("take back", "the new one stands there, nothing did before, and the call did not commit")
        return step(None, "the new one stands there and the old one is not in the job directory", stuck=True, keep=True)
    if target == "absent" and entry.old is None and slot in ("absent", "new"):
        return step(None, f"it is as before: nothing stands there{edited}", keep=sight.edited)
    if slot == "new":
        words = {
            "absent": "nothing stands there",
            "unknown": "its directory is gone",
            "other": "somebody's stands there",
        }
        return step(None, f"it is not published, and {words[target]}{edited}", keep=sight.edited)
    words = {
        "absent": "somebody removed what had been published",
        "other": "somebody replaced what had been published",
        "unknown": "its directory is gone, or another one is in its place",
    }
    backup = "; what stood there before lies in the job directory" if slot in ("old", "other") else ""
    return step(None, words[target] + backup, stuck=True, keep=slot != "absent")


def _forward(entry: Entry, sight: Sight) -> Step:
    """An output of a call that committed."""

    def step(move: Move | None, reason: str, *, stuck: bool = False, keep: bool = False) -> Step:
        return Step(entry=entry, move=move, reason=reason, stuck=stuck, keep=keep)

    if entry.new is None:
        return step(None, "nothing was published")
    if sight.failure is not None:
        return step(None, sight.failure, stuck=True, keep=True)
    if sight.target == "new":
        return step(None, "it is published")
    if sight.slot != "new":
        return step(None, "it was committed, and somebody changed it since")
    if sight.target == "old":
        return step("exchange forward", "the call committed and the old one stands there")
    if sight.target == "absent":
        return step("put forward", "the call committed and nothing stands there")
    words = "somebody else's stands there" if sight.target == "other" else "its directory is gone"
    return step(None, f"the call committed, but {words}; what was committed lies in the job directory", keep=True)


def directory_of(workspace: str, job_id: str, place: Sequence[str] = ()) -> str:
    """Path of a job directory.

    Args:
        workspace: Path of the workspace.
        job_id: The call's id.
        place: The directory that holds it, relative to the workspace.
    """
    return os.path.join(workspace, *place, JOB_PREFIX + job_id)


def slot_path(workspace: str, job_id: str, entry: Entry) -> str:
    """Path of what lies in the slot of an output."""
    return os.path.join(directory_of(workspace, job_id, entry.place), entry.folder, entry.path[-1])
