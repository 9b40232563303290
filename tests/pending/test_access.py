"""Who sees which call, and who may cancel it: two token principals, a confined anonymous one, and an admin."""

import json

import attrs
import pytest

from tests.pending.box import ANN, BOB, SECRET, WALL, Box, call_id, context, settings
from ztrio.calls import CallContext, View
from ztrio.errors import UnknownCall
from ztrio.pending import (
    ActivityRow,
    ActorKind,
    LateOutcome,
    Mode,
    Record,
    State,
    Tier,
    activity_of,
    anonymous_id,
    cancellable,
    is_visible,
    look_up,
    may_cancel,
    may_release,
    pending_call,
    principal_id,
    unknown_call,
    visible,
)

ONE, OTHER, GUEST = principal_id("ann", "a", "1"), principal_id("bob", "a", "1"), anonymous_id("public")
EVERYBODY = (ONE, OTHER, GUEST)
ADMIN = context("root", admin=True)


def box_of_all() -> Box:
    """A registry that knows all of them."""
    return Box.of(principals=EVERYBODY, mode=Mode.OFF)


def ids(records: list[Record]) -> list[str]:
    """Their ids."""
    return [record.call.call_id for record in records]


@pytest.mark.req("P48", "P49")
def test_who_sees_what() -> None:
    """Each sees its own calls of servers it can see now, an admin all, and a view that changed counts at once."""
    box = box_of_all()
    own = {
        each: [box.unresolved(principal=each, server=name).call_id for name in ("files", "mail")] for each in EVERYBODY
    }
    for each in EVERYBODY:
        assert own[each] == ids(visible(box.registry, context(each)))
        assert own[each][:1] == ids(visible(box.registry, context(each, servers=frozenset({"files"}))))
        assert [] == visible(box.registry, context(each, servers=frozenset()))
    assert [name for names in own.values() for name in names] == ids(visible(box.registry, ADMIN))
    assert [name for names in own.values() for name in names] == ids(
        visible(box.registry, context("root", admin=True, servers=frozenset()))
    )


@pytest.mark.req("P48")
def test_a_confined_caller_is_never_an_admin() -> None:
    """Whoever is confined is no admin, whatever else its view says, and cannot release."""
    confined = View(admin=True, confined=True)
    assert not confined.admin
    assert not attrs.evolve(confined, admin=True).admin
    box = box_of_all()
    call = box.unresolved(principal=ONE)
    guest = context(GUEST, admin=True, confined=True)
    assert [] == visible(box.registry, guest)
    assert not is_visible(guest, box.record(call))
    assert not may_release(guest)
    assert not may_release(context(ONE))
    assert may_release(ADMIN)


@pytest.mark.req("P49")
@pytest.mark.parametrize("tier", list(Tier))
@pytest.mark.parametrize("permission", list(Tier))
def test_permissions_are_exact(tier: Tier, permission: Tier) -> None:
    """Cancelling takes the very permission that the call was let in with; a higher one is not enough, nor is admin."""
    box = box_of_all()
    record = box.record(box.unresolved(principal=ONE, admission_tier=tier))
    tiers = frozenset({permission.value})
    assert (tier is permission) == may_cancel(context(ONE, tiers=tiers), record)
    assert (tier is permission) == may_cancel(context("root", admin=True, tiers=tiers), record)
    assert not may_cancel(context(ONE, tiers=tiers, read_only=True), record)
    assert not may_cancel(context(OTHER, tiers=tiers), record)
    assert not may_cancel(context(ONE, tiers=tiers, servers=frozenset({"mail"})), record)


@pytest.mark.req("P15", "P49")
def test_a_blocker_needs_every_permission() -> None:
    """A blocker is cancelled only by who has the permission of each of its calls."""
    box = Box.of(gating=1, mode=Mode.OFF)
    for tier in (Tier.WRITE, Tier.DESTRUCTIVE, Tier.WRITE):
        box.unresolved(admission_tier=tier)
    (blocker,) = box.blockers()
    assert may_cancel(context(tiers=frozenset({"write", "destructive"})), blocker)
    assert not may_cancel(context(tiers=frozenset({"destructive"})), blocker)
    assert not may_cancel(context(tiers=frozenset({"write"})), blocker)


