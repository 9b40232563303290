"""Where publication works and where it is refused before anything starts: permissions, mounts, other users."""

import errno
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.trees import fill, listing, snapshot
from tests.publication.conftest import Stage
from ztrio.errors import OutputRefused
from ztrio.policies import Output
from ztrio.publication.staging import Publisher
from ztrio.publication.targets import resolve_output
from ztrio.testing.faults import FaultyOps

PRELUDE = """
import os, sys
from pathlib import Path
from ztrio.errors import ZtrioError
from ztrio.policies import Output
from ztrio.publication.staging import Publisher
from ztrio.publication.targets import resolve_output

workspace = Path(sys.argv[1])
if user := int(sys.argv[2]):  # only now, because the interpreter may lie where that user cannot look
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
DIRECTORY = Output(kind="dir", existing="replace")

def stage(**outputs):
    targets = [resolve_output(workspace, name, raw, policy) for name, (raw, policy) in outputs.items()]
    return Publisher(workspace).prepare("job", targets, label={})

def refused(raw, policy=Output()):
    try:
        stage(out=(raw, policy)).discard()
    except ZtrioError as error:
        print(error.message)
        return error.code
    return None
"""


def run(workspace: Path, script: str, *, user: int = 0, namespace: bool = False) -> str:
    """Run a script in a process of its own: as another user, or with mounts of its own."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(script), str(workspace), str(user)]
    if namespace:
        command = ["unshare", "--mount", "--propagation", "private", "--", *command]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(root)},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def user() -> int:
    """The uid of an ordinary user; 0 when the tests run as one already, who need not change."""
    return 12345 if os.geteuid() == 0 else 0


@pytest.fixture
def open_workspace(user: int) -> Iterator[Path]:
    """A workspace of that user, where that user can get at it: pytest's directories are closed to others."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ztrio-test-") as place:
        if user:
            os.chown(place, user, user)
        yield Path(place).resolve()


@pytest.mark.case("R52")
def test_a_directory_that_may_not_be_written_is_refused_by_name(open_workspace: Path, user: int) -> None:
    """An ordinary user's output into a directory of mode 0555 is refused by name before anything starts."""
    place = open_workspace / "closed"
    place.mkdir()
    (place / "a").write_text("old")
    for path in (place, place / "a"):
        os.chown(path, user or -1, user or -1)
    place.chmod(0o555)
    before = snapshot(open_workspace)
    out = run(
        open_workspace,
        """
        assert refused("closed/a") == "OUTPUT_NOT_WRITABLE"
        assert refused("closed/new") == "OUTPUT_NOT_WRITABLE"
        assert refused("closed/d", DIRECTORY) == "OUTPUT_NOT_WRITABLE"
        """,
        user=user,
    )
    assert 3 == out.count(f"directory {place}")
    after = snapshot(open_workspace)
    del before["."], after["."]  # a job directory came and went
    assert before == after
    open_workspace.chmod(0o555)
    out = run(open_workspace, """assert refused("x") == "OUTPUT_NOT_WRITABLE" """, user=user)
    assert str(open_workspace) in out


def test_an_ordinary_user_publishes(open_workspace: Path, user: int) -> None:
    """Without any privilege: files and directories, also without write or read permission, and a clean discard."""
    run(
        open_workspace,
        """
        (workspace / "f").write_text("old"); (workspace / "f").chmod(0o200)
        (workspace / "d").mkdir(); (workspace / "d" / "x").write_text("old"); (workspace / "d").chmod(0o555)
        (workspace / "hidden").mkdir(0o300)
        before = {path.name: path.lstat() for path in workspace.iterdir()}
        for turn in range(2):
            staging = stage(f=("f", Output()), d=("d", DIRECTORY), n=("n", DIRECTORY), h=("hidden", DIRECTORY))
            paths = {name: Path(path) for name, path in staging.paths.items()}
            paths["f"].write_text("new")
            for name in "dnh":
                paths[name].mkdir()
                (paths[name] / "y").mkdir()
            paths["n"].chmod(0o500)
            (staging.tmp / "t" / "u").mkdir(parents=True)
            (staging.tmp / "t" / "u").chmod(0)
            (staging.tmp / "t").chmod(0)
            staging.inspect()
            staging.publish()
            assert (workspace / "f").stat().st_mode & 0o777 == 0o200
            assert (workspace / "d").stat().st_mode & 0o777 == 0o555
            assert (workspace / "n").stat().st_mode & 0o777 == 0o500
            assert os.listdir(workspace / "d") == ["y"]
            if turn == 0:
                assert staging.roll_back() == ()
                for path in workspace.iterdir():
                    if not path.name.startswith("."):
                        old, new = before.pop(path.name), path.lstat()
                        assert (old.st_ino, old.st_mode, old.st_mtime_ns) == (new.st_ino, new.st_mode, new.st_mtime_ns)
                assert not before
            assert staging.discard() == ()
        assert sorted(os.listdir(workspace)) == ["d", "f", "hidden", "n"]
        # what cannot be looked at cannot be inspected
        staging = stage(n=("n2", DIRECTORY))
        Path(staging.paths["n"]).mkdir(0)
        try:
            staging.inspect()
        except ZtrioError as error:
            assert error.code == "OUTPUT_UNSAFE"
        else:
            raise SystemExit("inspected")
        assert staging.discard() == ()
        (workspace / "f").chmod(0)
        assert refused("f", Output(existing="copy_in")) == "OUTPUT_NOT_WRITABLE"
        """,
        user=user,
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="makes files of several users")
def test_what_belongs_to_others_is_refused_where_it_could_not_be_replaced(open_workspace: Path, user: int) -> None:
    """In a sticky directory another user's file, and anywhere another user's closed directory, are refused."""
    (open_workspace / "sticky").mkdir()
    (open_workspace / "sticky").chmod(0o1777)
    (open_workspace / "sticky" / "f").write_text("theirs")
    (open_workspace / "d").mkdir(mode=0o755)
    (open_workspace / "f").write_text("theirs")
    out = run(
        open_workspace,
        """
        assert refused("sticky/f") == "OUTPUT_NOT_WRITABLE"
        assert refused("d", DIRECTORY) == "OUTPUT_NOT_WRITABLE"
        staging = stage(f=("f", Output()))  # the directory is ours, so this may be replaced; the owner cannot be kept
        Path(staging.paths["f"]).write_text("ours")
        staging.inspect(); staging.publish(); staging.discard()
        """,
        user=user,
    )
    assert "belongs to another user" in out
    assert ("ours", user) == ((open_workspace / "f").read_text(), (open_workspace / "f").stat().st_uid)


