"""Results that came too late: kept where that is wanted, handed over once, to their owner."""

import attrs
import msgspec
import pytest

from ztrio.calls import LOCAL, Principal
from ztrio_mcp.gateway.held import LateResults

ANN = attrs.evolve(LOCAL, principal=Principal("ann"))
BOB = attrs.evolve(LOCAL, principal=Principal("bob"))
RESULT = msgspec.Raw(b'{"content":[]}')


@pytest.mark.req("P27")
def test_a_result_is_handed_over_once_and_to_its_owner() -> None:
    """Whoever made the call gets its late result; nobody else does, and nobody twice."""
    held = LateResults(enabled=True)
    held.keep("pc_1", "ann", RESULT, 0.0)
    assert held.take("pc_1", BOB, 1.0) is None
    found = held.take("pc_1", ANN, 1.0)
    assert found is not None
    assert bytes(RESULT) == bytes(found)
    assert held.take("pc_1", ANN, 1.0) is None


@pytest.mark.req("P27")
def test_nothing_is_kept_unless_the_operator_wants_it() -> None:
    """By default a late result is let go of as soon as its outcome was noted."""
    held = LateResults(enabled=False)
    held.keep("pc_1", "ann", RESULT, 0.0)
    assert len(held) == 0


@pytest.mark.req("P27")
def test_what_is_kept_is_bounded_in_size_number_and_time() -> None:
    """A result over 1 MiB, the 65th of one caller, and what nobody came for in 15 minutes are not there."""
    held = LateResults(enabled=True)
    held.keep("pc_big", "ann", msgspec.Raw(b" " * (2**20 + 1)), 0.0)
    assert len(held) == 0
    for number in range(65):
        held.keep(f"pc_{number}", "ann", RESULT, float(number))
    held.keep("pc_b", "bob", RESULT, 64.0)
    assert len(held) == 64 + 1
    assert held.take("pc_0", ANN, 65.0) is None
    assert held.take("pc_64", ANN, 65.0) is not None
    assert held.take("pc_1", ANN, 901.5) is None, "its quarter of an hour is over"
    assert held.take("pc_3", ANN, 901.5) is not None
