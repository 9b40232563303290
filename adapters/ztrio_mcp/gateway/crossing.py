"""A server of the other era, seen as one of the client's own: the same wire, with everything said in the client's era.

Why beneath everything else, and not at the surface: calls, lists, pings, replays and what is told again after a restart
all go through a wire, and none of them has to know that there are eras. Where client and server speak in one era there
is no crossing, and it costs nothing.
"""

from __future__ import annotations

from ztrio_mcp.gateway.asks import Wire
from ztrio_mcp.gateway.eras import Translator, UpstreamHello
from ztrio_mcp.gateway.legacy_server import LegacyServer
from ztrio_mcp.gateway.modern_server import ModernServer
from ztrio_mcp.gateway.translated import TranslatedWire

__all__ = ["cross"]


def cross(wire: Wire, translator: Translator, upstream: UpstreamHello) -> TranslatedWire | None:
    """The wire to a server as its client sees it; None where both speak in one era.

    Args:
        wire: The wire itself.
        translator: Between the two.
        upstream: What the server said of itself.
    """
    if translator.same:
        return None
    return (ModernServer if upstream.era == "modern" else LegacyServer)(wire, translator, upstream)
