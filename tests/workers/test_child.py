import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.workers.support import TOOLS, request
from ztrio.plain import decode, encode
from ztrio.workers import wire
from ztrio.workers.child import Stopped, Tools, load, run_request
from ztrio.workers.child_channel import Channel
from ztrio.workers.prelude import close_all_but
from ztrio.workers.rehearsal import Rehearsal
from ztrio.workers.wire import Failure, Frame, Result

ROOT = Path(__file__).parents[2]
MAIN = "import sys; from ztrio.workers.child import main; main(*map(int, sys.argv[1:]))"


class Inside:
    """Runs requests in this process; `frames` has what the tool sent meanwhile."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.ours, self.theirs = socket.socketpair()
        self.channel = Channel(self.theirs.fileno())
        self.far = Channel(self.ours.fileno())

    def run(self, function: str, arguments: dict[str, Any] | None = None, **changes: Any) -> Result | Failure:
        """The answer to a request."""
        return run_request(request(self.place, function, arguments, **changes), self.channel, {})

    def failure(self, function: str, arguments: dict[str, Any] | None = None, **changes: Any) -> Failure:
        """The answer, which is a failure."""
        answer = self.run(function, arguments, **changes)
        assert isinstance(answer, Failure)
        return answer

    def value(self, function: str, arguments: dict[str, Any] | None = None, **changes: Any) -> Any:
        """The decoded value of the answer, which is a result."""
        answer = self.run(function, arguments, **changes)
        assert isinstance(answer, Result)
        return decode(answer.value)


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Inside]:
    """The child's code in this process, whose surroundings are put back afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", tempfile.tempdir)
    before = dict(os.environ)
    made = Inside(tmp_path)
    with made.ours, made.theirs:
        yield made
    os.environ.clear()
    os.environ.update(before)
    sys.modules.pop(TOOLS[0], None)


def test_the_surroundings_of_a_tool(inside: Inside, tmp_path: Path) -> None:
    """A tool runs in the workspace, with its private TMPDIR, its variables and its context."""
    found = inside.value(
        "surroundings",
        {"names": ["TMPDIR", "SECRET"]},
        env={"SECRET": "x"},
        request_id=encode(7),
        session_name="mine",
        principal="ann",
    )
    tmp = str(tmp_path / "tmp")
    assert found["cwd"] == str(tmp_path)
    assert found["tmp"] == tmp
    assert found["environment"] == {"TMPDIR": tmp, "SECRET": "x"}
    assert found["context"] == ["job-1", "surroundings", "mine", "ann", str(tmp_path), tmp]
    assert found["request_id"] == 7


def test_typed_arguments(inside: Inside, tmp_path: Path) -> None:
    """A tool receives what its annotations say, outputs included."""
    value = inside.value("typed", {"path": str(tmp_path / "x"), "when": "2026-01-02T03:04:05+01:00"})
    assert value == ["PosixPath", "datetime", "2026-01-02 02:04:05+00:00"]


def test_arguments_that_do_not_fit(inside: Inside) -> None:
    """An argument that cannot become what the annotation says is the tool's failure, without a traceback of ours."""
    failure = inside.failure("add", {"a": "x"})
    assert (failure.code, failure.exception_type, failure.traceback) == (
        "TOOL_ERROR",
        "pydantic_core._pydantic_core.ValidationError",
        "",
    )


def test_state_comes_back_when_it_changed(inside: Inside) -> None:
    """The session state is sent back if, and only if, it changed and may."""
    state = encode({"a": 1})
    answer = inside.run("remember", {"values": {"b": 2}}, session=state)
    assert answer == Result(value=encode(2), session=encode({"a": 1, "b": 2}))
    assert inside.run("remember", {"values": {}}, session=state) == Result(value=encode(1), session=None)
    assert inside.run("remember", {"values": {"b": 2}}, session=state, read_only=True) == Result(value=encode(2))


def test_rich_state(inside: Inside) -> None:
    """State may hold bytes, datetimes and integers of any size."""
    answer = inside.run("remember_rich")
    assert isinstance(answer, Result)
    assert answer.session is not None
    state = decode(answer.session)
    assert (state["bytes"], state["time"].isoformat(), state["big"]) == (b"\xff", "2026-01-02T00:00:00+00:00", 10**30)


def test_async_tools(inside: Inside) -> None:
    """An async tool runs under trio."""
    assert inside.value("add_async", {"a": 1}) == 2
    assert inside.far.receive() == wire.Progress(progress=1.0)


def test_an_async_tool_that_raises(inside: Inside) -> None:
    """What an async tool raises arrives bare, with the tool's frames only."""
    failure = inside.failure("fail_async", {"text": "no"})
    assert (failure.message, failure.exception_type) == ("LookupError: no", "LookupError")
    assert failure.traceback.startswith("Traceback")
    assert failure.traceback.count("File ") == 1
    assert TOOLS[1] in failure.traceback


def test_an_async_tool_that_is_cancelled(inside: Inside) -> None:
    """SIGTERM cancels an async tool, and there is no answer."""
    with pytest.raises(Stopped):
        inside.run("cancelled_by_signal")


