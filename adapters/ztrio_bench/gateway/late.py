"""Calls whose answers come when nobody waits any more, and calls that are never answered.

Both go through `ztrio wrap` with a short time limit, to a server that is silent. What became of a call is asked of the
gateway itself, with the tool that every client has for that.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from ztrio.testing.leaks import resident_bytes
from ztrio_bench.gateway.client import Client
from ztrio_bench.gateway.record import Late, Look, Timeouts
from ztrio_bench.gateway.servers import SILENT
from ztrio_bench.gateway.ways import WRAP, Way, open_way

__all__ = ["growth", "late_responses", "timeouts"]

# As many as one scope may have unresolved before older calls fold into one entry (`ztrio.pending.Bounds.gating`): the
# promise is about calls within the quota.
LATE_AT_ONCE: Final = 16
LATE_TIMEOUT, DELAY = 0.1, 0.3  # seconds
LOST_AT_ONCE: Final = 64
LOST_TIMEOUT: Final = 0.03  # seconds
_SOON: Final = 5.0  # seconds after its wave in which a late answer has to be known
_LOOKS: Final = 100


def late_responses(calls: int, *, folder: Path, say: Callable[[str], object], way: Way = WRAP) -> Late:
    """Let calls be answered too late, in waves, and ask what is known of each.

    Args:
        calls: How many.
        folder: An empty folder.
        say: Told how far it is.
        way: What stands in front of the server.

    Raises:
        Failed: the gateway broke.
    """
    states: Counter[str] = Counter()
    params = {"name": "late", "arguments": {"seconds": DELAY}}
    options = ["--timeout", f"{LATE_TIMEOUT:g}"]
    with open_way(way, SILENT.command(), folder=folder, options=options) as client:
        client.ask("tools/list", {})
        while (done := states.total()) < calls:
            say(f"late: {done} of {calls}")
            sent = {client.begin("tools/call", params) for _ in range(min(LATE_AT_ONCE, calls - done))}
            ids = []
            while sent:
                for message in client.messages(within=10.0):
                    if message.get("id") in sent:
                        sent.remove(message["id"])
                        ids.append(_call_id(message))
            states.update(_settled(client, ids))
    return Late(
        calls=calls,
        detected=states["completed_late"],
        at_once=LATE_AT_ONCE,
        timeout=LATE_TIMEOUT,
        delay=DELAY,
        states=dict(states),
    )


def _call_id(message: dict[str, Any]) -> str | None:
    """The id of the pending call that an answer names."""
    content = message.get("result", {}).get("structuredContent") or {}
    call_id: str | None = (content.get("pending_call") or {}).get("call_id")
    return call_id


def _settled(client: Client, ids: Sequence[str | None]) -> list[str]:
    """The state of each call, once it is completed late or time is up."""
    states = ["no id" if call_id is None else "" for call_id in ids]
    deadline = time.monotonic() + _SOON
    while True:
        for place, call_id in enumerate(ids):
            if states[place] not in {"no id", "completed_late"}:
                states[place] = _state(client, call_id)
        if set(states) <= {"no id", "completed_late"} or time.monotonic() > deadline:
            return states
        time.sleep(0.02)


def _state(client: Client, call_id: str | None) -> str:
    result = client.ask("tools/call", {"name": "ztrio_pending_call", "arguments": {"call_id": call_id}})
    if result.get("isError"):
        return "unknown"
    return str(result["structuredContent"]["pending_call"]["state"])


def timeouts(calls: int, *, folder: Path, say: Callable[[str], object], way: Way = WRAP) -> Timeouts:
    """Let very many calls run into their limit, and look at the memory of the gateway's process meanwhile.

    Args:
        calls: How many.
        folder: An empty folder.
        say: Told how far it is.
        way: What stands in front of the server; its memory is looked at.

    Raises:
        Failed: the gateway broke.
    """
    outcomes: Counter[str] = Counter()
    looks: list[Look] = []
    every = max(1, calls // _LOOKS)
    params = {"name": "never", "arguments": {}}
    options = ["--timeout", f"{LOST_TIMEOUT:g}"]
    with open_way(way, SILENT.command(), folder=folder, options=options) as client:
        client.ask("tools/list", {})
        began = time.monotonic()
        sent: set[int] = set()
        begun = done = 0
        while done < calls:
            while begun < calls and len(sent) < LOST_AT_ONCE:
                sent.add(client.begin("tools/call", params))
                begun += 1
            for message in client.messages(within=10.0):
                if message.get("id") not in sent:
                    continue
                sent.remove(message["id"])
                outcomes[_outcome(message)] += 1
                done += 1
                if done % every == 0:
                    looks.append(Look(done, round(time.monotonic() - began, 3), resident_bytes(client.pid)))
                    if len(looks) % 10 == 0:
                        say(f"timeouts: {done} of {calls}, {looks[-1].resident / 2**20:.1f} MiB")
    return Timeouts(
        calls=calls,
        outcomes=dict(outcomes),
        at_once=LOST_AT_ONCE,
        timeout=LOST_TIMEOUT,
        looks=looks,
        growth=growth(looks),
    )


def _outcome(message: dict[str, Any]) -> str:
    """What a caller is told: the code of the error, or that there was none."""
    result = message.get("result", {})
    if not result.get("isError"):
        return "error" if "error" in message else "success"
    return str(((result.get("structuredContent") or {}).get("error") or {}).get("code", "tool error"))


def growth(looks: Sequence[Look]) -> float:
    """How many bytes the second half ended above where it began; medians, since a single look may catch a peak."""
    half = [look.resident for look in looks[len(looks) // 2 :]]
    few = max(1, len(looks) // 10)
    return statistics.median(half[-few:]) - statistics.median(half[:few])
