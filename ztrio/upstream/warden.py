"""The init above a foreign server: a small program of its own, which ends with everything that the server started.

It is a child subreaper, so whatever the server starts, however it daemonises, becomes its child when its own parent
ends. Killing children until there are none (`ECHILD`) therefore empties the tree, and `ECHILD` is the proof: it says so
on its socket and exits with the agreed status. The other end of the socket is the gateway's. When that is gone, however
it went, the socket reads as ended, and everything is killed.

Only the standard library, and little of it: it runs without the package on its path and starts in a hundredth of a
second. It is the parent and not PID 1 of a namespace, because a server must not see that it is contained.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import sys

AGREED = 99
"""Exit status of a warden that has seen all its descendants dead."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_PAUSE = 0.001  # seconds between looks while something dies
_LISTENED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


def _prctl(option: int, argument: int) -> bool:
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0) == 0)


def _children() -> list[int]:
    """Our children. One thread reads and reaps, so an empty list is exact."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:  # noqa: PTH123 - pathlib costs its import
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def _start(argv: list[str], environment: dict[str, str], stdio: tuple[int, int, int], parent: int) -> int:
    """Fork the server. In the child this does not return."""
    read, write = os.pipe2(os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            for number in _LISTENED:
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            for fd, mine in enumerate(stdio):
                os.dup2(mine, fd)
            os.closerange(3, write)
            os.closerange(write + 1, 65536)
            os.execvpe(argv[0], argv, environment)
        except OSError as error:
            os.write(write, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(write)
    failed = os.read(read, 16)
    os.close(read)
    if failed:
        os.waitpid(pid, 0)
        raise OSError(int(failed), os.strerror(int(failed)))
    return pid


class _Warden:
    def __init__(self, sock: socket.socket, leader: int) -> None:
        self._sock = sock
        self._leader = leader

    def say(self, words: str) -> None:
        try:
            self._sock.sendall(f"{words}\n".encode())
        except OSError:
            pass  # nobody is there to hear it

    def reap(self) -> bool:
        """Reap whoever has ended; whether anybody is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._leader:
                self.say(f"exit {status}")

    def kill(self) -> None:
        """Kill children, and those who become children thereby, until there are none."""
        while self.reap():
            found = _children() or [self._leader]
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)  # unreaped, so the number is theirs
                except ProcessLookupError:
                    pass
            select.select([], [], [], _PAUSE)

    def terminate(self) -> None:
        """Ask the server's group to end; once its leader is gone, whoever is left."""
        try:
            os.killpg(self._leader, signal.SIGTERM)
        except (ProcessLookupError, PermissionError):
            for pid in _children():
                os.kill(pid, signal.SIGTERM)

    def run(self, woken: int) -> None:
        """Listen until nobody is left."""
        while self.reap():
            readable, _, _ = select.select([self._sock.fileno(), woken], [], [])
            if woken in readable:
                os.read(woken, 512)
            if self._sock.fileno() in readable:
                word = self._sock.recv(1)
                if word == b"T":
                    self.terminate()
                else:  # to kill, or because nobody is there any more
                    self.kill()
                    return


def _asked(sock: socket.socket) -> tuple[list[str], dict[str, str]]:
    """What to start. It comes by the socket: a list of processes shows arguments to everybody."""
    with sock.makefile("rb", buffering=0) as file:
        argv, environment = json.loads(file.readline())
    return argv, environment


def main() -> None:
    """`warden.py SOCKET STDIN STDOUT STDERR`."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    stdio = (int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    argv, environment = _asked(sock)
    complete = _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    woken, wake = os.pipe()
    for fd in (woken, wake):
        os.set_blocking(fd, False)
    for number in _LISTENED:
        signal.signal(number, lambda *_: None)  # the gateway says when it ends
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        leader = _start(argv, environment, stdio, os.getpid())
    except OSError as error:
        sock.sendall(f"failed {error.errno}\n".encode())
        os._exit(AGREED)
    for fd in stdio:
        os.close(fd)
    warden = _Warden(sock, leader)
    warden.say(f"started {leader} {'job-init' if complete else 'group'}")
    warden.run(woken)
    warden.say("dead")
    os._exit(AGREED if complete else 98)


if __name__ == "__main__":
    main()