def test_a_traceback_shows_the_tool_only(inside: Inside) -> None:
    """A traceback begins with the tool's function."""
    failure = inside.failure("fail", {"text": "no"})
    lines = [line.strip() for line in failure.traceback.splitlines() if "File " in line]
    assert [line.rpartition(" in ")[2] for line in lines] == ["fail", "helper_that_raises"]
    assert failure.traceback.endswith("LookupError: no\n")


@pytest.mark.parametrize(
    ("function", "arguments", "message", "kind"),
    [
        ("fail_by_exit", {"status": 2}, "SystemExit: 2", "SystemExit"),
        ("fail_by_interrupt", {}, "KeyboardInterrupt", "KeyboardInterrupt"),
        ("fail_politely", {}, "The board has no outline.", "ztrio.errors.ToolError"),
        ("fail_unprintable", {}, "Unprintable", "tools_for_workers.Unprintable"),
    ],
)
def test_whatever_a_tool_raises(
    inside: Inside, function: str, arguments: dict[str, Any], message: str, kind: str
) -> None:
    """Every exception is TOOL_ERROR, SystemExit and KeyboardInterrupt too."""
    failure = inside.failure(function, arguments)
    assert (failure.code, failure.message, failure.exception_type) == ("TOOL_ERROR", message, kind)


def test_errors_are_bounded(inside: Inside) -> None:
    """A megabyte of message that is no UTF-8 is cut and made presentable, and its frame is small."""
    failure = inside.failure("fail_long")
    assert failure.message.startswith("ValueError: \\ud800xxx")
    assert len(failure.message) < 3000
    assert len(failure.traceback.encode()) <= 16 * 1024
    assert "cut" in failure.traceback
    assert len(wire.encode_frame(failure)) < 24 * 1024


@pytest.mark.parametrize(
    ("function", "arguments", "code", "message"),
    [
        ("return_object", {}, "TOOL_ERROR", "The result does not fit at $.rows[0]: the key 1 is not a string"),
        ("return_large", {"size": 2000}, "RESULT_TOO_LARGE", "2003 bytes; 1000 are allowed"),
        ("state_object", {}, "TOOL_ERROR", "$.deep[0].x: a object is not JSON-like"),
        ("state_list", {}, "TOOL_ERROR", "must stay a dict, not a list"),
        ("state_large", {"size": 2000}, "STATE_TOO_LARGE", "2006 bytes; 1000 are allowed"),
    ],
)
def test_what_does_not_fit(inside: Inside, function: str, arguments: dict[str, Any], code: str, message: str) -> None:
    """A result or a state that is no value or too large is a failure that names the place or the size."""
    failure = inside.failure(function, arguments, max_result=1000, max_state=1000)
    assert failure.code == code
    assert message in failure.message


def test_progress_must_be_a_number(inside: Inside) -> None:
    """Reporting what is no finite number is the tool's error."""
    assert "finite" in inside.failure("report_nonsense", {"what": 0}).message


def test_progress_that_nobody_hears(inside: Inside) -> None:
    """A tool whose supervisor is gone is not disturbed by it."""
    inside.ours.close()
    assert inside.value("add_async", {"a": 1}) == 2


def test_no_workspace(inside: Inside, tmp_path: Path) -> None:
    """A workspace that vanished is reported, not a crash."""
    sent = attrs.evolve(request(tmp_path, "add", {"a": 1}), workspace=str(tmp_path / "gone"))
    failure = run_request(sent, inside.channel, {})
    assert isinstance(failure, Failure)
    assert failure.exception_type == "FileNotFoundError"


def test_a_prepared_tool(inside: Inside, tmp_path: Path) -> None:
    """What was prepared when the tools were loaded is used, and not found out again."""
    tools: Tools = {}
    assert load(boot("typed", "add_async"), tools) is None
    assert [(False, None), (True, "ctx")] == [(tool.is_async, tool.context) for tool in tools.values()]
    changed = attrs.evolve(tools[TOOLS[0], "typed"], function=lambda **arguments: sorted(arguments))
    sent = request(tmp_path, "typed", {"path": str(tmp_path / "x"), "when": "2026-01-02T03:04:05+01:00"})
    answer = run_request(sent, inside.channel, {(TOOLS[0], "typed"): changed})
    assert Result(value=encode(["path", "when"])) == answer


