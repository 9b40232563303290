"""What is forgotten, in which order, and when nothing can give way any more."""

from typing import Any

import attrs
import pytest

from tests.pending.box import ANN, Box, settings
from ztrio.pending import (
    ActorKind,
    Begun,
    Blocker,
    Bounds,
    Lease,
    Mode,
    Refusal,
    State,
    Tier,
    Transport,
)
from ztrio.pending.bounds import Account

HTTP: dict[str, Any] = {"transport": Transport.HTTP}


@pytest.mark.req("P18")
def test_tombstones_go_first_then_reads() -> None:
    """Of settled calls and unresolved reads 64 are kept per server: the oldest settled ones go first, then reads."""
    box = Box.of(kept=3)
    settled = [box.unresolved(scope=f"s{number}") for number in range(3)]
    for call in settled:
        box.late(call)
    reads = [box.unresolved(tier=Tier.READ, scope=f"s{number}") for number in range(4)]
    elsewhere = box.unresolved(tier=Tier.READ, server="mail")
    assert [None] * 3 == [box.state(call) for call in settled]
    assert [None] + [State.UNRESOLVED] * 3 == [box.state(call) for call in reads]
    assert State.UNRESOLVED == box.state(elsewhere)
    forgotten = [each for each in box.seen if each.forgotten]
    assert [call.call_id for call in (*settled, reads[0])] == [each.call.call_id for each in forgotten]
    assert 4 == box.registry.statistics().forgotten
    assert not box.gated()


@pytest.mark.req("P18")
def test_an_open_end_that_goes_is_always_said() -> None:
    """Of an unresolved read the store has everything but how it ended, so it is told when the read is forgotten."""
    box = Box.of(kept=1)
    first = box.unresolved(tier=Tier.READ)
    box.acknowledge()
    box.unresolved(tier=Tier.READ)
    assert [first.call_id] == [each.call.call_id for each in box.seen if each.forgotten]
    assert 1 == box.registry.statistics().forgotten


@pytest.mark.req("P18")
def test_reads_that_are_being_cancelled_stay() -> None:
    """A read whose upstream is being told is not forgotten; the cap gives way by those."""
    box = Box.of(kept=1)
    first = box.unresolved(tier=Tier.READ)
    box.registry.claim_cancel(first.call_id, actor=ActorKind.CALLER, **box.tick())
    second = box.unresolved(tier=Tier.READ)
    assert (State.CANCELLING, None) == (box.state(first), box.state(second))
    box.end_epoch()
    assert State.CONNECTION_RESET == box.state(first)
    third = box.unresolved(tier=Tier.READ, lease=Lease("t2", 2))
    box.registry.claim_cancel(third.call_id, actor=ActorKind.CALLER, **box.tick())
    fourth = box.unresolved(tier=Tier.READ, lease=Lease("t2", 2))
    box.registry.configure(attrs.evolve(box.registry.settings, mode=Mode.OFF))
    assert (None, State.CANCELLING, None) == (box.state(first), box.state(third), box.state(fourth))


@pytest.mark.req("P18", "P40")
def test_a_cap_that_is_lowered_below_the_reads_that_are_being_cancelled() -> None:
    """Where every unresolved read is being cancelled none is forgotten, however low the cap was set meanwhile."""
    box = Box.of(kept=2)
    reads = [box.unresolved(tier=Tier.READ) for _ in range(2)]
    box.registry.claim_cancel(reads[0].call_id, actor=ActorKind.CALLER, **box.tick())
    box.registry.configure(settings(kept=1))
    box.registry.claim_cancel(reads[1].call_id, actor=ActorKind.CALLER, **box.tick())
    assert [State.CANCELLING] * 2 == [box.state(read) for read in reads]


@pytest.mark.req("P18")
def test_tombstones_wait_for_the_store() -> None:
    """A settled call goes after 15 minutes once the store has acknowledged its newest revision, and not before."""
    box = Box()
    early, late = box.unresolved(scope="a"), box.unresolved(scope="b")
    box.late(early)
    box.late(late)
    box.registry.acknowledge([(early.call_id, box.record(early).revision)], now=box.now)
    box.registry.acknowledge([(late.call_id, box.record(late).revision - 1)], now=box.now)
    box.expire(after=899)
    assert [State.COMPLETED_LATE] * 2 == [box.state(early), box.state(late)]
    assert [] == box.expire(after=1)
    assert (None, State.COMPLETED_LATE) == (box.state(early), box.state(late))
    box.registry.acknowledge([(late.call_id, box.record(late).revision - 1)], now=box.now)
    assert State.COMPLETED_LATE == box.state(late)
    box.registry.acknowledge([(late.call_id, box.record(late).revision)], now=box.now)
    assert box.state(late) is None
    assert 0 == box.registry.statistics().forgotten
    assert float("inf") == box.registry.next_expiry()


