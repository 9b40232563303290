"""Quotas, folding, blockers, and what gives way: memory is finite, and nobody pays for a neighbour."""

import gc
import tracemalloc
from typing import Any

import attrs
import pytest

from tests.pending.box import ANN, BOB, Box, settings
from ztrio.pending import (
    Begun,
    Blocker,
    Bounds,
    Mode,
    PendingSettings,
    Reason,
    Refusal,
    Registry,
    State,
    Tier,
    Transport,
)

HTTP: dict[str, Any] = {"transport": Transport.HTTP}


@pytest.mark.req("P13")
def test_the_promised_quotas() -> None:
    """The caps are those that the documentation promises."""
    bounds = Bounds()
    assert (64, 256, 128, 64) == (bounds.principals, bounds.records, bounds.in_flight, bounds.late_waits)
    assert (16, 64, 64, 64) == (bounds.gating, bounds.blockers, bounds.kept, bounds.streams)
    assert (600.0, 900.0, 30.0, 1.0) == (bounds.ttl, bounds.tombstone, bounds.progress, bounds.retry_after)
    for wrong in (0, 257):
        with pytest.raises(ValueError, match="gating"):
            Bounds(gating=wrong)


@pytest.mark.req("P13")
def test_too_many_principals() -> None:
    """The 65th configured principal is a configuration error, at the start and at a reload, and changes nothing."""
    names = tuple(f"p{number}" for number in range(64))
    with pytest.raises(ValueError, match="65 principals"):
        PendingSettings(principals=names)
    registry = Registry(PendingSettings(principals=names[:63]))
    before = registry.settings
    with pytest.raises(ValueError, match="at most 64"):
        registry.configure(attrs.evolve(before, principals=names))
    assert before is registry.settings


@pytest.mark.req("P13")
def test_principals_who_leave_keep_their_quota_while_they_have_calls() -> None:
    """Who is removed with unresolved calls counts until those are settled, and then makes room."""
    box = Box.of(mode=Mode.WARN)
    bounds = Bounds(principals=3)
    box.registry.configure(PendingSettings(principals=("a", "b"), bounds=bounds))
    call = box.unresolved(principal="a")
    with pytest.raises(ValueError, match="1 principals are to leave"):
        box.registry.configure(PendingSettings(principals=("b", "c"), bounds=bounds))
    assert isinstance(box.begin(box.call(principal="b")), Begun)
    box.registry.configure(PendingSettings(principals=(), bounds=bounds))
    assert 3 == box.registry.statistics().principals, "those with calls on their books"
    assert State.UNRESOLVED == box.state(call)
    box.late(call)
    box.acknowledge()
    box.expire(after=1000)
    box.registry.configure(PendingSettings(principals=("c",), bounds=bounds))
    assert {"local", "b", "c"} == set(box.registry._accounts)


@pytest.mark.req("P13")
def test_the_128_in_flight() -> None:
    """The 129th call in flight of a principal does not fit; another's does, and so does the next after an end."""
    box = Box()
    calls = [box.reserved(tier=Tier.READ) for _ in range(128)]
    refusal = box.begin(box.call(tier=Tier.READ))
    assert isinstance(refusal, Refusal)
    assert ("PENDING_REGISTRY_FULL", 1.0) == (refusal.code, refusal.retry_after)
    assert isinstance(box.begin(box.call(principal=BOB)), Begun)
    box.claim(calls[0])
    assert isinstance(box.begin(box.call()), Refusal), "a sent call is in flight, too"
    box.complete(calls[0])
    assert isinstance(box.begin(box.call()), Begun)


@pytest.mark.req("P13", "P20")
def test_somebody_who_is_not_configured_has_no_quota() -> None:
    """A call of a principal that is not configured is refused in `enforce`, and untracked otherwise."""
    box = Box()
    refusal = box.begin(box.call(principal="nobody"))
    assert isinstance(refusal, Refusal)
    assert ("PENDING_REGISTRY_FULL", None) == (refusal.code, refusal.retry_after)
    box.registry.configure(settings(mode=Mode.WARN))
    found = box.begin(box.call(principal="nobody"))
    assert isinstance(found, Begun)
    assert (False, []) == (found.tracked, found.transitions)
    assert not box.registry.gates("files", "nobody", "nobody")
    assert box.registry.covering("files", "nobody", "nobody") is None
    assert [] == box.registry.entries("nobody")


