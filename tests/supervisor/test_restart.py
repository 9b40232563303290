"""Opening where an earlier process was killed: put right before the first answer, and what stays locked."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ztrio
from tests.kit.trees import listing
from tests.publication.crashes import JOB
from tests.publication.left import leave
from tests.supervisor.support import opened, state
from ztrio.locks import ProcessLock
from ztrio.policies import Output
from ztrio.restart import workspace_lock
from ztrio.testing import FaultyStore
from ztrio_sql import open_store

OUT = {"out": ("out", Output())}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    place = tmp_path.resolve() / "ws"
    place.mkdir()
    return place


def crash(workspace: Path, *, theirs: bool = False) -> None:
    """A call that a memory store's process left while it was publishing; somebody replaced its target since."""
    (workspace / "out").write_text("old")
    leave(workspace, None, outputs=OUT, work={"out": "new"})
    if theirs:
        (workspace / "out").unlink()
        (workspace / "out").write_text("theirs")


async def test_everything_is_as_before_when_the_first_call_is_answered(workspace: Path) -> None:
    """What a killed process left is put right while opening, and told in the audit and by the supervisor."""
    crash(workspace)
    async with opened(workspace) as (supervisor, _):
        assert "old" == (workspace / "out").read_text()
        assert [".ztrio", "out"] == listing(workspace)
        [event] = await supervisor.events()
        assert ("recovered", JOB, "rolled_back", "build") == (
            event["event"],
            event["execution_job_id"],
            event["outcome"],
            event["tool"],
        )
        [finding] = supervisor.recovery.findings
        assert (JOB, None) == (finding.job_id, finding.problem)
        result = await supervisor.call("export", {"out": "out"})
        assert ztrio.Outcome.COMMITTED == result.outcome


async def test_a_durable_store_tells_the_outcome_afterwards(workspace: Path, tmp_path: Path) -> None:
    """Killed in the middle of publication, with a durable store: rolled back, and the outcome can be asked for."""
    (workspace / "out").write_text("old")
    async with open_store(tmp_path / "store") as store:
        row = ztrio.store.JobRow(
            job_id=JOB,
            principal="local",
            tool="build",
            session="s",
            capability="write",
            phase="queued",
            outcome=None,
            targets={"out": str(workspace / "out")},
            created_at="2026-01-01T00:00:00+00:00",
        )
        await store.insert_job(row)
        staging = leave(workspace, tmp_path / "other", outputs=OUT, work={"out": "new"}, store_id=store.store_id)
        await store.advance(JOB, "publishing_outputs", journal=staging.journal())
    async with open_store(tmp_path / "store") as store, opened(workspace, store=store) as (supervisor, _):
        assert ztrio.Outcome.ROLLED_BACK == await supervisor.outcome(JOB)
        assert "old" == (workspace / "out").read_text()
        assert ["recovered"] == [event["event"] for event in await supervisor.events()]
    async with open_store(tmp_path / "store") as store, opened(workspace, store=store) as (supervisor, _):
        assert ((), ["recovered"]) == (
            supervisor.recovery.findings,
            [event["event"] for event in await supervisor.events()],
        )


@pytest.mark.leaves("somebody has to look")
async def test_a_target_that_somebody_has_to_look_at_is_refused(workspace: Path) -> None:
    """Calls to it, above it and below it get TARGET_LOCKED with what to do; other targets and reads go on."""
    crash(workspace, theirs=True)
    async with opened(workspace) as (supervisor, log):
        with pytest.raises(ztrio.OutputRefused) as caught:
            await supervisor.call("export", {"out": "out"})
        assert ("TARGET_LOCKED", JOB, ztrio.Outcome.NOT_STARTED) == (
            caught.value.code,
            caught.value.details["locked_by"],
            caught.value.outcome,
        )
        assert f"ztrio recover --accept {JOB}" in caught.value.message
        assert ["deny"] == log.names(caught.value.job_id)
        assert "theirs" == (workspace / "out").read_text()
        assert ztrio.Outcome.COMMITTED == (await supervisor.call("export", {"out": "other"})).outcome
        assert ztrio.Outcome.COMPLETED == (await supervisor.call("look")).outcome
        assert [("path", *(workspace / "out").parts)] == list(supervisor.statistics().tickets.keys)
        assert (1, None) == ((await state(supervisor) or (None,))[0], await supervisor.outcome(JOB))


