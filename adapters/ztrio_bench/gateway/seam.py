"""What the gateway's seam adds to a call, in process: everything but the pipes, with the journal in a file.

The server is a connection in memory that answers at once, so what is measured is the way of a call from the client's
request to the writer and back: its id, two audit events, the gate, the journal, the limits. Each call is timed alone.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import trio

from ztrio.audit import AuditBus
from ztrio.calls import LOCAL
from ztrio.memory_store import MemoryStore
from ztrio.pending import Lease, PendingSettings
from ztrio.store import Store
from ztrio.tracking.desk import Desk
from ztrio.tracking.journal import FileJournal
from ztrio.tracking.journalled import JournalledStore
from ztrio.tracking.tracker import Tracker
from ztrio.upstream import Death
from ztrio_bench.gateway.record import Distribution
from ztrio_mcp.gateway.flights import Answer, Flight
from ztrio_mcp.gateway.seam import Seam
from ztrio_mcp.gateway.settings import GatewaySettings
from ztrio_mcp.gateway.story import CallRequest
from ztrio_mcp.gateway.upstream import Upstream
from ztrio_mcp.gateway.wire import decode_call
from ztrio_mcp.peer import Exchange, Response

__all__ = ["seam"]

_WARM: Final = 1000  # calls before those that count, at most
_PARAMS: Final = msgspec.json.encode({"name": "write", "arguments": {"text": "hello"}})
_RESULT: Final = msgspec.Raw(b'{"content":[{"type":"text","text":"hello"}]}')


class _Wire:
    """A connection that claims each frame and has its answer in the next turn of the event loop."""

    def __init__(self) -> None:
        self.next_id = 1
        self.epoch = 1
        self.lease = Lease("bench#1", 1)
        self.peer = self

    def request(self, method: str, _params: bytes, *, claim: Callable[[], bool], **told: Any) -> Exchange:
        exchange = Exchange(id=self.next_id, method=method, on_response=told["on_response"])
        exchange.sent = claim()
        self.next_id += 1
        trio.lowlevel.current_trio_token().run_sync_soon(exchange.on_response, Response(exchange.id, _RESULT))
        return exchange


class _Server:
    """An upstream of one such connection."""

    name = "bench"

    def __init__(self) -> None:
        self.connection = _Wire()
        self.on_death: Callable[[Death], None] = lambda _death: None


class _Nobody:
    """Hooks that have nothing to say."""

    def waits_for_human(self, _flight: Flight) -> bool:
        return False

    def timed_out(self) -> None:
        """Nothing is counted."""

    def answered_in_time(self, _call_id: str, _answer: Answer) -> None:
        """Nothing is learned."""

    def kept(self, _flight: Flight, _answer: Answer) -> None:
        """Nothing is kept."""


def seam(calls: int) -> Distribution:
    """Measure it.

    Args:
        calls: How many, after as many again to warm up, at most a thousand.
    """
    with tempfile.TemporaryDirectory() as folder, FileJournal(Path(folder) / "sent.journal") as journal:
        store = cast("Store", JournalledStore(MemoryStore(), journal))
        return Distribution.of([trio.run(_measure, calls, store)])


async def _measure(calls: int, store: Store) -> list[float]:
    audit = AuditBus(recorder=store.record)
    tracker = Tracker(PendingSettings(), audit=audit, store=store)
    tracker.registry.tiers.observe("bench", {"write": None}, seq=0)
    way = Seam(
        cast("Upstream", _Server()),
        GatewaySettings(name="bench"),
        tracker=tracker,
        desk=Desk(tracker, store.secret),
        audit=audit,
        secret=store.secret,
        hooks=_Nobody(),
    )
    took: list[float] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tracker.records.run)
        for number in range(min(calls, _WARM) + calls):
            before = time.perf_counter_ns()
            await way.call(CallRequest(params=decode_call(_PARAMS)), LOCAL)
            if number >= min(calls, _WARM):
                took.append(float(time.perf_counter_ns() - before))
        nursery.cancel_scope.cancel()
    return took