@pytest.mark.req("P13")
def test_late_waits_are_bounded() -> None:
    """The 65th late wait of a principal is not observed, and not matched; an end makes room for the next."""
    box = Box()
    calls = [box.unresolved(scope=f"s{number}") for number in range(65)]
    assert [True] * 64 + [False] == [box.record(call).observable for call in calls]
    assert 64 == box.registry.statistics().late_waits
    assert box.registry.match("t1", box.record(calls[64]).wire_ids[-1]) is None
    assert box.record(box.unresolved(principal=BOB)).observable
    box.late(calls[0])
    assert box.record(box.unresolved()).observable


@pytest.mark.req("P19")
@pytest.mark.parametrize(("principals", "share"), [(1, 64), (2, 32), (5, 12), (63, 1)])
def test_static_shares_of_streams(principals: int, share: int) -> None:
    """A principal has max(1, 64 // configured principals) HTTP streams per server; beyond it a stream is parked."""
    names = tuple(f"p{number}" for number in range(principals - 1))
    box = Box.of(principals=names, mode=Mode.OFF)
    assert share == box.registry.settings.share
    marks = [box.mark(box.sent(principal="local", scope=f"s{number}", **HTTP)) for number in range(share + 1)]
    assert [False] * share + [True] == [each.parked for each in marks]
    assert [True] * share + [False] == [each.observable for each in marks]
    if share < 64:
        assert not box.mark(box.sent(principal="local", scope="x", server="mail", **HTTP)).parked
        assert not box.mark(box.sent(principal="local", scope="y")).parked, "stdio holds no stream"
    if names:
        assert not box.mark(box.sent(principal=names[0], **HTTP)).parked


@pytest.mark.req("P19")
def test_there_is_no_preemption() -> None:
    """When more principals are configured, waits beyond the new share go on; only new ones are parked."""
    box = Box.of(principals=(), mode=Mode.OFF)
    calls = [box.unresolved(principal="local", scope=f"s{number}", **HTTP) for number in range(40)]
    box.registry.configure(settings(mode=Mode.OFF))
    assert all(box.record(call).observable for call in calls)
    assert box.mark(box.sent(principal="local", **HTTP)).parked
    box.registry.lose_sight(calls[0].call_id, **box.tick())
    assert not box.record(calls[0]).observable
    assert 39 == box.registry.statistics().late_waits
    assert [] == box.registry.lose_sight(calls[0].call_id, **box.tick())


@pytest.mark.req("P19")
def test_a_stream_that_ends_makes_room_for_the_next() -> None:
    """A late wait that is over gives its stream back, so that the next call of its principal there is observed."""
    box = Box.of(streams=3, mode=Mode.OFF)
    first = box.unresolved(scope="a", **HTTP)
    assert box.mark(box.sent(scope="b", **HTTP)).parked
    box.late(first)
    assert [False, True] == [box.mark(box.sent(scope=scope, **HTTP)).parked for scope in "cd"]


@pytest.mark.req("P19")
def test_the_older_http_transport_is_never_observed() -> None:
    """Over the older HTTP transport a call has its outcome and the gate, and no late response."""
    box = Box()
    marked = box.mark(box.sent(transport=Transport.SSE))
    assert (False, True, False) == (marked.observable, marked.gating, marked.parked)


@pytest.mark.req("P20")
@pytest.mark.parametrize("mode", [Mode.OFF, Mode.WARN])
def test_without_enforce_a_call_that_does_not_fit_goes_out_untracked(mode: Mode) -> None:
    """In `off` and `warn` nothing is refused for want of room: the call goes out untracked, and is counted."""
    box = Box.of(in_flight=1, mode=mode)
    box.reserved()
    found = box.begin(box.call())
    assert isinstance(found, Begun)
    assert (False, []) == (found.tracked, found.transitions)
    assert 1 == box.registry.statistics().untracked
    assert (1, 1) == (box.registry.busy("files").untracked, box.registry.busy("files").reserved)
    assert isinstance(box.begin(box.call()), Begun)
    box.registry.end_untracked("files")
    assert 1 == box.registry.busy("files").untracked
    box.registry.end_untracked("files")
    box.registry.end_untracked("files")
    assert 0 == box.registry.busy("files").untracked


@pytest.mark.req("P20", "P30")
def test_off_opens_every_gate_at_the_next_check() -> None:
    """`off` is a kill switch: the next check passes, the entries stay, and taking it back shuts the gates again."""
    box = Box()
    call = box.unresolved()
    before = box.listed()
    assert isinstance(box.begin(box.call()), Refusal)
    box.registry.configure(settings(mode=Mode.OFF))
    assert box.registry.check(box.call()) is None
    found = box.begin(box.call())
    assert isinstance(found, Begun)
    assert found.warning is None
    assert before == box.listed()
    box.registry.configure(settings())
    assert isinstance(box.begin(box.call()), Refusal)
    assert State.UNRESOLVED == box.state(call)


