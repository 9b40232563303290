"""Targets that somebody else changed while the tool ran."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.trees import fill, listing, snapshot
from tests.publication.conftest import Stage
from ztrio.errors import OutputConflict, OutputRejected
from ztrio.policies import Output
from ztrio.testing.faults import FaultyOps

REPLACE_DIR = Output(kind="dir", existing="replace")


def edit_in_place(path: Path) -> None:
    """Write into the file."""
    path.write_text("theirs")


def edit_keeping_times(path: Path) -> None:
    """Write as many bytes and set the times back."""
    found = path.stat()
    path.write_text("OLD")
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def replace_file(path: Path) -> None:
    """Rename another file over it, as editors do."""
    other = path.with_name("other")
    other.write_text("theirs")
    other.rename(path)


def touch(path: Path) -> None:
    """Change the time only."""
    os.utime(path)


def remove(path: Path) -> None:
    """Remove it."""
    path.unlink()


def become_directory(path: Path) -> None:
    """Put a directory in its place."""
    path.unlink()
    path.mkdir()


def become_symlink(path: Path) -> None:
    """Put a link in its place."""
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


EDITS: list[Callable[[Path], None]] = [
    edit_in_place,
    edit_keeping_times,
    replace_file,
    touch,
    remove,
    become_directory,
    become_symlink,
]


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("when", ["while the tool runs", "right before the exchange"])
def test_a_file_that_somebody_changed_meanwhile_is_kept(
    workspace: Path, stage: Stage, edit: Callable[[Path], None], when: str
) -> None:
    """Whatever somebody does to the target while the tool runs, theirs is what stands there after the call."""
    target = workspace / "a"
    target.write_text("old")
    (workspace / "first").write_text("first")
    theirs: dict[str, object] = {}
    first = snapshot(workspace / "first")

    def somebody() -> None:
        edit(target)
        theirs.update(snapshot(target))

    # 1 probes, 2 is for the other output
    ops = FaultyOps("exchange" if when == "right before the exchange" else None, nth=3, then=somebody)
    staging = stage({"first": ("first", Output()), "out": ("a", Output())}, ops=ops)
    fill(staging, {"first": "new", "out": "ours"})
    staging.inspect()
    if when == "while the tool runs":
        somebody()
    with pytest.raises(OutputConflict) as caught:
        staging.publish()
    assert str(target) in caught.value.message
    assert "kept" in caught.value.message
    assert () == staging.roll_back()
    assert theirs == snapshot(target)
    assert first == snapshot(workspace / "first")


@pytest.mark.parametrize("when", ["while the tool runs", "right before the rename"])
def test_a_file_that_somebody_made_meanwhile_is_kept(workspace: Path, stage: Stage, when: str) -> None:
    """A target that did not exist and does now is somebody's: a conflict, and theirs stays."""
    target = workspace / "a"
    ops = FaultyOps(
        "move_new" if when == "right before the rename" else None, nth=2, then=lambda: edit_in_place(target)
    )
    staging = stage({"out": ("a", Output())}, ops=ops)
    fill(staging, {"out": "ours"})
    staging.inspect()
    if when == "while the tool runs":
        edit_in_place(target)
    with pytest.raises(OutputConflict):
        staging.publish()
    assert () == staging.roll_back()
    assert "theirs" == target.read_text()


def edit_entry(path: Path) -> None:
    """Change a file below, and set its times back."""
    found = (path / "sub" / "x").stat()
    (path / "sub" / "x").write_text("OLD")
    os.utime(path / "sub" / "x", ns=(found.st_atime_ns, found.st_mtime_ns))


def add_entry(path: Path) -> None:
    """Add a file below."""
    (path / "sub" / "new").write_text("")


def chmod_entry(path: Path) -> None:
    """Change a mode below."""
    (path / "sub").chmod(0o711)


def swap_directory(path: Path) -> None:
    """Put another directory in its place."""
    path.rename(path.with_name("moved"))
    path.mkdir()


