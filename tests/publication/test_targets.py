"""Resolution of path strings."""

import os
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.trees import listing
from ztrio.errors import InvalidArguments, OutputRefused, ZtrioError
from ztrio.policies import Input, Output
from ztrio.publication.targets import Target, refuse_overlap, resolve_input, resolve_output


def code_of(workspace: Path, raw: str, policy: Output | None = None) -> str:
    """The code with which the path is refused."""
    with pytest.raises(OutputRefused) as caught:
        resolve_output(workspace, "out", raw, policy or Output())
    assert "nothing was started" in caught.value.message
    return caught.value.code


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("a.txt", "a.txt"),
        ("./d//a.txt", "d/a.txt"),
        ("d/../b.txt", "b.txt"),
        ("d/e/../../d/c", "d/c"),
        ("d/", "d"),
        ("d/e/..", "d"),
        ("inside/x", "d/x"),
        ("absolute/x", "d/x"),
        ("inside/../x", "x"),  # as the kernel has it: the parent of what the link points to
        ("deep/../x", "d/x"),
        ("d/e/back/y", "d/y"),
        ("d/e/back/../y", "y"),
        ("ünï cødé", "ünï cødé"),
    ],
)
def test_paths_resolve_as_the_kernel_does(workspace: Path, raw: str, expected: str) -> None:
    """A path inside the workspace, also through links that stay inside, becomes its canonical absolute path."""
    (workspace / "d" / "e").mkdir(parents=True)
    (workspace / "inside").symlink_to("d")
    (workspace / "deep").symlink_to("d/e")
    (workspace / "absolute").symlink_to(workspace / "d")
    (workspace / "d" / "e" / "back").symlink_to(workspace / "d")
    target = resolve_output(workspace, "out", raw, Output(kind="dir", existing="replace"))
    assert workspace / expected == target.path
    assert ("path", *(workspace / expected).parts) == target.key
    assert Path(expected).name == target.name


def test_absolute_paths_may_name_the_workspace_by_an_alias(workspace: Path, tmp_path: Path) -> None:
    """An absolute path is fine if it leads into the workspace, also by another name of the workspace."""
    alias = tmp_path / "alias"
    alias.symlink_to(workspace)
    assert workspace / "a" == resolve_output(workspace, "out", str(workspace / "a"), Output()).path
    assert workspace / "a" == resolve_output(workspace, "out", str(alias / "a"), Output()).path
    assert workspace / "a" == resolve_output(alias, "out", str(alias / "a"), Output()).path


@pytest.mark.case("R51")
def test_what_leads_outside_is_refused(workspace: Path, tmp_path: Path) -> None:
    """`..`, absolute paths and links that leave the workspace are refused, and so is the workspace itself."""
    (tmp_path / "elsewhere").mkdir()
    (workspace / "d").mkdir()
    (workspace / "out-link").symlink_to(tmp_path / "elsewhere")
    (workspace / "up-link").symlink_to("../elsewhere")
    (workspace / "dangling-out").symlink_to("/does/not/exist")
    for raw in (
        "../x",
        "d/../../x",
        "/etc/passwd",
        "/",
        str(workspace) + "-sibling/x",
        str(workspace / ".." / "x"),
        "out-link/x",
        "up-link/x",
        "dangling-out/x",
        ".",
        "d/..",
        str(workspace),
        "..",
    ):
        assert code_of(workspace, raw, Output(kind="dir", existing="replace")) == "OUTPUT_OUTSIDE_WORKSPACE", raw


@pytest.mark.case("R51")
@pytest.mark.parametrize("points_to", ["real.txt", "missing.txt", "../outside.txt", "/etc/passwd", "loop"])
def test_a_symlink_is_no_target(workspace: Path, points_to: str) -> None:
    """A target that is a symlink is refused wherever it points: inside, outside, nowhere, to itself."""
    (workspace / "real.txt").write_text("real")
    (workspace / "loop").symlink_to(points_to)
    assert code_of(workspace, "loop") == "OUTPUT_IS_SYMLINK"
    assert code_of(workspace, "loop/") == "OUTPUT_IS_SYMLINK"


