"""The zygote: a process that has loaded the tools and does nothing but fork, one worker per call.

A fork takes a millisecond where starting Python and importing the tools takes a second, and what was loaded is shared.
The price is that forking copies one thread only. So loading must not have started another: the zygote counts, and is
refused naming the module that did. Numerical libraries, which start a pool when they are loaded, are told to have one
thread meanwhile.

Between the fork and the tool's code the worker gets a session of its own, loses every descriptor it should not have
(close-on-exec does nothing on fork), and gets random numbers of its own. The zygote never runs tool code itself and
never waits: it answers one message at a time from the supervisor, who watches the workers by their pidfds.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import time
import traceback
from typing import Final, NoReturn

from ztrio.workers import child, control
from ztrio.workers.child_channel import Channel
from ztrio.workers.job_init import KILL, guard, kill_all_children
from ztrio.workers.linux import drop_bounding_set, set_parent_death_signal
from ztrio.workers.namespaces import (
    leave_pid_namespace,
    own_pid_namespace,
    thread_count,
    unshare_pid_namespace,
    use_as_subreaper,
)
from ztrio.workers.prelude import close_all_but, flush, hang_on
from ztrio.workers.rehearsal import Rehearsal
from ztrio.workers.thread_watch import ThreadWatch
from ztrio.workers.wire import Boot

__all__ = ["serve"]

_ONE_THREAD: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_THREAD_LAG: Final = 0.1  # seconds that a thread which was joined may still be seen
_NEEDED: Final = {"job-init": 3, "cgroup": 3}  # descriptors that come with a `Spawn`; two on other rungs
_CHANNEL: Final = 3  # the worker's socket
_LIFELINE: Final = 4
_REHEARSALS: Final = 20  # specialising needs 8 runs, and a few more for what that finds


def serve(sock: socket.socket, rung: str, lifeline: int) -> NoReturn:
    """Load, say how that went, and fork until the supervisor hangs up.

    Args:
        sock: The control socket.
        rung: How workers are contained.
        lifeline: Read end of the pipe whose end kills a group; for rungs where nothing else does.
    """
    server = ForkServer(sock, rung, lifeline)
    if server.preload():
        server.run()
    os._exit(0)


class ForkServer:
    """See `serve`."""

    def __init__(self, sock: socket.socket, rung: str, lifeline: int) -> None:
        self._sock = sock
        self._rung = rung
        self._lifeline = lifeline
        self._tools: child.Tools = {}
        # Made when everything is loaded.
        self._rehearsal: Rehearsal
        # Worker's number → process id, for those that the supervisor waits for; of the guard on the rung `job-init`.
        self._workers: dict[int, int] = {}
        # pidfd → (number, process id) of those that have not ended; exactly these are polled, beside the socket.
        self._running: dict[int, tuple[int, int]] = {}
        self._poll = select.poll()
        # Opened before any foreign code runs. -1 where it is not needed.
        self._own_namespace = own_pid_namespace() if rung == "pidns" else -1

    def preload(self) -> bool:
        """Load everything; whether workers can be forked."""
        received = control.receive(self._sock, control.MAX_BOOT)
        if received is None or not isinstance(received[0], control.Boot):
            return False
        boot = received[0]
        before = {name: os.environ.get(name) for name in _ONE_THREAD}
        os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
        watch = ThreadWatch()
        sys.meta_path.insert(0, watch)
        try:
            wanted = Boot(modules=boot.modules, functions=boot.functions)
            problem = child.load(wanted, self._tools, loaded=watch.look)
        finally:
            sys.meta_path.remove(watch)
        # What a tool starts may use as many as it likes.
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        threads = _settled_thread_count()
        if self._rung == "job-init":
            use_as_subreaper()
        self._settle()
        flush()
        culprit = watch.culprit if threads > 1 else None
        control.send(self._sock, control.Preloaded(problem, threads, culprit))
        return problem is None and threads == 1

    def _settle(self) -> None:
        """Leave as little as possible to each worker: what it need not do, and pages that it need not copy."""
        if self._rung == "pidns":
            child.leave_on_term()
        prepare_for_reseeding()
        self._rehearsal = Rehearsal(simple=all(tool.binding.simple for tool in self._tools.values()))
        mute = Channel(-1)
        for _ in range(_REHEARSALS):
            self._rehearsal.run(mute)
        gc.collect()
        gc.freeze()

    def run(self) -> None:
        """Answer messages and tell who has ended, until the supervisor hangs up."""
        drop_bounding_set()  # once for all workers
        self._poll.register(self._sock, select.POLLIN)
        try:
            while True:
                for fd, _ in self._poll.poll():
                    if fd != self._sock.fileno():
                        self._tell_end(fd)
                    elif not self._answer():
                        return
        except BrokenPipeError:
            return

    def _answer(self) -> bool:
        received = control.receive(self._sock)
        if received is None:
            return False
        message, descriptors = received
        try:
            if isinstance(message, control.Spawn):
                self._spawn(message, descriptors)
            elif isinstance(message, control.Sweep):
                kill_all_children(self._workers.values())
                control.send(self._sock, control.Swept(message.job))
            elif isinstance(message, control.Reap):
                pid = self._workers.pop(message.job)
                if (message.job, pid) not in self._running.values():
                    os.waitpid(pid, 0)
        finally:
            for fd in descriptors:
                os.close(fd)
        return True

    def _tell_end(self, pidfd: int) -> None:
        job, pid = self._running.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        if job not in self._workers:
            os.waitpid(pid, 0)  # nobody waits for it
            return
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert info is not None  # without WNOHANG it waits, though not here
        status = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
        control.send(self._sock, control.Ended(job, status))

    def _spawn(self, spawn: control.Spawn, descriptors: tuple[int, ...]) -> None:
        job, namespace = spawn.job, None
        if len(descriptors) < _NEEDED.get(self._rung, 2):
            # The kernel leaves out what there is no room for.
            control.send(self._sock, control.NotBorn(job, "the fork server has too many files open"))
            return
        try:
            if self._rung == "pidns":
                pid, namespace = self._fork_in_namespace(spawn, descriptors)
            else:
                pid = os.fork()
                if pid == 0:
                    self._become_worker(spawn, descriptors)
        except OSError as error:
            control.send(self._sock, control.NotBorn(job, f"{error.strerror or error} ({self._rung})"))
            return
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            control.send(self._sock, control.NotBorn(job, error.strerror or str(error)))
            return
        self._workers[job] = pid
        self._running[pidfd] = job, pid
        self._poll.register(pidfd, select.POLLIN)
        control.send(self._sock, control.Born(job, namespace), (pidfd,))

    def _fork_in_namespace(self, spawn: control.Spawn, descriptors: tuple[int, ...]) -> tuple[int, int]:
        unshare_pid_namespace()
        try:
            pid = os.fork()
            if pid == 0:
                self._become_worker(spawn, descriptors)
        finally:
            # Also after a fork that failed. If this fails, no further worker could be made, and the zygote ends.
            namespace = leave_pid_namespace(self._own_namespace)
        return pid, namespace

    # ---- in the worker

    def _become_worker(self, spawn: control.Spawn, descriptors: tuple[int, ...]) -> NoReturn:
        try:
            channel, output, *special = descriptors
            if self._rung == "cgroup":
                os.write(special[0], b"0")  # cgroups(7): 0 is the process that writes
            set_parent_death_signal(KILL if self._rung == "job-init" else signal.SIGKILL)
            if self._rung == "job-init":
                guard(special[0])
                set_parent_death_signal(signal.SIGKILL)
            os.setsid()
            os.dup2(output, 1)
            os.dup2(output, 2)
            lifeline = -1
            if self._rung in ("cgroup", "group"):
                # A description of its own, because each has one owner that it signals.
                lifeline = os.open(f"/proc/self/fd/{self._lifeline}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            lifeline = _keep_only(channel, lifeline)
            if lifeline >= 0:
                hang_on(lifeline)
            reseed()
            gc.enable()
            worker = Channel(_CHANNEL)
            if not spawn.wanted:
                self._rehearsal.run(worker)
            child.serve_forked(worker, self._tools)
        except BaseException:  # noqa: BLE001, ASYNC103 - not under trio; the end of the process follows whatever it was
            traceback.print_exc()
            flush()
        finally:
            os._exit(1)


def _keep_only(channel: int, lifeline: int) -> int:
    """Close every descriptor but 0, 1, 2, the channel (as 3) and the lifeline (as 4, which is returned; or -1)."""
    # Above what they are to become, so that neither overwrites the other.
    channel = os.dup(channel) if channel <= _LIFELINE else channel
    lifeline = os.dup(lifeline) if 0 <= lifeline <= _LIFELINE else lifeline
    os.dup2(channel, _CHANNEL, inheritable=False)
    if lifeline < 0:
        close_all_but(0, 1, 2, _CHANNEL)
        return -1
    os.dup2(lifeline, _LIFELINE, inheritable=False)
    close_all_but(0, 1, 2, _CHANNEL, _LIFELINE)
    return _LIFELINE


def prepare_for_reseeding() -> None:
    """Before the forks: what saves them a part of `reseed`."""
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile._name_sequence = None  # type: ignore[attr-defined]
    ssl = sys.modules.get("ssl")
    if ssl is not None:
        ssl.RAND_bytes(1)  # OpenSSL gets ready when it is first used, which takes hundreds of pages


def reseed() -> None:
    """Give a forked process random numbers of its own, where Python does not (`random` sees to itself)."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    ssl = sys.modules.get("ssl")
    if ssl is not None:
        ssl.RAND_add(os.urandom(32), 32.0)


def _settled_thread_count() -> int:
    """Threads of this process, without one that is just ending."""
    deadline = time.monotonic() + _THREAD_LAG
    while (count := thread_count()) > 1 and time.monotonic() < deadline:
        time.sleep(0.001)
    return count
