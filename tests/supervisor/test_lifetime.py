"""Opening and closing: from any task, in any order, and which exception leaves."""

import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

import ztrio
from tests.supervisor.support import SETTINGS, opened, play, settle, sleep_forever
from tests.supervisor.tools_for_calls import toolbox
from ztrio.testing import FaultyStore, ScriptedBackend


@pytest.mark.case("R57")
async def test_closed_in_another_order_from_another_task(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Three supervisors of three tasks, one of them failing, close in order of opening from a fourth task."""
    supervisors: list[ztrio.Supervisor] = []
    ended: list[int] = []

    async def own(number: int) -> None:
        workspace = tmp_path / str(number)
        workspace.mkdir()
        try:
            async with opened(workspace, sleep_forever) as (supervisor, _):
                supervisors.append(supervisor)
                with pytest.raises(ztrio.ShuttingDown):
                    await supervisor.call("count")
                if number == 1:
                    raise LookupError("the failing one")
        except LookupError:
            pass
        ended.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(own, number)
            await settle()
        for supervisor in supervisors:
            await supervisor.aclose()
    assert [0, 1, 2] == sorted(ended)


@pytest.mark.case("R57")
async def test_closing_is_idempotent(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Closing inside the body, several times at once and after the end, does no harm."""
    async with opened(tmp_path) as (supervisor, _):
        async with trio.open_nursery() as nursery:
            for _number in range(3):
                nursery.start_soon(supervisor.aclose)
        await supervisor.aclose()
        with pytest.raises(ztrio.ShuttingDown) as caught:
            await supervisor.call("count")
        assert ztrio.Outcome.NOT_STARTED == caught.value.outcome
    await supervisor.aclose()


@pytest.mark.case("R57")
async def test_closing_can_be_cancelled(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A closing whose caller is cancelled closes all the same."""
    backend = ScriptedBackend(sleep_forever, dies_after=1.0)
    async with opened(tmp_path, backend) as (supervisor, log), trio.open_nursery() as nursery:
        nursery.start_soon(_expect, ztrio.ShuttingDown, supervisor)
        await settle()
        with trio.move_on_after(0.1) as scope:
            await supervisor.aclose()
        assert scope.cancelled_caught
    assert "rollback" == log.names()[-1]


@pytest.mark.case("R59")
@pytest.mark.parametrize(
    "error", [ValueError("mine"), KeyboardInterrupt(), SystemExit(2), ExceptionGroup("own", [OSError()])]
)
async def test_exception_of_the_body(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, error: BaseException
) -> None:
    """What the body raises leaves as it is, with calls in flight and without."""
    for busy in (False, True):
        async with trio.open_nursery() as nursery:
            with pytest.raises(type(error)) as caught:
                async with opened(tmp_path, sleep_forever) as (supervisor, _):
                    if busy:
                        nursery.start_soon(_expect, ztrio.ShuttingDown, supervisor)
                        await settle()
                    raise error
            assert caught.value is error


async def _expect(error: type[Exception], supervisor: ztrio.Supervisor) -> None:
    with pytest.raises(error):
        await supervisor.call("count")


@pytest.mark.case("R59")
async def test_exception_of_a_cancelled_body(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A body that raises while it is being cancelled: its exception leaves, not the cancellation."""
    with trio.CancelScope() as scope, pytest.raises(ValueError, match="mine"):
        async with opened(tmp_path):
            scope.cancel()
            raise ValueError("mine")


@pytest.mark.case("R59")
async def test_cancelled_body(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A cancelled body leaves as a plain cancellation, after everything was cleaned up."""
    with trio.move_on_after(1) as scope:
        async with opened(tmp_path, ScriptedBackend(sleep_forever, dies_after=0.5)) as (supervisor, log):
            await supervisor.call("count")
    assert scope.cancelled_caught
    assert ["allow", "start", "cancel", "worker_terminated", "rollback"] == log.names()
    assert 1.5 == trio.current_time()


@pytest.mark.case("R59")
@pytest.mark.parametrize("real", [False, True], ids=["scripted", "processes"])
async def test_cancelled_while_opening(tmp_path: Path, real: bool) -> None:
    """Opening in a scope that is cancelled ends by that cancellation; it neither hangs nor runs the body."""
    entered = False
    with trio.fail_after(20), trio.CancelScope() as scope:
        scope.cancel()
        backend: Any = "spawn" if real else ScriptedBackend().open
        async with ztrio.open_supervisor(toolbox, workspace=tmp_path, backend=backend):
            entered = True
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert not entered


@pytest.mark.case("R59")
async def test_errors_of_calls_are_single(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Two calls that fail at once each raise their own error; a group comes only from the caller's own nursery."""
    found: list[BaseException] = []

    async def call(supervisor: ztrio.Supervisor, session: str) -> None:
        try:
            await supervisor.call("count", session=session)
        except BaseException as error:
            found.append(error)

    async with opened(tmp_path, sleep_forever) as (supervisor, _), trio.open_nursery() as nursery:
        for session in ("a", "b"):
            nursery.start_soon(call, supervisor, session)
    assert [ztrio.ToolTimeout] * 2 == [type(error) for error in found]
    assert found[0] is not found[1]


def _nowhere() -> Any:
    """A tool whose module has no file, as in an interactive session."""
    namespace: dict[str, Any] = {"__name__": "typed_in"}
    sys.modules["typed_in"] = SimpleNamespace(__name__="typed_in")  # type: ignore[assignment]
    exec("def tool() -> None: 'x'", namespace)  # what an interactive session does
    box = ztrio.Toolbox("typed")
    box.tool(capability="write")(namespace["tool"])
    return box


@pytest.mark.case("R59")
@pytest.mark.parametrize("fault", ["workspace", "file as workspace", "audit file", "toolbox", "backend", "sigchld"])
async def test_opening_fails(tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be opened says so with its own error, which names the culprit, in no group."""
    (tmp_path / "file").touch()
    options: dict[str, Any] = {"workspace": tmp_path}
    box = toolbox
    expected: dict[str, tuple[type[ztrio.ZtrioError], str]] = {
        "workspace": (ztrio.InvalidArguments, str(tmp_path / "missing")),
        "file as workspace": (ztrio.InvalidArguments, str(tmp_path / "file")),
        "audit file": (ztrio.StoreUnavailable, str(tmp_path / "file" / "audit")),
        "toolbox": (ztrio.ToolboxError, "tool is not in a file"),
        "backend": (ztrio.InvalidArguments, "'steam'"),
        "sigchld": (ztrio.WorkerFailed, "SIGCHLD"),
    }
    if fault == "workspace":
        options["workspace"] = tmp_path / "missing"
    elif fault == "file as workspace":
        options["workspace"] = tmp_path / "file"
    elif fault == "audit file":
        options["audit_file"] = tmp_path / "file" / "audit"
    elif fault == "toolbox":
        monkeypatch.delitem(sys.modules, "typed_in", raising=False)
        box = _nowhere()
    elif fault == "backend":
        options["backend"] = "steam"
    before = signal.getsignal(signal.SIGCHLD)
    if fault == "sigchld":
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    error, names = expected[fault]
    try:
        with pytest.raises(error) as caught:
            async with ztrio.open_supervisor(box, **options):
                raise AssertionError("it opened")
        assert names in caught.value.message
    finally:
        signal.signal(signal.SIGCHLD, before)
        sys.modules.pop("typed_in", None)


@pytest.mark.case("R15")
async def test_unsupported_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the promises cannot be kept nothing is started, and a plain error says so."""
    store, backend = FaultyStore(), ScriptedBackend()
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ztrio.UnsupportedPlatform) as caught:
        async with ztrio.open_supervisor(toolbox, workspace=tmp_path, store=store, backend=backend.open):
            raise AssertionError("it opened")
    monkeypatch.undo()
    assert "UNSUPPORTED_PLATFORM" == caught.value.code
    assert "Nothing was started" in caught.value.message
    assert ([], 0) == (store.calls, backend.handed_over)


@pytest.mark.parametrize("settled", [True, False])
async def test_interrupt_in_a_call(tmp_path: Path, autojump_clock: trio.testing.MockClock, settled: bool) -> None:
    """An interrupt that strikes inside a call leaves `open_supervisor` as itself, after every call was rolled back."""
    (tmp_path / "out").write_text("old")
    error = KeyboardInterrupt()
    store = FaultyStore(fail={"advance:publishing_outputs" if settled else "advance:preparing": error})

    async def script(call: Any) -> Any:
        return await (sleep_forever(call) if call.request.session_name == "other" else play(call))

    with pytest.raises(KeyboardInterrupt) as caught:
        async with opened(tmp_path, script, store=store) as (supervisor, log), trio.open_nursery() as nursery:
            nursery.start_soon(_outlive, supervisor, "look", {"seconds": 99.0}, "x")
            await supervisor.call("export", {"out": "out"})
    assert caught.value is error
    assert "old" == (tmp_path / "out").read_text()
    last = {event.tool: event.event for event in log.events}
    assert {"look": "error", "export": "rollback" if settled else "cancel"} == last


async def _outlive(supervisor: ztrio.Supervisor, tool: str, arguments: dict[str, Any], session: str) -> None:
    try:
        await supervisor.call(tool, arguments, session=session)
    except ztrio.ZtrioError:
        pass


async def test_events_end_with_the_supervisor(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A subscriber receives everything up to the end, and then the end; one that comes later just the end."""
    seen: list[str] = []
    async with trio.open_nursery() as nursery, opened(tmp_path, settings=SETTINGS) as (supervisor, _):

        @nursery.start_soon
        async def _() -> None:
            async with supervisor.audit.subscribe() as events:
                seen.extend([event.event async for event in events])

        await settle()
        await supervisor.call("count")
    assert ["allow", "start", "commit"] == seen
    async with supervisor.audit.subscribe() as events:
        with trio.fail_after(1):
            assert [] == [event async for event in events]


def test_describe_tools_twice(tmp_path: Path) -> None:
    """Tools are described the same each time, and nobody can change them for others."""

    async def main() -> None:
        async with opened(tmp_path) as (supervisor, _):
            first = supervisor.describe_tools()
            names = [tool.name for tool in first]
            assert ["session_open", "session_list", "session_destroy"] == names[-3:]
            assert "session" in first[0].input_schema["properties"]
            assert "session" not in first[-3].input_schema["properties"]
            expected = repr(first)
            first[0].input_schema.clear()
            assert expected == repr(supervisor.describe_tools())

    trio.run(main)
