"""The steps into the sandbox, one by one. Most of them concern the calling thread, so each test takes a thread."""

import errno
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.workers.test_sandbox import needs_landlock
from ztrio import Limits
from ztrio.workers import landlock, linux, sandbox
from ztrio.workers.denials import explain
from ztrio.workers.failures import safe_str, tool_failure
from ztrio.workers.sandbox import SandboxPolicy


def in_thread(function: Callable[[], Any]) -> Any:
    """What a function returns or raises in a thread that ends with it."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(function())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture(autouse=True)
def full_bounding_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a thread does to itself is not remembered for the process."""
    monkeypatch.setattr(linux, "_bounding_set_is_empty", False)


@needs_landlock
def test_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits, then the user, then capabilities and privileges, then writing; the parent's death signal stays."""
    steps: list[Any] = []
    for name in ("setgroups", "setgid", "setuid"):
        monkeypatch.setattr(os, name, lambda value, name=name: steps.append((name, value)))
    monkeypatch.setattr(sandbox, "_set_limits", steps.append)
    limits = Limits(cpu=1)
    (tmp_path / "mine").mkdir()

    def run() -> dict[str, str]:
        linux.set_parent_death_signal(signal.SIGTERM)
        policy = SandboxPolicy(
            landlock="auto",
            writable=(str(tmp_path / "mine"), str(tmp_path / "missing"), "/dev/zero"),
            limits=limits,
            run_as=(7, 8),
        )
        sandbox.enter(policy)
        steps.append(linux.parent_death_signal())
        linux.set_parent_death_signal(0)
        (tmp_path / "mine" / "file").touch()
        Path("/dev/zero").write_text("x")
        with pytest.raises(PermissionError):
            (tmp_path / "other").touch()
        lines = Path("/proc/thread-self/status").read_text().splitlines()
        return dict(line.split(":\t", 1) for line in lines)

    status = in_thread(run)
    assert [limits, ("setgroups", []), ("setgid", 8), ("setuid", 7), signal.SIGTERM] == steps
    assert {"0000000000000000"} == {status[name] for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")}
    assert "1" == status["NoNewPrivs"]
    (tmp_path / "other").touch()  # the process is as free as before


@pytest.mark.parametrize(
    ("step", "number", "raised"),
    [
        ("drop_bounding_set", errno.EPERM, None),
        ("drop_bounding_set", errno.EINVAL, None),
        ("drop_bounding_set", errno.EIO, errno.EIO),
        ("drop_capabilities", errno.EINVAL, None),
        ("drop_capabilities", errno.EIO, errno.EIO),
    ],
)
def test_what_a_kernel_may_refuse(monkeypatch: pytest.MonkeyPatch, step: str, number: int, raised: int | None) -> None:
    """What an old kernel has not, or an ordinary user may not, is no failure; anything else is."""

    def refuse(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(linux, "_prctl", refuse)
    found = in_thread(getattr(linux, step))
    assert raised == (found.errno if isinstance(found, OSError) else None)
    # It is done again where it was not allowed; a set without members is remembered.
    assert (step == "drop_bounding_set" and number == errno.EINVAL) == linux._bounding_set_is_empty


def test_the_bounding_set_is_emptied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork of a process that has emptied the set does not do it again."""
    calls: list[Any] = []
    monkeypatch.setattr(linux, "_prctl", lambda *arguments: calls.append(arguments))
    for _ in range(2):
        linux.drop_bounding_set()
    assert linux._CAPABILITIES == len(calls)


def test_every_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Soft and hard limit are the same, and memory and processor time count from here."""
    import resource

    seen: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(resource, "getrlimit", lambda _: (5, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", seen.__setitem__)
    monkeypatch.setattr("time.process_time", lambda: 2.5)
    sandbox._set_limits(Limits(memory=1 << 30, cpu=10, open_files=16, file_size=3))
    memory = seen.pop(resource.RLIMIT_AS)
    assert (1 << 30) < memory[0] == memory[1]
    expected = {resource.RLIMIT_CPU: 13, resource.RLIMIT_NOFILE: 16, resource.RLIMIT_FSIZE: 3}
    assert {number: (most, most) for number, most in expected.items()} == seen


def test_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system does not say how much memory is in use, the limit is as given."""
    monkeypatch.setattr("builtins.open", lambda *_, **__: (_ for _ in ()).throw(FileNotFoundError()))
    assert 0 == sandbox._address_space()


def test_elsewhere_than_on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    """On other systems limits and user are what there is."""
    monkeypatch.setattr(sandbox, "_LINUX", False)
    steps: list[Any] = []
    for name in ("setgroups", "setgid", "setuid"):
        monkeypatch.setattr(os, name, steps.append)
    sandbox.enter(SandboxPolicy(run_as=(7, 8)))
    with sandbox.undumpable():
        assert [[], 8, 7] == steps
        assert linux.is_dumpable()


def test_a_restriction_without_a_right() -> None:
    """A ruleset that the kernel does not take is an error, not a sandbox with a hole."""
    with pytest.raises(OSError, match="landlock_add_rule"):
        linux.add_path(0, 0, 0)
    with pytest.raises(OSError, match="landlock_restrict_self"):
        linux.restrict_self(-1)


def test_a_path_that_may_not_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that the worker's user cannot reach is left out."""
    opened: list[Any] = []
    real = os.open

    def reach(path: str, flags: int) -> int:
        opened.append(path)
        if path == "/hidden":
            raise PermissionError(errno.EACCES, "hidden")
        return real(path, flags)

    monkeypatch.setattr(os, "open", reach)
    monkeypatch.setattr(linux, "restrict_self", opened.append)
    monkeypatch.setattr(linux, "create_ruleset", lambda: real("/dev/null", os.O_RDONLY))
    monkeypatch.setattr(linux, "add_path", lambda *_: None)
    landlock.restrict_writes(["/hidden", str(tmp_path)])
    assert ["/dev/null", "/hidden", str(tmp_path)] == opened[:3]


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EFBIG, errno.EMFILE])
def test_each_limit_has_its_words(number: int) -> None:
    """An error that a limit causes is put down to it; without a limit it is not."""
    policy = SandboxPolicy(limits=Limits(memory=1 << 30, file_size=5, open_files=16))
    denial = explain(OSError(number, "x"), policy)
    assert denial is not None
    assert {errno.ENOMEM: "memory", errno.EFBIG: "file_size", errno.EMFILE: "open_files"}[number] == denial.limit
    assert explain(OSError(number, "x"), SandboxPolicy()) is None


def test_whose_denial_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A denied write is the sandbox's where ordinary permissions would have allowed it, and only there."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    policy = SandboxPolicy(landlock="auto", writable=(str(tmp_path / "mine"), str(tmp_path / "absent")))
    (tmp_path / "mine").mkdir()
    (tmp_path / "file").touch()
    access = {str(tmp_path / "secret"): False}
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: access.get(str(path), real(path, mode)))
    (tmp_path / "secret").touch()

    def words(*names: str) -> str:
        error = PermissionError(errno.EACCES, "denied", str(tmp_path / names[0]))
        if len(names) > 1:
            error = PermissionError(errno.EACCES, "denied", str(tmp_path / names[0]), None, str(tmp_path / names[1]))
        denial = explain(error, policy)
        assert denial is not None
        return denial.sentence

    assert "may not write" in words("file")
    assert "may not write" in words("new")
    assert f"may not write to {tmp_path / 'file'}" in words("mine/source", "file")
    assert f"names {tmp_path / 'absent'}, which did not exist" in words("absent/file")
    assert ["", ""] == [words("mine/file"), words("secret")]


def test_the_frame_of_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frame has path and limit; what a tool held when memory ran out is let go first."""
    policy = SandboxPolicy(landlock="auto", limits=Limits(memory=1 << 30))
    denied = PermissionError(errno.EACCES, "denied", str(tmp_path / "file"))
    failure = tool_failure(denied, "PermissionError: denied", None, policy)
    assert (str(tmp_path / "file"), None) == (failure.path, failure.limit)
    assert failure.message.startswith("PermissionError: denied. The tool may not write")

    frames = []

    def eat() -> None:
        held = [1]
        frames.append(held)
        raise MemoryError

    with pytest.raises(MemoryError) as caught:
        eat()
    failure = tool_failure(caught.value, "MemoryError", eat, policy)
    assert ("memory", "builtins" not in str(failure.exception_type)) == (failure.limit, True)
    assert "in eat" in failure.traceback
    step = caught.value.__traceback__
    while step is not None and step.tb_frame.f_code is not eat.__code__:
        step = step.tb_next
    assert step is not None
    assert {} == step.tb_frame.f_locals

    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    assert "" == safe_str(Mute())
