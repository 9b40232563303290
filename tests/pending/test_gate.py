"""Whether a call may go out while others are unresolved, and what its caller is told."""

import itertools

import pytest

from tests.pending.box import ANN, BOB, SECRET, Box, call_id, settings
from ztrio.pending import (
    Action,
    ActorKind,
    Begun,
    Bounds,
    LateOutcome,
    Lease,
    Mode,
    PendingSettings,
    Refusal,
    Registry,
    ServerPolicy,
    State,
    Tier,
    open_lineage,
    seal_lineage,
    warning_meta,
)

WAIT, RECONCILE, CANCEL, ASK = Action.WAIT, Action.RECONCILE, Action.CANCEL, Action.ASK_OPERATOR


@pytest.mark.req("P30")
def test_the_default_is_warn() -> None:
    """Without settings the gate warns; a server may have a mode of its own, which wins."""
    assert Mode.WARN is PendingSettings().mode
    own = PendingSettings(mode=Mode.ENFORCE, servers={"mail": ServerPolicy(mode=Mode.OFF), "x": ServerPolicy()})
    assert [Mode.ENFORCE, Mode.OFF, Mode.ENFORCE] == [own.mode_of(name) for name in ("files", "mail", "x")]
    assert ("open", "hold") == (ServerPolicy().on_expire, ServerPolicy().on_reset)
    for wrong in ({"on_expire": "maybe"}, {"on_reset": "maybe"}):
        with pytest.raises(ValueError, match="maybe"):
            ServerPolicy(**wrong)  # type: ignore[arg-type]


@pytest.mark.req("P32", "P35", "P30")
@pytest.mark.parametrize(
    ("mode", "tier", "gated"),
    list(itertools.product(Mode, Tier, [False, True])),
)
def test_when_a_call_is_refused(mode: Mode, tier: Tier, gated: bool) -> None:
    """Refused exactly when `enforce`, write or destructive, and gated; in `warn` the same is sent with a warning."""
    box = Box.of(mode=mode)
    call = box.unresolved() if gated else None
    found = box.begin(box.call(tier=tier))
    matters = gated and tier is not Tier.READ
    assert isinstance(found, Refusal) == (matters and mode is Mode.ENFORCE)
    if isinstance(found, Begun):
        assert (found.warning is not None) == (matters and mode is Mode.WARN)
    if isinstance(found, Begun) and found.warning is not None and call is not None:
        assert [call.call_id] == [each.call_id for each in found.warning.gating]


@pytest.mark.req("P32")
def test_only_the_same_server_and_scope_counts() -> None:
    """Another server, another scope, another principal are not gated; any epoch of the same server is."""
    box = Box()
    box.unresolved(scope="s")
    assert box.gated(scope="s")
    assert not box.gated(scope="t")
    assert not box.gated(scope="s", server="mail")
    assert not box.gated(scope="s", principal=BOB)
    assert isinstance(box.registry.check(box.call(scope="s", lease=Lease("t9", 9))), Refusal)


@pytest.mark.req("P51")
def test_a_sessionless_call_is_checked_against_every_scope() -> None:
    """Without scope handle every scope of the principal counts, of this server and principal alone."""
    box = Box.of(gating=1)
    box.unresolved(scope="s")
    box.unresolved(scope="s")
    box.unresolved(scope="t")
    box.unresolved(scope="u", server="mail")
    call = box.call(scope=ANN, every_scope=True)
    refusal = box.registry.check(call)
    assert refusal is not None
    assert (3, 3) == (refusal.count, len(refusal.gating))
    assert box.registry.check(call.evolved(every_scope=False)) is None
    assert box.registry.check(call.evolved(principal=BOB)) is None
    assert box.registry.gates("files", ANN, ANN, every=True)
    assert not box.registry.gates("files", ANN, ANN)
    assert not box.registry.gates("third", ANN, ANN, every=True)


@pytest.mark.req("P35")
def test_a_warning() -> None:
    """In `warn` the call is sent, and what is in the way is given for the result's `_meta`."""
    box = Box.of(mode=Mode.WARN)
    call = box.unresolved()
    box.end_epoch()
    box.now += 2
    found = box.begin(box.call(lease=Lease("t2", 2)))
    assert isinstance(found, Begun)
    assert found.tracked
    assert found.warning is not None
    meta = warning_meta(found.warning, now=box.now)
    assert [{"call_id": call.call_id, "tool": "put", "age": 2.0, "expires_in": None, "count": 1}] == meta["pending"]
    assert (1, True) == (meta["count"], "was sent all the same" in meta["message"])


