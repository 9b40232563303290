"""What the durable store costs: writes, group commit, large states, and a log of a million events.

python benchmarks/store.py [--events 1000000] [--log FILE] [--output FILE]

Prints JSON. Durations are in milliseconds unless their names say otherwise. The log of many events takes about a minute
to make; with `--log` it is kept in that file and used again.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import trio

from ztrio.audit import AuditEvent
from ztrio.errors import Outcome
from ztrio.store import JobEnd, JobRow, SessionWrite
from ztrio_sql import Retention, SqlStore, StoreReader, open_store

EVERYTHING = Retention(size=None)
TIME = "2024-01-02T03:04:05.000000+00:00"


def event(name: str, job_id: str, number: int) -> AuditEvent:
    """An event of a usual size."""
    return AuditEvent(
        event=name,
        execution_job_id=job_id,
        tool="export",
        session="default",
        principal=f"agent-{number % 100}",
        surface="mcp",
        seq=number,
        time=TIME,
        capability="write",
        argument_digest="sha256:" + "0" * 64,
        targets=("/srv/boards/out/board.txt",),
    )


def job(number: int) -> JobRow:
    """An accepted call."""
    return JobRow(
        job_id=f"job_{number:016}",
        principal="agent-1",
        tool="export",
        session="default",
        capability="write",
        phase="queued",
        outcome=None,
        targets={"out": "/srv/boards/out"},
        created_at=TIME,
    )


def commit(row: JobRow, number: int, session: SessionWrite | None = None) -> JobEnd:
    """The transaction that commits it."""
    return JobEnd(
        job_id=row.job_id, outcome=Outcome.COMMITTED, event=event("commit", row.job_id, number), session=session
    )


def summary(seconds: list[float]) -> dict[str, float]:
    """p50 and p99, in milliseconds."""
    ordered = sorted(seconds)
    return {
        "p50": round(statistics.median(ordered) * 1e3, 4),
        "p99": round(ordered[int(len(ordered) * 0.99)] * 1e3, 4),
        "n": len(ordered),
    }


def syncs(folder: Path, size: int, count: int = 200) -> dict[str, float]:
    """What an append of that size and its sync cost by themselves: the floor."""
    found = []
    with (folder / "floor").open("wb", buffering=0) as file:
        for _ in range(count):
            started = time.perf_counter()
            file.write(bytes(size))
            os.fdatasync(file.fileno())
            found.append(time.perf_counter() - started)
    return summary(found)


async def one_at_a_time(store: SqlStore, count: int) -> dict[str, Any]:
    """One caller: the intent, waited for in a thread, and the commit, awaited."""
    intents, commits = [], []
    for number in range(count):
        row = job(number)
        store.record(event("allow", row.job_id, number))
        store.insert_job_nowait(row)
        started = time.perf_counter()
        await trio.to_thread.run_sync(store.write_intent, row.job_id, bytes(400))
        intents.append(time.perf_counter() - started)
        started = time.perf_counter()
        await store.finish(commit(row, number))
        commits.append(time.perf_counter() - started)
    return {"intent_with_its_thread": summary(intents), "commit": summary(commits)}


async def many_at_once(store: SqlStore, callers: int, seconds: float) -> dict[str, Any]:
    """Callers that each accept, note, intend and commit one call after another."""
    before, done = store.statistics(), 0
    threads = trio.CapacityLimiter(callers)

    async def caller(index: int) -> None:
        nonlocal done
        number = callers * 1_000_000_000 + index * 1_000_000
        while True:
            number += 1
            row = job(number)
            store.record(event("allow", row.job_id, number))
            store.insert_job_nowait(row)
            store.advance_nowait(row.job_id, "worker_running", worker_pid=1, worker_started_at=1.0)
            store.record(event("start", row.job_id, number))
            await trio.to_thread.run_sync(store.write_intent, row.job_id, bytes(400), limiter=threads)
            await store.finish(commit(row, number))
            done += 1

    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for index in range(callers):
                nursery.start_soon(caller, index)
    after = store.statistics()
    operations, transactions = after.operations - before.operations, after.batches - before.batches
    return {
        "callers": callers,
        "calls_per_second": round(done / seconds),
        "syncs_per_call": round((after.synced - before.synced) / done, 3),
        "operations_per_transaction": round(operations / transactions, 1),
    }


async def large_state(store: SqlStore, size: int, count: int) -> dict[str, Any]:
    """Commits that write a session state of that size."""
    found, state, life = [], os.urandom(size), None
    for number in range(count):
        row = job(90_000_000 + size + number)
        store.insert_job_nowait(row)
        write = SessionWrite(principal="agent-1", name=f"s{size}", incarnation=life, version=number, state=state)
        started = time.perf_counter()
        await store.finish(commit(row, number, write))
        found.append(time.perf_counter() - started)
        if life is None:
            opened = await store.session("agent-1", f"s{size}")
            life = None if opened is None else opened.incarnation
    return summary(found)


async def make_log(path: Path, events: int) -> float:
    """A store with that many events, four a call; the seconds it took."""
    started = time.perf_counter()
    async with open_store(path, retention=EVERYTHING) as store:
        for number in range(events):
            store.record(event(("allow", "start", "commit", "note")[number % 4], f"job_{number // 4:016}", number))
            if number % 2000 == 0:
                await store.session("agent-1", "nothing")  # waits until what was recorded is written
    return time.perf_counter() - started


async def large_log(path: Path, events: int) -> dict[str, Any]:
    """Opening, asking, exporting and verifying a log of many events, and what that needs in memory."""
    found: dict[str, Any] = {"bytes": path.stat().st_size}  # noqa: ASYNC240 - nothing else is running
    started = time.perf_counter()
    async with open_store(path, retention=EVERYTHING) as store:
        found["open"] = round((time.perf_counter() - started) * 1e3, 2)
        calls = [f"job_{number * (events // 4) // 200:016}" for number in range(200)]
        by_job = [await timed(partial(store.job_events, call)) for call in calls]
        by_principal = [await timed(partial(_events, store, f"agent-{number}")) for number in range(20)]
        newest = [await timed(partial(_events, store, None)) for _ in range(20)]
        found |= {
            "events_of_a_call": summary(by_job),
            "newest_100_of_a_principal": summary(by_principal),
            "newest_100": summary(newest),
        }
    with StoreReader.open(path) as reader:
        for name, walk in (("export", lambda: sum(1 for _ in reader.export())), ("verify", reader.verify)):
            before = memory()
            started = time.perf_counter()
            walk()
            found[f"{name}_seconds"] = round(time.perf_counter() - started, 2)
            found[f"{name}_memory_growth_mb"] = round(memory() - before, 2)
    return found


async def timed(question: Callable[[], Any]) -> float:
    """Seconds until the answer."""
    started = time.perf_counter()
    assert await question()
    return time.perf_counter() - started


async def _events(store: SqlStore, principal: str | None) -> Any:
    return await store.events(principal=principal, after=0, limit=100)


def memory() -> float:
    """The most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


async def measure(events: int, log: Path | None) -> dict[str, Any]:
    """All of it."""
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        found: dict[str, Any] = {
            "floor": {f"append_{size}_and_sync": syncs(folder, size) for size in (12_288, 2**20)},
        }
        started = time.perf_counter()
        async with open_store(folder / "state.db", retention=EVERYTHING) as store:
            found["open_new"] = round((time.perf_counter() - started) * 1e3, 2)
            found |= await one_at_a_time(store, 500)
            found["commit_with_state"] = {str(size): await large_state(store, size, 50) for size in (1000, 2**20)}
            found["group_commit"] = [await many_at_once(store, callers, 3.0) for callers in (1, 8, 64)]
        if events:
            path = log or folder / "log.db"
            if not path.exists():
                seconds = await make_log(path, events)
                found["log_made_events_per_second"] = round(events / seconds)
            found[f"log_of_{events}_events"] = await large_log(path, events)
        return found


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    text = json.dumps(trio.run(measure, arguments.events, arguments.log), indent=2)
    sys.stdout.write(text + "\n")
    if arguments.output is not None:
        arguments.output.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
