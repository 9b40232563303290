"""Inspection of what the tool left in staging, and its removal."""

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.trees import fill, listing
from tests.publication.conftest import Stage
from ztrio.errors import LimitExceeded, OutputRefused, OutputRejected
from ztrio.policies import Output
from ztrio.publication.inspect import MAX_DEPTH, OutputLimits

DIRECTORY = Output(kind="dir", existing="replace")


def symlink(place: Path) -> None:
    """A link to outside."""
    place.symlink_to("/etc/passwd")


def dangling(place: Path) -> None:
    """A link to nothing."""
    place.symlink_to("nowhere")


def hard_link_inside(place: Path) -> None:
    """Two names of one file."""
    place.write_text("")
    os.link(place, place.with_name("second"))


def fifo(place: Path) -> None:
    """A pipe."""
    os.mkfifo(place)


def unix_socket(place: Path) -> None:
    """A socket."""
    here = Path.cwd()
    os.chdir(place.parent)  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(place.name)
    finally:
        os.chdir(here)


def device(place: Path) -> None:
    """A character device."""
    try:
        os.mknod(place, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:  # without the privilege, a pipe has to stand for it
        os.mkfifo(place)


def setuid(place: Path) -> None:
    """A set-user-id program."""
    place.write_text("")
    place.chmod(0o4755)


def setgid(place: Path) -> None:
    """A set-group-id program."""
    place.write_text("")
    place.chmod(0o2755)


UNSAFE = [symlink, dangling, hard_link_inside, fifo, unix_socket, device, setuid, setgid]


def rejected(workspace: Path, stage: Stage, policy: Output, make: Callable[[Path], None]) -> OutputRejected:
    """The error with which inspection refuses what `make` makes."""
    staging = stage({"out": ("out", policy)})
    make(Path(staging.paths["out"]))
    with pytest.raises(OutputRejected) as caught:
        staging.inspect()
    assert "nothing was published" in caught.value.message
    assert () == staging.roll_back()
    assert () == staging.discard()
    assert [] == listing(workspace)
    return caught.value


@pytest.mark.parametrize("make", UNSAFE)
@pytest.mark.parametrize("depth", ["itself", "below"])
def test_anything_but_plain_files_and_directories_is_refused(
    workspace: Path, stage: Stage, make: Callable[[Path], None], depth: str
) -> None:
    """Links, hard links, devices, pipes, sockets and set-user-id files are refused, at the top and below."""

    def below(place: Path) -> None:
        (place / "sub").mkdir(parents=True)
        make(place / "sub" / "x")

    if depth == "itself":
        error = rejected(workspace, stage, Output(), make)
    else:
        error = rejected(workspace, stage, DIRECTORY, below)
        assert "sub/" in error.details["path"]
    assert "OUTPUT_UNSAFE" == error.code


def test_a_hard_link_to_a_file_of_the_user_is_refused(workspace: Path, stage: Stage) -> None:
    """A tool cannot publish a file that is also somebody else's, nor make its own output a second name of one."""
    (workspace / "theirs").write_text("theirs")
    staging = stage({"out": ("out", Output())})
    os.link(workspace / "theirs", staging.paths["out"])
    with pytest.raises(OutputRejected, match="2 hard links"):
        staging.inspect()
    staging.discard()
    assert "theirs" == (workspace / "theirs").read_text()
    assert ["theirs"] == listing(workspace)


def test_capabilities_are_refused(workspace: Path, stage: Stage) -> None:
    """A program that carries file capabilities is refused like a set-user-id one."""

    def make(place: Path) -> None:
        place.write_text("")
        # linux/capability.h: revision 2, effective; cap_net_raw
        os.setxattr(place, "security.capability", b"\x01\x00\x00\x02\x00\x20\x00\x00" + bytes(12))

    assert "OUTPUT_UNSAFE" == rejected(workspace, stage, Output(), make).code


def test_a_setuid_directory_is_refused_and_a_setgid_one_is_fine(workspace: Path, stage: Stage) -> None:
    """Set-group-id directories are how teams share a workspace; set-user-id on a directory is nothing to publish."""

    def make(place: Path) -> None:
        place.mkdir()
        place.chmod(0o4755)

    assert "OUTPUT_UNSAFE" == rejected(workspace, stage, DIRECTORY, make).code
    staging = stage({"out": ("out", DIRECTORY)})
    fill(staging, {"out": {"sub/x": ""}})
    (Path(staging.paths["out"]) / "sub").chmod(0o2775)
    staging.inspect()
    staging.publish()
    assert 0o2775 == stat.S_IMODE((workspace / "out" / "sub").stat().st_mode)


def test_what_is_declared_must_be_made(workspace: Path, stage: Stage) -> None:
    """A required output that is missing, and one of the wrong kind, are refused with their codes."""
    assert "OUTPUT_MISSING" == rejected(workspace, stage, Output(), lambda _: None).code
    assert "OUTPUT_UNSAFE" == rejected(workspace, stage, Output(), Path.mkdir).code
    assert "OUTPUT_UNSAFE" == rejected(workspace, stage, DIRECTORY, Path.touch).code


@pytest.mark.parametrize(
    ("limits", "content", "word"),
    [
        (OutputLimits(max_bytes=10), {"d": {"x": "12345"}, "f": "123456"}, "bytes"),
        (OutputLimits(max_entries=4), {"d": {"a/b": "", "c": ""}, "f": ""}, "files"),
        (OutputLimits(max_entries=4), {"d": dict.fromkeys("abcdefghij", ""), "f": ""}, "files"),
    ],
)
def test_outputs_have_bounds(
    workspace: Path, stage: Stage, limits: OutputLimits, content: dict[str, str | dict[str, str]], word: str
) -> None:
    """More bytes or entries than allowed, over all outputs of a call together, are refused; exactly as many are not."""
    staging = stage({"d": ("d", DIRECTORY), "f": ("f", Output())}, limits=limits)
    fill(staging, content)
    with pytest.raises(LimitExceeded, match=word) as caught:
        staging.inspect()
    assert "OUTPUT_TOO_LARGE" == caught.value.code
    enough = OutputLimits(max_bytes=11, max_entries=12)
    staging = stage({"d": ("d", DIRECTORY), "f": ("f", Output())}, limits=enough)
    fill(staging, content)
    staging.inspect()


def test_a_deep_tree_is_refused_and_removed(workspace: Path, stage: Stage) -> None:
    """A tree deeper than is walked is refused, and removed whatever its depth."""
    staging = stage({"out": ("out", DIRECTORY)})
    fd = os.open(Path(staging.paths["out"]).parent, os.O_RDONLY)
    name = "out"
    for _ in range(2200):  # deeper than a path may be long (4,096 bytes), than recursion goes, than descriptors last
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd, name = below, "d"
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    with pytest.raises(LimitExceeded, match=str(MAX_DEPTH)) as caught:
        staging.inspect()
    assert "OUTPUT_TOO_LARGE" == caught.value.code
    assert () == staging.discard()
    assert [] == listing(workspace)


def test_discard_follows_nothing_and_copes_with_odd_permissions(workspace: Path, tmp_path: Path, stage: Stage) -> None:
    """Whatever the tool left anywhere in the job directory is removed; nothing outside is touched."""
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o500)
    (outside / "precious").write_text("")
    staging = stage({"out": ("out", DIRECTORY)})
    out, job = Path(staging.paths["out"]), staging.job_directory
    (out / "closed" / "deeper").mkdir(parents=True)
    (out / "closed" / "deeper" / "x").write_text("")
    (out / "link").symlink_to(outside)
    (staging.tmp / "link").symlink_to(outside)
    (job / "link").symlink_to(outside)
    (job / "recovery.json").unlink()
    (job / "recovery.json").mkdir()
    os.mkfifo(staging.tmp / "fifo")
    os.link(outside / "precious", staging.tmp / "hard")
    (out / "closed" / "deeper").chmod(0)
    (out / "closed").chmod(0)
    out.chmod(0o111)
    job.chmod(0)
    assert () == staging.discard()
    assert [] == listing(workspace)
    assert 0o500 == stat.S_IMODE(outside.stat().st_mode)
    assert ["precious"] == listing(outside)


