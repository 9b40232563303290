"""Killing a process at a chosen step of publication or recovery, and a store in a file that outlives it."""

import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import attrs
import msgspec
import trio

from tests.kit.trees import fill
from ztrio.audit import AuditBus, AuditEvent
from ztrio.errors import Outcome
from ztrio.findings import Recovery
from ztrio.policies import Output
from ztrio.publication.exchange import FileOps
from ztrio.publication.staging import Publisher
from ztrio.publication.targets import resolve_output
from ztrio.restart import recover
from ztrio.store import JobRow, Store
from ztrio.testing import FaultyOps, inline

JOB = "job_aaaaaaaaaaaaaaaa"
TERMINAL = {"commit", "rollback", "recovered", "settled"}
NOBODY = 65534

_T = TypeVar("_T")
_LOOKS = {"open_directory", "list_directory", "stat", "digest"}
_CHANGES = {"os.remove", "os.rmdir", "os.mkdir", "os.rename", "os.chmod", "os.chown", "os.utime", "os.setxattr"}


class Switch:
    """Kills this process at its `nth` step, counted from 1; never, when that is 0."""

    def __init__(self, nth: int) -> None:
        self._left = nth
        # While False nothing is a step.
        self.armed = True

    def step(self, _name: str) -> None:
        if self.armed:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def watch_interpreter(self) -> None:
        """Count what goes past the file operations as well. Cannot be undone, so only in a process of its own."""

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if event in _CHANGES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT):
                self.step(event)

        sys.addaudithook(hook)