@pytest.mark.req("P36")
def test_a_write_queued_behind_a_call_that_becomes_unresolved() -> None:
    """Whatever was true while it was queued, the check at its turn refuses it."""
    box = Box()
    first = box.sent()
    queued = box.call()
    assert box.registry.check(queued) is None
    box.mark(first)
    assert isinstance(box.begin(queued), Refusal)
    box.late(first)
    assert isinstance(box.begin(queued), Begun)


@pytest.mark.req("P37", "I2")
def test_a_continuation_passes_its_own_call() -> None:
    """A call that continues the only gating one passes, as does each later one of that lineage; a new call does not."""
    box = Box()
    first = box.unresolved()
    sealed = seal_lineage(SECRET, "files", ANN, first.call_id, "state")
    opened = open_lineage(SECRET, "files", ANN, sealed)
    assert opened is not None
    continuation = box.call(lineage=opened[0])
    assert isinstance(box.begin(continuation), Begun)
    assert isinstance(box.begin(box.call()), Refusal)
    assert isinstance(box.begin(box.call(lineage=call_id(77))), Refusal)
    box.late(first)
    box.claim(continuation)
    box.mark(continuation)
    assert isinstance(box.begin(box.call(lineage=opened[0])), Begun)


@pytest.mark.req("P37", "I2")
def test_a_continuation_passes_nothing_else() -> None:
    """With another call in the way, or its own folded among others, a continuation is refused like any call."""
    box = Box.of(gating=2, mode=Mode.OFF)
    first, _ = box.unresolved(), box.unresolved()
    box.registry.configure(settings(gating=2))
    assert isinstance(box.begin(box.call(lineage=first.call_id)), Refusal)
    box.registry.configure(settings(gating=1, mode=Mode.OFF))
    last = box.unresolved()
    box.late(last)
    assert 1 == len(box.blockers())
    box.registry.configure(settings())
    assert isinstance(box.begin(box.call(lineage=first.call_id)), Refusal)


@pytest.mark.req("P38")
@pytest.mark.parametrize("policy", ["open", "hold"])
def test_a_reset_opens_a_gate_only_where_it_may(policy: str) -> None:
    """A call that lost its connection gates across epochs until somebody settles it, unless `on_reset` is open."""
    box = Box.of(servers={"files": ServerPolicy(on_reset=policy)})  # type: ignore[arg-type]
    call = box.unresolved()
    (reset,) = box.end_epoch()
    assert (State.CONNECTION_RESET, policy == "hold", False) == (reset.after, reset.gating, reset.observable)
    box.expire(after=100_000)
    box.end_epoch(7)
    assert (policy == "hold") == box.registry.gates("files", ANN, ANN)
    assert State.CONNECTION_RESET == box.state(call)


@pytest.mark.req("P38")
@pytest.mark.parametrize("policy", ["open", "hold"])
def test_expiry(policy: str) -> None:
    """At its last moment a call expires, not before; with `on_expire: hold` it goes on gating until settled."""
    box = Box.of(servers={"files": ServerPolicy(on_expire=policy)})  # type: ignore[arg-type]
    call = box.unresolved()
    assert [] == box.expire(after=629.9)
    (expired,) = box.expire(after=0.1)
    assert (State.EXPIRED, policy == "hold", False) == (expired.after, expired.gating, expired.observable)
    assert (None if policy == "hold" else "gateway:expire") == expired.settled_by
    assert (policy == "hold") == box.gated()
    box.registry.release(call.call_id, actor=ActorKind.OPERATOR, **box.tick())
    assert not box.gated()
    assert State.EXPIRED == box.state(call)


@pytest.mark.req("P38")
def test_a_read_is_never_held() -> None:
    """Unresolved reads gate nothing, whatever became of them, and expire."""
    box = Box.of(servers={"files": ServerPolicy(on_expire="hold")})
    read = box.unresolved(tier=Tier.READ)
    assert not box.gated()
    box.expire(after=1000)
    assert (State.EXPIRED, False) == (box.state(read), box.record(read).gating)


@pytest.mark.req("P30", "P31")
def test_bounds_and_modes_change_without_touching_calls() -> None:
    """New settings hold from the next check on; calls in flight and their leases go on."""
    box = Box.of(mode=Mode.OFF)
    sent, waiting = box.sent(), box.unresolved()
    before = (box.listed(), box.record(sent).call.lease)
    box.registry.configure(settings(mode=Mode.ENFORCE, records=10))
    assert before == (box.listed(), box.record(sent).call.lease)
    assert Bounds(records=10) == box.registry.settings.bounds
    assert waiting.call_id == box.registry.match("t1", box.record(waiting).wire_ids[-1])
    assert LateOutcome.SUCCESS == box.late(waiting)[0].late_outcome
    assert isinstance(box.registry, Registry)
