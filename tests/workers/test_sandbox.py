import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import ztrio
from tests.kit.nobody import NOBODY, as_nobody
from tests.workers.tools_for_sandbox import UNCOVERED, WAYS, fill, toolbox
from tests.workers.walk_of_sandbox import walk
from ztrio.workers import landlock, linux, sandbox

HERE = Path(__file__).parent
TOOLS = str(HERE / "tools_for_sandbox.py")

no_landlock = landlock.why_unavailable()
needs_landlock = pytest.mark.skipif(no_landlock is not None, reason=f"no Landlock here: {no_landlock}")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
both_backends = pytest.mark.parametrize("kind", ["spawn", "zygote"])


@pytest.fixture
def public() -> Iterator[Path]:
    """A workspace that another user reaches; the usual temporary directories are private."""
    path = Path(tempfile.mkdtemp(prefix="ztrio-test-", dir="/tmp")).resolve()
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def prepare(workspace: Path) -> Path:
    """Make what `walk` needs; the place that is not to change."""
    (workspace / "cache").mkdir()
    (workspace / "site" / "below").mkdir(parents=True)
    (workspace / "site" / "page").write_text("old")
    (workspace / "site" / "below" / "page").write_text("old")
    return fill(workspace / "kept")


def contents(place: Path) -> dict[str, str]:
    """Names and content of the files of a directory."""
    return {path.name: path.read_text() if path.is_file() else "" for path in place.iterdir()}


