"""Leases, and the ends of connections."""

from pathlib import Path
from typing import Any

import attrs
import pytest

import ztrio.pending
from tests.pending.box import ANN, Box
from ztrio.pending import (
    ActorKind,
    Begun,
    Lease,
    Mode,
    Refusal,
    ServerPolicy,
    State,
    Tier,
    Transport,
)

FOLDER = Path(ztrio.pending.__file__).parent


@pytest.mark.req("P31")
def test_a_lease_that_died() -> None:
    """A call checked with a lease of an ended epoch is refused as not sent; with a fresh lease the same id goes out."""
    box = Box()
    box.end_epoch(3)
    call = box.call(lease=Lease("t1", 3))
    refusal = box.begin(call)
    assert isinstance(refusal, Refusal)
    assert "NOT_SENT" == refusal.code
    assert isinstance(box.begin(call.evolved(lease=Lease("t2", 4))), Begun)


@pytest.mark.req("P31", "P36")
def test_the_advisory_check_admits_nothing() -> None:
    """A call that an early check let pass is refused by the check that counts, when another became unresolved."""
    box = Box()
    queued, running = box.call(), box.sent()
    assert box.registry.check(queued) is None
    box.mark(running)
    assert isinstance(box.begin(queued), Refusal)
    assert box.registry.check(queued.evolved(principal="nobody")) is None


@pytest.mark.req("P31")
def test_a_lease_that_dies_before_the_claim() -> None:
    """The call is `not_sent` inside, and may begin again under its own id with a fresh lease and a fresh check."""
    box = Box()
    call = box.reserved()
    other = box.sent(lease=Lease("t2", 2))
    assert [State.NOT_SENT] == [each.after for each in box.end_epoch(1)]
    again = call.evolved(lease=Lease("t2", 2))
    box.mark(other)
    assert isinstance(box.begin(again), Refusal), "the check is a fresh one"
    box.registry.configure(attrs.evolve(box.registry.settings, mode=Mode.OFF))
    assert isinstance(box.begin(again), Begun)
    assert State.SENT == box.claim(again)


@pytest.mark.req("P44")
def test_the_end_of_a_stdio_epoch() -> None:
    """Sent, unresolved and cancelling calls are reset, reserved ones not sent; newer epochs and others stay."""
    box = Box.of(mode=Mode.OFF)
    reserved, sent, waiting, cancelling = box.reserved(), box.sent(), box.unresolved(), box.unresolved()
    newer, elsewhere = box.unresolved(lease=Lease("t2", 2)), box.unresolved(server="mail")
    box.registry.claim_cancel(cancelling.call_id, actor=ActorKind.CALLER, **box.tick())
    box.end_epoch(1)
    reset = State.CONNECTION_RESET
    assert [None, reset, reset, reset] == [box.state(each) for each in (reserved, sent, waiting, cancelling)]
    assert [State.UNRESOLVED] * 2 == [box.state(newer), box.state(elsewhere)]
    assert box.record(sent).gating
    assert reset == box.mark(sent).after, "the caller hears of it late"


@pytest.mark.req("P44")
def test_the_epoch_floor() -> None:
    """A late mark below the floor is a reset, also for a call that is on no books any more; the floor never falls."""
    box = Box()
    box.end_epoch(5)
    box.end_epoch(2)
    stranger = box.call(lease=Lease("t1", 5))
    assert (State.CONNECTION_RESET, False) == ((mark := box.mark(stranger)).after, mark.changed)
    assert State.UNRESOLVED == box.mark(stranger.evolved(lease=Lease("t1", 6))).after
    assert State.UNRESOLVED == box.mark(stranger.evolved(server="mail")).after
    assert State.UNRESOLVED == box.mark(stranger.evolved(principal="nobody", lease=Lease("t1", 6))).after


@pytest.mark.req("P44")
def test_http_records_survive_a_reconnect() -> None:
    """Over HTTP only calls that were not sent end with their connection; no floor rises."""
    box = Box.of(mode=Mode.OFF)
    facts: dict[str, Any] = {"transport": Transport.HTTP}
    reserved, sent, waiting = box.reserved(**facts), box.sent(**facts), box.unresolved(**facts)
    assert [State.NOT_SENT] == [each.after for each in box.end_epoch(1, transport=Transport.HTTP)]
    assert [None, State.SENT, State.UNRESOLVED] == [box.state(each) for each in (reserved, sent, waiting)]
    assert box.record(waiting).observable
    assert isinstance(box.begin(box.call(**facts)), Begun)


@pytest.mark.req("P44", "P38")
def test_a_reset_of_a_read_gates_nothing() -> None:
    """A read that its connection took along is settled, and so is a write where `on_reset: open` says so."""
    box = Box.of(servers={"open": ServerPolicy(on_reset="open")})
    read, write = box.sent(tier=Tier.READ), box.sent(server="open")
    box.end_epoch(1)
    box.end_epoch(1, server="open")
    assert [State.CONNECTION_RESET] * 2 == [box.state(read), box.state(write)]
    assert not box.record(read).gating
    assert not box.gated(server="open")
    assert ANN == box.record(read).call.principal
