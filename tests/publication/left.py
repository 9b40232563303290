"""Calls as a killed process leaves them, and what to look at afterwards."""

import os
from pathlib import Path
from typing import Any

import trio

from tests.kit.trees import fill
from tests.publication.crashes import JOB, FileStore
from ztrio.audit import AuditBus
from ztrio.findings import Finding, Recovery
from ztrio.policies import Output
from ztrio.publication.exchange import FileOps
from ztrio.publication.staging import Publisher, Staging
from ztrio.publication.targets import resolve_output
from ztrio.restart import recover
from ztrio.store import JobRow
from ztrio.testing import inline

OUTPUTS = {"a": ("a", Output()), "b": ("b", Output()), "d": ("d", Output(kind="dir", existing="replace"))}


WORK: dict[str, str | dict[str, str]] = {"a": "new", "b": "new", "d": {"x": "new"}}


OTHER = "job_bbbbbbbbbbbbbbbb"


STAGES = ("preparing", "worker_running", "inspected", "publishing_outputs", "committed")


def leave(
    workspace: Path,
    store: Path | None,
    stage: str = "publishing_outputs",
    *,
    job_id: str = JOB,
    external: bool = False,
    ops: FileOps | None = None,
    outputs: dict[str, tuple[str, Output]] = OUTPUTS,
    work: dict[str, str | dict[str, str]] = WORK,
    store_id: str = "st_test",
    **facts: Any,
) -> Staging:
    """Leave a call as a process that is killed leaves it, at a stage; without a store as a memory store's."""
    kept = None if store is None else FileStore(store)
    targets = [resolve_output(workspace, name, raw, policy) for name, (raw, policy) in outputs.items()]
    publisher = Publisher(workspace, ops=ops)
    publisher.sign(store_id, durable=store is not None)
    staging = publisher.prepare(job_id, targets, label={"tool": "build", "session": "s", "external": external})
    if kept is not None:
        paths = {target.parameter: str(target.path) for target in targets}
        kept.insert(job_id, paths, phase="preparing", journal=staging.journal(), **facts)
    if stage == "preparing":
        return staging
    staging.record("worker_running")
    fill(staging, work)
    if kept is not None:
        kept.change(job_id, phase="worker_running")
    if stage == "worker_running":
        return staging
    staging.inspect()
    if stage == "inspected" and kept is not None:
        kept.write_intent(job_id, staging.journal())
    if stage != "inspected":
        staging.publish(None if kept is None else lambda journal: kept.write_intent(job_id, journal))
    if stage == "committed":
        staging.record("committed")
        if kept is not None:
            kept.change(job_id, ("commit", "committed"), outcome="committed")
    staging.close()
    return staging


def populate(workspace: Path) -> None:
    (workspace / "a").write_text("old a")
    (workspace / "d").mkdir()
    (workspace / "d" / "y").write_text("old")


def one(found: Recovery) -> Finding:
    [finding] = found.findings
    return finding


def what(finding: Finding) -> dict[str, str]:
    return {Path(action.path).name: action.what for action in finding.actions}


def row(store: Path, job_id: str = JOB) -> JobRow:
    found = FileStore(store).row(job_id)
    assert found is not None
    return found


def events(store: Path) -> list[str]:
    return [name for _, name, _ in FileStore(store).read().events]


class Refusing(FileOps):
    """File operations of which the moves fail."""

    def __init__(self, number: int, operation: str) -> None:
        self._error = OSError(number, os.strerror(number))
        self._operation = operation

    def exchange(self, *arguments: Any) -> None:
        self._fail("exchange")
        super().exchange(*arguments)

    def move_new(self, *arguments: Any) -> None:
        self._fail("move_new")
        super().move_new(*arguments)

    def sync_directory(self, dir_fd: int) -> None:
        self._fail("sync_directory")
        super().sync_directory(dir_fd)

    def stat(self, dir_fd: int, name: str) -> Any:
        if name in ("a", "b"):
            self._fail("stat")
        return super().stat(dir_fd, name)

    def _fail(self, operation: str) -> None:
        if operation == self._operation:
            raise self._error


def recover_with(ops: FileOps, workspace: Path, store: Path) -> Recovery:
    kept: Any = FileStore(store)

    async def run() -> Recovery:
        return await recover(kept, str(workspace), AuditBus(recorder=kept.record), blocking=inline, ops=ops)

    return trio.run(run)
