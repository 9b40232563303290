"""Publication: exchange, metadata, conflicts."""

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from tests.kit.trees import fill, listing, snapshot
from tests.publication.conftest import Stage
from ztrio.policies import Output
from ztrio.publication.exchange import Identity
from ztrio.testing.faults import FaultyOps

REPLACE_DIR = Output(kind="dir", existing="replace")


def test_new_and_existing_files_and_directories_are_published(workspace: Path, stage: Stage) -> None:
    """Success puts every output to its target, replacing what was there, and leaves nothing else in the workspace."""
    (workspace / "old.txt").write_text("old")
    (workspace / "tree").mkdir()
    (workspace / "tree" / "stale").write_text("")
    staging = stage(
        {
            "old": ("old.txt", Output()),
            "new": ("new.txt", Output()),
            "tree": ("tree", REPLACE_DIR),
            "fresh": ("fresh", Output(kind="dir")),
            "skipped": ("skipped.txt", Output(required=False)),
        }
    )
    assert all(not os.path.lexists(path) and Path(path).parent.is_dir() for path in staging.paths.values())
    assert stat.S_IMODE(staging.tmp.stat().st_mode) == 0o700
    fill(staging, {"old": "1", "new": "2", "tree": {"a/b": "3"}, "fresh": {"c": "4"}})
    staging.inspect()
    published = staging.publish()
    expected = {"old": "old.txt", "new": "new.txt", "tree": "tree", "fresh": "fresh"}
    assert {name: str(workspace / path) for name, path in expected.items()} == published
    assert () == staging.discard() == staging.discard()
    assert ["fresh", "new.txt", "old.txt", "tree"] == listing(workspace)
    assert ("1", "2") == ((workspace / "old.txt").read_text(), (workspace / "new.txt").read_text())
    assert ["a"] == listing(workspace / "tree")
    assert "3" == (workspace / "tree" / "a" / "b").read_text()


@pytest.mark.case("R51")
def test_mode_owner_and_xattrs_are_carried_over(workspace: Path, stage: Stage) -> None:
    """The new content has mode, owner and extended attributes of what it replaces; never its set-user-id bit."""
    target = workspace / "a"
    target.write_text("old")
    os.chown(target, 1234, 2345)
    target.chmod(0o4640)
    os.setxattr(target, "user.note", b"kept")
    staging = stage({"out": ("a", Output())})
    fill(staging, {"out": "new"})
    staging.inspect()
    staging.publish()
    found = target.stat()
    assert (1234, 2345, 0o640) == (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode))
    assert b"kept" == os.getxattr(target, "user.note")
    assert "new" == target.read_text()


def test_a_directory_without_write_permission_is_exchanged_and_keeps_its_mode(workspace: Path, stage: Stage) -> None:
    """A directory of mode 0555 is replaced by one of mode 0555, and a rollback gives the old one back as it was."""
    target = workspace / "d"
    target.mkdir()
    (target / "x").write_text("old")
    target.chmod(0o555)
    before = snapshot(target)
    staging = stage({"out": ("d", REPLACE_DIR), "new": ("n", Output(kind="dir"))})
    fill(staging, {"out": {"y": "new"}, "new": {"z": ""}})
    Path(staging.paths["new"]).chmod(0o500)
    staging.inspect()
    staging.publish()
    assert 0o555 == stat.S_IMODE(target.stat().st_mode)
    assert 0o500 == stat.S_IMODE((workspace / "n").stat().st_mode)
    assert ["y"] == listing(target)
    staging.roll_back()
    assert before == snapshot(target)
    assert not (workspace / "n").exists()


def test_a_looping_reader_never_misses_the_target(workspace: Path, stage: Stage) -> None:
    """While files and directories are replaced over and over, a reader always finds one whole version or the other."""
    versions = {text * 20_000 for text in ("a", "b")}
    (workspace / "f").write_text("a" * 20_000)
    (workspace / "d").mkdir()
    (workspace / "d" / "x").write_text("a" * 20_000)
    done = threading.Event()
    wrong: list[str] = []
    reads = 0

    def read() -> None:
        nonlocal reads
        while not done.is_set():
            for path in ("f", "d/x"):
                try:
                    text = (workspace / path).read_text()
                except OSError as error:
                    wrong.append(repr(error))
                else:
                    reads += 1
                    if text not in versions:
                        wrong.append(f"{path}: {len(text)} characters")

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for turn in range(100):
            text = "ba"[turn % 2] * 20_000
            staging = stage({"f": ("f", Output()), "d": ("d", REPLACE_DIR)})
            fill(staging, {"f": text, "d": {"x": text}})
            staging.inspect()
            staging.publish()
            if turn % 3 == 0:
                staging.roll_back()
            # Not discarded: who is *inside* a replaced directory at that moment finds it emptied, as with any removal.
            staging.close()
    finally:
        done.set()
        reader.join()
    assert [] == wrong
    assert reads > 100
    for left in workspace.glob(".ztrio-job-*"):
        _remove(left)


def _remove(place: Path) -> None:
    for below in sorted(place.rglob("*"), reverse=True):
        below.rmdir() if below.is_dir() else below.unlink()
    place.rmdir()