@pytest.mark.parametrize("edit", [edit_entry, add_entry, chmod_entry, swap_directory])
@pytest.mark.parametrize("early", [True, False])
def test_a_directory_that_somebody_changed_meanwhile_is_kept(
    workspace: Path, stage: Stage, edit: Callable[[Path], None], early: bool
) -> None:
    """A change anywhere in a target directory is a conflict, even one that sets the modification time back."""
    target = workspace / "d"
    (target / "sub").mkdir(parents=True)
    (target / "sub" / "x").write_text("old")
    theirs: dict[str, object] = {}

    def somebody() -> None:
        edit(target)
        theirs.update(snapshot(target))

    staging = stage({"out": ("d", REPLACE_DIR)}, ops=FaultyOps(None if early else "exchange", nth=2, then=somebody))
    fill(staging, {"out": {"y": "ours"}})
    staging.inspect()
    if early:
        somebody()
    with pytest.raises(OutputConflict):
        staging.publish()
    assert () == staging.roll_back()
    assert theirs == snapshot(target)


@pytest.mark.parametrize("edit", [edit_in_place, edit_keeping_times, replace_file, touch, remove])
def test_overwrite_replaces_what_somebody_changed(workspace: Path, stage: Stage, edit: Callable[[Path], None]) -> None:
    """With `on_conflict="overwrite"` ours wins; a rollback still gives back what was displaced."""
    target = workspace / "a"
    target.write_text("old")
    staging = stage({"out": ("a", Output(on_conflict="overwrite")), "new": ("n", Output(on_conflict="overwrite"))})
    fill(staging, {"out": "ours", "new": "ours"})
    staging.inspect()
    edit(target)
    (workspace / "n").write_text("theirs")
    theirs = snapshot(target), snapshot(workspace / "n")
    staging.publish()
    assert ("ours", "ours") == (target.read_text(), (workspace / "n").read_text())
    assert () == staging.roll_back()
    assert theirs == (snapshot(target), snapshot(workspace / "n"))


@pytest.mark.parametrize("edit", [become_directory, become_symlink])
def test_overwrite_never_replaces_another_kind(workspace: Path, stage: Stage, edit: Callable[[Path], None]) -> None:
    """Even with `overwrite`, a symlink or directory that took the place of a file stays."""
    target = workspace / "a"
    target.write_text("old")
    staging = stage({"out": ("a", Output(on_conflict="overwrite"))})
    fill(staging, {"out": "ours"})
    staging.inspect()
    edit(target)
    theirs = snapshot(target)
    with pytest.raises(OutputConflict):
        staging.publish()
    staging.roll_back()
    assert theirs == snapshot(target)


def test_refuse_stands_until_the_end(workspace: Path, stage: Stage) -> None:
    """With `existing="refuse"` a target that appears while the tool runs is not replaced, not even by `overwrite`."""
    staging = stage({"out": ("a", Output(existing="refuse", on_conflict="overwrite"))})
    fill(staging, {"out": "ours"})
    staging.inspect()
    (workspace / "a").write_text("theirs")
    with pytest.raises(OutputConflict):
        staging.publish()
    assert () == staging.roll_back()
    assert "theirs" == (workspace / "a").read_text()


@pytest.mark.case("R51")
@pytest.mark.parametrize("replacement", ["directory", "link outside", "link inside", "nothing"])
def test_a_swapped_parent_directory_is_refused(workspace: Path, tmp_path: Path, stage: Stage, replacement: str) -> None:
    """If the directory of a target is another one at publication, nothing is published, inside or outside."""
    parent, elsewhere = workspace / "p" / "q", tmp_path / "elsewhere"
    parent.mkdir(parents=True)
    elsewhere.mkdir()
    staging = stage({"out": ("p/q/a", Output(on_conflict="overwrite"))})
    fill(staging, {"out": "ours"})
    staging.inspect()
    parent.rename(workspace / "p" / "moved")
    if replacement == "directory":
        parent.mkdir()
    elif replacement != "nothing":
        parent.symlink_to(elsewhere if replacement == "link outside" else "moved")
    with pytest.raises(OutputConflict, match="directory"):
        staging.publish()
    assert () == staging.roll_back()
    assert [] == listing(elsewhere)
    assert [] == listing(workspace / "p" / "moved")


def test_a_replaced_slot_is_refused(workspace: Path, stage: Stage) -> None:
    """A worker that replaces or removes the directory of its output gets nothing published."""
    for swap in (False, True):
        staging = stage({"out": ("a", Output())})
        slot = Path(staging.paths["out"]).parent
        slot.rename(slot.with_name("moved"))
        if swap:
            slot.mkdir()
            (slot / "a").write_text("x")
        with pytest.raises(OutputRejected) as caught:
            staging.inspect()
        assert caught.value.code == "OUTPUT_UNSAFE"
    assert not (workspace / "a").exists()