@pytest.mark.req("P13", "P38")
def test_timers_of_what_has_gone_do_not_pile_up() -> None:
    """However many calls come and go, the timers are bounded by what is alive, and what is alive still expires."""
    box = Box()
    kept, read = box.unresolved(scope="kept"), box.unresolved(tier=Tier.READ)
    box.registry.claim_cancel(read.call_id, actor=ActorKind.CALLER, **box.tick())
    for _ in range(300):
        box.now += 0.5
        box.late(box.unresolved())
        box.acknowledge()
        assert 300 >= box.registry.statistics().indexed[3]
    box.finish(read, told=False)
    box.expire(after=1000)
    assert [State.EXPIRED] * 2 == [box.state(call) for call in (kept, read)]


@pytest.mark.req("P18")
def test_gating_records_are_never_dropped() -> None:
    """A held record stays for good, however long, and whatever the store has acknowledged."""
    box = Box()
    box.sent()
    box.end_epoch()
    box.acknowledge()
    box.expire(after=10_000_000)
    assert box.registry.gates("files", ANN, ANN)


def full(**changes: object) -> Box:
    """A principal with 8 records in its quota of 8: 2 settled, 2 reads, 4 gating in two scopes."""
    box = Box.of(records=8, mode=Mode.OFF, **changes)
    gating = [box.unresolved(scope=scope) for scope in ("a", "a", "b", "b")]
    assert gating
    for scope in ("c", "d"):
        box.late(box.unresolved(scope=scope))
    for _ in range(2):
        box.unresolved(tier=Tier.READ)
    assert 8 == box.registry.statistics().records
    box.registry.configure(attrs.evolve(box.registry.settings, mode=Mode.ENFORCE))
    return box


def kinds(box: Box) -> list[str]:
    """What is kept, in short."""
    return sorted(
        "blocker" if isinstance(each, Blocker) else "gating" if each.gating else str(each.state)
        for each in box.registry.entries()
    )


@pytest.mark.req("P20")
def test_the_order_of_giving_way() -> None:
    """Over quota: own settled calls that the store has, own unresolved reads, folding, and only then a refusal."""
    box = full()
    box.acknowledge()
    late, read = "completed_late", "unresolved"
    expected = [
        [late, *["gating"] * 4, read, read],
        [*["gating"] * 4, read, read],
        [*["gating"] * 4, read],
        ["gating"] * 4,
        ["blocker", "gating", "gating"],
        ["blocker", "blocker"],
    ]
    for each in expected:
        assert isinstance(box.begin(box.call(scope="x")), Begun)
        assert sorted(each) == kinds(box)
    before = box.listed()
    refusal = box.begin(box.call(scope="x"))
    assert isinstance(refusal, Refusal)
    assert ("PENDING_REGISTRY_FULL", 1.0) == (refusal.code, refusal.retry_after)
    assert before == box.listed()
    assert box.registry.gates("files", ANN, "a")
    assert box.registry.gates("files", ANN, "b")


@pytest.mark.req("P20")
def test_settled_calls_that_the_store_does_not_have_stay() -> None:
    """For room a settled call goes only when the store has it; the reads go first then."""
    box = full()
    assert isinstance(box.begin(box.call(scope="x")), Begun)
    assert sorted(["completed_late", "completed_late", *["gating"] * 4, "unresolved"]) == kinds(box)


@pytest.mark.req("P20", "P16")
def test_folding_single_entries_makes_room_by_merging() -> None:
    """A principal with one entry in each of many scopes folds its oldest ones until those of a server merge."""
    box = Box.of(records=8, blockers=3, mode=Mode.OFF)
    for number in range(8):
        box.unresolved(scope=f"s{number}")
    assert isinstance(box.begin(box.call(scope="x")), Begun)
    assert ["blocker", *["gating"] * 4] == kinds(box)
    (merged,) = box.blockers()
    assert (4, "*") == (merged.count, merged.call.gate_scope)


