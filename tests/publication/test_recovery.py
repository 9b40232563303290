"""What recovery does about each thing that may have been left."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.kit.trees import fill, listing, snapshot
from tests.publication.crashes import JOB, FileStore, restart
from tests.publication.left import OTHER, OUTPUTS, STAGES, events, leave, one, populate, row, what
from ztrio import restart as restart_module
from ztrio.audit import AuditBus
from ztrio.errors import Outcome
from ztrio.findings import Recovery
from ztrio.memory_store import MemoryStore
from ztrio.policies import Output
from ztrio.publication.staging import Publisher, Staging
from ztrio.publication.targets import resolve_output
from ztrio.restart import recover
from ztrio.store import JobRow
from ztrio.workers.containment import started_at


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "memory"])
@pytest.mark.parametrize("stage", STAGES)
def test_what_was_left_at_each_stage(workspace: Path, store: Path, stage: str, durable: bool) -> None:
    """Everything goes back unless the call committed; its directory goes, its end is told, and once."""
    populate(workspace)
    before = snapshot(workspace)
    leave(workspace, store if durable else None, stage).close()
    kept: Any = store if durable else MemoryStore()
    planned = one(restart(workspace, kept, dry_run=True))
    finding = one(restart(workspace, kept))
    assert planned.actions == finding.actions
    assert None is finding.problem
    if stage == "committed":
        assert (Outcome.COMMITTED, {".ztrio-job-" + JOB: "remove", "a": "nothing", "b": "nothing", "d": "nothing"}) == (
            finding.outcome,
            what(finding),
        )
        assert ["a", "b", "d"] == listing(workspace)
        assert ["x"] == listing(workspace / "d")
    else:
        after = snapshot(workspace)
        del before["."], after["."]
        assert before == after
        assert {"preparing": Outcome.NOT_STARTED}.get(stage, Outcome.ROLLED_BACK) == finding.outcome
    if stage == "publishing_outputs":
        assert ("exchange back", "take back", "exchange back") == tuple(what(finding)[name] for name in "abd")
    if durable:
        assert [{"committed": "commit"}.get(stage, "recovered")] == events(store)
        assert finding.outcome == row(store).outcome
    assert () == restart(workspace, kept).findings


@pytest.mark.leaves("nothing was done")
def test_a_dry_run_changes_nothing(workspace: Path, store: Path) -> None:
    """Looking first leaves every file, the row and the log as they are."""
    populate(workspace)
    leave(workspace, store)
    before = snapshot(workspace), FileStore(store).read()
    finding = one(restart(workspace, store, dry_run=True))
    assert before == (snapshot(workspace), FileStore(store).read())
    assert ("build", "default", "its outputs were being published") == (finding.tool, finding.session, finding.found)


@pytest.mark.leaves("what somebody edited is kept")
@pytest.mark.parametrize("durable", [True, False], ids=["durable", "memory"])
def test_an_edit_after_the_crash_is_kept(workspace: Path, store: Path, durable: bool) -> None:
    """Somebody edits what a killed call had published: the old one comes back, and their edit is kept and named."""
    populate(workspace)
    leave(workspace, store if durable else None)
    with (workspace / "a").open("a") as file:
        file.write(", and theirs")
    finding = one(restart(workspace, store if durable else MemoryStore()))
    assert "old a" == (workspace / "a").read_text()
    assert ["a", "d"] == [name for name in listing(workspace) if name[0] != "."]
    edited = workspace / f".ztrio-job-{JOB}" / "0" / "a"
    assert "new, and theirs" == edited.read_text()
    assert str(edited) in str(finding.problem)
    assert (Outcome.ROLLED_BACK, "Take it from there, then remove the job directory.") == (
        finding.outcome,
        finding.advice,
    )
    if durable:
        again = restart(workspace, store)
        assert () == again.locked
        assert (finding.problem, Outcome.ROLLED_BACK) == (one(again).problem, one(again).outcome)
        assert "new, and theirs" == edited.read_text()
        assert ["recovered"] == events(store)


@pytest.mark.leaves("nobody may decide")
@pytest.mark.parametrize("change", ["replaced", "removed", "directory replaced"])
def test_a_target_that_somebody_else_changed_stays_locked(workspace: Path, store: Path, change: str) -> None:
    """Theirs and the backup stay, the other outputs go back, the target stays locked until it is accepted."""
    (workspace / "p").mkdir()
    populate(workspace)
    (workspace / "p" / "a").write_text("old")
    leave(workspace, store, outputs={**OUTPUTS, "a": ("p/a", Output())})
    target = workspace / "p" / "a"
    if change == "directory replaced":
        (workspace / "p").rename(workspace / "q")
        (workspace / "p").mkdir()
    else:
        target.unlink()
    if change == "replaced":
        target.write_text("theirs")
    found = restart(workspace, store)
    finding = one(found)
    assert [str(target)] == [locked.path for locked in found.locked]
    assert f"ztrio recover --accept {JOB}" in found.locked[0].reason
    assert (Outcome.UNRESOLVED, True) == (finding.outcome, finding.problem is not None)
    assert (Outcome.UNRESOLVED, True) == (row(store).outcome, row(store).needs_recovery)
    assert not (workspace / "b").exists()
    assert ["y"] == listing(workspace / "d")
    backup = workspace / f".ztrio-job-{JOB}" / "0" / "a"
    assert "old" == backup.read_text()
    again = restart(workspace, store)
    assert found.locked == again.locked
    assert ["unresolved"] == events(store)
    accepted = restart(workspace, store, accept=(JOB,))
    assert ((), None, Outcome.ROLLED_BACK) == (accepted.locked, one(accepted).problem, one(accepted).outcome)
    assert ["unresolved", "settled"] == events(store)
    assert (change == "replaced") == target.exists()
    assert () == restart(workspace, store).findings
    assert [] == [name for name in listing(workspace) if name[0] == "."]


def test_who_puts_the_old_one_back_by_hand_has_decided(workspace: Path, store: Path) -> None:
    """When a person moved the backup to its place the next start finds all as before, and unlocks."""
    populate(workspace)
    leave(workspace, store)
    (workspace / "a").unlink()
    assert 1 == len(restart(workspace, store).locked)
    (workspace / f".ztrio-job-{JOB}" / "0" / "a").rename(workspace / "a")
    assert ((), Outcome.ROLLED_BACK) == (restart(workspace, store).locked, row(store).outcome)
    assert ["unresolved", "settled"] == events(store)
    assert ["a", "d"] == listing(workspace)


def test_what_committed_belongs_to_whoever_edits_it(workspace: Path, store: Path) -> None:
    """After a commit a target may be anything: it stays as it is, and the backup goes."""
    populate(workspace)
    leave(workspace, store, "committed")
    (workspace / "a").write_text("edited")
    (workspace / "b").unlink()
    assert None is one(restart(workspace, store)).problem
    assert ["a", "d"] == listing(workspace)
    assert "edited" == (workspace / "a").read_text()


@pytest.mark.leaves("the committed one cannot be put there")
def test_a_commit_is_carried_forward(workspace: Path, store: Path) -> None:
    """Committed and yet the old one, or nothing, stands there: the new one is put in place; over theirs it is not."""
    populate(workspace)
    (workspace / "a").chmod(0o640)
    staging = leave(workspace, store, "committed")
    slots = staging.job_directory
    for slot, name in (("0", "a"), ("2", "d")):  # as a file system shows it that lost the renames
        (workspace / name).rename(workspace / "swap")
        (slots / slot / name).rename(workspace / name)
        (workspace / "swap").rename(slots / slot / name)
    (workspace / "b").rename(slots / "1" / "b")
    (workspace / "d").chmod(0o555)
    found = restart(workspace, store, dry_run=True)
    assert ("exchange forward", "put forward", "exchange forward") == tuple(what(one(found))[name] for name in "abd")
    (workspace / "b").write_text("theirs")
    finding = one(restart(workspace, store))
    assert ("new", 0o640) == ((workspace / "a").read_text(), (workspace / "a").stat().st_mode & 0o777)
    assert (["x"], 0o555) == (listing(workspace / "d"), (workspace / "d").stat().st_mode & 0o777)
    (workspace / "d").chmod(0o755)
    assert ("theirs", "new") == ((workspace / "b").read_text(), (slots / "1" / "b").read_text())
    assert str(slots / "1" / "b") in str(finding.problem)
    (workspace / "b").unlink()
    assert None is one(restart(workspace, store)).problem
    assert ("new", ["a", "b", "d"]) == ((workspace / "b").read_text(), listing(workspace))


def test_effects_elsewhere_stay_unresolved(workspace: Path, store: Path) -> None:
    """Files go back and unlock; whether the rest happened is for a person to say, and asked again at each start."""
    populate(workspace)
    leave(workspace, store, external=True)
    found = restart(workspace, store)
    assert ((), Outcome.UNRESOLVED) == (found.locked, one(found).outcome)
    assert ["a", "d"] == listing(workspace)
    assert "elsewhere" in str(one(restart(workspace, store)).problem)
    assert ["unresolved"] == events(store)
    assert Outcome.ROLLED_BACK == one(restart(workspace, store, accept=(JOB,))).outcome
    assert ["unresolved", "settled"] == events(store)
    assert () == restart(workspace, store).findings


def test_a_call_that_ended_unresolved_and_left_nothing_is_an_operators(workspace: Path, store: Path) -> None:
    """Unresolved for its effects elsewhere, everything else settled: left as it is unless it is accepted."""
    kept = FileStore(store)
    kept.insert(JOB, {}, phase="ended", outcome="unresolved")
    assert () == restart(workspace, store).findings
    assert Outcome.ROLLED_BACK == one(restart(workspace, store, accept=(JOB,))).outcome


@pytest.mark.parametrize(("phase", "pid"), [("queued", None), ("running", 1)])
def test_a_read_that_was_cut_short_is_over(workspace: Path, store: Path, phase: str, pid: int | None) -> None:
    """Whether a read had begun is not noted, and its caller may have the answer: it counts as completed."""
    FileStore(store).insert(JOB, {}, capability="read", phase=phase, worker_pid=pid, worker_started_at=0.0)
    assert Outcome.COMPLETED == one(restart(workspace, store)).outcome


def test_a_tool_that_may_have_run_is_not_said_not_to_have(workspace: Path, store: Path) -> None:
    """The row may be a step behind: what the job directory says of a worker counts as well."""
    leave(workspace, store, "worker_running").close()
    FileStore(store).change(JOB, phase="preparing")
    assert Outcome.ROLLED_BACK == one(restart(workspace, store)).outcome
    leave(workspace, store, "preparing", job_id=OTHER, external=True).close()
    assert Outcome.UNRESOLVED == one(restart(workspace, store)).outcome


def test_a_call_that_was_answered_unresolved_is_settled(workspace: Path, store: Path) -> None:
    """Its terminal event was `unresolved`, though its row tells no outcome: what follows is `settled`."""
    populate(workspace)
    leave(workspace, store)
    FileStore(store).change(JOB, ("unresolved", "unresolved"))
    restart(workspace, store)
    assert ["unresolved", "settled"] == events(store)


def sleeper() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)


@pytest.mark.case("R11")
@pytest.mark.parametrize("age", [0.0, 5.0])
def test_an_orphan_is_killed_only_when_it_is_the_same_process(workspace: Path, store: Path, age: float) -> None:
    """A process of the worker's number is killed if it started when the worker did, and else left alone."""
    with sleeper() as process:
        try:
            born = started_at(process.pid) - age
            leave(workspace, store, "worker_running", worker_pid=process.pid, worker_started_at=born).close()
            planned = one(restart(workspace, store, dry_run=True))
            assert (None, not age) == (process.poll(), f"worker {process.pid}" in what(planned))
            finding = one(restart(workspace, store))
            assert (Outcome.ROLLED_BACK, planned.actions) == (finding.outcome, finding.actions)
            if age:
                assert None is process.poll()
            else:
                assert -9 == process.wait(timeout=5)
        finally:
            process.kill()


