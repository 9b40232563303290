"""Whether a server that is silent is alive: a ping now and then, which never costs a call.

A server that has calls to do may be too busy to answer, and to restart it then would make every one of them unknown. So
while it is busy a ping that fails only marks it `degraded`; it is restarted when it has nothing to do and still does
not answer. Calls count for that, and never idle streams. Whatever is heard from it counts as a ping answered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import trio

from ztrio.tracking.tracker import Tracker
from ztrio_mcp.gateway.asks import ask
from ztrio_mcp.gateway.upstream import Connection, Upstream

__all__ = ["Health", "HealthStatistics"]

_PATIENCE: Final = 10.0  # seconds for an answer
_METHODS: Final = {"legacy": "ping", "modern": "server/discover"}  # the later era has no ping


@attrs.frozen
class HealthStatistics:
    """A snapshot.

    Args:
        degraded: Whether the last ping failed and nothing has been heard since.
        pings: Pings so far.
        failed: Of these, those that were not answered.
        timeouts: Calls so far that became unresolved because their time was up.
        restarts: Restarts so far because a server that had nothing to do did not answer.
    """

    degraded: bool
    pings: int
    failed: int
    timeouts: int
    restarts: int


class Health:
    """Watches one server.

    Args:
        upstream: The server.
        tracker: Knows whether it is busy.
        interval: Seconds of silence after which it is pinged; None to never do so.
        tell: Told in words what is found out.
    """

    def __init__(
        self,
        upstream: Upstream,
        tracker: Tracker,
        *,
        interval: float | None,
        tell: Callable[..., object],
    ) -> None:
        self._upstream = upstream
        self._tracker = tracker
        self._interval = interval
        self._tell = tell
        self._degraded = False
        self._pings = 0
        self._failed = 0
        self._timeouts = 0
        self._restarts = 0

    def statistics(self) -> HealthStatistics:
        """A snapshot."""
        return HealthStatistics(self._degraded, self._pings, self._failed, self._timeouts, self._restarts)

    def timed_out(self) -> None:
        """A call has become unresolved because its time was up. What comes for it later is not told here again."""
        self._timeouts += 1

    async def run(self) -> None:
        """Watch. Runs as long as the gateway."""
        if self._interval is None:
            return
        while True:
            connection = self._upstream.connection
            heard = None if connection is None else connection.peer.statistics().received
            await trio.sleep(self._interval)
            if connection is None or connection is not self._upstream.connection:
                continue
            if connection.peer.statistics().received != heard:
                self._degraded = False
                continue
            await self._ping(connection)

    async def _ping(self, connection: Connection) -> None:
        method = _METHODS[connection.hello.era]
        self._pings += 1
        params = connection.own_params({})
        heard = connection.peer.statistics().received
        answer = await ask(connection.peer, method, params, timeout=_PATIENCE)
        if connection is not self._upstream.connection:
            return
        self._degraded = answer is None and connection.peer.statistics().received == heard
        if not self._degraded:
            return
        self._failed += 1
        busy = self._tracker.registry.busy(self._upstream.name)
        if busy:
            self._tell("server does not answer and is busy", server=self._upstream.name, **attrs.asdict(busy))
            return
        self._restarts += 1
        self._tell("server does not answer and has nothing to do: restarted", server=self._upstream.name)
        self._upstream.keeper.restart("it did not answer a ping")
