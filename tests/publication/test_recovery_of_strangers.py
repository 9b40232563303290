"""What recovery leaves alone, and what becomes of calls that the store does not know."""

import errno
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from tests.kit.trees import listing, snapshot
from tests.publication.crashes import JOB, FileStore, restart
from tests.publication.left import (
    OTHER,
    events,
    leave,
    one,
    populate,
    recover_with,
    row,
)
from ztrio.errors import Outcome, StoreUnavailable
from ztrio.memory_store import MemoryStore
from ztrio.publication.leftovers import Leftovers
from ztrio.testing import FaultyOps


@pytest.mark.case("R53")
@pytest.mark.leaves("they are nobody's")
@pytest.mark.parametrize("durable", [True, False], ids=["durable", "memory"])
def test_what_only_looks_like_a_job_directory_is_left_alone(workspace: Path, store: Path, durable: bool) -> None:
    """A link, a file, an open directory, another name, a damaged record: each is reported and not touched."""
    names = [f".ztrio-job-job_{letter * 16}" for letter in "bcdefg"]
    (workspace / names[0]).symlink_to("elsewhere")
    (workspace / names[1]).write_text("x")
    (workspace / names[2]).mkdir(0o755)
    (workspace / ".ztrio-job-my-own").mkdir(0o700)
    for name, record in ((names[3], b"{"), (names[4], b'{"version": 9}')):
        (workspace / name).mkdir(0o700)
        (workspace / name / "recovery.json").write_bytes(record)
    leave(workspace, None, "worker_running", external=True, outputs={}, work={}).close()
    (workspace / f".ztrio-job-{JOB}").rename(workspace / names[5])
    before = snapshot(workspace)
    kept: Any = store if durable else MemoryStore()
    found = restart(workspace, kept, accept=("job_eeeeeeeeeeeeeeee",))
    assert before == snapshot(workspace)
    assert () == found.locked
    assert 7 == len(found.findings)
    assert {"It was left alone. Remove it if you know that nothing in it is needed."} == {
        finding.advice for finding in found.findings
    }
    words = " ".join(str(finding.problem) for finding in found.findings)
    for part in ("no directory", "mode 0755", "not one that a call's", "damaged", "format 9", f"that of {JOB}"):
        assert part in words