def failure(act: object, *arguments: object) -> bytes:
    """What a caller is told of an id that means nothing to it, as bytes."""
    with pytest.raises(UnknownCall) as caught:
        act(*arguments)  # type: ignore[operator]
    return json.dumps(caught.value.as_dict()).encode() + str(caught.value).encode() + repr(caught.value.args).encode()


@pytest.mark.req("P49", "P53")
@pytest.mark.parametrize(
    "caller",
    [
        context(OTHER),
        context(GUEST, confined=True),
        context(ONE, servers=frozenset({"mail"})),
        context(OTHER, admin=False, servers=frozenset({"files"})),
    ],
)
def test_failures_are_identical_to_the_byte(caller: CallContext) -> None:
    """A call of somebody else's, or of a hidden server, is answered exactly like an id that never was."""
    box = box_of_all()
    call = box.unresolved(principal=ONE)
    row = activity_of(box.record(call), wall=WALL)
    unknown = failure(look_up, box.registry, caller, call_id(999))
    for act in (look_up, cancellable):
        assert unknown == failure(act, box.registry, caller, call.call_id)
        assert unknown == failure(act, box.registry, caller, call.call_id, row)
        assert unknown == failure(act, box.registry, caller, call_id(999), attrs.evolve(row, call_id=call_id(999)))
    assert str(unknown_call()).encode() in unknown
    assert call.call_id.encode() not in unknown


@pytest.mark.req("P49")
@pytest.mark.parametrize("view", [{"read_only": True}, {"tiers": frozenset({"read", "destructive"})}])
def test_who_sees_and_may_not_cancel_learns_nothing_from_trying(view: dict[str, object]) -> None:
    """A cancel that is not permitted is answered like one of an unknown id, though the call can be looked up."""
    box = box_of_all()
    call = box.unresolved(principal=ONE)
    caller = context(ONE, **view)
    row = activity_of(box.record(call), wall=WALL)
    assert box.record(call) is look_up(box.registry, caller, call.call_id)
    assert box.record(call) is look_up(box.registry, caller, call.call_id, row), "what is on the books is newer"
    unknown = failure(cancellable, box.registry, caller, call_id(999))
    assert unknown == failure(cancellable, box.registry, caller, call.call_id)
    assert box.record(call) is cancellable(box.registry, context(ONE), call.call_id)


@pytest.mark.req("P50")
def test_seeing_is_per_principal_and_the_gate_per_scope() -> None:
    """Another session of the same human is not gated by a call of this one, and can list, look up and cancel it."""
    box = Box()
    call = box.unresolved(principal="local", scope="session-1")
    other = context("local")
    assert not box.gated(principal="local", scope="session-2")
    assert [call.call_id] == ids(visible(box.registry, other))
    assert box.record(call) is cancellable(box.registry, other, call.call_id)


@pytest.mark.req("P53")
def test_an_id_grants_nothing() -> None:
    """Whoever knows the id of a foreign call can neither see, cancel nor reconcile it."""
    box = Box.of(mode=Mode.OFF)
    call = box.unresolved(observable=False)
    assert [] == box.read(call.call_id, principal=BOB, scope=ANN)
    for act in (look_up, cancellable):
        with pytest.raises(UnknownCall):
            act(box.registry, context(BOB), call.call_id)
    assert State.UNRESOLVED == box.state(call)


@pytest.mark.req("P53")
def test_principal_ids_go_to_admins_only() -> None:
    """The owner sees its call without any principal's id in it, an admin sees whose it is; so with rows."""
    box = box_of_all()
    record = box.record(box.unresolved(principal=ONE, scope="gs_x"))
    for entry in (record, activity_of(record, wall=WALL)):
        facts = {"ways": [], "secret": SECRET, "now": box.now, "wall": WALL}
        assert ONE not in json.dumps(pending_call(entry, context=context(ONE), **facts))  # type: ignore[arg-type]
        assert ONE == pending_call(entry, context=ADMIN, **facts)["principal"]  # type: ignore[arg-type]


