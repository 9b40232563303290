"""What the operator decides about pending calls; every value can be changed while calls are in flight.

A change takes effect with the next check and the next end of a call. It touches no record and no connection: `off`
opens every gate at once, and when it is taken back every entry is still there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import attrs

from ztrio.pending.bounds import Bounds
from ztrio.pending.reasons import Mode, Tier
from ztrio.pending.records import Record
from ztrio.pending.states import State

__all__ = ["PendingSettings", "ServerPolicy"]


@attrs.frozen(kw_only=True)
class ServerPolicy:
    """What differs for one server.

    Args:
        mode: The gate's mode there; None for the general one.
        on_expire: Whether the gate opens when a call expires (`open`), or stays shut until somebody looked (`hold`).
        on_reset: The same, for a connection that was lost. `hold`, because a process that died in the middle of a
            write has still maybe written.
    """

    mode: Mode | None = None
    on_expire: Literal["open", "hold"] = attrs.field(default="open", validator=attrs.validators.in_(("open", "hold")))
    on_reset: Literal["open", "hold"] = attrs.field(default="hold", validator=attrs.validators.in_(("open", "hold")))


_DEFAULT: Final = ServerPolicy()


@attrs.frozen(kw_only=True)
class PendingSettings:
    """The settings of a registry.

    Args:
        principals: Ids of those who may call; each has its quota set aside. `local` is always one of them.
        mode: The gate's mode where a server has none of its own.
        servers: Server → what differs there.
        bounds: The caps.

    Raises:
        ValueError: more principals than `bounds.principals`.
    """

    principals: tuple[str, ...] = ("local",)
    mode: Mode = Mode.WARN
    servers: Mapping[str, ServerPolicy] = attrs.field(factory=dict)
    bounds: Bounds = attrs.field(factory=Bounds)

    def __attrs_post_init__(self) -> None:
        if len(self.all_principals) > self.bounds.principals:
            raise ValueError(
                f"{len(self.all_principals)} principals are configured, and at most {self.bounds.principals} can be: "
                "each has memory for its calls set aside. Remove some."
            )

    @property
    def all_principals(self) -> frozenset[str]:
        """Everybody who may call."""
        return frozenset({"local", *self.principals})

    @property
    def share(self) -> int:
        """The late waits of one principal on one server that may hold a stream."""
        return max(1, self.bounds.streams // len(self.all_principals))

    def policy(self, server: str) -> ServerPolicy:
        """What holds for a server."""
        return self.servers.get(server, _DEFAULT)

    def mode_of(self, server: str) -> Mode:
        """The gate's mode for a server."""
        own = self.servers.get(server)
        return self.mode if own is None or own.mode is None else own.mode

    def holds(self, record: Record, state: State) -> bool:
        """Whether `record` goes on gating in the final `state`."""
        if record.gate_tier is Tier.READ:
            return False
        policy = self.policy(record.call.server)
        if state is State.EXPIRED:
            return policy.on_expire == "hold"
        return state is State.CONNECTION_RESET and policy.on_reset == "hold"
