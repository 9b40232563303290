"""A probe that says what a piece of code left behind: processes, zombies, descriptors, tasks, job directories.

Whose process is it? Descendants are found through parents, but what escaped by making its own session is re-parented
and has no link to us any more. Rejected: becoming a child subreaper (it changes who reaps whom, which is what tests of
supervision look at) and a marker in the environment (workers get a clean one). Instead the probe knows *places*: a
process whose current directory or environment names one of the given roots belongs to whoever made the root, and
`watch` adds the session and group of a process that the test knows.

Everything is compared with a snapshot taken when the probe was made: descriptor *and* what it points to, the task
object itself, so that a number that was used again is not mistaken for what was there. Of a process the number alone
counts: the kernel gives them in turn, so that one comes again after a whole lap, and to read of each process of the
machine when it started takes longer than most tests do.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import attrs
import trio

from ztrio.errors import UnsupportedPlatform
from ztrio.publication.jobdir import JOB_PREFIX

__all__ = ["LeakProbe", "ProcessInfo", "host_pid", "processes", "resident_bytes"]

_PROC: Final = Path("/proc")
_POLL: Final = 0.01  # seconds between looks


@attrs.frozen
class ProcessInfo:
    """One process as the kernel shows it.

    Args:
        pid: Process id.
        started: Start time in clock ticks since boot; with the pid it names the process for ever.
        parent: Parent's process id.
        group: Process group.
        session: Session.
        state: `R`, `S`, `D`, `T`, `Z` (a zombie), …; see proc(5).
        name: Name of the program, at most 15 bytes.
    """

    pid: int
    started: int
    parent: int = attrs.field(eq=False)
    group: int = attrs.field(eq=False)
    session: int = attrs.field(eq=False)
    state: str = attrs.field(eq=False)
    name: str = attrs.field(eq=False)


def processes() -> dict[int, ProcessInfo]:
    """Every process that is there now, by pid. Linux only."""
    return {info.pid: info for pid in _pids() if (info := _process(pid)) is not None}


def _pids() -> set[int]:
    return {int(name) for name in os.listdir(_PROC) if name.isdecimal()}  # noqa: PTH208 - names, quickly


def _process(pid: int) -> ProcessInfo | None:
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None  # it ended meanwhile
    try:
        text = os.read(fd, 4096).decode(errors="replace")
    except OSError:
        return None  # the same
    finally:
        os.close(fd)
    # The second field is the name, which may hold anything; see proc(5).
    name, _, rest = text.partition("(")[2].rpartition(")")
    state, parent, group, session, *others = rest.split()
    return ProcessInfo(pid, int(others[15]), int(parent), int(group), int(session), state, name)


def host_pid(pid: int | None = None) -> int:
    """The number that the host has for a process: for tools, whose worker may be in a PID namespace of its own.

    Args:
        pid: A child of this process, by the number it has here; this process itself when omitted.

    Raises:
        ProcessLookupError: there is no such child.
    """
    if pid is None:
        return int((_PROC / "self").readlink().name)  # the file system shows the host's numbers
    for task in (_PROC / "self" / "task").iterdir():
        for child in (task / "children").read_text().split():
            status = (_PROC / child / "status").read_text()
            numbers = next(line for line in status.splitlines() if line.startswith("NSpid:"))
            if int(numbers.split()[-1]) == pid:
                return int(child)
    raise ProcessLookupError(pid)


def resident_bytes(pid: int | None = None) -> int:
    """Bytes of memory that the process (this one when omitted) has resident. Linux only."""
    pages = (_PROC / ("self" if pid is None else str(pid)) / "statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _descends(info: ProcessInfo, ancestor: int) -> bool:
    """Whether that is its parent, or its parent's, and so on."""
    above: ProcessInfo | None = info
    while above is not None and above.parent != ancestor:
        above = _process(above.parent)
    return above is not None


def _descriptors() -> set[tuple[int, str]]:
    """(number, what it points to) of each open descriptor."""
    found = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names, quickly
        try:
            found.add((int(name), os.readlink(f"/proc/self/fd/{name}")))  # noqa: PTH115 - the same
        except OSError:
            continue  # the one through which the list was read, closed by now
    return found


def _tasks() -> set[trio.lowlevel.Task]:
    """All tasks of the running trio loop; none outside of one."""
    try:
        root = trio.lowlevel.current_root_task()
    except RuntimeError:
        return set()
    found: set[trio.lowlevel.Task] = set()
    waiting = [] if root is None else [root]
    while waiting:
        task = waiting.pop()
        found.add(task)
        for nursery in task.child_nurseries:
            waiting.extend(nursery.child_tasks)
    return found