def check_walk(found: dict[str, Any], before: dict[str, str], place: Path) -> None:
    """Assert what holds for every user."""
    assert dict.fromkeys(WAYS, "EACCES") == found["elsewhere"]
    assert before == contents(place)
    assert dict.fromkeys(UNCOVERED, "done") == found["uncovered"]
    # tmp, the slot, the cache; shared memory is another mount, so nothing is renamed or linked into it.
    assert [["done"], ["done"], ["done"], ["EXDEV", "done"]] == found["own"]
    assert ["EACCES"] * 4 == found["staging"]
    assert ["done", "EACCES"] == found["devices"]
    assert ("new", ["landlock"]) == (found["out"], found["labels"])
    for who in ("worker", "program"):
        status = found["privileges"][who]
        assert {"0000000000000000"} == {status[name][0] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")}
        assert ["1"] == status["NoNewPrivs"]
    assert ([False, True], True) == (found["dumpable"], found["fdinfo"])
    assert ["EACCES", "EACCES"] == found["spy"] == found["spy without Landlock"]


@needs_landlock
@both_backends
async def test_nothing_is_changed_outside(tmp_path: Path, kind: str) -> None:
    """A tool, its programs, daemons and threads do everything in staging and what is declared, nothing elsewhere."""
    place = prepare(tmp_path)
    before = contents(place)
    found = await walk(TOOLS, tmp_path, place, backend=kind)
    check_walk(found, before, place)
    assert {"page": "edited", "fresh": "edited", "below": ""} == contents(tmp_path / "site")
    if os.geteuid() == 0:
        assert ["0000000000000000"] == found["privileges"]["worker"]["CapBnd"]


@needs_landlock
@needs_root
@both_backends
async def test_nothing_is_changed_outside_by_an_ordinary_user(public: Path, kind: str) -> None:
    """All of it holds for a supervisor that is not root, whose memory its own tools cannot read either."""
    place = prepare(public)
    before = contents(place)
    for path in (public, *public.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    command, environment = as_nobody([str(HERE / "walk_of_sandbox.py"), TOOLS, str(public), str(place), kind])
    environment |= {"TMPDIR": str(public), "HOME": str(public)}
    done = await trio.run_process(command, env=environment, cwd=public, capture_stdout=True)
    found = json.loads(done.stdout)
    check_walk(found, before, place)


@needs_landlock
@needs_root
@both_backends
async def test_run_as_another_user(public: Path, kind: str) -> None:
    """Workers of root run as the given user, without further groups; files keep or get the owner one expects."""
    place = prepare(public)
    before = contents(place)
    os.chown(public / "cache", NOBODY, NOBODY)
    owner, other = 12345, 23456
    for name in ("site", "site/page", "site/below"):
        os.chown(public / name, owner, other)
    for path in (place, *place.rglob("*")):
        os.chown(path, NOBODY, NOBODY)  # so that permissions are not what denies it
    found = await walk(TOOLS, public, place, run_as=(NOBODY, NOBODY), backend=kind)
    check_walk(found, before, place)
    status = found["privileges"]["worker"]
    assert ([str(NOBODY)] * 4, [str(NOBODY)] * 4, []) == (status["Uid"], status["Gid"], status["Groups"])
    assert (NOBODY, []) == (found["edit"]["uid"], found["edit"]["groups"])
    assert os.path.expanduser("~nobody") == found["edit"]["home"]

    def owners(name: str) -> tuple[int, int]:
        return ((public / name).stat().st_uid, (public / name).stat().st_gid)

    assert (owner, other) == owners("site") == owners("site/page") == owners("site/below")
    assert (0, 0) == owners("site/below/page")
    assert (NOBODY, NOBODY) == owners("site/fresh") == owners("edited")
    assert [] == list(public.glob(".ztrio-*"))


@needs_root
async def test_root_without_its_privileges(tmp_path: Path) -> None:
    """What another user owns is copied in for a worker of root and keeps its owner; what it may not read is named."""
    prepare(tmp_path)
    for path in ("site", "site/page"):
        os.chown(tmp_path / path, NOBODY, NOBODY)
    private = tmp_path / "private"
    private.write_text("x")
    os.chown(private, NOBODY, NOBODY)
    private.chmod(0o600)
    async with ztrio.open_supervisor(toolbox, workspace=tmp_path) as supervisor:
        await supervisor.call("edit", {"site": "site", "out": "out"})
        with pytest.raises(ztrio.ToolError) as caught:
            await supervisor.call("read_from", {"path": str(private)})
    assert (NOBODY, "edited") == ((tmp_path / "site" / "page").stat().st_uid, (tmp_path / "site/page").read_text())
    assert str(private) == caught.value.details["path"]
    assert "without root's privileges" in caught.value.message


@needs_landlock
@pytest.mark.parametrize("containment", ["group", "cgroup", "job-init"])
async def test_nobody_else_is_signalled(tmp_path: Path, containment: Any) -> None:
    """A tool can signal what it started, and not ztrio's own processes, not even its parent which contains it."""
    try:
        async with ztrio.open_supervisor(toolbox, workspace=tmp_path, containment=containment) as supervisor:
            found = (await supervisor.call("signal_others", {"pids": [os.getpid()]})).value
    except ztrio.UnsupportedPlatform as error:
        pytest.skip(error.message)
    if found[0] == "done":
        pytest.skip("this kernel's Landlock knows nothing of signals")
    assert ["EPERM", "EPERM", "done", "-9"] == found


def test_landlock_that_knows_no_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that refuses to confine signals is asked for the rest; another failure is one."""
    sizes: list[int] = []

    def create(attribute: bytes) -> int:
        sizes.append(len(attribute))
        if len(sizes) == 1:
            raise OSError(errno.E2BIG, "too big")
        if len(sizes) == 3:
            raise OSError(errno.ENOSYS, "not there")
        return 7

    monkeypatch.setattr(linux, "_create_ruleset", create)
    assert 7 == linux.create_ruleset()
    with pytest.raises(OSError, match="not there"):
        linux.create_ruleset()
    assert [24, 8, 24] == sizes


@needs_landlock
@pytest.mark.parametrize("wrapped", [False, True])
async def test_the_error_names_the_path(tmp_path: Path, wrapped: bool) -> None:
    """A tool that writes outside its staging fails, and the error has the path and says what to do."""
    place = tmp_path / "elsewhere"
    async with ztrio.open_supervisor(toolbox, workspace=tmp_path) as supervisor:
        with pytest.raises(ztrio.ToolError) as caught:
            await supervisor.call("write_to", {"path": "elsewhere", "wrapped": wrapped})
    error = caught.value
    assert (str(place), ztrio.Outcome.ROLLED_BACK) == (error.details["path"], error.outcome)
    assert f"The tool may not write to {place}" in error.message
    assert "Declare an Output" in error.message
    assert "writes=" in error.message
    assert not place.exists()


@needs_landlock
async def test_a_declared_directory_that_is_missing(tmp_path: Path) -> None:
    """A directory that the tool declares and that does not exist is named, and can be written once it does."""
    async with ztrio.open_supervisor(toolbox, workspace=tmp_path) as supervisor:
        with pytest.raises(ztrio.ToolError) as caught:
            await supervisor.call("write_to", {"path": "missing/file"})
        assert "FileNotFoundError" == caught.value.details["exception_type"]
        (tmp_path / "missing").mkdir()
        await supervisor.call("write_to", {"path": "missing/file"})
    assert "written" == (tmp_path / "missing" / "file").read_text()


async def test_without_the_sandbox(tmp_path: Path) -> None:
    """With `off` a tool may write where its user may, and `start` says so."""
    async with ztrio.open_supervisor(toolbox, workspace=tmp_path, sandbox="off") as supervisor:
        await supervisor.call("write_to", {"path": "elsewhere"})
        (start,) = [event for event in await supervisor.events() if event["event"] == "start"]
    assert ("written", "off") == ((tmp_path / "elsewhere").read_text(), start["sandbox"])


async def test_where_landlock_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` runs tools without it and says so in `start`; `require` refuses to open, with the reason."""
    monkeypatch.setattr(landlock, "why_unavailable", lambda: "nobody has it")
    async with ztrio.open_supervisor(toolbox, workspace=tmp_path) as supervisor:
        await supervisor.call("write_to", {"path": "elsewhere"})
        (start,) = [event for event in await supervisor.events() if event["event"] == "start"]
    assert "unavailable" == start["sandbox"]
    with pytest.raises(ztrio.UnsupportedPlatform, match="nobody has it"):
        async with ztrio.open_supervisor(toolbox, workspace=tmp_path, sandbox="require"):
            raise AssertionError("it opened")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sandbox": "perhaps"}, "auto, require, off"),
        ({"run_as": (1,)}, "two numbers"),
        ({"run_as": ("nobody", "nogroup")}, "two numbers"),
        ({"run_as": (True, 1)}, "two numbers"),
        ({"run_as": (-1, 0)}, "two numbers"),
    ],
)
async def test_options_that_make_no_sense(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    """A wrong option is refused before anything starts."""
    with pytest.raises(ztrio.InvalidArguments, match=words):
        async with ztrio.open_supervisor(toolbox, workspace=tmp_path, **options):
            raise AssertionError("it opened")


async def test_only_root_can_run_as_somebody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root's privileges `run_as` is refused."""
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    with pytest.raises(ztrio.InvalidArguments, match="Only root"):
        async with ztrio.open_supervisor(toolbox, workspace=tmp_path, run_as=(0, 0)):
            raise AssertionError("it opened")


@needs_root
def test_a_user_without_an_entry() -> None:
    """Workers that run as a user whom nobody knows have `/` for a home."""
    assert {"HOME": "/"} == sandbox.choose("off", (54321, 54321)).environment


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSYS, "has no Landlock"),
        (errno.EOPNOTSUPP, "not enabled"),
        (errno.EINVAL, "too old"),
        (errno.EPERM, "forbids"),
        (errno.EMFILE, "Too many open files"),
    ],
)
def test_reasons(monkeypatch: pytest.MonkeyPatch, number: int, words: str) -> None:
    """Each way in which Landlock can be missing has its reason."""

    def refuse() -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(linux, "create_ruleset", refuse)
    assert words in (landlock.why_unavailable.__wrapped__() or "")


