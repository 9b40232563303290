"""What the registry of pending calls costs, and how that grows with records, principals and scopes.

python benchmarks/bench_registry.py [--rounds 20] [--output FILE] [--table]

Prints JSON, or a table. Durations are in microseconds, sizes in bytes; p50 and p99 are of single operations.
"""

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import trio

from ztrio.audit import AuditBus
from ztrio.pending import (
    ActorKind,
    Begun,
    Bounds,
    Call,
    LateOutcome,
    Lease,
    Mode,
    PendingSettings,
    Reason,
    Registry,
    Tier,
    Transport,
)
from ztrio.tracking.tracker import Tracker
from ztrio_sql import open_store

BUDGET = {"check_and_begin_us": 10.0, "transitions_per_second": 10_000.0, "bytes_in_flight": 4096.0}
BATCH = 100

_ids = count(1)


def call(principal: str, scope: str, server: str = "files", tier: Tier = Tier.WRITE) -> Call:
    """A call as the seam makes it."""
    return Call(
        call_id=f"pc_{next(_ids):016}",
        server=server,
        transport=Transport.STDIO,
        lease=Lease("t1", 1),
        principal=principal,
        gate_scope=scope,
        tool="write_file",
        admission_tier=tier,
        gate_tier=tier,
    )


class Filled:
    """A registry with records of every kind."""

    def __init__(self, records: int, principals: int, scopes: int, bounds: Bounds | None = None) -> None:
        names = tuple(f"p{number}" for number in range(principals))
        self.registry = Registry(
            PendingSettings(
                principals=names, mode=Mode.WARN, bounds=bounds or Bounds(principals=max(64, principals + 1))
            )
        )
        self.seq = 0
        for number in range(records):
            name = names[number % principals]
            each = call(
                name, f"{name}/{number // principals % scopes}", tier=Tier.READ if number % 4 == 0 else Tier.WRITE
            )
            if not self.begin(each):
                continue
            self.claim(each)
            if number // principals % 3:
                self.mark(each)

    def begin(self, each: Call) -> bool:
        """Check; whether it is on the books."""
        self.seq += 1
        found = self.registry.check_and_begin(each, now=1.0, seq=self.seq)
        return isinstance(found, Begun) and found.tracked

    def claim(self, each: Call) -> None:
        """Send."""
        self.seq += 1
        self.registry.claim(each.call_id, wire_id=self.seq, now=1.0, seq=self.seq)

    def mark(self, each: Call) -> None:
        """The wait ended."""
        self.seq += 1
        self.registry.mark_unresolved(each, reason=Reason.DEADLINE_EXCEEDED, now=1.0, seq=self.seq)

    def complete(self, each: Call) -> None:
        """Answered."""
        self.seq += 1
        self.registry.complete(each.call_id, succeeded=True, now=1.0, seq=self.seq)

    def late(self, each: Call) -> None:
        """Answered late."""
        self.seq += 1
        self.registry.resolve_late(each.call_id, outcome=LateOutcome.SUCCESS, now=1.0, seq=self.seq)

    def cancel(self, each: Call) -> None:
        """Claimed and told."""
        self.seq += 2
        self.registry.claim_cancel(each.call_id, actor=ActorKind.CALLER, now=1.0, seq=self.seq - 1)
        self.registry.finish_cancel(each.call_id, told=True, frame_sent=True, now=1.0, seq=self.seq)


def timed(found: list[float], act: Callable[[Call], object], calls: list[Call]) -> None:
    """Do it to each, and note how long each took."""
    for each in calls:
        started = time.perf_counter_ns()
        act(each)
        found.append((time.perf_counter_ns() - started) / 1e3)


def summary(found: list[float]) -> dict[str, float]:
    """p50 and p99 in microseconds."""
    ordered = sorted(found)
    return {
        "p50": round(statistics.median(ordered), 2),
        "p99": round(ordered[int(len(ordered) * 0.99)], 2),
        "n": len(ordered),
    }


