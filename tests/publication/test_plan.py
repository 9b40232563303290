"""Deciding what is to be done about a call that a dead process left, from what is seen and from nothing else."""

import itertools
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztrio.errors import Outcome
from ztrio.publication.identity import Mark
from ztrio.publication.journal import Entry, Journal
from ztrio.publication.recovery import Case, Fate, Plan, Presence, Sight, plan

OLD = Mark(inode=1, born_ns=1, directory=False, size=1, mtime_ns=1)
NEW = Mark(inode=2, born_ns=2, directory=False, size=2, mtime_ns=2)
PARENT = Mark(inode=3, born_ns=3, directory=True, size=0, mtime_ns=0)

# What may be where: an object is in one place only, and where nothing was before nothing can be the old one.
PRESENCES = [
    (existed, target, slot)
    for existed in (True, False)
    for target, slot in itertools.product(get_args(Presence), get_args(Presence))
    if not (target == slot and target in ("old", "new"))
    and (existed or "old" not in (target, slot))
    and slot != "unknown"
]


def entry(*, existed: bool = True, made: bool = True, name: str = "a") -> Entry:
    return Entry(
        parameter=name,
        path=(name,),
        parent=PARENT,
        place=(),
        folder="0",
        old=OLD if existed else None,
        old_mode="0644" if existed else None,
        new=NEW if made else None,
    )


def case(*entries: Entry, fate: Fate = "running", ran: bool = True, external: bool = False, **rest: object) -> Case:
    journal = Journal(job_id="job_x", workspace="/w", external=external, outputs=entries)
    return Case(job_id="job_x", fate=fate, ran=ran, journal=journal, **rest)  # type: ignore[arg-type]


def after(sight: Sight, move: str | None) -> Sight:
    """What is to be seen when the move was made."""
    if move in ("exchange back", "exchange forward"):
        return Sight(target=sight.slot, slot=sight.target)
    if move == "take back":
        return Sight(target="absent", slot=sight.target)
    if move == "put forward":
        return Sight(target=sight.slot, slot="absent")
    return Sight(target=sight.target, slot=sight.slot, edited=sight.edited)


@pytest.mark.parametrize(("existed", "target", "slot"), PRESENCES)
def test_what_did_not_commit_goes_back_or_stays_for_somebody_to_look(
    existed: bool, target: Presence, slot: Presence
) -> None:
    """Not committed: nothing of the call stays at a target, no backup is removed, and only what is ours is moved."""
    one = entry(existed=existed)
    decided = plan(case(one), [Sight(target=target, slot=slot)])
    [step] = decided.steps
    if target == "new" and slot in ("old", "other"):
        assert "exchange back" == step.move
    elif target == "new" and not existed:
        assert "take back" == step.move
    else:
        assert None is step.move
    if target == "old":
        assert (Outcome.ROLLED_BACK, None) == (decided.outcome, decided.problem)
    if target in ("absent", "other", "unknown") and slot in ("old", "other"):
        assert (None, False, (one,)) == (decided.outcome, decided.remove, decided.locked)
        assert "a: somebody" in str(decided.problem) or "a: its directory" in str(decided.problem)
    if slot == "new":
        assert (Outcome.ROLLED_BACK, True) == (decided.outcome, decided.remove)
    if slot == "old" and target != "new":
        assert not decided.remove


@pytest.mark.parametrize(("existed", "target", "slot"), PRESENCES)
def test_what_committed_goes_forward_and_is_never_taken_back(existed: bool, target: Presence, slot: Presence) -> None:
    """Committed: the old or nothing gives way to the new one, what somebody put there since stays, nothing is lost."""
    decided = plan(case(entry(existed=existed), fate="committed"), [Sight(target=target, slot=slot)])
    [step] = decided.steps
    forward = {"old": "exchange forward", "absent": "put forward"} if slot == "new" else {}
    assert forward.get(target) == step.move
    assert (None, None, ()) == (decided.outcome, decided.problem, decided.locked)
    assert (not (slot == "new" and target in ("other", "unknown"))) == decided.remove


@given(
    existed=st.booleans(),
    seen=st.sampled_from(PRESENCES),
    fate=st.sampled_from(get_args(Fate)),
    edited=st.booleans(),
    ran=st.booleans(),
)
def test_deciding_again_after_the_move_finds_nothing_more_to_do(
    existed: bool, seen: tuple[bool, Presence, Presence], fate: Fate, edited: bool, ran: bool
) -> None:
    """One move is enough: the next look decides on none, and neither locks nor keeps more than the first."""
    existed, target, slot = seen
    sight = Sight(target=target, slot=slot, edited=edited and slot == "new")
    about = case(entry(existed=existed), fate=fate, ran=ran)
    first = plan(about, [sight])
    again = plan(about, [after(sight, first.moves[0].move if first.moves else None)])
    assert () == again.moves
    assert len(again.locked) <= len(first.locked)
    assert first.remove <= again.remove or "other" in (target, slot)
    if fate == "running" and first.moves:
        assert (Outcome.ROLLED_BACK if ran else Outcome.NOT_STARTED) == again.outcome


@given(seen=st.lists(st.sampled_from(PRESENCES), min_size=1, max_size=5), ran=st.booleans())
def test_one_output_that_nobody_may_decide_about_does_not_keep_the_others(
    seen: list[tuple[bool, Presence, Presence]], ran: bool
) -> None:
    """Each output is decided by itself: what can go back goes back, and only what is stuck stays locked."""
    entries = [entry(existed=existed, name=str(index)) for index, (existed, _, _) in enumerate(seen)]
    sights = [Sight(target=target, slot=slot) for _, target, slot in seen]
    together = plan(case(*entries, ran=ran), sights)
    alone = [plan(case(one, ran=ran), [sight]) for one, sight in zip(entries, sights, strict=True)]
    assert tuple(step for each in alone for step in each.steps) == together.steps
    assert tuple(one for each in alone for one in each.locked) == together.locked
    assert (together.problem is not None) == any(each.problem is not None for each in alone)
    assert (together.outcome is None) == (together.problem is not None)
    assert together.remove == all(each.remove for each in alone)


