"""Reads, cancels, proofs, the operator: how entries end, and every race between them."""

import itertools
from collections.abc import Callable

import pytest

from tests.pending.box import ANN, BOB, Box
from ztrio.pending import (
    ActorKind,
    Busy,
    LateOutcome,
    Lease,
    Mode,
    Proof,
    Rejected,
    State,
    Transport,
)

CALLER = ActorKind.CALLER


@pytest.mark.req("P45")
@pytest.mark.parametrize("proof", list(Proof))
def test_proofs(proof: Proof) -> None:
    """Committed, rolled back and not started settle a call; running settles nothing."""
    box = Box()
    call = box.unresolved()
    (found,) = box.registry.proven(call.call_id, outcome=proof, **box.tick())
    settles = proof is not Proof.RUNNING
    assert (State.PROVEN if settles else State.UNRESOLVED, settles) == (found.after, found.changed)
    assert settles != box.gated()
    if settles:
        assert "upstream:proof" == found.settled_by
    with pytest.raises(Rejected, match="unknown"):
        box.registry.proven("pc_x", outcome=proof, **box.tick())


@pytest.mark.req("P45")
def test_proof_of_our_own_tools() -> None:
    """An entry of a tool of ours, without epoch and end, is settled by proof."""
    box = Box()
    call = box.unresolved(server="local:boards", transport=Transport.LOCAL, lease=Lease("", 0))
    assert box.gated(server="local:boards")
    box.end_epoch(5, server="local:boards", transport=Transport.LOCAL)
    box.expire(after=1e9)
    assert box.gated(server="local:boards")
    box.registry.proven(call.call_id, outcome=Proof.ROLLED_BACK, **box.tick())
    assert not box.gated(server="local:boards")


@pytest.mark.req("P46")
def test_a_server_is_busy_with_calls() -> None:
    """Busy counts reserved and sent calls and late waits of all principals, and nothing else."""
    box = Box.of(mode=Mode.OFF)
    busy = box.registry.busy
    assert not busy("files")
    box.reserved()
    sent, waiting = box.sent(principal=BOB), box.unresolved()
    box.unresolved(observable=False)
    assert Busy(1, 1, 1, 0) == busy("files")
    assert not busy("mail")
    box.complete(sent)
    box.late(waiting)
    assert Busy(1, 0, 0, 0) == busy("files")
    box.end_epoch()
    assert Busy() == busy("files")


@pytest.mark.req("P46")
@pytest.mark.parametrize("facts", [(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)])
def test_each_kind_of_work_counts(facts: tuple[int, int, int, int]) -> None:
    """Each of reserved, sent, awaited and untracked calls keeps a server busy by itself."""
    assert Busy(*facts)
    assert not Busy()


Step = Callable[[Box, object], object]


STEPS: dict[str, Step] = {
    "mark": lambda box, call: box.mark(call),  # type: ignore[arg-type]
    "response": lambda box, call: box.registry.resolve_late(
        call.call_id,  # type: ignore[attr-defined]
        outcome=LateOutcome.SUCCESS,
        **box.tick(),
    ),
    "epoch": lambda box, _: box.end_epoch(),
    "cancel": lambda box, call: box.cancel(call),  # type: ignore[arg-type]
    "expire": lambda box, _: box.expire(after=1000),
    "read": lambda box, call: box.read(call.call_id, lease=Lease("t9", 9)),  # type: ignore[attr-defined]
    "proof": lambda box, call: box.registry.proven(
        call.call_id,  # type: ignore[attr-defined]
        outcome=Proof.COMMITTED,
        **box.tick(),
    ),
    "release": lambda box, call: box.registry.release(
        call.call_id,  # type: ignore[attr-defined]
        actor=ActorKind.OPERATOR,
        **box.tick(),
    ),
}


@pytest.mark.req("P2", "P40", "I3", "I8")
def test_every_order_of_events() -> None:
    """Whatever order they come in, the first end stands, a gate that opened stays open, and nothing breaks."""
    for order in itertools.permutations(STEPS, 5):
        box = Box()
        call = box.sent()
        final: State | None = None
        opened = False
        for step in order:
            try:
                STEPS[step](box, call)
            except Rejected as rejected:
                assert rejected.state in (State.SENT, State.UNRESOLVED), order
            record = box.record(call)
            assert final is None or final is record.state, order
            final = record.state if record.state.terminal else None
            assert not (opened and record.gating), order
            opened = opened or (record.state is not State.SENT and not record.gating)
            assert record.gating == box.registry.gates("files", ANN, ANN), order