@pytest.mark.case("R52")
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_mounts(workspace: Path) -> None:
    """Mounted targets and read-only mounts are refused; other mounts, bind mounts too, get a job directory there."""
    for name in ("bound", "read-only", "other", "same"):
        (workspace / name).mkdir()
    (workspace / "file").write_text("old")
    (workspace / "source").write_text("source")
    run(
        workspace,
        """
        import subprocess
        def mount(*arguments):
            subprocess.run(["mount", *map(str, arguments)], check=True)
        mount("--bind", workspace / "source", workspace / "file")
        mount("--bind", workspace / "same", workspace / "bound")
        mount("-t", "tmpfs", "-o", "ro", "none", workspace / "read-only")
        mount("-t", "tmpfs", "none", workspace / "other")
        assert refused("file") == "OUTPUT_NOT_WRITABLE"
        assert refused("bound", DIRECTORY) == "OUTPUT_NOT_WRITABLE"
        assert refused("read-only/x") == "OUTPUT_NOT_WRITABLE"
        (workspace / "other" / "old").write_text("old")
        staging = stage(
            home=("home", Output()),
            bound=("bound/x", Output()),
            old=("other/old", Output()),
            new=("other/new", DIRECTORY),
        )
        paths = {name: Path(path) for name, path in staging.paths.items()}
        parents = {name: str(path.parent.parent.parent.relative_to(workspace)) for name, path in paths.items()}
        assert parents == {"home": ".", "bound": "bound", "old": "other", "new": "other"}, parents
        for name in ("home", "bound", "old"):
            paths[name].write_text(name)
        paths["new"].mkdir()
        assert staging.public([str(paths["old"]), os.path.relpath(paths["new"], workspace)]) == [
            str(workspace / "other/old"), str(workspace / "other/new")
        ]
        staging.inspect(); staging.publish()
        assert (workspace / "other" / "old").read_text() == "old"
        staging.roll_back(); assert staging.discard() == ()
        assert sorted(os.listdir(workspace)) == ["bound", "file", "other", "read-only", "same", "source"]
        assert os.listdir(workspace / "other") == ["old"] and os.listdir(workspace / "bound") == []
        """,
        namespace=True,
    )
    assert "old" == (workspace / "file").read_text()


@pytest.mark.case("R52")
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_overlayfs(workspace: Path, tmp_path: Path) -> None:
    """In a container's overlay, files of its image are replaced and put back; its directories are refused at once."""
    for name in ("lower", "upper", "work"):
        (tmp_path / name).mkdir()
    (tmp_path / "lower" / "f").write_text("old")
    (tmp_path / "lower" / "d").mkdir()
    run(
        workspace,
        """
        import subprocess
        layers = ",".join(f"{name}dir={workspace.parent / name}" for name in ("lower", "upper", "work"))
        subprocess.run(["mount", "-t", "overlay", "-o", layers, "none", str(workspace)], check=True)
        assert refused("d", DIRECTORY) == "OUTPUT_NOT_WRITABLE"
        (workspace / "own").mkdir()
        inode = (workspace / "f").stat().st_ino
        for turn in range(2):
            staging = stage(f=("f", Output()), own=("own", DIRECTORY), new=("new", DIRECTORY))
            Path(staging.paths["f"]).write_text("new")
            for name in ("own", "new"):
                Path(staging.paths[name]).mkdir()
            staging.inspect()
            staging.publish()
            assert (workspace / "f").read_text() == "new"
            if turn == 0:
                assert staging.roll_back() == ()
                assert (workspace / "f").stat().st_ino == inode
                assert (workspace / "f").read_text() == "old"
            assert staging.discard() == ()
        assert sorted(os.listdir(workspace)) == ["d", "f", "new", "own"]
        """,
        namespace=True,
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="chattr")
def test_an_immutable_target_is_refused(workspace: Path) -> None:
    """An immutable file cannot be exchanged, and the call is told so before it starts."""
    target = workspace / "a"
    target.write_text("old")
    if subprocess.run(["chattr", "+i", str(target)], capture_output=True, check=False).returncode != 0:
        pytest.skip("this file system knows no immutable files")
    try:
        assert "immutable" in run(workspace, """assert refused("a") == "OUTPUT_NOT_WRITABLE" """)
    finally:
        subprocess.run(["chattr", "-i", str(target)], check=True)


