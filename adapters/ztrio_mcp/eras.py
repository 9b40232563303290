"""The protocol era of one connection, and which tool calls need nothing of the SDK any more.

The SDK decides the era with the first request (`initialize` opens the handshake era, an envelope in `_meta` the modern
one) and keeps everything that belongs to a protocol: handshakes, versions, listings, pings, refusals. A well-formed
`tools/call` in an era that is settled has none of that left in it, and the way through the SDK takes longer than a
short call: an empty read was 0.55 ms with it and 0.36 ms without. So those calls are served beside it.

Nothing is decided here that the SDK has not decided: the era is learned from its answers, the form of a call is checked
with its own model of that version, and whatever is not plainly in order goes to the SDK, which refuses it in its way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp_types import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp_types.methods import validate_client_request
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

__all__ = ["Era"]


class Era:
    """What the SDK's answers have said about the era so far."""

    def __init__(self) -> None:
        # The version of the last handshake; None where there was none.
        self._agreed: str | None = None
        # The SDK has served a request of the modern era; never both, the first request decides for good.
        self._modern = False

    @property
    def shaken_hands(self) -> bool:
        """Whether it is the era in which a server tells its client what nobody asked for."""
        return self._agreed is not None

    def answered(self, method: str, result: Mapping[str, Any]) -> None:
        """Learn from a result of the SDK."""
        if method == "initialize":
            self._agreed = result.get("protocolVersion")
        elif "resultType" in result:  # what every result of the modern era has, and no other
            self._modern = True

    def version(self, params: Mapping[str, Any]) -> str | None:
        """The version that a `tools/call` is to be answered in; None when it is the SDK's to answer."""
        meta = params.get("_meta")
        envelope = meta if isinstance(meta, dict) and PROTOCOL_VERSION_META_KEY in meta else None
        if self._modern:
            version = None if envelope is None else envelope[PROTOCOL_VERSION_META_KEY]
            if version not in MODERN_PROTOCOL_VERSIONS or CLIENT_CAPABILITIES_META_KEY not in (envelope or ()):
                return None
        else:
            version = self._agreed if envelope is None else None
        if version is None:
            return None
        try:
            validate_client_request("tools/call", version, params)
        except (ValueError, KeyError):  # not of the form that this version says, or not a version that it knows
            return None
        return str(version)