@pytest.mark.leaves("its worker is alive")
def test_an_orphan_that_cannot_be_ended_keeps_its_call(
    workspace: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose worker may still act is not rolled back: everything stays, and the targets are locked."""

    async def immortal(pid: int, born: float, *, bound: float) -> bool | None:
        await trio.lowlevel.checkpoint()
        return False

    populate(workspace)
    leave(workspace, store, "worker_running", worker_pid=7, worker_started_at=1.0).close()
    monkeypatch.setattr(restart_module, "end_orphan", immortal)
    found = restart(workspace, store, accept=(JOB,))
    assert (3, True) == (len(found.locked), row(store).needs_recovery)
    assert "worker 7 is alive" in str(one(found).problem)


def test_a_thousand_abandoned_calls(workspace: Path, store: Path) -> None:
    """A thousand calls that were cut short, a hundred of them while they published, are put right within 10 s."""
    from ztrio_sql import open_store

    async def run() -> Recovery:
        async with open_store(store) as kept:
            for number in range(1000):
                job_id = f"job_{number:016d}".translate(str.maketrans("0189", "abcd"))
                kept.insert_job_nowait(_row(job_id, workspace, number))
                (workspace / f"t{number}").write_text("old")
                staging = _leave_in(kept, workspace, job_id, f"t{number}", publish=number % 10 == 0)
                staging.close()
            await kept.job(job_id)
            begun = time.process_time()
            found = await recover(
                kept, str(workspace), AuditBus(recorder=kept.record), blocking=trio.to_thread.run_sync
            )
            # Not by the wall clock, because others run on this machine as well; alone it takes 1.3 s, nearly all of it
            # computing.
            assert time.process_time() - begun <= 5
            assert [] == await kept.unfinished()
            return found

    found = trio.run(run)
    assert {Outcome.ROLLED_BACK} == {finding.outcome for finding in found.findings}
    assert 1000 == len(found.findings)
    assert {"old"} == {(workspace / f"t{number}").read_text() for number in range(1000)}
    assert 1000 == len(listing(workspace))


def _row(job_id: str, workspace: Path, number: int) -> JobRow:
    return JobRow(
        job_id=job_id,
        principal="local",
        tool="build",
        session="default",
        capability="write",
        phase="worker_running",
        outcome=None,
        targets={"a": str(workspace / f"t{number}")},
        created_at="2026-01-01T00:00:00+00:00",
    )


def _leave_in(kept: Any, workspace: Path, job_id: str, name: str, *, publish: bool) -> Staging:
    publisher = Publisher(workspace)
    publisher.sign(kept.store_id, durable=True)
    target = resolve_output(workspace, "a", name, Output())
    staging = publisher.prepare(job_id, [target], label={"tool": "build"})
    fill(staging, {"a": "new"})
    if publish:
        staging.inspect()
        staging.publish()
        kept.advance_nowait(job_id, "publishing_outputs", journal=staging.journal())
    return staging
