"""How much a call may change, as its server's annotations say, and never less than they ever said.

A server describes its tools itself, so a description is only believed in the cautious direction: the tier of a tool is
the highest that any catalogue of this process gave it, and a tool that shows up while somebody's gate is shut is a
write for them, however harmless it says it is. Otherwise a server could talk its way around a gate by renaming. What
the first catalogue of a server has did not show up, it was there: after a restart gates may be shut before anything is
described, and somebody has to be able to look.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from ztrio.pending.reasons import Tier

__all__ = ["CAUTION", "MAX_TOOLS", "Tiers", "tier_of"]

CAUTION: Final = {tier: index for index, tier in enumerate(Tier)}
"""Tier → its place in the order of caution."""

MAX_TOOLS: Final = 4096
"""Names remembered per server; what comes after that counts as unknown, which is the cautious end."""


def tier_of(annotations: Mapping[str, Any] | None) -> Tier:
    """The tier that a tool's annotations stand for.

    Args:
        annotations: `readOnlyHint`, `destructiveHint`, …; None or empty when the tool has none.
    """
    hints = annotations or {}
    if hints.get("destructiveHint") is True:
        return Tier.DESTRUCTIVE
    return Tier.READ if hints.get("readOnlyHint") is True else Tier.WRITE


@attrs.frozen
class _Seen:
    tier: Tier
    # The sequence number of the first catalogue that had it; 0 for the first catalogue of its server.
    first: int


class Tiers:
    """The tools of all servers, as this process has seen them described."""

    def __init__(self) -> None:
        # Server → tool → its highest tier. Names are only added, and at most MAX_TOOLS of a server.
        self._seen: dict[str, dict[str, _Seen]] = {}

    def observe(self, server: str, catalogue: Mapping[str, Mapping[str, Any] | None], *, seq: int) -> None:
        """Take note of a catalogue, before anything of it is called.

        Args:
            server: Whose catalogue it is.
            catalogue: Tool name → annotations.
            seq: The sequence number of this moment.
        """
        first = seq if server in self._seen else 0
        seen = self._seen.setdefault(server, {})
        for tool, hints in catalogue.items():
            tier = tier_of(hints)
            known = seen.get(tool)
            if known is None:
                if len(seen) < MAX_TOOLS:
                    seen[tool] = _Seen(tier, first)
            elif CAUTION[tier] > CAUTION[known.tier]:
                seen[tool] = _Seen(tier, known.first)

    def tier(self, server: str, tool: str, *, gated_since: float = float("inf")) -> Tier:
        """The tier of a call.

        Args:
            server: The server's name.
            tool: The tool's name.
            gated_since: The sequence number since which the caller's scope is gated there; infinite when it is not.
        """
        known = self._seen.get(server, {}).get(tool)
        if known is None:
            return Tier.DESTRUCTIVE
        if known.tier is Tier.READ and known.first > gated_since:
            return Tier.WRITE
        return known.tier