@pytest.mark.req("P52", "I10")
def test_what_one_sees_is_independent_of_the_other() -> None:
    """Lists, lookups, verdicts and transitions of one are the same whether or not the other has pending calls."""

    def seen_by_other(busy: bool) -> list[object]:
        box = Box.of(principals=EVERYBODY)
        if busy:
            for scope in ("a", "b"):
                [box.unresolved(principal=ONE, scope=scope) for _ in range(20)]
                box.unresolved(principal=ONE, scope=OTHER)
        box.seq, box.minted, box.seen = 1000, 1000, []
        caller = context(OTHER)
        first = box.unresolved(principal=OTHER, gate_scope="s")
        shown: list[object] = [box.begin(box.call(principal=OTHER, scope="s")), box.listed(OTHER)]
        shown += [
            pending_call(each, context=caller, ways=[], secret=SECRET, now=box.now, wall=WALL)
            for each in visible(box.registry, caller)
        ]
        box.late(first)
        return [*shown, box.listed(OTHER), list(box.seen)]

    assert seen_by_other(False) == seen_by_other(True)


@pytest.mark.req("P17")
def test_the_id_of_a_folded_call_still_answers() -> None:
    """By the activity row the id of a folded call leads to its blocker, also after that has been merged or settled."""
    box = Box.of(gating=1, blockers=1, mode=Mode.OFF)
    calls = [box.unresolved(scope="a") for _ in range(2)]
    (fold,) = [each for each in box.seen if each.call.call_id == calls[0].call_id and each.event == "fold"]
    from ztrio.pending import activity_row

    row = activity_row(fold, wall=WALL)
    (blocker,) = box.blockers()
    assert (blocker.call.call_id, "unresolved") == (row.blocker, row.pending_state)
    assert blocker is look_up(box.registry, context(), calls[0].call_id, row)
    assert blocker is cancellable(box.registry, context(), calls[0].call_id, row)
    with pytest.raises(UnknownCall):
        cancellable(box.registry, context(tiers=frozenset({"read"})), calls[0].call_id, row)
    with pytest.raises(UnknownCall):
        look_up(box.registry, context(BOB), calls[0].call_id, row)
    [box.unresolved(scope="b") for _ in range(2)]
    (merged,) = box.blockers()
    assert merged is look_up(box.registry, context(), calls[0].call_id, row)
    absorbed = attrs.evolve(row, blocker="pcb_" + "a" * 16, gate_scope="b")
    assert merged is look_up(box.registry, context(), calls[0].call_id, absorbed), (
        "before its row was brought up to date"
    )
    box.registry.release(merged.call.call_id, actor=ActorKind.OPERATOR, **box.tick())
    assert merged is look_up(box.registry, context(), calls[0].call_id, row)
    assert absorbed is look_up(box.registry, context(), calls[0].call_id, absorbed)


@pytest.mark.req("P17")
def test_a_row_is_not_taken_for_a_call_of_a_later_gate() -> None:
    """A call whose blocker is long settled is not said to be in one that came afterwards."""
    box = Box.of(gating=1, mode=Mode.OFF)
    old = ActivityRow(
        call_id=call_id(500),
        principal=ANN,
        gate_scope=ANN,
        server="files",
        tool="put",
        revision=1,
        pending_state="unresolved",
        blocker="pcb_" + "b" * 16,
    )
    box.seq = 10
    [box.unresolved() for _ in range(2)]
    assert old is look_up(box.registry, context(), old.call_id, old)
    with pytest.raises(UnknownCall):
        cancellable(box.registry, context(), old.call_id, old)


@pytest.mark.req("P17")
def test_without_a_row_a_folded_call_is_unknown() -> None:
    """There is no list of folded ids: without a row the id is unknown; with one that ends there it is the row."""
    box = Box.of(gating=1, mode=Mode.OFF)
    calls = [box.unresolved() for _ in range(2)]
    with pytest.raises(UnknownCall):
        look_up(box.registry, context(), calls[0].call_id)
    box.late(calls[1], LateOutcome.TOOL_ERROR)
    row = attrs.evolve(activity_of(box.record(calls[1]), wall=WALL), call_id=call_id(77))
    assert row is look_up(box.registry, context(), call_id(77), row)
    box.registry.configure(settings())
    assert call_id(78) not in ids(box.registry.entries())