class Mounted(FileOps):
    """As if the directory `p` were on a mount of its own."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def _there(self, fd: int) -> bool:
        return Path(f"/proc/self/fd/{fd}").readlink().is_relative_to(self._place)

    def _check(self, first: int, second: int) -> None:
        if self._there(first) != self._there(second):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    def exchange(self, first_fd: int, first: str, second_fd: int, second: str) -> None:
        self._check(first_fd, second_fd)
        super().exchange(first_fd, first, second_fd, second)

    def move_new(self, source_fd: int, source: str, target_fd: int, target: str) -> None:
        self._check(source_fd, target_fd)
        super().move_new(source_fd, source, target_fd, target)


class SteppedOps(FaultyOps):
    """File operations each of which is a step, but for those that only look: between two looks nothing changes."""

    def __init__(self, switch: Switch, real: FileOps) -> None:
        super().__init__()
        self._real = real
        self._switch = switch

    def _run(self, name: str, real: Callable[[], _T], *, undo: Callable[[_T], None] | None = None) -> _T:
        if name not in _LOOKS:
            self._switch.step(name)
        return super()._run(name, real, undo=undo)


class _Content(msgspec.Struct):
    store_id: str
    rows: dict[str, dict[str, Any]] = {}
    events: list[tuple[str, str, str | None]] = []


@attrs.define
class FileStore:
    """As much of a durable store as publication and recovery need: one file, replaced as a whole.

    Args:
        path: The file.
        store_id: Identifies it when it is made.
        step: Called before and after each change.
    """

    path: Path
    store_id: str = "st_test"
    step: Callable[[str], None] = lambda _: None
    durable = True

    def __attrs_post_init__(self) -> None:
        if not self.path.exists():
            self._write(_Content(self.store_id))

    def read(self) -> _Content:
        return msgspec.msgpack.decode(self.path.read_bytes(), type=_Content)

    def _write(self, content: _Content) -> None:
        self.step("store")
        draft = self.path.with_suffix(".new")
        draft.write_bytes(msgspec.msgpack.encode(content))
        draft.replace(self.path)
        self.step("stored")

    def change(self, about: str, event: tuple[str, str | None] | None = None, **facts: Any) -> None:
        content = self.read()
        content.rows.setdefault(about, {}).update(facts)
        if event is not None:
            content.events.append((about, *event))
        self._write(content)

    def row(self, job_id: str) -> JobRow | None:
        facts = self.read().rows.get(job_id)
        if facts is None:
            return None
        outcome = facts.get("outcome")
        return JobRow(**{**facts, "outcome": None if outcome is None else Outcome(outcome)})

    def insert(self, job_id: str, targets: dict[str, str], **facts: Any) -> None:
        self.change(
            job_id,
            job_id=job_id,
            principal="local",
            tool="build",
            session="default",
            capability="write",
            phase="queued",
            outcome=None,
            targets=targets,
            created_at="2026-01-01T00:00:00+00:00",
        )
        self.change(job_id, **facts)

    def write_intent(self, job_id: str, journal: bytes) -> None:
        self.change(job_id, phase="publishing_outputs", journal=journal)

    async def unfinished(self) -> list[JobRow]:
        await trio.lowlevel.checkpoint()
        rows = [self.row(job_id) for job_id in self.read().rows]
        return [row for row in rows if row is not None and row.outcome in (None, Outcome.UNRESOLVED)]

    async def job(self, job_id: str) -> JobRow | None:
        await trio.lowlevel.checkpoint()
        return self.row(job_id)

    async def job_events(self, job_id: str) -> list[tuple[int, AuditEvent]]:
        await trio.lowlevel.checkpoint()
        events = self.read().events
        return [(at, AuditEvent(event=name)) for at, (about, name, _) in enumerate(events, 1) if about == job_id]

    async def recovered(self, job_id: str, outcome: Outcome, event: AuditEvent) -> bool:
        return self._end(job_id, (event.event, str(outcome)), outcome=str(outcome), needs_recovery=False, reason=None)

    async def need_recovery(self, job_id: str, reason: str, event: AuditEvent | None) -> bool:
        told = None if event is None else (event.event, str(Outcome.UNRESOLVED))
        return self._end(job_id, told, outcome=str(Outcome.UNRESOLVED), needs_recovery=True, reason=reason)

    def _end(self, job_id: str, event: tuple[str, str | None] | None, **facts: Any) -> bool:
        row = self.row(job_id)
        if row is None or row.outcome not in (None, Outcome.UNRESOLVED):
            return False
        self.change(job_id, event, **facts)
        return True

    def record(self, event: AuditEvent) -> None:
        content = self.read()
        content.events.append((event.execution_job_id, event.event, None))
        self._write(content)


def in_process(work: Callable[[], object]) -> int:
    """Run `work` in a process of its own, as an ordinary user; 0, or the negative number of what killed it."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
            work()
            status = 0
        except BaseException as error:
            import traceback

            traceback.print_exception(error)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def call(
    workspace: Path,
    store: Path,
    outputs: dict[str, tuple[str, Output]],
    work: dict[str, str | dict[str, str]],
    *,
    nth: int = 0,
    commit: bool = True,
    job_id: str = JOB,
) -> None:
    """Everything that a call does to files and to its row, killed at the `nth` step."""
    switch = Switch(nth)
    switch.armed = False
    kept: Any = FileStore(store, step=switch.step)
    targets = [resolve_output(workspace, name, raw, policy) for name, (raw, policy) in outputs.items()]
    publisher = Publisher(workspace, ops=SteppedOps(switch, Mounted(workspace / "p")))
    publisher.sign(kept.store_id, durable=True)
    kept.insert(job_id, {target.parameter: str(target.path) for target in targets}, phase="preparing")
    switch.watch_interpreter()
    switch.armed = True
    staging = publisher.prepare(job_id, targets, label={"tool": "build"})
    kept.change(job_id, phase="worker_running", journal=staging.journal())
    staging.record("worker_running")
    switch.armed = False
    fill(staging, work)
    switch.armed = True
    staging.inspect()
    staging.publish(lambda journal: kept.write_intent(job_id, journal))
    if commit:
        kept.change(job_id, ("commit", "committed"), outcome="committed")
    else:
        staging.roll_back()
        kept.change(job_id, ("rollback", "rolled_back"), outcome="rolled_back")
    staging.discard()


def restart(
    workspace: Path,
    store: Any,
    *,
    nth: int = 0,
    accept: tuple[str, ...] = (),
    dry_run: bool = False,
    real: FileOps | None = None,
) -> Recovery:
    """Recovery, killed at the `nth` step."""
    switch = Switch(nth)
    if nth:
        switch.watch_interpreter()
    kept = cast("Store", FileStore(store, step=switch.step) if isinstance(store, Path) else store)

    async def run() -> Recovery:
        audit = AuditBus(recorder=kept.record)
        ops = SteppedOps(switch, real or FileOps())
        return await recover(kept, str(workspace), audit, blocking=inline, ops=ops, accept=accept, dry_run=dry_run)

    return trio.run(run)
