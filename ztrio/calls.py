"""The words that every surface shares: who calls, what a call becomes, and how calls are named."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from ztrio.errors import Outcome

__all__ = ["LOCAL", "CallContext", "CallResult", "Cause", "Outcome", "Principal", "ProgressCallback", "View", "new_id"]

ProgressCallback = Callable[[float, float | None, str | None], None]
"""Called on the event loop with (progress, total, message); never after the call has ended."""


def new_id(prefix: str) -> str:
    """Mint an id: the prefix and 16 base32 characters, 80 random bits, fit for file names and URLs."""
    return prefix + base64.b32encode(os.urandom(10)).decode("ascii").lower()


@attrs.frozen
class Principal:
    """Who is calling.

    Args:
        id: Stable identifier; sessions, jobs and audit events belong to it.
    """

    id: str


ALL_TIERS: Final = frozenset({"read", "write", "destructive"})
"""Every permission there is."""


@attrs.frozen
class View:
    """What the caller may see and do *now*; asked anew at each decision, never remembered.

    Args:
        admin: Sees every principal's jobs, calls and audit events. Never true of a confined caller.
        servers: The upstream servers that it can see, or None for all.
        tiers: What it may call. Each is a permission of its own, none includes another.
        read_only: Whether it is in read-only mode, in which nothing can be changed, not even cancelled.
        confined: Whether it is an anonymous caller that is confined to a profile.
    """

    admin: bool = False
    servers: frozenset[str] | None = None
    tiers: frozenset[str] = ALL_TIERS
    read_only: bool = False
    confined: bool = False

    def __attrs_post_init__(self) -> None:
        if self.confined:
            object.__setattr__(self, "admin", False)


@attrs.frozen
class CallContext:
    """Everything about a call that is not its arguments.

    Args:
        principal: Who is calling.
        view: The caller's current view.
        surface: Where the call came in: `embed`, `mcp`, `cli`, …
        gate_scope: What the gate is keyed on; the principal's id unless the surface says otherwise.
        request_id: The caller's own id of the request, with its JSON type, for the audit.
    """

    principal: Principal
    view: View = View()
    surface: str = "embed"
    gate_scope: str = attrs.field(default=attrs.Factory(lambda self: self.principal.id, takes_self=True))
    request_id: str | int | None = None


LOCAL = CallContext(Principal("local"), View(admin=True))
"""The context of a program that embeds a supervisor for itself, and of the user of a stdio process."""


@attrs.define
class Cause:
    """Why a call is being stopped: whoever stops it says so *before* cancelling, and the first word stands.

    A bare `trio.Cancelled` does not say who cancelled. A surface that knows (a client's cancel notification with
    its reason) records here and cancels afterwards.
    """

    # None until someone records; never changes after that.
    text: str | None = None

    def record(self, text: str) -> bool:
        """Record `text` unless a cause was recorded before; True if it was taken."""
        if self.text is not None:
            return False
        self.text = text
        return True


@attrs.frozen
class CallResult:
    """What a call that succeeded gives back.

    Args:
        value: The tool's return value as JSON-like data, staged paths replaced by public ones.
        job_id: The call's id.
        outcome: `COMMITTED`, or `COMPLETED` for a read.
        targets: Parameter name → the published path, absolute.
        warning: What would have kept the call from being made, had the gate been set to `enforce`; None for nothing.
    """

    value: Any
    job_id: str
    outcome: Outcome
    targets: Mapping[str, str] = attrs.field(factory=dict)
    warning: Mapping[str, Any] | None = None