@pytest.mark.case("R51")
def test_a_hard_linked_target_is_refused(workspace: Path, stage: Stage) -> None:
    """A target with another name is refused: the other name would keep the old content, silently."""
    (workspace / "a").write_text("old")
    os.link(workspace / "a", workspace / "b")
    with pytest.raises(OutputRefused, match="2 hard links") as caught:
        stage({"out": ("a", Output())})
    assert "OUTPUT_NOT_WRITABLE" == caught.value.code
    assert ["a", "b"] == listing(workspace)


@pytest.mark.case("R51")
def test_a_target_that_became_a_symlink_in_the_queue_is_refused(workspace: Path, tmp_path: Path) -> None:
    """Targets are looked at again when the call's turn comes: a link or a swapped directory is refused then."""
    (workspace / "p").mkdir()
    targets = [resolve_output(workspace, "out", "p/a", Output())]
    (workspace / "p" / "a").symlink_to(tmp_path / "x")
    with pytest.raises(OutputRefused) as caught:
        Publisher(workspace).prepare("j", targets, label={})
    assert "OUTPUT_IS_SYMLINK" == caught.value.code
    (workspace / "p" / "a").unlink()
    (workspace / "p").rename(workspace / "q")
    for link in (False, True):
        if link:
            (workspace / "p").symlink_to("q")
        with pytest.raises(OutputRefused, match=str(workspace / "p")) as caught:
            Publisher(workspace).prepare("j", targets, label={})
        assert "OUTPUT_NOT_WRITABLE" == caught.value.code
    assert ["p", "q"] == listing(workspace)
    assert [] == listing(workspace / "q")


@pytest.mark.case("R52")
@pytest.mark.parametrize("kind", ["file", "dir"])
@pytest.mark.parametrize("number", [errno.EINVAL, errno.EROFS, errno.EACCES, errno.ENOSPC, errno.ENOSYS])
@pytest.mark.parametrize("operation", ["exchange", "move_new"])
def test_a_directory_where_exchange_does_not_work_is_refused(
    workspace: Path, stage: Stage, operation: str, number: int, kind: str
) -> None:
    """Where the probe fails, whatever the reason, the call is refused, the directory named, and the probe gone."""
    (workspace / "p").mkdir()
    ops = FaultyOps(operation, OSError(number, os.strerror(number)))
    with pytest.raises(OutputRefused, match=str(workspace / "p")) as caught:
        stage({"out": ("p/a", Output(kind=kind))}, ops=ops)  # type: ignore[arg-type]
    assert "OUTPUT_NOT_WRITABLE" == caught.value.code
    assert os.strerror(number) in caught.value.message
    assert ["p"] == listing(workspace)
    assert [] == listing(workspace / "p")


def test_a_directory_from_which_nothing_can_be_renamed_is_refused(workspace: Path, stage: Stage) -> None:
    """If even a job directory beside the target does not reach it, the call is refused."""

    class Unreachable(FaultyOps):
        def move_new(self, source_fd: int, source: str, target_fd: int, target: str) -> None:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    with pytest.raises(OutputRefused, match=str(workspace)):
        stage({"out": ("a", Output())}, ops=Unreachable())
    assert [] == listing(workspace)


def test_a_call_without_outputs_still_has_its_directory(workspace: Path, stage: Stage) -> None:
    """A call without outputs has a private temporary directory and nothing to recover, and no job shares one."""
    staging = stage({})
    assert {} == staging.paths
    staging.record("worker_running", worker_pid=4711)
    assert ["tmp"] == listing(staging.job_directory)
    staging.inspect()
    assert {} == staging.publish()
    (staging.tmp / "x").write_text("")
    with pytest.raises(OutputRefused):
        Publisher(workspace).prepare("t1", [], label={})
    assert (staging.tmp / "x").exists()
    staging.discard()
    assert [] == listing(workspace)


def test_outputs_of_different_length_names(workspace: Path, stage: Stage) -> None:
    """The longest name that a file system takes, and names with any character, are published."""
    names = ["x" * 255, "sp ace", "new\nline", "ü" * 127, "-rf", "*", "a%20b"]
    staging = stage({str(index): (name, Output()) for index, name in enumerate(names)})
    fill(staging, {str(index): name for index, name in enumerate(names)})
    staging.inspect()
    staging.publish()
    staging.discard()
    assert sorted(names) == listing(workspace)