def test_a_target_needs_a_directory_that_exists(workspace: Path) -> None:
    """A missing parent, a file as parent, a dangling or endless link as parent are refused by name; none is made."""
    (workspace / "file").write_text("")
    (workspace / "dangling").symlink_to("nowhere")
    (workspace / "loop").symlink_to("loop")
    with pytest.raises(OutputRefused, match=str(workspace / "nope")) as caught:
        resolve_output(workspace, "out", "nope/a.txt", Output())
    assert caught.value.code == "OUTPUT_NOT_WRITABLE"
    for raw in ("nope/../a.txt", "file/a.txt", "dangling/a.txt", "loop/a.txt", "x" * 300, "d/" * 3000 + "x"):
        assert code_of(workspace, raw) == "OUTPUT_NOT_WRITABLE"
    assert ["dangling", "file", "loop"] == listing(workspace)


def test_our_own_names_are_never_a_target_or_input(workspace: Path) -> None:
    """Whatever goes through a `.ztrio*` name is refused, also through a link and in another case."""
    (workspace / ".ztrio").mkdir()
    (workspace / ".ztrio" / "state.db").write_text("secret")
    (workspace / "link").symlink_to(".ztrio")
    for raw in (".ztrio", ".ztrio/x", ".ztrio-job-1", ".ZTRIO/../.Ztrio-x", "link/x"):
        (workspace / ".ZTRIO").mkdir(exist_ok=True)
        assert code_of(workspace, raw, Output(kind="dir", existing="replace")) == "OUTPUT_NOT_WRITABLE"
    for raw in (".ztrio/state.db", "link/state.db", "link"):
        with pytest.raises(OutputRefused) as caught:
            resolve_input(workspace, "in", raw, Input())
        assert caught.value.code == "OUTPUT_OUTSIDE_WORKSPACE"


def test_what_stands_at_the_target_must_be_of_the_kind(workspace: Path) -> None:
    """A directory where a file is declared, a file where a directory is, and anything special are refused."""
    (workspace / "f").write_text("")
    (workspace / "d").mkdir()
    os.mkfifo(workspace / "fifo")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(workspace / "sock"))
    assert code_of(workspace, "d") == "OUTPUT_NOT_WRITABLE"
    assert code_of(workspace, "f", Output(kind="dir", existing="replace")) == "OUTPUT_NOT_WRITABLE"
    assert code_of(workspace, "fifo") == "OUTPUT_NOT_WRITABLE"
    assert code_of(workspace, "sock") == "OUTPUT_NOT_WRITABLE"
    assert code_of(workspace, "f", Output(existing="refuse")) == "OUTPUT_EXISTS"
    assert code_of(workspace, "d", Output(kind="dir")) == "OUTPUT_EXISTS"


@pytest.mark.parametrize("raw", ["", "a\0b", "\ud800"])
def test_what_is_no_path_is_an_invalid_argument(workspace: Path, raw: str) -> None:
    """An empty string, a NUL and a lone surrogate are no paths."""
    with pytest.raises(InvalidArguments, match="out: "):
        resolve_output(workspace, "out", raw, Output())
    with pytest.raises(InvalidArguments, match="in: "):
        resolve_input(workspace, "in", raw, Input())


def test_names_that_are_not_utf8_are_refused(workspace: Path) -> None:
    """A link that leads through a name that is not UTF-8 is refused: the path could not be told to anybody."""
    (workspace / os.fsdecode(b"\xff")).mkdir()
    (workspace / "link").symlink_to(os.fsdecode(b"\xff"))
    assert code_of(workspace, "link/x") == "OUTPUT_NOT_WRITABLE"