def test_moves_are_made_in_the_opposite_order_of_publication() -> None:
    """What was published last is taken back first."""
    entries = [entry(name=name) for name in "abc"]
    decided = plan(case(*entries), [Sight(target="new", slot="old")] * 3)
    assert ["c", "b", "a"] == [step.entry.parameter for step in decided.moves]


def test_an_optional_output_that_was_not_made_is_no_concern() -> None:
    """Nothing is done, kept or locked on account of an output that the tool did not make."""
    for target, slot in itertools.product(get_args(Presence), get_args(Presence)):
        for fate in get_args(Fate):
            decided = plan(case(entry(made=False), fate=fate), [Sight(target=target, slot=slot)])
            assert ((), True, ()) == (decided.moves, decided.remove, decided.locked)


def test_an_edited_copy_is_kept() -> None:
    """What somebody edited after it had been published is taken back, kept, and does not keep the target locked."""
    decided = plan(case(entry()), [Sight(target="old", slot="new", edited=True)])
    assert (Outcome.ROLLED_BACK, False, ()) == (decided.outcome, decided.remove, decided.locked)
    assert ["a"] == [kept.parameter for kept in decided.kept]
    assert "edited" in decided.steps[0].reason


def test_a_mode_that_was_lent_is_given_back() -> None:
    """A directory that got write permission for the exchange only, and is where it was, gets its own mode back."""
    decided = plan(case(entry()), [Sight(target="old", slot="new", lent=True)])
    assert ["restore mode"] == [step.move for step in decided.moves]


def test_what_could_not_be_done_stays_for_somebody_to_look() -> None:
    """A failure locks the target, keeps the directory and is told; also of a call that committed."""
    fates: tuple[Fate, ...] = ("running", "committed")
    for fate in fates:
        decided = plan(
            case(entry(), fate=fate),
            [Sight(target="unknown", slot="unknown", failure="Read-only file system")],
        )
        assert (None, False, "a: Read-only file system") == (decided.outcome, decided.remove, decided.problem)
        assert ["a"] == [locked.parameter for locked in decided.locked]


def test_a_call_whose_tool_never_ran_was_not_started() -> None:
    """The outcome tells whether the tool may have run."""
    assert Outcome.NOT_STARTED == plan(case(ran=False), []).outcome
    assert Outcome.ROLLED_BACK == plan(case(ran=True), []).outcome


def test_effects_elsewhere_are_for_somebody_to_look_at() -> None:
    """Files go back, and a tool that may have acted elsewhere stays unresolved until somebody says so."""
    decided = plan(case(entry(), external=True), [Sight(target="old", slot="new")])
    assert (None, ()) == (decided.outcome, decided.locked)
    assert "elsewhere" in str(decided.problem)
    assert Outcome.NOT_STARTED == plan(case(external=True, ran=False), []).outcome
    accepted = plan(case(entry(), external=True, accepted=True), [Sight(target="old", slot="new")])
    assert (Outcome.ROLLED_BACK, None, True) == (accepted.outcome, accepted.problem, accepted.remove)


def test_a_problem_forbids_everything() -> None:
    """Where it is not certain whose a directory is, nothing is moved or removed, and every target stays locked."""
    decided = plan(case(entry(), problem="another store"), [Sight(target="new", slot="old")])
    assert ((), False, "another store") == (decided.moves, decided.remove, decided.problem)
    assert ["a"] == [locked.parameter for locked in decided.locked]
    accepted = plan(case(entry(), problem="another store", accepted=True), [Sight(target="new", slot="old")])
    assert ((), True, None) == (accepted.moves, accepted.remove, accepted.problem)


def test_what_an_operator_accepted_is_not_locked_any_more() -> None:
    """Accepting leaves the target as it is, ends the call and lets go of the backup."""
    decided = plan(case(entry(), accepted=True), [Sight(target="other", slot="old")])
    assert ((), Outcome.ROLLED_BACK, True, (), ()) == (
        decided.moves,
        decided.outcome,
        decided.remove,
        decided.locked,
        decided.kept,
    )


def test_a_call_that_the_store_forgot_is_not_acted_on() -> None:
    """Without a row nothing is moved: what is clearly nothing goes, all else stays and is told."""

    def forgotten(target: Presence, slot: Presence) -> Plan:
        return plan(case(entry(), fate="unclaimed"), [Sight(target=target, slot=slot)])

    assert (True, None) == (forgotten("old", "new").remove, forgotten("old", "new").problem)
    left = forgotten("new", "old")
    assert (False, ()) == (left.remove, left.moves)
    assert "does not know" in str(left.problem)
    assert plan(Case(job_id="job_x", fate="unclaimed", ran=False), []).remove


def test_a_call_that_ended_keeps_its_outcome() -> None:
    """What a call left that ended without effects is put right like any other, and ends no second time."""
    back = plan(case(entry(), fate="ended"), [Sight(target="new", slot="old")])
    assert (1, None, None) == (len(back.moves), back.outcome, back.problem)
    kept = plan(case(entry(), fate="ended"), [Sight(target="other", slot="old")])
    assert (False, (), None) == (kept.remove, kept.locked, kept.problem)
    assert ["a"] == [one.parameter for one in kept.kept]
