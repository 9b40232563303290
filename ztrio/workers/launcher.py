"""The process between supervisor and fork server: it chooses the rung, makes the namespaces, and cleans up.

The supervisor's runtime has threads and starts processes from any of them, so neither may it unshare anything nor may a
parent-death signal be tied to it. The launcher is started like any worker (its own session, the lifeline that kills it
when the supervisor ends) and has one thread all its life. It tries the rungs of the containment ladder by doing them,
and forks:

    launcher ── keeper        pidns only: PID 1 of the namespace all workers are below; does nothing
             ├─ mourner       cgroup only: kills everybody in the groups of jobs when the launcher has ended
             └─ fork server   loads the tools, forks workers; gets SIGKILL when the launcher ends

The fork server is deliberately not PID 1: workers are PID 1 of theirs, and libraries that notice a fork by a changed
process id (OpenSSL's random numbers, for one) must notice it.

When the fork server ends, the launcher kills what is left, sees it dead, and ends with an agreed status: a last proof
for workers whose own went down with the fork server.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Final, NoReturn

from ztrio.workers import cgroups, control
from ztrio.workers.fork_server import serve
from ztrio.workers.job_init import AGREED, kill_all_children
from ztrio.workers.linux import set_parent_death_signal
from ztrio.workers.namespaces import enter_pid_namespace, use_as_subreaper
from ztrio.workers.prelude import close_all_but, hang_on, prepare_streams, reset_signals
from ztrio.workers.trials import try_rungs

__all__ = ["NO_RUNG", "main"]

NO_RUNG: Final = 3
"""Exit status: none of the rungs works."""


def main(control_fd: int, lifeline_fd: int) -> NoReturn:
    """Run the launcher.

    Args:
        control_fd: The inherited control socket.
        lifeline_fd: The inherited read end of the pipe whose end kills this process.
    """
    for fd in (control_fd, lifeline_fd):
        os.set_inheritable(fd, False)
    hang_on(lifeline_fd)
    reset_signals()
    prepare_streams()
    sock = socket.socket(fileno=control_fd)
    received = control.receive(sock)
    if received is None or not isinstance(received[0], control.Launch):
        os._exit(1)
    launch = received[0]
    rung, trials = try_rungs(launch.rungs, cgroup=launch.cgroup, try_all=launch.try_all)
    control.send(sock, control.Launched(rung, trials))
    if rung is None:
        os._exit(NO_RUNG)
    keeper = None
    if rung == "pidns":
        enter_pid_namespace()
        keeper = _fork_keeper()
    else:
        use_as_subreaper()
        if rung == "cgroup":
            assert launch.cgroup is not None
            _fork_mourner(Path(launch.cgroup))
    server = _fork_server(sock, rung, lifeline_fd)
    sock.close()
    _wait_for(server)
    if keeper is not None:
        os.kill(keeper, signal.SIGKILL)
        os.waitpid(keeper, 0)  # returns when the namespace is empty
    kill_all_children()
    os._exit(AGREED)


def _wait_for(server: int) -> None:
    # Whatever is re-parented to the launcher is reaped on the way.
    while os.wait()[0] != server:
        pass


def bind_to_parent(parent: int) -> None:
    """End with the parent, from now on and also when it has ended before this call.

    Args:
        parent: A pidfd of the parent, from before the fork.
    """
    set_parent_death_signal(signal.SIGKILL)
    poll = select.poll()
    poll.register(parent, select.POLLIN)
    if poll.poll(0):
        os._exit(1)
    os.close(parent)


def _fork_keeper() -> int:
    me = os.pidfd_open(os.getpid())
    keeper = os.fork()
    if keeper == 0:
        try:
            bind_to_parent(me)
            # Workers of a dead fork server are re-parented to the keeper: nobody has to reap them.
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            # What the supervisor waits for the end of must not be held open here.
            close_all_but(0, 1, 2)
            while True:
                signal.pause()
        finally:
            os._exit(1)
    os.close(me)
    return keeper


def _fork_mourner(group: Path) -> None:
    """Fork the process that kills everybody in the groups of all jobs when the launcher has ended, however it did.

    On the other complete rungs the kernel's parent-death signals and namespaces do that. Out of a group they do not
    reach what has made a session of its own, and the lifeline kills launcher and fork server in one step.
    """
    me = os.pidfd_open(os.getpid())
    if os.fork() == 0:
        try:
            os.setsid()  # out of the group that the lifeline kills
            close_all_but(me)
            poll = select.poll()
            poll.register(me, select.POLLIN)
            poll.poll()
            cgroups.kill(group)
        finally:
            os._exit(1)
    os.close(me)


def _fork_server(sock: socket.socket, rung: str, lifeline: int) -> int:
    me = os.pidfd_open(os.getpid())
    server = os.fork()
    if server == 0:
        try:
            bind_to_parent(me)
            serve(sock, rung, lifeline)
        except BaseException:  # noqa: BLE001, ASYNC103 - not under trio; the end of the process follows whatever it was
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
        finally:
            os._exit(1)
    os.close(me)
    return server
