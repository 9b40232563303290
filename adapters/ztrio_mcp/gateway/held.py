"""Results that came too late for their callers, kept where the operator wants that, and handed over once.

In memory only, and little of it: a result may hold anything, and whoever does not come for it within a quarter of an
hour does not want it. What does not fit is not kept at all rather than cut, and the call's `late_outcome` says what it
was either way.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import attrs
import msgspec

from ztrio.calls import CallContext

__all__ = ["LateResults"]

_MOST: Final = 64  # results of one principal; as many as late responses are waited for
_BYTES: Final = 2**20  # of one result
_KEPT: Final = 900.0  # seconds


@attrs.frozen
class _Held:
    principal: str
    result: msgspec.Raw
    until: float


class LateResults:
    """The results that are held.

    Args:
        enabled: Whether any are.
    """

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        # Call id → result, oldest first, and so in the order in which they go; at most `_MOST` of a principal.
        self._held: OrderedDict[str, _Held] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def keep(self, call_id: str, principal: str, result: msgspec.Raw, now: float) -> None:
        """A result came that nobody waited for any more."""
        if not self._enabled or len(result) > _BYTES:
            return
        self.forget(now)
        self._held[call_id] = _Held(principal, result.copy(), now + _KEPT)
        own = [each for each, held in self._held.items() if held.principal == principal]
        for each in own[:-_MOST]:
            del self._held[each]

    def take(self, call_id: str, context: CallContext, now: float) -> msgspec.Raw | None:
        """Hand a result to its owner, once; None where there is none for this caller."""
        self.forget(now)
        held = self._held.get(call_id)
        if held is None or held.principal != context.principal.id:
            return None
        del self._held[call_id]
        return held.result

    def forget(self, now: float) -> None:
        """Let go of what nobody came for."""
        while self._held:
            oldest = next(iter(self._held))
            if self._held[oldest].until > now:
                return
            del self._held[oldest]
