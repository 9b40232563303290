"""When a server that ended is started again: the arithmetic of the policy, on times that it is given."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ztrio.upstream.words import RestartPolicy

__all__ = ["Restarts"]


class Restarts:
    """What has become of a server so far, as far as the policy looks at it.

    Args:
        policy: The policy.
        chance: Gives numbers from 0 to 1, for jitter.
    """

    def __init__(self, policy: RestartPolicy, chance: Callable[[], float]) -> None:
        self._policy = policy
        self._chance = chance
        # When it died by itself, oldest first; at most `intensity` of them, and none before its last long life.
        self._died_at: deque[float] = deque(maxlen=policy.intensity)
        # The wait before the next start, before jitter.
        self._wait = policy.first

    def ended(self, now: float, *, lived: float, expected: bool) -> None:
        """A generation has ended.

        Args:
            now: The time, in seconds.
            lived: Seconds since its start.
            expected: Whether we ended it, which does not count.
        """
        if lived >= self._policy.sustained:
            self._forget()
        if not expected:
            self._died_at.append(now)

    def wait(self, now: float) -> float | None:
        """Seconds before it is started again; None when it is given up, after which everything begins anew."""
        policy = self._policy
        if len(self._died_at) == policy.intensity and now - self._died_at[0] <= policy.period:
            self._forget()
            return None
        wait = self._wait * (1 + policy.jitter * (2 * self._chance() - 1))
        self._wait = min(self._wait * policy.factor, policy.ceiling)
        return wait

    def _forget(self) -> None:
        self._died_at.clear()
        self._wait = self._policy.first
