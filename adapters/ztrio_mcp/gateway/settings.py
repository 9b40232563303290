"""What an operator can set about a gateway, checked where it is made, so that nothing behind it has to ask again.

Times are seconds. Of the two limits of a call one always holds: without `idle`, the call's wait ends after `timeout`;
with it, after `idle` seconds in which no progress of this very call came, and at the latest at the ceiling. A caller
may name a timeout of its own, up to the ceiling.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

import attrs

from ztrio.pending.reasons import Mode

__all__ = ["DEFAULT_TIMEOUT", "LONGEST", "NAME", "GatewaySettings", "ToolLimits"]

DEFAULT_TIMEOUT: Final = 60.0
"""Seconds; the MCP SDKs' own clients wait as long."""
LONGEST: Final = 365 * 86400.0
"""Seconds of the longest time that can be set: a year. Beyond it somebody meant another unit."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""What a gateway may be called: it names a directory, and its server in every answer."""

_IDLE_TIMES: Final = 10  # a ceiling that nobody set is this many idle times: progress is heard, yet not for ever
_MOST_CALLS: Final = 65536

_Attribute = attrs.Attribute  # its parameter is not known at run time


def _seconds(_owner: Any, attribute: _Attribute[Any], value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= LONGEST:
        raise ValueError(f"{attribute.name}: {value!r} is no time; give seconds, more than 0 and at most {LONGEST:.0f}")


def _seconds_or_none(owner: Any, attribute: _Attribute[Any], value: Any) -> None:
    if value is not None:
        _seconds(owner, attribute, value)


def _whole(least: int, most: int) -> Any:
    def check(_owner: Any, attribute: _Attribute[Any], value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"{attribute.name}: {value!r} is no whole number from {least} to {most}")

    return check


def _one_of(*words: str) -> Any:
    def check(_owner: Any, attribute: _Attribute[Any], value: Any) -> None:
        if value not in words:
            raise ValueError(f"{attribute.name}: {value!r} is not one of {', '.join(words)}")

    return check


def _flag(_owner: Any, attribute: _Attribute[Any], value: Any) -> None:
    if value is not True and value is not False:
        raise ValueError(f"{attribute.name}: {value!r} is neither true nor false")


def _name(_owner: Any, attribute: _Attribute[Any], value: Any) -> None:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ValueError(
            f"{attribute.name}: {value!r} is no name; give at most 64 letters, digits, dots, dashes and underscores, "
            "the first a letter or digit"
        )


def _mode(value: Any) -> Any:
    """A mode by its word; what is none is left for the validator to name."""
    return Mode(value) if isinstance(value, str) and value in set(Mode) else value


def _fixed(given: Mapping[str, ToolLimits]) -> Mapping[str, ToolLimits]:
    return MappingProxyType(dict(given))


@attrs.frozen(kw_only=True)
class ToolLimits:
    """How long a call to a server is waited for. It goes on there when the wait is over.

    Args:
        timeout: Seconds a call is waited for.
        idle: Seconds without progress after which the wait ends instead; None: progress changes nothing.
        ceiling: Seconds after which the wait ends whatever comes, and the most that a caller may ask for; when omitted
            `timeout`, and with `idle` at least ten times that.

    Raises:
        ValueError: a value is none of these; the sentence begins with its name.
    """

    timeout: float = attrs.field(default=DEFAULT_TIMEOUT, validator=_seconds)
    idle: float | None = attrs.field(default=None, validator=_seconds_or_none)
    ceiling: float = attrs.field(validator=_seconds)

    @ceiling.default
    def _enough(self) -> Any:
        if not (isinstance(self.idle, int | float) and isinstance(self.timeout, int | float)):
            return self.timeout  # of what is no number the validators tell
        return min(max(self.timeout, _IDLE_TIMES * self.idle), LONGEST)

    def __attrs_post_init__(self) -> None:
        """Compare what was found good one by one."""
        for name, value in (("timeout", self.timeout), ("idle", self.idle)):
            if value is not None and value > self.ceiling:
                raise ValueError(f"{name}: {value:g} s is more than the ceiling of {self.ceiling:g} s")


@attrs.frozen(kw_only=True)
class GatewaySettings:
    """What can be set about one gateway.

    Args:
        name: Its name, and that of its server in every answer.
        gate: What the gate does about a write while another is unresolved.
        limits: How long calls are waited for.
        tools: The same for tools of their own, whole.
        concurrency: Calls that are at the server at once.
        queue: Calls that wait for one of these places; one more is refused.
        queue_timeout: Seconds a call waits for its place, which are not of its `timeout`.
        forward_cancel: Whether a client's own cancel of a call is passed to the server: `never` or `explicit`.
        on_expire: Whether the gate opens when a call expires unresolved: `open`, or `hold` until it is settled.
        on_reset: The same when its server's process has died.
        late_results: Whether a result that comes too late is kept for its caller; else only its outcome is.
        journal_sync: What the journal of sent writes survives: the gateway's `process`, or a loss of `power` too, which
            costs a disk's flush per call.
        start_timeout: Seconds the server has for its start, from its process to its answer to the handshake.
        health_interval: Seconds between pings while nothing is heard of the server; None for none.

    Raises:
        ValueError: a value is none of these; the sentence begins with its name.
    """

    name: str = attrs.field(validator=_name)
    gate: Mode = attrs.field(default=Mode.WARN, converter=_mode, validator=_one_of(*Mode))
    limits: ToolLimits = ToolLimits()
    tools: Mapping[str, ToolLimits] = attrs.field(factory=dict, converter=_fixed, hash=False)
    concurrency: int = attrs.field(default=64, validator=_whole(1, _MOST_CALLS))
    queue: int = attrs.field(default=256, validator=_whole(0, _MOST_CALLS))
    queue_timeout: float = attrs.field(default=60.0, validator=_seconds)
    forward_cancel: Literal["never", "explicit"] = attrs.field(default="never", validator=_one_of("never", "explicit"))
    on_expire: Literal["open", "hold"] = attrs.field(default="open", validator=_one_of("open", "hold"))
    on_reset: Literal["open", "hold"] = attrs.field(default="hold", validator=_one_of("open", "hold"))
    late_results: bool = attrs.field(default=False, validator=_flag)
    journal_sync: Literal["process", "power"] = attrs.field(default="process", validator=_one_of("process", "power"))
    start_timeout: float = attrs.field(default=60.0, validator=_seconds)
    health_interval: float | None = attrs.field(default=30.0, validator=_seconds_or_none)

    def limits_of(self, tool: str) -> ToolLimits:
        """The limits of a tool's calls."""
        return self.tools.get(tool, self.limits)
