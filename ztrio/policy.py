"""Who may use what: the hook that a supervisor asks before it accepts a call."""

from __future__ import annotations

from collections.abc import Callable

from ztrio.calls import CallContext
from ztrio.errors import InvalidArguments
from ztrio.tools import Capability, Tool

__all__ = ["Policy", "allow"]

Policy = Callable[[CallContext, Tool], str | None]
"""Asked for each call, with who calls and what. Returns None to allow it, or the reason to refuse it."""


def allow(*capabilities: str) -> Policy:
    """A policy that lets everybody use the given capabilities and nothing else.

    Args:
        capabilities: `read`, `write`, `destructive`.

    Raises:
        InvalidArguments: one of them is none of these.
    """
    known = [str(capability) for capability in Capability]
    if unknown := [name for name in capabilities if name not in known]:
        raise InvalidArguments(f"{unknown[0]!r} is not a capability; choose from {', '.join(known)}.")
    granted = frozenset(map(Capability, capabilities))

    def policy(context: CallContext, tool: Tool) -> str | None:
        del context
        if tool.capability in granted:
            return None
        return f"{tool.capability} tools are not allowed here (allowed: {', '.join(sorted(granted)) or 'none'})"

    return policy