class LeakProbe:
    """Remembers what is there when it is made, and says later what is there beyond that.

    As a context manager it asserts on leaving the block, unless an exception is on its way.

    Args:
        roots: Directories whose owner is probed: processes that name one of them in their current directory or
            environment count as ours, and job directories below one are leaks.
        temporary: Directories in which every new entry is a leak.
        job_directories: Whether job directories below `roots` are leaks.

    Raises:
        UnsupportedPlatform: there is no /proc here.
    """

    def __init__(
        self, *, roots: Iterable[Path] = (), temporary: Iterable[Path] = (), job_directories: bool = True
    ) -> None:
        if not (_PROC / "self" / "stat").exists():
            raise UnsupportedPlatform("the leak probe reads /proc, which is not there on this platform")
        self._roots = tuple(Path(root) for root in roots)
        self._temporary = tuple(Path(place) for place in temporary)
        self._job_directories = job_directories
        # (session, group) pairs named by `watch`; only grows.
        self._watched: set[tuple[int, int]] = set()
        self._pids_before = _pids()
        self._descriptors_before = _descriptors()
        self._tasks_before = _tasks()
        self._entries_before = set(self._entries())

    def watch(self, pid: int) -> None:
        """Count the session and process group of `pid` as ours from now on, whoever their parents become."""
        info = _process(pid)
        if info is not None:
            self._watched.add((info.session, info.group))

    def leaks(self) -> list[str]:
        """What is there now beyond the snapshot, one sentence each; looks once and waits for nothing."""
        return [*self._process_leaks(), *self._descriptor_leaks(), *self._task_leaks(), *self._entry_leaks()]

    def assert_clean(self, *, grace: float = 1.0) -> None:
        """Assert that nothing was left behind. For code outside a trio loop, which it would block.

        Args:
            grace: Seconds in which what is just ending may end: the kernel removes a process a moment after its
                parent was told, and a descriptor may wait for the garbage collector.

        Raises:
            AssertionError: names everything that is still there.
        """
        deadline = time.monotonic() + grace
        while (found := self.leaks()) and time.monotonic() < deadline:
            gc.collect()
            time.sleep(_POLL)
        _judge(found)

    async def wait_clean(self, *, grace: float = 1.0) -> None:
        """Like `assert_clean`, inside a trio loop: other tasks run while it waits.

        Args:
            grace: Seconds, by the clock of the machine and not trio's (which may be a virtual one).

        Raises:
            AssertionError: names everything that is still there.
        """
        await trio.lowlevel.checkpoint()
        deadline = time.monotonic() + grace
        while (found := self.leaks()) and time.monotonic() < deadline:
            gc.collect()
            await trio.to_thread.run_sync(time.sleep, _POLL)
        _judge(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.assert_clean()

    def _process_leaks(self) -> Iterator[str]:
        for pid in sorted(_pids() - self._pids_before):
            info = _process(pid)
            if info is None:
                continue
            ours = _descends(info, os.getpid())
            if info.state == "Z":
                # One that was re-parented is dead, and reaping it is its new parent's affair.
                if ours:
                    yield f"zombie {info.pid} ({info.name}): process {info.parent} never waited for it"
                continue
            if ours:
                relation = "a descendant"
            elif any(info.session == session or info.group == group for session, group in self._watched):
                relation = "in a watched session or group, re-parented"
            elif self._at_home(info.pid):
                relation = "re-parented, but it came from here"
            else:
                continue
            yield (
                f"process {info.pid} ({info.name}), {relation}: parent {info.parent}, group {info.group}, "
                f"session {info.session}, state {info.state}, command {_command(info.pid)!r}"
            )

    def _at_home(self, pid: int) -> bool:
        if not self._roots:
            return False
        home = _PROC / str(pid)
        try:
            current = (home / "cwd").readlink()
            if any(current.is_relative_to(root) for root in self._roots):
                return True
            environment = (home / "environ").read_bytes()
        except OSError:
            return False  # ended, a zombie, or another user's
        return any(os.fsencode(root) in environment for root in self._roots)

    def _descriptor_leaks(self) -> Iterator[str]:
        for number, target in sorted(_descriptors() - self._descriptors_before):
            yield f"descriptor {number} -> {target}"

    def _task_leaks(self) -> Iterator[str]:
        for task in _tasks() - self._tasks_before:
            yield f"task {task.name}"

    def _entry_leaks(self) -> Iterator[str]:
        for entry in self._entries():
            if entry not in self._entries_before:
                yield f"directory entry {entry}"

    def _entries(self) -> Iterator[Path]:
        for place in self._temporary:
            yield from place.iterdir()
        if self._job_directories:
            for root in self._roots:
                # Unlike rglob, walk takes it in its stride when a directory vanishes meanwhile.
                for folder, names, _ in os.walk(root):
                    yield from (Path(folder, name) for name in names if name.startswith(JOB_PREFIX))


def _judge(found: list[str]) -> None:
    if found:
        raise AssertionError("left behind:\n" + "\n".join(f"  {line}" for line in found))


def _command(pid: int) -> str:
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace").strip()[:200]