@pytest.mark.parametrize("variable", [None, "/elsewhere"])
def test_a_rehearsal_leaves_nothing_behind(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    """Surroundings, descriptors and rights are as before, nobody hears of it, and without Landlock it works, too."""
    monkeypatch.delenv("TMPDIR", raising=False)
    if variable is not None:
        monkeypatch.setenv("TMPDIR", variable)
    else:
        monkeypatch.setattr("ztrio.workers.linux.create_ruleset", lambda: os.open("/nowhere", os.O_RDONLY))
    before = (dict(os.environ), Path.cwd(), os.listdir("/proc/self/fd"))
    for simple in (True, False):
        Rehearsal(simple=simple).run(inside.channel)
    assert before == (dict(os.environ), Path.cwd(), os.listdir("/proc/self/fd"))
    (inside.place / "file").touch()
    inside.theirs.close()
    assert inside.far.receive() is None


@pytest.mark.parametrize("old_kernel", [False, True])
def test_every_descriptor_but(monkeypatch: pytest.MonkeyPatch, old_kernel: bool) -> None:
    """All but those named are closed, between them, too, and also where the kernel has no call for it."""
    if old_kernel:
        monkeypatch.setattr("ztrio.workers.prelude.close_range", lambda *_: False)
    read, write = os.pipe()
    other = os.dup(read)
    pid = os.fork()
    if pid == 0:
        try:
            close_all_but(2, write)
            left = [fd for fd in range(100) if _is_open(fd)]
            os.write(write, repr(left).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert str([2, write]) == os.read(read, 100).decode()
    for fd in (read, write, other):
        os.close(fd)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


class Outside:
    """Talks to a worker's main program in a process of its own, without a backend; it ends by itself."""

    def __init__(self, place: Path) -> None:
        self.place = place
        ours, theirs = socket.socketpair()
        read, self.lifeline = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", MAIN, str(theirs.fileno()), str(read)],
            pass_fds=(theirs.fileno(), read),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=ROOT,
        )
        theirs.close()
        os.close(read)
        self.sock = ours
        self.channel = Channel(ours.fileno())

    def ask(self, *frames: Frame) -> list[Frame | None]:
        """Send frames, and receive one for each."""
        for frame in frames:
            self.channel.send(frame)
        return [self.channel.receive() for _ in frames]

    def end(self) -> tuple[int, str]:
        """Hang up; the exit status and the output."""
        self.sock.close()
        output, _ = self.process.communicate(timeout=20)
        os.close(self.lifeline)
        return self.process.returncode, output.decode()


@pytest.fixture
def outside(tmp_path: Path) -> Outside:
    """A worker's main program."""
    return Outside(tmp_path)


def boot(*functions: str) -> wire.Boot:
    """Load the tools of these tests."""
    return wire.Boot(modules=[TOOLS], functions=[(TOOLS[0], function) for function in functions])


def test_main_serves_one_request(outside: Outside, tmp_path: Path) -> None:
    """Ready, Started, progress, the result, and the end of the stream ends it."""
    assert outside.ask(boot("add_async")) == [wire.Ready(problem=None)]
    sent = request(tmp_path, "add_async", {"a": 1})
    assert outside.ask(sent) == [wire.Started()]
    assert outside.channel.receive() == wire.Progress(progress=1.0)
    assert outside.channel.receive() == Result(value=encode(2))
    assert outside.end() == (0, "")


def test_main_is_told_nothing(outside: Outside) -> None:
    """A supervisor that hangs up at once leaves no worker."""
    assert outside.end() == (0, "")


def test_main_is_not_needed(outside: Outside) -> None:
    """A worker that is never used ends with the stream."""
    assert outside.ask(boot()) == [wire.Ready(problem=None)]
    assert outside.end() == (0, "")


def test_main_cannot_load(outside: Outside) -> None:
    """What cannot be loaded is said in Ready, and the traceback is printed."""
    (ready,) = outside.ask(boot("gone"))
    assert isinstance(ready, wire.Ready)
    assert ready.problem is not None
    assert ready.problem.startswith("tools_for_workers.gone: AttributeError")
    status, output = outside.end()
    assert (status, output.count("Traceback")) == (0, 1)


def test_main_hears_nonsense(outside: Outside) -> None:
    """A supervisor that does not speak the protocol is left."""
    outside.sock.sendall(b"\xff" * 10)
    assert outside.end() == (1, "")


def test_main_is_stopped(outside: Outside, tmp_path: Path) -> None:
    """An async tool that was cancelled by SIGTERM ends as by SIGTERM."""
    outside.ask(boot())
    outside.ask(request(tmp_path, "cancelled_by_signal"))
    assert outside.channel.receive() is None
    assert outside.end()[0] == -15


def test_main_in_a_forked_copy(outside: Outside, tmp_path: Path) -> None:
    """A copy of the worker ends silently where the worker answers."""
    outside.ask(boot())
    outside.ask(request(tmp_path, "fork_and_return"))
    answer = outside.channel.receive()
    assert isinstance(answer, Result)
    assert outside.end()[0] == 0


def test_a_worker_has_clean_surroundings(outside: Outside, tmp_path: Path) -> None:
    """A tool has no input, default signals, a session of its own, and programs it starts inherit nothing of ours."""
    outside.ask(boot())
    outside.ask(request(tmp_path, "surroundings", {"names": []}))
    answer = outside.channel.receive()
    assert isinstance(answer, Result)
    found = decode(answer.value)
    assert (found["stdin"], found["session"], found["signals"][:2], found["blocked"]) == (
        "/dev/null",
        True,
        [True, True],
        0,
    )
    outside.end()
