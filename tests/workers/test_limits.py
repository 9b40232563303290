import os
import signal
from pathlib import Path
from typing import Any

import pytest
import trio

import ztrio
from tests.workers.tools_for_sandbox import toolbox
from ztrio import Limits
from ztrio.workers import sandbox
from ztrio.workers.deaths import explain_death
from ztrio.workers.denials import explain
from ztrio.workers.sandbox import SandboxPolicy

WAYS_OF_RUNNING = [("spawn", "group"), *(("zygote", rung) for rung in ("pidns", "cgroup", "job-init", "group"))]


async def failed(
    workspace: Path, tool: str, arguments: dict[str, Any] | None = None, **options: Any
) -> ztrio.ZtrioError:
    """The error of a call; nothing of it was published."""
    async with ztrio.open_supervisor(toolbox, workspace=workspace, **options) as supervisor:
        with pytest.raises(ztrio.ZtrioError) as caught:
            await supervisor.call(tool, arguments or {})
    assert (ztrio.Outcome.ROLLED_BACK, [".ztrio"]) == (
        caught.value.outcome,
        [path.name for path in workspace.iterdir()],
    )
    return caught.value


async def test_memory(tmp_path: Path) -> None:
    """A tool gets the memory it may have beyond what its worker has; beyond that its error names the limit."""
    async with ztrio.open_supervisor(toolbox, workspace=tmp_path) as supervisor:
        assert 100 == (await supervisor.call("eat_memory", {"megabytes": 100})).value
    error = await failed(tmp_path, "eat_memory", {"megabytes": 400})
    assert ("TOOL_ERROR", "MemoryError", "memory") == (
        error.code,
        error.details["exception_type"],
        error.details["limit"],
    )
    assert f"{200 << 20} bytes of memory (Limits.memory)" in error.message


@pytest.mark.parametrize(("kind", "containment"), WAYS_OF_RUNNING)
async def test_processor_time(tmp_path: Path, kind: str, containment: str) -> None:
    """A tool that used its processor time is killed, below an init too, and the error names the limit and not just the
    signal.
    """
    errors: list[ztrio.ZtrioError] = []

    async def burn(tool: str) -> None:
        place = tmp_path / tool
        place.mkdir()
        try:
            errors.append(await failed(place, tool, {"out": "out"}, backend=kind, containment=containment))
        except ztrio.UnsupportedPlatform as missing:
            errors.append(missing)

    async with trio.open_nursery() as nursery:  # beside each other: each takes a second of a processor
        for tool in ("burn", "burn_below_init"):
            nursery.start_soon(burn, tool)
    for error in errors:
        if isinstance(error, ztrio.UnsupportedPlatform):
            pytest.skip(error.message)
        assert ("WORKER_DIED", "cpu") == (error.code, error.details["limit"])
        assert "1 s of processor time it may (Limits.cpu)" in error.message


async def test_a_death_within_the_limits(tmp_path: Path) -> None:
    """A worker that dies of something else is not said to have reached a limit."""
    error = await failed(tmp_path, "fail_fast")
    assert ("WORKER_DIED", False) == (error.code, "limit" in error.details)


async def test_a_crash_under_a_memory_limit(tmp_path: Path) -> None:
    """A program that aborts may have been denied memory; the error says that there is a limit."""
    error = await failed(tmp_path, "crash")
    assert ("WORKER_DIED", "memory") == (error.code, error.details["limit"])


async def test_file_size(tmp_path: Path) -> None:
    """A file may have its size and no byte more; the worker survives to say so."""
    async with ztrio.open_supervisor(toolbox, workspace=tmp_path) as supervisor:
        assert 1 << 16 == (await supervisor.call("write_much", {"out": "out", "size": 1 << 16})).value
    (tmp_path / "out").unlink()
    error = await failed(tmp_path, "write_much", {"out": "out", "size": (1 << 16) + 1})
    assert ("TOOL_ERROR", "file_size") == (error.code, error.details["limit"])
    assert "65536 bytes (Limits.file_size)" in error.message


async def test_open_files(tmp_path: Path) -> None:
    """A tool that opens too many files fails, and the error names the limit."""
    error = await failed(tmp_path, "open_many")
    assert ("TOOL_ERROR", "open_files") == (error.code, error.details["limit"])
    assert "40 files open (Limits.open_files)" in error.message


async def test_a_read_in_a_worker(tmp_path: Path) -> None:
    """A read that runs in a worker has its limits and the sandbox too."""
    async with ztrio.open_supervisor(toolbox, workspace=tmp_path) as supervisor:
        found = (await supervisor.call("look_apart", {"path": str(tmp_path / "file")})).value
    assert ("done" if (tmp_path / "file").exists() else "EACCES") == found


