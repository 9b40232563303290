"""Recovery where the system refuses, mounts are missing, or somebody is at work at the same time."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.trees import listing, snapshot
from tests.publication.crashes import JOB, Mounted, in_process, restart
from tests.publication.left import (
    STAGES,
    Refusing,
    events,
    leave,
    one,
    populate,
    recover_with,
    row,
)
from ztrio.errors import Outcome
from ztrio.policies import Output
from ztrio.testing import FaultyOps


@pytest.mark.case("R50")
@pytest.mark.parametrize("operation", ["exchange", "move_new", "sync_directory", "stat"])
@pytest.mark.parametrize("number", [errno.EROFS, errno.EXDEV, errno.EIO, errno.ENOSPC, errno.EACCES])
def test_what_the_system_refuses_is_tried_again(workspace: Path, store: Path, number: int, operation: str) -> None:
    """A move, a sync or a look that fails: told by name, locked, nothing removed; the next start does the rest."""
    populate(workspace)
    before = snapshot(workspace)
    leave(workspace, store)
    found = recover_with(Refusing(number, operation), workspace, store)
    expected = {"exchange": 2, "move_new": 1, "sync_directory": 3, "stat": 2}
    assert expected[operation] == len(found.locked)
    assert os.strerror(number) in str(one(found).problem)
    assert row(store).needs_recovery
    assert Outcome.ROLLED_BACK == one(restart(workspace, store)).outcome
    after = snapshot(workspace)
    del before["."], after["."]
    assert before == after
    assert ["unresolved", "settled"] == events(store)


def test_a_read_only_directory(store: Path) -> None:
    """An ordinary user's target in a directory that has become read-only stays locked until it can be written."""
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ztrio-test-") as place:
        root = Path(place).resolve()
        root.chmod(0o777)
        workspace, kept = root / "ws", root / "store"

        def begin() -> None:
            (workspace / "p").mkdir(parents=True)
            (workspace / "p" / "a").write_text("old")
            leave(workspace, kept, outputs={"a": ("p/a", Output())}, work={"a": "new"})
            (workspace / "p").chmod(0o555)

        def first() -> None:
            found = restart(workspace, kept)
            assert [str(workspace / "p" / "a")] == [locked.path for locked in found.locked]
            assert "Permission denied" in str(one(found).problem)
            (workspace / "p").chmod(0o755)

        def second() -> None:
            assert Outcome.ROLLED_BACK == one(restart(workspace, kept)).outcome
            assert "old" == (workspace / "p" / "a").read_text()

        assert [0, 0, 0] == [in_process(work) for work in (begin, first, second)]


class Racing(FaultyOps):
    """Somebody replaces a target right before recovery's n-th move."""

    def __init__(self, operation: str, nth: int, target: Path) -> None:
        def replace() -> None:
            (target.parent / "other").write_text("theirs")
            (target.parent / "other").rename(target)

        super().__init__(operation, nth=nth, then=replace)


@pytest.mark.leaves("somebody else was here")
@pytest.mark.parametrize(("operation", "name"), [("exchange", "a"), ("move_new", "b")])
def test_somebody_at_work_in_the_middle_of_it(workspace: Path, store: Path, operation: str, name: str) -> None:
    """A target that is replaced between look and move: theirs is put where they put it, and stays."""
    populate(workspace)
    leave(workspace, store)
    found = recover_with(Racing(operation, {"a": 2, "b": 1}[name], workspace / name), workspace, store)
    assert "theirs" == (workspace / name).read_text()
    assert [str(workspace / name)] == [locked.path for locked in found.locked]
    if name == "a":
        assert "old a" == (workspace / f".ztrio-job-{JOB}" / "0" / "a").read_text()


@pytest.mark.parametrize("stage", STAGES)
def test_job_directories_on_other_mounts_are_found(workspace: Path, store: Path, stage: str) -> None:
    """A target on another mount has its job directory beside it; the journal names it, and it goes as well."""
    (workspace / "p").mkdir()
    (workspace / "p" / "a").write_text("old")
    outputs = {"a": ("p/a", Output()), "b": ("b", Output())}
    leave(workspace, store, stage, outputs=outputs, work={"a": "new", "b": "new"}, ops=Mounted(workspace / "p")).close()
    assert [f".ztrio-job-{JOB}", "a"] == listing(workspace / "p")
    recover_with(Mounted(workspace / "p"), workspace, store)
    assert {"committed": "new"}.get(stage, "old") == (workspace / "p" / "a").read_text()
    assert ["a"] == listing(workspace / "p")
    assert (["b", "p"] if stage == "committed" else ["p"]) == listing(workspace)


MOUNTS = """
import subprocess, sys
from pathlib import Path
from tests.kit.trees import listing
from tests.publication.crashes import restart
from tests.publication.left import leave, one
from ztrio.policies import Output

root = Path(sys.argv[1])
workspace, store, disk = root / "ws", root / "store", root / "disk"

def mount():
    subprocess.run(["mount", "--bind", str(disk), str(workspace / "p")], check=True)

def unmount():
    subprocess.run(["umount", "-l", str(workspace / "p")], check=True)

(workspace / "p").mkdir(parents=True)
disk.mkdir()
(disk / "a").write_text("old")
mount()
leave(workspace, store, outputs={"a": ("p/a", Output())}, work={"a": "new"})
assert "new" == (disk / "a").read_text()
unmount()
found = restart(workspace, store)
assert [str(workspace / "p" / "a")] == [locked.path for locked in found.locked], found
assert "another one is in its place" in one(found).problem
mount()
assert None is one(restart(workspace, store)).problem
assert ("old", ["a"], ["p"]) == ((disk / "a").read_text(), listing(disk), listing(workspace))
unmount()
"""


def test_a_bind_mount_that_is_gone_and_comes_back(tmp_path: Path) -> None:
    """A mount that is missing when recovery runs locks its targets; with it back they are put right."""
    namespace = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--mount", "--"]
    if subprocess.run([*namespace, "true"], check=False, capture_output=True).returncode != 0:
        _a_directory_that_is_gone_and_comes_back(tmp_path)  # where no user may have mounts, what they look like
        return
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [*namespace, sys.executable, "-c", MOUNTS, str(tmp_path.resolve())],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "adapters")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)


def test_a_directory_that_is_gone_and_comes_back(tmp_path: Path) -> None:
    """The same without a mount: another directory in the target's place is not taken for it."""
    _a_directory_that_is_gone_and_comes_back(tmp_path)


def _a_directory_that_is_gone_and_comes_back(tmp_path: Path) -> None:
    workspace, store = tmp_path.resolve() / "ws", tmp_path / "store"
    (workspace / "p").mkdir(parents=True)
    (workspace / "p" / "a").write_text("old")
    outputs = {"a": ("p/a", Output())}
    leave(workspace, store, outputs=outputs, work={"a": "new"}, ops=Mounted(workspace / "p"))
    (workspace / "p").rename(tmp_path / "away")
    (workspace / "p").mkdir()
    assert [str(workspace / "p" / "a")] == [locked.path for locked in restart(workspace, store).locked]
    (workspace / "p").rmdir()
    (tmp_path / "away").rename(workspace / "p")
    assert None is one(restart(workspace, store)).problem
    assert ("old", ["a"], ["p"]) == (
        (workspace / "p" / "a").read_text(),
        listing(workspace / "p"),
        listing(workspace),
    )
