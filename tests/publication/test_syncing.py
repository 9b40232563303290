"""What a durable publication brings to the disk, in which order, and that one which is not durable syncs nothing."""

import errno
import os
from pathlib import Path

import pytest

from tests.kit.trees import fill, listing
from tests.publication.conftest import Stage
from ztrio.policies import Output
from ztrio.publication.exchange import FileOps
from ztrio.publication.inspect import MAX_DEPTH, TooDeep
from ztrio.publication.journal import decode_journal
from ztrio.publication.syncing import sync_tree
from ztrio.testing import FaultyOps

REPLACE_DIR = Output(kind="dir", existing="replace")
ORDERED = {"sync_data", "sync_directory", "exchange", "move_new", "carry_metadata", "intent"}


def order(ops: FaultyOps) -> list[str]:
    """The calls that matter for durability, in their order."""
    return [name for name in ops.calls if name in ORDERED]


def test_the_order_of_one_file(workspace: Path, stage: Stage) -> None:
    """Data sync → intent → exchange → directory syncs: four syncs with the intent, five with COMMIT."""
    (workspace / "p").mkdir()
    (workspace / "p" / "a").write_text("old")
    ops = FaultyOps()
    staging = stage({"out": ("p/a", Output())}, ops=ops)
    fill(staging, {"out": "new"})
    staging.inspect()
    ops.calls.clear()
    staging.publish(lambda _: ops.calls.append("intent"))
    ops.calls.append("COMMIT")
    assert ["carry_metadata", "sync_data", "intent", "exchange", "sync_directory", "sync_directory"] == order(ops)
    assert 5 == sum(name.startswith("sync") or name in ("intent", "COMMIT") for name in ops.calls)


def test_metadata_of_what_came_in_between_is_carried(workspace: Path, stage: Stage) -> None:
    """A target that is replaced while everything is brought to the disk, and may be: the new one gets *its* mode."""
    (workspace / "a").write_text("old")
    (workspace / "a").chmod(0o640)
    outputs = {"a": ("a", Output(on_conflict="overwrite")), "b": ("b", Output(on_conflict="overwrite"))}
    staging = stage(outputs)
    fill(staging, {"a": "new", "b": "new"})
    staging.inspect()

    def somebody(_: bytes) -> None:
        for name in "ab":
            (workspace / "other").write_text("theirs")
            (workspace / "other").chmod(0o604)
            (workspace / "other").rename(workspace / name)

    staging.publish(somebody)
    for name in "ab":
        assert ("new", 0o604) == ((workspace / name).read_text(), (workspace / name).stat().st_mode & 0o777)


def test_the_order_of_many(workspace: Path, stage: Stage) -> None:
    """All data before the one intent, all exchanges after it, then each slot and once each directory of targets."""
    (workspace / "p").mkdir()
    (workspace / "p" / "a").write_text("old")
    (workspace / "d").mkdir()
    ops = FaultyOps()
    outputs = {"a": ("p/a", Output()), "b": ("p/b", Output()), "d": ("d", REPLACE_DIR)}
    staging = stage(outputs, ops=ops)
    fill(staging, {"a": "new", "b": "new", "d": {"x": "1", "y/z": "2", "y/w": "3"}})
    staging.inspect()
    ops.calls.clear()
    staging.publish(lambda _: ops.calls.append("intent"))
    names = order(ops)
    before, after = names[: names.index("intent")], names[names.index("intent") + 1 :]
    assert ["sync_data"] * 5 == [name for name in before if name == "sync_data"]
    assert ["sync_directory"] * 2 == [name for name in before if name == "sync_directory"]
    assert not {"exchange", "move_new"} & set(before)
    assert ["exchange", "move_new", "exchange", *["sync_directory"] * 5] == after


def test_a_tree_is_synced_from_below(workspace: Path) -> None:
    """Everything in a directory is on the disk before the directory itself."""
    (workspace / "d" / "y").mkdir(parents=True)
    (workspace / "d" / "y" / "z").write_text("")
    (workspace / "d" / "x").write_text("")
    synced = []

    class Noted(FileOps):
        def sync_data(self, dir_fd: int, name: str) -> None:
            super().sync_data(dir_fd, name)
            synced.append(name)

        def sync_directory(self, dir_fd: int) -> None:
            super().sync_directory(dir_fd)
            synced.append(Path(f"/proc/self/fd/{dir_fd}").readlink().name)

    fd = os.open(workspace, os.O_RDONLY)
    try:
        sync_tree(Noted(), fd, "d", 100)
        assert ["x", "z", "y", "d"] == synced
        place = workspace
        for _ in range(MAX_DEPTH + 2):
            place /= "n"
            place.mkdir()
        with pytest.raises(TooDeep):
            sync_tree(FileOps(), fd, "n", 100)
    finally:
        os.close(fd)


