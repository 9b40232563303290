"""What the tests of the audit bus share."""

from typing import Any

import trio

from ztrio.audit import AuditEvent, Subscription


def happened(event: str = "allow", principal: str = "ann", **facts: Any) -> AuditEvent:
    """An event that nobody has stamped."""
    return AuditEvent(event=event, principal=principal, **facts)


def drain(events: Subscription) -> list[AuditEvent]:
    """Everything that can be received now."""
    found = []
    while True:
        try:
            found.append(events.receive_nowait())
        except (trio.WouldBlock, trio.EndOfChannel):
            return found