@pytest.mark.leaves("the tool's worker moved the job directory away")
def test_discard_tells_what_it_could_not_remove(workspace: Path, stage: Stage) -> None:
    """A job directory whose name leads elsewhere now is emptied, what took its name stays, and that is told."""
    staging = stage({"out": ("out", Output())})
    fill(staging, {"out": "x"})
    job = staging.job_directory
    job.rename(workspace / "moved")
    job.mkdir()
    assert (str(job),) == staging.discard()
    assert [] == listing(job)
    assert [] == listing(workspace / "moved")


def test_copy_in_refuses_what_could_not_be_published(workspace: Path, stage: Stage) -> None:
    """A directory with links, or beyond the bounds, cannot be copied in: refused before the tool starts."""
    policy = Output(kind="dir", existing="copy_in")
    (workspace / "d").mkdir()
    (workspace / "d" / "link").symlink_to("x")
    with pytest.raises(OutputRefused, match="link") as refused:
        stage({"out": ("d", policy)})
    assert "OUTPUT_NOT_WRITABLE" == refused.value.code
    (workspace / "d" / "link").unlink()
    (workspace / "d" / "x").write_text("12345")
    with pytest.raises(LimitExceeded, match="bytes"):
        stage({"out": ("d", policy)}, limits=OutputLimits(max_bytes=4))
    place = workspace / "d"
    for _ in range(MAX_DEPTH + 1):
        place /= "d"
    place.mkdir(parents=True)
    with pytest.raises(LimitExceeded, match="levels"):
        stage({"out": ("d", policy)})
    assert ["d"] == listing(workspace)


def test_what_lies_beyond_the_manifest_is_not_compared(workspace: Path, stage: Stage) -> None:
    """The comparison of directories and the hashing of files are bounded, as documented: size and times remain."""
    for name in "abc":
        (workspace / "d").mkdir(exist_ok=True)
        (workspace / "d" / name).write_text("old")
    (workspace / "f").write_text("old")
    deep = workspace / "deep" / "/".join("d" * (MAX_DEPTH + 5))
    deep.mkdir(parents=True)
    limits = OutputLimits(manifest_entries=2, hash_limit=2)
    staging = stage({"d": ("d", DIRECTORY), "f": ("f", Output()), "deep": ("deep", DIRECTORY)}, limits=limits)
    fill(staging, {"d": {"x": "", "y": "", "z": ""}, "f": "new", "deep": {}})
    staging.inspect()
    found = (workspace / "f").stat()
    (workspace / "f").write_text("OLD")
    os.utime(workspace / "f", ns=(found.st_atime_ns, found.st_mtime_ns))
    (workspace / "d" / "c").write_text("changed")
    staging.publish()
    staging.roll_back()
    assert ("OLD", "changed") == ((workspace / "f").read_text(), (workspace / "d" / "c").read_text())