def test_the_intent_knows_both_objects(workspace: Path, stage: Stage) -> None:
    """When the intent is written nothing has moved, and it names the old and the new one."""
    (workspace / "a").write_text("old")
    staging = stage({"out": ("a", Output()), "no": ("no", Output(required=False))})
    fill(staging, {"out": "new"})
    staging.inspect()
    old, new = ((workspace / "a").stat().st_ino, Path(staging.paths["out"]).stat().st_ino)

    def intent(data: bytes) -> None:
        assert "old" == (workspace / "a").read_text()
        out, no = decode_journal(data).outputs
        assert out.old is not None
        assert out.new is not None
        assert (old, new, "0644", ("a",), (), "0") == (
            out.old.inode,
            out.new.inode,
            out.old_mode,
            out.path,
            out.place,
            out.folder,
        )
        assert (None, None, None) == (no.old, no.new, no.old_mode)

    (workspace / "a").chmod(0o644)
    staging.publish(intent)
    assert "new" == (workspace / "a").read_text()


def test_nothing_is_synced_where_nothing_must_last(workspace: Path, stage: Stage) -> None:
    """Without a durable store, and without outputs, there is not one sync and no intent."""
    (workspace / "a").write_text("old")
    ops = FaultyOps()
    staging = stage({"out": ("a", Output()), "d": ("d", Output(kind="dir"))}, ops=ops)
    fill(staging, {"out": "new", "d": {"x": ""}})
    staging.inspect()
    staging.publish()
    staging.roll_back()
    empty = stage({"no": ("no", Output(required=False))}, ops=ops)
    empty.inspect()
    empty.publish(lambda _: pytest.fail("there is nothing to publish"))
    empty.roll_back()
    assert [] == [name for name in ops.calls if name.startswith("sync")]


@pytest.mark.parametrize("operation", ["sync_data", "sync_directory"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_what_cannot_be_synced_is_not_published(workspace: Path, stage: Stage, operation: str, number: int) -> None:
    """A sync that fails fails the publication, and everything goes back; one of data strikes before anything moves."""
    (workspace / "a").write_text("old")
    ops = FaultyOps(operation, OSError(number, os.strerror(number)))
    staging = stage({"out": ("a", Output())}, ops=ops)
    fill(staging, {"out": "new"})
    staging.inspect()
    told: list[bytes] = []
    with pytest.raises(OSError, match=os.strerror(number)):
        staging.publish(told.append)
    assert (operation == "sync_directory") == bool(told)
    assert () == staging.roll_back()
    assert "old" == (workspace / "a").read_text()
    assert () == staging.discard()
    assert ["a"] == listing(workspace)


def test_an_intent_that_cannot_be_written_stops_everything(workspace: Path, stage: Stage) -> None:
    """When the store does not take the intent nothing has moved and nothing does."""
    (workspace / "a").write_text("old")
    ops = FaultyOps()
    staging = stage({"out": ("a", Output())}, ops=ops)
    fill(staging, {"out": "new"})
    staging.inspect()
    ops.calls.clear()

    def refuse(_: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="space"):
        staging.publish(refuse)
    assert "exchange" not in ops.calls
    assert () == staging.roll_back()
    assert "exchange" not in ops.calls


def test_a_rollback_is_on_the_disk_before_it_is_told(workspace: Path, stage: Stage) -> None:
    """Putting back syncs the same directories, and fails when that fails; repeated, it succeeds."""
    (workspace / "a").write_text("old")
    ops = FaultyOps("sync_directory", OSError(errno.EIO, "Input/output error"), nth=3)
    staging = stage({"out": ("a", Output())}, ops=ops)
    fill(staging, {"out": "new"})
    staging.inspect()
    staging.publish(lambda _: None)
    with pytest.raises(OSError, match="Input/output"):
        staging.roll_back()
    assert "old" == (workspace / "a").read_text()
    assert () == staging.roll_back()


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_cannot_sync_is_taken_as_it_is(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """EINVAL and ENOTSUP say that there is nothing to sync with; every other error is one."""

    def fsync(_: int) -> None:
        raise OSError(number, os.strerror(number))

    (workspace / "a").write_text("")
    fd = os.open(workspace, os.O_RDONLY)
    try:
        monkeypatch.setattr(os, "fsync", fsync)
        FileOps().sync_data(fd, "a")
        FileOps().sync_directory(fd)
        number = errno.EIO
        with pytest.raises(OSError, match="Input/output"):
            FileOps().sync_data(fd, "a")
    finally:
        os.close(fd)


def test_what_nobody_may_open_is_synced_with_everything(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that may only be written is synced by that; what may not be opened at all is synced by syncing all."""
    real, allowed, synced = os.open, {os.O_WRONLY}, []

    def refusing(path: str, flags: int, *args: int, dir_fd: int | None = None) -> int:
        if flags & os.O_ACCMODE not in allowed:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path, flags, *args, dir_fd=dir_fd)

    (workspace / "a").write_text("")
    fd = os.open(workspace, os.O_RDONLY)
    try:
        monkeypatch.setattr(os, "open", refusing)
        monkeypatch.setattr(os, "sync", lambda: synced.append("all"))
        FileOps().sync_data(fd, "a")
        assert [] == synced
        FileOps().sync_directory(fd)
        allowed.clear()
        FileOps().sync_data(fd, "a")
        assert ["all", "all"] == synced
    finally:
        monkeypatch.undo()
        os.close(fd)