@pytest.mark.leaves("somebody has to look")
def test_locked_are_what_lies_above_and_below(workspace: Path) -> None:
    """A locked target locks directories that hold it and what lies in it."""
    recovery = ztrio.findings.Recovery(
        locked=(ztrio.findings.LockedTarget(path="/w/p/a", job_id=JOB, reason="because."),)
    )
    assert [True, True, True, False, False] == [
        recovery.locking(Path(path)) is not None for path in ("/w/p/a", "/w/p", "/w/p/a/x", "/w/p/ab", "/w/q")
    ]


async def test_a_second_supervisor_is_refused(workspace: Path) -> None:
    """One workspace has one process at a time; the refusal names it, and nothing of the first one's is touched."""
    async with opened(workspace):
        with pytest.raises(ztrio.AlreadyInUse) as caught:
            async with opened(workspace):
                pass
        assert ("WORKSPACE_BUSY", os.getpid()) == (caught.value.code, caught.value.details["pid"])
    async with opened(workspace):
        pass


def test_the_lock_of_a_killed_process_is_free(workspace: Path) -> None:
    """The lock ends with its process, whatever ends that, and names the one that holds it."""
    code = f"""
import time
from pathlib import Path
from ztrio.restart import workspace_lock
with workspace_lock(Path({str(workspace)!r})):
    print("held", flush=True)
    time.sleep(60)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert b"held\n" == process.stdout.readline()
        with pytest.raises(ztrio.AlreadyInUse) as caught, workspace_lock(workspace):
            pass
        assert process.pid == caught.value.details["pid"]
        process.kill()
    with workspace_lock(workspace):
        pass


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_where_nothing_can_be_written_nothing_is_locked(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A workspace that cannot be written is opened for reads; any other failure of the lock is one."""

    def refuse(self: ProcessLock) -> None:
        raise ztrio.StoreUnavailable("no") from OSError(number, os.strerror(number))

    monkeypatch.setattr(ProcessLock, "acquire", refuse)
    with workspace_lock(workspace) as held:
        assert not held
    number = errno.EIO
    with pytest.raises(ztrio.StoreUnavailable), workspace_lock(workspace):
        pass
    (workspace / ".ztrio").rmdir()
    (workspace / ".ztrio").write_text("")
    with pytest.raises(FileExistsError), workspace_lock(workspace):
        pass


@pytest.mark.leaves("nothing can be touched")
async def test_a_workspace_that_cannot_be_written_serves_reads(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the lock nothing is put right, since what is there may be somebody's who can write; reads go on."""

    def refuse(self: ProcessLock) -> None:
        raise ztrio.StoreUnavailable("no") from OSError(errno.EROFS, os.strerror(errno.EROFS))

    crash(workspace)
    monkeypatch.setattr(ProcessLock, "acquire", refuse)
    async with opened(workspace) as (supervisor, _):
        assert () == supervisor.recovery.findings
        assert ztrio.Outcome.COMPLETED == (await supervisor.call("look")).outcome
    assert "new" == (workspace / "out").read_text()


async def test_what_a_memory_store_left_is_told_to_a_durable_one(workspace: Path, tmp_path: Path) -> None:
    """A call that no durable store knows is put right all the same, and its end is in the durable log."""
    crash(workspace)
    async with open_store(tmp_path / "store") as store, opened(workspace, store=store) as (supervisor, _):
        assert "old" == (workspace / "out").read_text()
        assert ["recovered"] == [event["event"] for event in await supervisor.events()]


@pytest.mark.leaves("nothing was touched")
async def test_a_store_that_does_not_answer_keeps_it_closed(workspace: Path) -> None:
    """Without knowing what happened nobody is answered: opening fails with the store's own error."""
    crash(workspace)

    class Silent(FaultyStore):
        async def unfinished(self) -> list[ztrio.store.JobRow]:
            raise ztrio.StoreUnavailable("The store does not answer.")

    with pytest.raises(ztrio.StoreUnavailable, match="does not answer"):
        async with opened(workspace, store=Silent()):
            pass
    assert "new" == (workspace / "out").read_text()