def kept_bytes() -> int:
    """Bytes that are held by what can be reached.

    msgspec sets up to 2,000 structs of a size aside, to be used again, until a full collection frees them. When the
    last one was is chance, and half a megabyte of what a reading says.
    """
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.case("R48")
@pytest.mark.req("P21", "I5")
def test_ten_thousand_timeouts_of_one_principal() -> None:
    """Memory is flat, the scope stays gated, and another principal's entries are identical before and after."""
    box = Box.of(mode=Mode.OFF)
    box.unresolved(principal=BOB)
    box.reserved(principal=BOB, tier=Tier.READ)
    before = box.listed(BOB)
    sizes = []
    tracemalloc.start()
    try:
        for number in range(10_000):
            box.seen.clear()
            box.mark(box.sent())
            box.now += 0.01
            assert box.registry.gates("files", ANN, ANN)
            if number in (2_000, 9_999):
                sizes.append(kept_bytes())
    finally:
        tracemalloc.stop()
    statistics = box.registry.statistics()
    assert (16, 10_000 - 16) == (statistics.gating - 2, box.blockers()[0].count)
    assert before == box.listed(BOB)
    assert sizes[1] - sizes[0] < 60_000
    assert max(statistics.indexed) < 300


@pytest.mark.req("P21", "P16")
def test_one_timeout_in_each_of_ten_thousand_sessions() -> None:
    """Memory is flat, every one of these scopes stays gated, and another principal's entries stay identical."""
    box = Box.of(mode=Mode.OFF)
    box.unresolved(principal=BOB)
    before = box.listed(BOB)
    sizes = []
    tracemalloc.start()
    try:
        for number in range(10_000):
            box.seen.clear()
            box.mark(box.sent(scope=f"session-{number}"))
            if number in (2_000, 9_999):
                sizes.append(kept_bytes())
    finally:
        tracemalloc.stop()
    for number in range(0, 10_000, 97):
        assert box.registry.gates("files", ANN, f"session-{number}")
    assert before == box.listed(BOB)
    assert not box.registry.gates("files", BOB, "session-1")
    assert sizes[1] - sizes[0] < 60_000
    assert 257 >= box.registry.statistics().records
    assert 10_000 == sum(each.count for each in box.blockers()) + sum(
        each.gating and not isinstance(each, Blocker) for each in box.registry.entries(ANN)
    )


@pytest.mark.req("P13", "P12")
def test_what_a_call_in_flight_keeps() -> None:
    """A call in flight keeps less than 4 KB, and nothing of it is left when it has ended."""
    box = Box.of(records=2000, in_flight=1000)
    box.complete(box.sent())
    calls = [box.call(scope=f"s{number}") for number in range(1000)]
    tracemalloc.start()
    try:
        for call in calls:
            assert isinstance(box.registry.check_and_begin(call, **box.tick()), Begun)
            box.registry.claim(call.call_id, wire_id=call.call_id, **box.tick())
        kept = kept_bytes()
        for call in calls:
            box.registry.complete(call.call_id, succeeded=True, **box.tick())
        left = kept_bytes()
    finally:
        tracemalloc.stop()
    assert kept / 1000 < 4096
    assert left < 200_000, "the tables of the indexes, which do not shrink"
    assert (0, 0, 0, 0) == box.registry.statistics().indexed


@pytest.mark.req("P13", "I5")
def test_a_noisy_neighbour() -> None:
    """One principal at every limit at once cannot refuse, fold, forget or blind anything of another's."""
    box = Box.of(records=6, in_flight=3, late_waits=1, gating=1, blockers=1, kept=1, streams=2, mode=Mode.OFF)
    mine = box.unresolved(principal=BOB, **HTTP)
    read = box.sent(principal=BOB, tier=Tier.READ)
    before = box.listed(BOB)
    for number in range(50):
        call = box.call(scope=f"s{number % 7}", tier=Tier.READ if number % 3 else Tier.WRITE, **HTTP)
        found = box.begin(call)
        if isinstance(found, Begun) and found.tracked and number % 5:
            box.claim(call)
            box.mark(call, Reason.CALLER_CANCELLED)
    assert before == box.listed(BOB)
    assert (True, State.SENT) == (box.record(mine).observable, box.state(read))
    assert isinstance(box.begin(box.call(principal=BOB, scope="z")), Begun)
