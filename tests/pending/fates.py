"""Callers, and what becomes of their calls by the words of the documentation alone, for comparison."""

from __future__ import annotations

import attrs
from hypothesis import strategies as st

from ztrio.pending import Bounds, Call, ServerPolicy, State, Tier, Transport
from ztrio.pending.states import HOLDABLE

WATCHED = "bob"
PRINCIPALS = ("ann", WATCHED, "guest")
SERVERS = {"files": Transport.STDIO, "web": Transport.HTTP, "local:box": Transport.LOCAL}
SCOPES = ("s", "t", "u")
POLICIES = {
    "files": ServerPolicy(on_expire="hold", on_reset="open"),
    "web": ServerPolicy(),
    "local:box": ServerPolicy(),
}
BOUNDS = Bounds(records=9, in_flight=4, late_waits=3, gating=2, blockers=2, kept=3, streams=8)
OPEN = (State.UNRESOLVED, State.CANCELLING)


@attrs.frozen
class Caller:
    """Who calls what."""

    principal: str
    server: str
    scope: str
    tier: Tier
    every: bool


CALLERS = st.builds(
    Caller,
    principal=st.sampled_from(["ann", "ann", "ann", WATCHED, WATCHED, "guest"]),
    server=st.sampled_from(["files", "files", "files", "web", "web", "local:box"]),
    scope=st.sampled_from(SCOPES),
    tier=st.sampled_from([Tier.READ, Tier.WRITE, Tier.WRITE, Tier.DESTRUCTIVE]),
    every=st.sampled_from([False, False, False, True]),
)


@attrs.define(eq=False)
class Fate:
    """What the machine knows of a call by itself."""

    call: Call
    tier: Tier
    state: State = State.RESERVED
    tracked: bool = True
    # The upstream has received it; has answered it.
    received: bool = False
    answered: bool = False
    blocker: str | None = None
    forgotten: bool = False
    settled: bool = False
    frames: int = 0
    # This canceller may send, and has not said how that went.
    sending: bool = False

    @property
    def gates(self) -> bool:
        """Whether it is to be in the way of others."""
        if self.tier is Tier.READ or self.settled:
            return False
        if self.state in OPEN:
            return True
        policy = POLICIES[self.call.server]
        return self.state in HOLDABLE and "hold" == (
            policy.on_expire if self.state is State.EXPIRED else policy.on_reset
        )