@pytest.mark.leaves("it is another user's")
def test_another_users_directory_is_left_alone(workspace: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What belongs to somebody else is not ours, whatever its name and mode."""
    (workspace / f".ztrio-job-{JOB}").mkdir(0o700)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert f"belongs to user {own}" in str(one(restart(workspace, store)).problem)
    assert [f".ztrio-job-{JOB}"] == listing(workspace)


@pytest.mark.leaves("another store's")
@pytest.mark.parametrize("durable", [True, False], ids=["durable", "memory"])
def test_a_call_of_another_store_is_never_rolled_back(workspace: Path, store: Path, durable: bool) -> None:
    """Its directory says so: nothing is touched, every target of it stays locked, until its own store is here."""
    populate(workspace)
    leave(workspace, store, store_id="st_other")
    before = snapshot(workspace)
    kept: Any = store.with_name("mine") if durable else MemoryStore()
    found = restart(workspace, kept)
    assert before == snapshot(workspace)
    assert {str(workspace / name) for name in "abd"} == {locked.path for locked in found.locked}
    assert "another store" in str(one(found).problem)
    accepted = restart(workspace, kept, accept=(JOB,))
    assert ((), None) == (accepted.locked, one(accepted).problem)
    assert ["a", "b", "d"] == listing(workspace)


@pytest.mark.leaves("another store's")
def test_a_row_whose_directory_is_another_stores(workspace: Path, store: Path) -> None:
    """A store that knows the call, and a directory that names another store: nobody may decide."""
    populate(workspace)
    leave(workspace, store, store_id="st_other")
    before = snapshot(workspace)
    found = restart(workspace, store)
    assert before == snapshot(workspace)
    assert (3, True) == (len(found.locked), row(store).needs_recovery)


def test_a_directory_without_a_call_goes(workspace: Path, store: Path) -> None:
    """Without a row nothing ran: the directory is removed, with or without its record, and with what was staged."""
    staging = leave(workspace, store, "worker_running")
    staging.close()
    FileStore(store)._write(msgspec.structs.replace(FileStore(store).read(), rows={}))
    (workspace / ".ztrio-job-job_cccccccccccccccc").mkdir(0o700)
    found = restart(workspace, store)
    assert ["a job directory without a call: nothing ran"] * 2 == [finding.found for finding in found.findings]
    assert [None] * 2 == [finding.outcome for finding in found.findings]
    assert ([], []) == (listing(workspace), events(store))


@pytest.mark.leaves("the store forgot the call")
@pytest.mark.parametrize("stage", ["inspected", "publishing_outputs", "committed"])
def test_a_call_that_the_store_forgot_is_left_alone(workspace: Path, store: Path, stage: str) -> None:
    """Published, and no row to tell whether it committed: nothing moves, the backups stay, and it is told."""
    populate(workspace)
    leave(workspace, store, stage)
    FileStore(store)._write(msgspec.structs.replace(FileStore(store).read(), rows={}))
    before = snapshot(workspace)
    finding = one(restart(workspace, store))
    if stage != "inspected":
        assert "does not know" in str(finding.problem)
        assert before == snapshot(workspace)
    else:
        assert (None, []) == (finding.problem, [name for name in listing(workspace) if name[0] == "."])


@pytest.mark.leaves("the call is left for somebody to look at")
def test_a_damaged_journal_keeps_everything(workspace: Path, store: Path) -> None:
    """A journal that does not decode: nothing is touched, the targets of the row stay locked, and it says why."""
    populate(workspace)
    leave(workspace, store)
    FileStore(store).change(JOB, journal=b"\xc1")
    before = snapshot(workspace)
    found = restart(workspace, store)
    assert before == snapshot(workspace)
    assert ({str(workspace / name) for name in "abd"}, True) == (
        {locked.path for locked in found.locked},
        row(store).needs_recovery,
    )
    assert "damaged" in str(row(store).reason)


def test_calls_of_another_workspace_are_its_own(workspace: Path, store: Path, tmp_path: Path) -> None:
    """A store that serves several workspaces: a call is put right where it ran, and only there."""
    other = tmp_path.resolve() / "other"
    other.mkdir()
    populate(other)
    leave(other, store)
    assert () == restart(workspace, store).findings
    assert None is row(store).outcome
    assert Outcome.ROLLED_BACK == one(restart(other, store)).outcome
    assert ["a", "d"] == listing(other)


def test_a_workspace_that_was_moved(workspace: Path, store: Path) -> None:
    """Paths are relative to the workspace: moved as a whole, it is put right in its new place."""
    populate(workspace)
    leave(workspace, store)
    moved = workspace.rename(workspace.with_name("moved"))
    assert Outcome.ROLLED_BACK == one(restart(moved, store)).outcome
    assert ["a", "d"] == listing(moved)
    assert "old a" == (moved / "a").read_text()


def test_a_directory_that_cannot_be_removed_is_told(
    workspace: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stays after all is named; the call has its outcome none the less."""
    leave(workspace, store, "worker_running").close()
    with monkeypatch.context() as patch:
        patch.setattr(Leftovers, "remove", lambda *_: ["/ws/.ztrio-job-x"])
        finding = one(restart(workspace, store))
    assert ("/ws/.ztrio-job-x", "leave") in [(action.path, action.what) for action in finding.actions]
    assert Outcome.ROLLED_BACK == row(store).outcome
    restart(workspace, store)


@pytest.mark.leaves("the store failed")
def test_a_store_that_fails_is_one_failure(workspace: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many calls and a store that does not answer: one error, no group, and nothing is removed."""
    for job_id in (JOB, OTHER):
        leave(workspace, store, "worker_running", job_id=job_id).close()

    async def fail(*_: object) -> bool:
        await trio.lowlevel.checkpoint()
        raise StoreUnavailable("The disk is full.")

    monkeypatch.setattr(FileStore, "recovered", fail)
    with pytest.raises(StoreUnavailable, match="disk is full"):
        restart(workspace, store)
    assert [f".ztrio-job-{JOB}", f".ztrio-job-{OTHER}"] == listing(workspace)


def test_a_workspace_that_cannot_be_read(workspace: Path, store: Path) -> None:
    """Where the workspace cannot be looked at nothing is assumed about it."""
    FileStore(store)
    ops = FaultyOps("open_directory", OSError(errno.EIO, "Input/output error"))
    with pytest.raises(StoreUnavailable, match="Input/output"):
        recover_with(ops, workspace, store)


def test_probes_that_were_left_in_a_targets_directory_go(workspace: Path, store: Path) -> None:
    """A call that was killed while it tried whether a directory can be published to leaves nothing there."""
    (workspace / "p").mkdir()
    FileStore(store).insert(JOB, {"a": str(workspace / "p" / "a"), "b": "/elsewhere/b"}, phase="preparing")
    for place, make in ((workspace, Path.touch), (workspace / "p", Path.mkdir)):
        make(place / f".ztrio-probe-{JOB}")
    (workspace / "p" / f".ztrio-job-{JOB}").mkdir(0o700)
    assert Outcome.NOT_STARTED == one(restart(workspace, store)).outcome
    assert (["p"], []) == (listing(workspace), listing(workspace / "p"))
