"""The arithmetic of when a server is started again, for any history of deaths."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ztrio.upstream import RestartPolicy
from ztrio.upstream.restarts import Restarts

LIVES = st.lists(st.tuples(st.floats(0, 100), st.booleans(), st.floats(0, 1)), max_size=60)


@given(LIVES, st.integers(1, 6))
def test_waits_are_bounded_and_intensity_holds(lives: list[tuple[float, bool, float]], intensity: int) -> None:
    """No wait is longer than the ceiling and its jitter, the first ones are short, and no period has more deaths."""
    policy = RestartPolicy(intensity=intensity)
    chances: list[float] = []
    restarts = Restarts(policy, lambda: chances[-1])
    died: list[float] = []
    now, fresh = 0.0, True
    for lived, expected, chance in lives:
        chances.append(chance)
        now += lived
        if lived >= policy.sustained:
            died, fresh = [], True
        if not expected:
            died.append(now)
        restarts.ended(now, lived=lived, expected=expected)
        wait = restarts.wait(now)
        counted = [when for when in died if now - when <= policy.period]
        if wait is None:
            assert len(counted) >= intensity
            died, fresh = [], True
            continue
        assert len(counted) < intensity
        assert 0.08 <= wait <= policy.ceiling * (1 + policy.jitter)
        if fresh:
            assert wait <= policy.first * (1 + policy.jitter) <= 0.5
        fresh = False
        now += wait