def measure(filled: Filled, rounds: int) -> dict[str, Any]:
    """The operations on a call's way, one by one, and how many transitions fit into a second of them."""
    names = ("check_and_begin", "claim", "complete", "mark_unresolved", "resolve_late", "cancel")
    found: dict[str, list[float]] = {name: [] for name in names}
    transitions, spent = 0.0, 0.0
    for _ in range(rounds):
        answered = [call("local", "local") for _ in range(BATCH)]
        lost = [call("local", f"s{number % 10}") for number in range(BATCH // 2)]
        gc.collect()
        started = time.perf_counter()
        timed(found["check_and_begin"], filled.begin, answered)
        timed(found["claim"], filled.claim, answered)
        timed(found["complete"], filled.complete, answered)
        for each in lost:
            filled.begin(each)
            filled.claim(each)
        timed(found["mark_unresolved"], filled.mark, lost)
        timed(found["resolve_late"], filled.late, lost[::2])
        timed(found["cancel"], filled.cancel, lost[1::2])
        spent += time.perf_counter() - started
        transitions += 3 * BATCH + (3 + 1.5) * (BATCH // 2)
    return {
        **{name: summary(each) for name, each in found.items()},
        "transitions_per_second": round(transitions / spent),
    }


def curve() -> Iterator[dict[str, Any]]:
    """How the costs grow: with records, with principals, with scopes."""
    for records in (0, 256, 1024, 4096, 16384):
        yield {"records": records, "principals": max(16, records // 128), "scopes": 8}
    for principals in (1, 8, 32, 63):
        yield {"records": min(4096, principals * 200), "principals": principals, "scopes": 8}
    for scopes in (1, 16, 64, 200):
        yield {"records": 4096, "principals": 32, "scopes": scopes}


def shapes(rounds: int) -> list[dict[str, Any]]:
    """The curve, measured."""
    found = []
    for shape in curve():
        filled = Filled(**shape)
        found.append({**shape, "kept": filled.registry.statistics().records, **measure(filled, rounds)})
    return found


def refusals(rounds: int) -> dict[str, Any]:
    """A check of a principal that is full, of one that is gated, and one that has to make room each time."""
    found: dict[str, list[float]] = {"gated": [], "full": [], "makes_room": []}
    gated = Filled(4096, 32, 8)
    gated.registry.configure(PendingSettings(principals=tuple(f"p{n}" for n in range(32)), mode=Mode.ENFORCE))
    full = Filled(4096, 32, 8)
    for _ in range(128):
        full.begin(call("local", "local"))
    for _ in range(rounds):
        timed(found["gated"], gated.begin, [call("p1", "p1/1") for _ in range(BATCH)])
        timed(found["full"], full.begin, [call("local", "local") for _ in range(BATCH)])
    room = Filled(0, 1, 1)
    for number in range(rounds * BATCH):
        each = call("p0", f"session-{number}")
        timed(found["makes_room"], room.begin, [each])
        room.claim(each)
        room.mark(each)
    return {name: summary(each) for name, each in found.items()}


async def seam(rounds: int, *, waits: bool) -> dict[str, float]:
    """What a write's way through the gate adds to it, from the check to its answer, with the note in a durable store.

    The note is written before the call may be sent, and not synced: it is to survive the process. Most of this is
    waiting for the store; what registry and tracker add is what remains with a note that nobody waits for.
    """
    found: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        async with open_store(Path(folder) / "state.db") as store, trio.open_nursery() as nursery:
            tracker = Tracker(PendingSettings(), audit=AuditBus(), store=store)
            nursery.start_soon(tracker.records.run)
            nursery.start_soon(tracker.expire)
            registry = tracker.registry
            for _ in range(rounds * BATCH):
                each = call("local", "local")
                started = time.perf_counter_ns()
                begun = registry.check_and_begin(each, **tracker.moment())
                assert isinstance(begun, Begun)
                tracker.did(begun.transitions)
                note = registry.journal_row(each.call_id, now=tracker.now, wall=tracker.wall)
                assert note is not None
                tracker.records.journal(note)
                if waits:
                    await store.append_pending(note)  # once more, to know that it is written
                tracker.did(registry.claim(each.call_id, wire_id=1, **tracker.moment()))
                tracker.did(registry.complete(each.call_id, succeeded=True, **tracker.moment()))
                found.append((time.perf_counter_ns() - started) / 1e3)
            nursery.cancel_scope.cancel()
    return summary(found)


def memory(calls: int = 4000) -> dict[str, float]:
    """Bytes that a call in flight keeps, its own strings included, and what is left of a thousand that ended."""
    bounds = Bounds(records=calls * 2, in_flight=calls)
    filled = Filled(0, 1, 1, bounds)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(calls):
        each = call("local", f"session-{number % 50}")
        filled.begin(each)
        filled.claim(each)
    per_call = (tracemalloc.get_traced_memory()[0] - before) / calls
    flood = Filled(0, 1, 1)
    sizes = []
    for number in range(10_000):
        each = call("p0", f"session-{number}")
        if flood.begin(each):
            flood.claim(each)
            flood.mark(each)
        if number in (4_999, 9_999):
            sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    return {"bytes_in_flight": round(per_call), "growth_over_5000_timeouts": sizes[1] - sizes[0]}


def as_table(result: dict[str, Any]) -> str:
    """The curves for people."""
    columns = ("check_and_begin", "claim", "complete", "mark_unresolved", "resolve_late", "cancel")
    lines = ["| records | principals | scopes each | " + " | ".join(columns) + " | transitions/s |"]
    lines.append("|---" * (len(columns) + 4) + "|")
    for row in result["curves"]:
        cells = [f"{row[name]['p50']} / {row[name]['p99']}" for name in columns]
        head = f"| {row['kept']} | {row['principals']} | {row['scopes']} "
        lines.append(f"{head}| {' | '.join(cells)} | {row['transitions_per_second']:,} |")
    lines.append("")
    lines += [f"{name}: {each['p50']} / {each['p99']} us" for name, each in result["refusals"].items()]
    lines += [f"seam, {name}: {each['p50']} / {each['p99']} us" for name, each in result["seam"].items()]
    lines += [f"{name}: {each:,}" for name, each in result["memory"].items()]
    lines.append(f"within the budget: {result['within_budget']}")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    result: dict[str, Any] = {
        "python": sys.version.split()[0],
        "curves": shapes(options.rounds),
        "refusals": refusals(options.rounds),
        "seam": {
            "note_awaited": trio.run(partial(seam, options.rounds, waits=True)),
            "note_not_awaited": trio.run(partial(seam, options.rounds, waits=False)),
        },
        "memory": memory(),
        "budget": BUDGET,
    }
    at_4096 = next(row for row in result["curves"] if row["records"] == 4096)
    result["within_budget"] = (
        at_4096["check_and_begin"]["p50"] <= BUDGET["check_and_begin_us"]
        and at_4096["transitions_per_second"] >= BUDGET["transitions_per_second"]
        and result["memory"]["bytes_in_flight"] <= BUDGET["bytes_in_flight"]
    )
    text = json.dumps(result, indent=1)
    if options.output is not None:
        options.output.write_text(text + "\n")
    print(as_table(result) if options.table else text)  # noqa: T201 - what it is for
    sys.exit(not result["within_budget"])


if __name__ == "__main__":
    main()