def test_copy_in_starts_with_what_is_there(workspace: Path, stage: Stage) -> None:
    """With `copy_in` the tool finds the target's content, modes and times in staging; what it changes is published."""
    (workspace / "f").write_text("one\n")
    (workspace / "f").chmod(0o640)
    (workspace / "d" / "sub").mkdir(parents=True)
    (workspace / "d" / "sub" / "x").write_text("x")
    (workspace / "d" / "run").write_text("#!")
    (workspace / "d" / "run").chmod(0o755)
    (workspace / "d" / "sub").chmod(0o555)
    os.utime(workspace / "d" / "run", ns=(1, 10**18))
    os.setxattr(workspace / "d" / "run", "user.k", b"v")
    policy = Output(existing="copy_in")
    staging = stage(
        {
            "f": ("f", policy),
            "d": ("d", Output(kind="dir", existing="copy_in")),
            "absent": ("absent", Output(existing="copy_in", required=False)),
        }
    )
    copied = Path(staging.paths["d"])
    assert not Path(staging.paths["absent"]).exists()
    for path in ("run", "sub", "sub/x", "."):
        old, new = (workspace / "d" / path).stat(), (copied / path).stat()
        assert (old.st_mode, old.st_mtime_ns) == (new.st_mode, new.st_mtime_ns)
        assert old.st_ino != new.st_ino
    assert b"v" == os.getxattr(copied / "run", "user.k")
    with Path(staging.paths["f"]).open("a") as file:
        file.write("two\n")
    (copied / "new").write_text("")
    staging.inspect()
    staging.publish()
    assert "one\ntwo\n" == (workspace / "f").read_text()
    assert ["new", "run", "sub"] == listing(workspace / "d")
    assert "x" == (workspace / "d" / "sub" / "x").read_text()


def test_recovery_json_tells_phases_targets_and_identities(workspace: Path, stage: Stage) -> None:
    """`recovery.json` is private and holds the phase, the facts given, and both identities before anything moves."""
    (workspace / "a").write_text("old")
    old = (workspace / "a").stat().st_ino
    seen: list[dict[str, object]] = []
    record = workspace / ".ztrio-job-t1" / "recovery.json"
    ops = FaultyOps("exchange", nth=2, then=lambda: seen.append(json.loads(record.read_text())))
    staging = stage({"out": ("a", Output())}, ops=ops)
    assert 0o600 == stat.S_IMODE(record.stat().st_mode)
    assert 0o700 == stat.S_IMODE(record.parent.stat().st_mode)
    staging.record("worker_running", worker_pid=4711)
    fill(staging, {"out": "new"})
    new = Path(staging.paths["out"]).stat().st_ino
    staging.inspect()
    staging.publish()
    assert "publishing_outputs" == seen[0]["phase"]
    staging.record("committing_state")
    staging.record("committed")
    found = json.loads(record.read_text())
    phases = ["preparing", "worker_running", "publishing_outputs", "committing_state", "committed"]
    assert phases == list(found["phases"])
    assert ("committed", "test", 4711, "t1") == tuple(found[key] for key in ("phase", "tool", "worker_pid", "job_id"))
    output = found["outputs"][0]
    assert (old, new) == (output["old"]["inode"], output["new"]["inode"])
    assert (str(workspace / "a"), "0644") == (output["target"], output["old_mode"])
    with pytest.raises(ValueError, match="nonsense"):
        staging.record("nonsense")
    staging.discard()
    with pytest.raises(RuntimeError):
        staging.record("committed")


def test_public_replaces_staging_paths_everywhere(workspace: Path, stage: Stage) -> None:
    """Staging paths, absolute, relative to the workspace or quoted, become public ones in strings and keys."""
    staging = stage({"out": ("a b", Output(kind="dir")), "o2": ("c", Output())})
    path, other = staging.paths["out"], staging.paths["o2"]
    public = str(workspace / "a b")
    value = {
        path: [f"wrote {path}/x and {other}!", 1, None, True, 1.5],
        "relative": os.path.relpath(path, workspace) + "/y",
        "uri": Path(path).as_uri(),
        "tuple": (path,),
        "untouched": "/elsewhere/0/a b",
    }
    expected = {
        public: [f"wrote {public}/x and {workspace / 'c'}!", 1, None, True, 1.5],
        "relative": f"{public}/y",
        "uri": Path(public).as_uri(),
        "tuple": [public],
        "untouched": "/elsewhere/0/a b",
    }
    assert expected == staging.public(value)


def test_identity_survives_a_rename_and_differs_for_another_file(workspace: Path) -> None:
    """The identity of a file stays when it is renamed and changed; a file in its place has another."""
    ops = FaultyOps()
    fd = os.open(workspace, os.O_RDONLY)
    try:
        (workspace / "a").write_text("")
        first = ops.stat(fd, "a")
        (workspace / "a").rename(workspace / "b")
        (workspace / "b").write_text("changed")
        (workspace / "a").write_text("")
        second, third = ops.stat(fd, "b"), ops.stat(fd, "a")
        assert first is not None
        assert second is not None
        assert third is not None
        assert first.identity == second.identity != third.identity
        assert Identity((workspace / "b").stat().st_ino, first.identity.born_ns) == first.identity
        assert first.identity.born_ns is not None
        assert ops.stat(fd, "missing") is None
        with pytest.raises(NotADirectoryError):
            ops.stat(fd, "a/x")
    finally:
        os.close(fd)