def test_inputs_exist_inside_and_are_of_the_kind(workspace: Path, tmp_path: Path) -> None:
    """An input is an existing path inside the workspace; links that stay inside are followed."""
    (workspace / "d").mkdir()
    (workspace / "d" / "f").write_text("")
    (workspace / "link").symlink_to("d/f")
    (workspace / "out").symlink_to(tmp_path)
    assert workspace / "d" / "f" == resolve_input(workspace, "in", "link", Input(kind="file"))
    assert workspace / "d" == resolve_input(workspace, "in", "d", Input(kind="dir"))
    assert workspace == resolve_input(workspace, "in", ".", Input())
    for raw, kind in (
        ("nope", "any"),
        ("nope/x", "any"),
        ("d/f/x", "any"),
        ("d", "file"),
        ("d/f", "dir"),
        ("x" * 300, "any"),
    ):
        with pytest.raises(InvalidArguments):
            resolve_input(workspace, "in", raw, Input(kind=kind))  # type: ignore[arg-type]
    for raw in ("..", "out", "/etc/passwd"):
        with pytest.raises(OutputRefused) as caught:
            resolve_input(workspace, "in", raw, Input())
        assert caught.value.code == "OUTPUT_OUTSIDE_WORKSPACE"


@pytest.mark.parametrize(
    ("paths", "overlap"),
    [
        (("a", "b"), False),
        (("a", "a"), True),
        (("a", "a/b"), True),
        (("a/b/c", "a"), True),
        (("a", "ab"), False),
        (("a", "a.b", "a/b"), True),  # "a.b" sorts between "a" and "a/b" as text
        (("a/b", "a/c", "d"), False),
    ],
)
def test_overlapping_targets_of_one_call_are_refused(paths: tuple[str, ...], overlap: bool) -> None:
    """Equal and nested targets of one call are refused, naming both parameters; neighbours are fine."""
    targets = [
        Target(f"p{index}", Output(), Path("/ws", path), tuple(path.split("/"))) for index, path in enumerate(paths)
    ]
    if overlap:
        with pytest.raises(OutputRefused) as caught:
            refuse_overlap(targets)
        assert caught.value.code == "OUTPUT_OVERLAP"
        assert len(caught.value.details["parameters"]) == 2
    else:
        refuse_overlap(targets)


_COMPONENT = st.sampled_from(["..", ".", "", "d", "e", "f", "in", "abs", "up", "out", "loop", "new", ".ztrio-x", "ä"])


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(components=st.lists(_COMPONENT, min_size=1, max_size=8), absolute=st.sampled_from(["", "/", "WS/", "/WS/../"]))
def test_no_string_resolves_outside(workspace: Path, components: list[str], absolute: str) -> None:
    """Whatever the string, it is refused or resolves to a place below the workspace that has no link in it."""
    if not (workspace / "d").exists():
        (workspace / "d" / "e").mkdir(parents=True)
        (workspace / "f").write_text("")
        (workspace / "in").symlink_to("d/e")
        (workspace / "abs").symlink_to(workspace / "d")
        (workspace / "d" / "up").symlink_to("../..")
        (workspace / "out").symlink_to("/tmp")
        (workspace / "loop").symlink_to("loop")
    raw = absolute.replace("WS", str(workspace)) + "/".join(components)
    for direction in ("out", "in"):
        try:
            if direction == "out":
                path = resolve_output(workspace, "out", raw, Output(kind="dir", existing="replace")).path
            else:
                path = resolve_input(workspace, "in", raw, Input())
        except ZtrioError:
            continue
        assert path.is_relative_to(workspace)
        assert Path(os.path.realpath(path)) == path
        assert not any(part.startswith(".ztrio") for part in path.relative_to(workspace).parts)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(raw=st.text(max_size=30))
def test_any_text_is_refused_or_inside(workspace: Path, raw: str) -> None:
    """Any text at all ends in a place inside the workspace or in one of our errors."""
    try:
        assert resolve_output(workspace, "out", raw, Output()).path.is_relative_to(workspace)
    except ZtrioError:
        pass
