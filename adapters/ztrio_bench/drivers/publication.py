"""Durable publication of a few files: what ztrio does between the end of the tool and the commit."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import trio

from ztrio.policies import Output
from ztrio.publication.staging import Publisher
from ztrio.publication.targets import resolve_output
from ztrio.store import JobRow
from ztrio_bench.drivers.kit import Samples, now
from ztrio_bench.drivers.syncs import CONTENT, names, repeat, workspace_of

__all__ = ["durable"]


def durable(request: dict[str, Any]) -> dict[str, Any]:
    """A round of ztrio's publication, with its intent in a durable store."""
    return trio.run(_durable, request)


async def _durable(request: dict[str, Any]) -> dict[str, Any]:
    from ztrio_sql import open_store  # noqa: PLC0415 - nobody else needs the database

    samples = Samples()
    workspace = workspace_of(request)
    publisher = Publisher(workspace)
    async with open_store(Path(request["folder"]) / "published.db") as store:
        publisher.sign(store.store_id, durable=True)

        def once(number: int) -> int:
            job_id = f"job_{os.getpid()}_{time.monotonic_ns()}_{number}"
            targets = [resolve_output(workspace, name, name, Output()) for name in names(request)]
            row = _row(job_id)
            trio.from_thread.run_sync(store.insert_job_nowait, row)
            staging = publisher.prepare(job_id, targets, label={"tool": "publish"})
            try:
                for path in staging.paths.values():
                    Path(path).write_bytes(CONTENT)
                start = now()
                staging.inspect()
                staging.publish(lambda journal: store.write_intent(job_id, journal))
                return now() - start
            finally:
                staging.discard()

        await trio.to_thread.run_sync(repeat, request, samples, once)
    samples.facts["what"] = "inspect, sync, intent, exchange, compare, sync"
    return samples.as_dict()


def _row(job_id: str) -> JobRow:
    return JobRow(
        job_id=job_id,
        principal="local",
        tool="publish",
        session="default",
        capability="write",
        phase="worker_running",
        outcome=None,
        targets={},
        created_at="",
    )
