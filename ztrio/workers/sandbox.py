"""What a worker gives up before a tool's code runs: limits, user, capabilities, new privileges, writing elsewhere.

The supervisor decides once, when it opens (`choose`), and sends each request with its `SandboxPolicy`; the worker takes
it on itself (`enter`) and can never get back what it gave up, nor can anything it starts. The order is forced: raising
a limit and changing the user need privileges, giving up capabilities must come after that, Landlock needs
no_new_privs.

Linux keeps capabilities, no_new_privs and Landlock per *thread*. Threads that a toolbox starts while it is loaded
therefore stay outside; `require` refuses such a worker. Limits and the user hold for the whole process.
"""

from __future__ import annotations

import errno
import math
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import attrs

from ztrio.errors import InvalidArguments, UnsupportedPlatform
from ztrio.policies import Limits
from ztrio.workers import landlock, linux

__all__ = ["Mode", "Sandbox", "SandboxPolicy", "choose", "enter", "undumpable"]

Mode = Literal["auto", "require", "off"]

SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - semaphores and shared memory of multiprocessing live there

_LINUX: Final = sys.platform == "linux"


@attrs.frozen(kw_only=True)
class SandboxPolicy:
    """What one worker is to give up; part of its request.

    Args:
        landlock: `off` leaves writing alone. `auto` and `require` restrict it to `writable`, `require` also refuses a
            worker that has threads already.
        writable: Absolute paths beneath which the tool may write. Those that do not exist are left out.
        limits: Limits of the process.
        run_as: User and group id to become; needs root.
    """

    landlock: Mode = "off"
    writable: tuple[str, ...] = ()
    limits: Limits | None = None
    run_as: tuple[int, int] | None = None


@attrs.frozen(kw_only=True)
class Sandbox:
    """What a supervisor asks of its workers.

    Args:
        mode: `off` also where `auto` found no Landlock.
        label: What holds, in a word: `landlock`, `unavailable` or `off`.
        run_as: User and group id of the workers; the supervisor's own when None.
        environment: Variables that follow from the user.
    """

    mode: Mode = "off"
    label: str = "off"
    run_as: tuple[int, int] | None = None
    environment: Mapping[str, str] = attrs.field(factory=dict)

    def policy(
        self, *, workspace: str, staging: Sequence[str], writes: Sequence[str], limits: Limits | None
    ) -> SandboxPolicy:
        """The policy of one call.

        Args:
            workspace: What relative `writes` are relative to.
            staging: The directories of the call.
            writes: What the tool declares.
            limits: The same.
        """
        declared = (str(Path(workspace, path)) for path in writes)
        writable = (*staging, SHARED_MEMORY, *declared)
        return SandboxPolicy(
            landlock=self.mode,
            writable=() if self.mode == "off" else writable,
            limits=limits,
            run_as=self.run_as,
        )


def choose(mode: str, run_as: tuple[int, int] | None) -> Sandbox:
    """Find out what this machine can do of what is asked for.

    Raises:
        InvalidArguments: there is no such mode, or workers cannot run as that user.
        UnsupportedPlatform: Landlock is required and does not work.
    """
    if mode not in ("auto", "require", "off"):
        raise InvalidArguments(f"There is no sandbox {mode!r}; choose from auto, require, off. Nothing was started.")
    environment = {} if run_as is None else _check_user(run_as)
    if mode == "off":
        return Sandbox(run_as=run_as, environment=environment)
    reason = landlock.why_unavailable()
    if reason is not None and mode == "require":
        raise UnsupportedPlatform(
            f"The sandbox is required and Landlock cannot be used: {reason}. Nothing was started. With sandbox='auto' "
            "tools run without it."
        )
    return Sandbox(
        mode="auto" if mode == "auto" and reason is None else "require" if mode == "require" else "off",
        label="landlock" if reason is None else "unavailable",
        run_as=run_as,
        environment=environment,
    )


def _check_user(run_as: tuple[int, int]) -> dict[str, str]:
    wrong = "run_as must be (user id, group id), two numbers from 0. Nothing was started."
    if not isinstance(run_as, tuple) or len(run_as) != 2:
        raise InvalidArguments(wrong)
    if any(isinstance(number, bool) or not isinstance(number, int) or number < 0 for number in run_as):
        raise InvalidArguments(wrong)
    if os.geteuid() != 0:
        raise InvalidArguments("Only root can run workers as another user (run_as). Nothing was started.")
    import pwd  # noqa: PLC0415 - POSIX only, and hardly ever needed

    try:
        return {"HOME": pwd.getpwuid(run_as[0]).pw_dir}
    except KeyError:
        return {"HOME": "/"}


# ---- in the worker


def enter(policy: SandboxPolicy) -> None:
    """Give up what the policy says, for this process and everything it starts. Called once, by the worker.

    Raises:
        OSError: something of it does not work; the process must not run a tool then.
        ValueError: a limit is not possible.
    """
    if policy.landlock == "require" and (threads := _threads()) > 1:
        raise OSError(
            errno.EBUSY,
            f"the toolbox started {threads - 1} threads while it was loaded, which the sandbox cannot restrict",
        )
    if policy.limits is not None:
        _set_limits(policy.limits)
    # A change of user ends it.
    parent_death = linux.parent_death_signal() if _LINUX and policy.run_as is not None else 0
    if _LINUX:
        linux.drop_bounding_set()
    if policy.run_as is not None:
        uid, gid = policy.run_as
        os.setgroups([])
        os.setgid(gid)  # by root these set all of real, effective and saved ids
        os.setuid(uid)
    if _LINUX:
        linux.drop_capabilities()
        linux.set_no_new_privs()
        if parent_death:
            linux.set_parent_death_signal(parent_death)
    if policy.landlock != "off":
        landlock.restrict_writes(policy.writable)


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - names only


def _set_limits(limits: Limits) -> None:
    """Set soft and hard limits, so that no tool can raise them again.

    What is spent already is not the tool's: memory and processor time count from here.
    """
    import resource  # noqa: PLC0415 - POSIX only

    # Python may have the signal of its file size limit at default; ignored, the write fails with EFBIG and can be told.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    wanted = {
        resource.RLIMIT_AS: None if limits.memory is None else limits.memory + _address_space(),
        resource.RLIMIT_CPU: None if limits.cpu is None else limits.cpu + math.ceil(time.process_time()),
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_FSIZE: limits.file_size,
    }
    for number, most in wanted.items():
        if most is None:
            continue
        hard = resource.getrlimit(number)[1]
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(number, (value, value))


def _address_space() -> int:
    """Bytes of address space in use; 0 where the platform does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - no Path in a worker's way
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


# ---- in the supervisor


# How many `undumpable` contexts of this process are open, and whether the first of them changed anything.
_undumpable: list[bool] = []


@contextmanager
def undumpable() -> Iterator[None]:
    """Keep other processes of the same user, tools above all, from tracing this one and reading its memory.

    The process leaves no core and no debugger of the same user can attach meanwhile. When the last context is left
    everything is as before.
    """
    if not _LINUX:
        yield
        return
    _undumpable.append(not _undumpable and linux.is_dumpable())
    changed = _undumpable[0]
    if changed and len(_undumpable) == 1:
        linux.set_dumpable(False)
    try:
        yield
    finally:
        _undumpable.pop()
        if changed and not _undumpable:
            linux.set_dumpable(True)