def test_a_restriction_that_restricts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Landlock counts as working only where a denied write was denied."""
    monkeypatch.setattr(linux, "restrict_self", [].append)
    assert "it restricts nothing here" == landlock.why_unavailable.__wrapped__()


def test_the_trial_leaves_no_trace(tmp_path: Path) -> None:
    """Trying Landlock restricts nobody but the trial's own thread."""
    landlock.why_unavailable.__wrapped__()
    (tmp_path / "file").touch()
    assert "NoNewPrivs:\t0" in Path("/proc/self/status").read_text()


def test_elsewhere_than_on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    """On other systems Landlock is plainly not there."""
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "it is a part of Linux" == landlock.why_unavailable.__wrapped__()


def test_threads_of_the_toolbox() -> None:
    """What was started before cannot be restricted, so `require` refuses; nothing was given up by then."""
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait)
    thread.start()
    try:
        with pytest.raises(OSError, match=r"started [0-9]+ threads while it was loaded"):
            sandbox.enter(sandbox.SandboxPolicy(landlock="require"))
    finally:
        gate.set()
        thread.join()
    assert "NoNewPrivs:\t0" in Path("/proc/self/status").read_text()


THREADED = """
import threading, time
import ztrio
toolbox = ztrio.Toolbox("threaded")
threading.Thread(target=time.sleep, args=(300,), daemon=True).start()

@toolbox.tool(capability="write")
def nothing() -> None:
    "Do nothing."
"""

CALL_THREADED = """
import trio, ztrio

async def main():
    toolbox = ztrio.load_toolbox("threaded_tools.py")
    async with ztrio.open_supervisor(toolbox, workspace=".", backend="spawn", sandbox="require") as supervisor:
        try:
            await supervisor.call("nothing")
        except ztrio.WorkerFailed as error:
            print(error, error.outcome)

trio.run(main)
"""


@needs_landlock
async def test_a_worker_that_cannot_enter(tmp_path: Path) -> None:
    """A worker that cannot give up what it should runs nothing; the call says why."""
    (tmp_path / "threaded_tools.py").write_text(THREADED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = await trio.run_process(
        [sys.executable, "-c", CALL_THREADED],
        env=environment,
        cwd=tmp_path,
        capture_stdout=True,
        stderr=subprocess.STDOUT,
    )
    words = done.stdout.decode()
    assert "WORKER_START_FAILED" in words
    assert "started 1 threads while it was loaded" in words


def test_undumpable_nests() -> None:
    """The last of several contexts to be left puts back what the first found."""
    if sys.platform != "linux":
        pytest.skip("Linux only")
    first, second = sandbox.undumpable(), sandbox.undumpable()
    seen = [linux.is_dumpable()]
    for step in (first.__enter__, second.__enter__):
        step()
        seen.append(linux.is_dumpable())
    for context in (first, second):
        context.__exit__(None, None, None)
        seen.append(linux.is_dumpable())
    assert [True, False, False, False, True] == seen
    linux.set_dumpable(False)
    try:
        with sandbox.undumpable():
            pass
        assert not linux.is_dumpable()
    finally:
        linux.set_dumpable(True)
