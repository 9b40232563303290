"""What a log is told about pending calls: one line for each call that nobody knows about, few lines for a storm.

The core logs nothing: whoever runs it hands in a function that takes a name and facts. Lines that repeat are held back
and counted, and the next one that goes out says how many there were; the counters of the registry miss nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import attrs

__all__ = ["Notices", "Notify"]

Notify = Callable[..., object]
"""Called with the name of what happened, and facts by keyword."""

_EVERY: Final = 10.0  # seconds between two lines of one kind about one server and principal
_KINDS: Final = 256  # of which the time is remembered; the oldest give way


@attrs.define
class _Last:
    at: float
    # Lines held back since.
    held: int = 0


class Notices:
    """Tells a log.

    Args:
        notify: The log; None to tell nobody.
    """

    def __init__(self, notify: Notify | None) -> None:
        self._notify = notify
        # (name, server, principal) → when the last line went out, oldest first; at most `_KINDS`.
        self._last: OrderedDict[tuple[str, str, str], _Last] = OrderedDict()

    def say(self, name: str, **facts: Any) -> None:
        """Tell it, whatever was told before."""
        if self._notify is not None:
            self._notify(name, **{key: value for key, value in facts.items() if value is not None})

    def say_rarely(self, name: str, *, server: str, principal: str, now: float, **facts: Any) -> None:
        """Tell it, unless the same was told of this server and principal a moment ago."""
        key = (name, server, principal)
        last = self._last.get(key)
        if last is not None and now - last.at < _EVERY:
            last.held += 1
            return
        held = 0 if last is None else last.held
        self._last[key] = _Last(now)
        self._last.move_to_end(key)
        while len(self._last) > _KINDS:
            self._last.popitem(last=False)
        self.say(name, server=server, principal=principal, **facts, held_back=held or None)