@pytest.mark.req("P20")
def test_when_folding_would_not_help_nothing_is_folded() -> None:
    """With one entry on each of many servers nothing is gained by folding: the call is refused, the entries stay."""
    box = Box.of(records=4, blockers=2, mode=Mode.OFF)
    for number in range(4):
        box.unresolved(server=f"s{number}")
    box.registry.configure(attrs.evolve(box.registry.settings, mode=Mode.ENFORCE))
    assert isinstance(box.begin(box.call(server="x")), Refusal)
    assert ["gating"] * 4 == kinds(box)
    box.registry.configure(attrs.evolve(box.registry.settings, bounds=Bounds(records=4, blockers=9)))
    assert isinstance(box.begin(box.call(server="x")), Refusal)


@pytest.mark.req("P20")
def test_calls_that_are_being_cancelled_do_not_give_way() -> None:
    """A principal whose books are full of calls whose upstreams are being told makes no room."""
    box = Box.of(records=2, mode=Mode.OFF)
    calls = [box.unresolved(scope="a"), box.unresolved(tier=Tier.READ)]
    for call in calls:
        box.registry.claim_cancel(call.call_id, actor=ActorKind.CALLER, **box.tick())
    found = box.begin(box.call())
    assert isinstance(found, Begun)
    assert not found.tracked
    assert [State.CANCELLING] * 2 == [box.state(call) for call in calls]


@pytest.mark.req("P20", "P16")
def test_a_single_entry_folds_into_the_blocker_of_all_scopes() -> None:
    """Where one blocker gates all scopes of a server, folding the one entry of a scope makes room."""
    box = Box.of(gating=1, blockers=1, mode=Mode.OFF)
    for number in range(4):
        box.unresolved(scope=f"s{number % 2}")
    assert ["blocker", "gating", "gating"] == kinds(box)
    box.registry.configure(attrs.evolve(box.registry.settings, bounds=Bounds(records=3, blockers=9)))
    found = box.begin(box.call(server="x"))
    assert isinstance(found, Begun)
    assert (True, ["blocker", "gating"]) == (found.tracked, kinds(box))


@pytest.mark.req("P20", "P16")
def test_blockers_without_entries_count() -> None:
    """One more blocker than there may be merges them all, which makes room, also where the others have no entries."""
    box = Box.of(gating=1, blockers=2, mode=Mode.OFF)
    for scope in "ab":
        box.unresolved(scope=scope)
        box.late(box.unresolved(scope=scope))
    box.unresolved(scope="c")
    assert ["blocker", "blocker", "completed_late", "completed_late", "gating"] == kinds(box)
    box.registry.configure(attrs.evolve(box.registry.settings, bounds=Bounds(records=5, blockers=2)))
    found = box.begin(box.call(server="x"))
    assert isinstance(found, Begun)
    assert (True, ["blocker", "completed_late", "completed_late"]) == (found.tracked, kinds(box))
    assert 3 == box.blockers()[0].count


@pytest.mark.req("P13", "P21")
def test_nothing_is_left_of_what_is_over() -> None:
    """When every call is settled, and was kept for long enough, the books are as they were before the first one."""
    box = Box.of(gating=1, blockers=1, mode=Mode.OFF)
    for number in range(12):
        facts: dict[str, Any] = {"server": f"srv{number % 3}", "scope": f"s{number % 4}"} | (HTTP if number % 2 else {})
        box.unresolved(tier=Tier.READ if number % 6 == 0 else Tier.WRITE, **facts)
    box.late(box.unresolved(server="a", scope="one"))
    other = box.unresolved(server="a", scope="two")
    assert (False, True) == (box.registry.gates("a", ANN, "one"), box.registry.gates("a", ANN, "two"))
    box.late(other)
    box.expire(10_000.0)
    box.acknowledge()
    box.expire(10_000.0)
    assert [] == box.registry.entries()
    account = box.registry._accounts[ANN]
    assert attrs.asdict(Account(ANN), recurse=False) == attrs.asdict(account, recurse=False)
    assert (0, 0, 0, 0) == box.registry.statistics().indexed