@pytest.mark.parametrize(
    ("limits", "status", "cpu", "limit"),
    [
        (Limits(cpu=2), -signal.SIGKILL, 2.0, "cpu"),
        (Limits(cpu=2), -signal.SIGXCPU, 2.0, "cpu"),
        (Limits(cpu=2), None, 2.3, "cpu"),
        (Limits(cpu=2), 128 + signal.SIGKILL, 2.0, "cpu"),
        (Limits(cpu=2), -signal.SIGKILL, 1.0, None),
        (Limits(cpu=2), -signal.SIGKILL, None, None),
        (Limits(cpu=2), -signal.SIGSEGV, 2.0, None),
        (Limits(cpu=2), 1, 2.0, None),
        (Limits(memory=1 << 30), -signal.SIGSEGV, 2.0, "memory"),
        (Limits(memory=1 << 30), 128 + signal.SIGABRT, 2.0, "memory"),
        (Limits(memory=1 << 30), -signal.SIGKILL, 2.0, None),
        (None, -signal.SIGKILL, 2.0, None),
    ],
)
def test_deaths(limits: Limits | None, status: int | None, cpu: float | None, limit: str | None) -> None:
    """A death is put down to a limit only where status and processor time fit."""
    denial = explain_death(limits, status=status, cpu=cpu)
    assert limit == (None if denial is None else denial.limit)


def test_the_chain_of_an_exception() -> None:
    """The reason is found in causes, contexts and groups, not beyond `from None`, and a circle ends."""
    policy = SandboxPolicy(limits=Limits(file_size=10))
    reason = OSError(27, "File too large")
    outer = RuntimeError("outer")
    outer.__cause__ = reason
    grouped = ExceptionGroup("several", [ValueError("x"), outer])
    hidden = RuntimeError("hidden")
    hidden.__context__, hidden.__suppress_context__ = reason, True
    implicit = RuntimeError("implicit")
    implicit.__context__ = reason
    circle = RuntimeError("circle")
    circle.__context__ = RuntimeError("other")
    circle.__context__.__context__ = circle
    found = [explain(error, policy) for error in (reason, outer, grouped, implicit, hidden, circle)]
    assert ["file_size"] * 4 == [denial.limit for denial in found[:4] if denial is not None]
    assert [None, None] == found[4:]


def test_ordinary_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the sandbox has no part in is left alone, but for the path that was denied."""
    policy = SandboxPolicy(landlock="auto", writable=(str(tmp_path),))
    assert explain(OSError(28, "No space left"), policy) is None
    assert explain(PermissionError(13, "Permission denied"), policy) is None
    assert explain(PermissionError(13, "Permission denied", 7), policy) is None
    inside = explain(PermissionError(13, "Permission denied", str(tmp_path / "file")), policy)
    assert inside is not None
    assert str(tmp_path / "file") == inside.path
    assert "may not write" not in inside.sentence
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    ordinary = explain(PermissionError(13, "Permission denied", b"/nowhere/file"), policy)
    assert ordinary is not None
    assert ("/nowhere/file", "") == (ordinary.path, ordinary.sentence)
    other = explain(PermissionError(13, "x", "/nowhere/file"), SandboxPolicy(run_as=(7, 8)))
    assert other is not None
    assert "user 7, group 8" in other.sentence


@pytest.mark.parametrize(
    "options", [{"memory": 10}, {"cpu": 0}, {"cpu": 1.5}, {"open_files": 3}, {"file_size": -1}, {"cpu": True}]
)
def test_limits_that_make_no_sense(options: dict[str, Any]) -> None:
    """A limit is a whole number that lets a tool run at all."""
    with pytest.raises(ValueError, match="whole number"):
        Limits(**options)


def test_limits_are_not_raised_beyond_the_process_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the worker's own hard limit is lower, it stays."""
    import resource

    seen: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(resource, "getrlimit", lambda _: (5, 7))
    monkeypatch.setattr(resource, "setrlimit", seen.__setitem__)
    monkeypatch.setattr(sandbox, "_address_space", lambda: 0)
    handler = signal.getsignal(signal.SIGXFSZ)
    sandbox._set_limits(Limits(open_files=16, file_size=3))
    assert handler == signal.getsignal(signal.SIGXFSZ)
    assert {resource.RLIMIT_NOFILE: (7, 7), resource.RLIMIT_FSIZE: (3, 3)} == seen


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"limits": {"cpu": 1}}, "ztrio.Limits"),
        ({"writes": "cache"}, "list of directories"),
        ({"writes": [""]}, "list of directories"),
        ({"capability": "read", "writes": ["cache"]}, "writes nothing"),
        ({"capability": "read", "limits": Limits(cpu=1)}, "isolate=True"),
    ],
)
def test_options_of_tools(options: dict[str, Any], words: str) -> None:
    """A tool that asks for what cannot be is refused where it is registered."""
    with pytest.raises(ztrio.ToolboxError, match=words):
        ztrio.Toolbox("wrong").tool(**{"capability": "write", **options})(top_level)


def top_level() -> None:
    """Be registered."""
