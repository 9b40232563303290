"""The init above a foreign server: a small program of its own, which ends with everything that the server started.

It is a child subreaper, so whatever the server starts, however it daemonises, becomes its child when its own parent
ends. Killing children until there are none (`ECHILD`) therefore empties the tree, and `ECHILD` is the proof: it says so
on its socket and exits with the agreed status. The other end of the socket is the gateway's. When that is gone, however
it went, the socket reads as ended or broken, and everything is killed; whatever else goes wrong here has the same end.

Where there are no subreapers the tree is the server's process group, and its end is seen by nobody being left in that.
A descendant that made its own session is not seen then, and the gateway does not call such an end proven.

It is the parent and not PID 1 of a namespace, because a server must not see that it is contained. It uses as little of
the standard library as can be, runs without the package on its path, and starts in about twenty milliseconds: `json`
and `socket` alone would double that.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import sys

AGREED = 99
"""Exit status of a warden that has seen all its descendants dead."""
PARTIAL = 98
"""The same where it can see only the server's process group."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_CHILDREN = f"/proc/self/task/{os.getpid()}/children"  # proc(5)
_SOON, _LATE = 1, 50  # milliseconds between looks while something dies
_LOOK = 50  # milliseconds between looks at a process group whose leader is gone
_LISTENED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


def _prctl(option: int, argument: int) -> bool:
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0) == 0)


def _default_signals() -> None:
    """What was ignored or blocked above is nothing that a server should start with."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            pass  # the C library keeps some for itself
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _start(argv: list[bytes], environment: dict[bytes, bytes], stdio: tuple[int, ...]) -> int:
    """Fork the server. In the child this does not return.

    Raises:
        OSError: it cannot be executed.
    """
    parent = os.getpid()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        failure = errno.EINVAL
        try:
            os.setsid()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            _default_signals()
            for fd, mine in enumerate(stdio):
                os.dup2(mine, fd)
            os.closerange(3, write)
            os.closerange(write + 1, 1 << 20)
            os.execvpe(argv[0], argv, environment)
        except OSError as error:
            failure = error.errno or failure
        finally:
            os.write(write, str(failure).encode())
            os._exit(127)
    os.close(write)
    failed = os.read(read, 16)
    os.close(read)
    if failed:
        os.waitpid(pid, 0)
        raise OSError(int(failed), "")
    return pid


class _Warden:
    def __init__(self, sock: int, leader: int, woken: int, complete: bool) -> None:
        self._sock = sock
        self._leader = leader
        self._woken = woken
        self._complete = complete
        # The server's first process has been reaped: its number counts only as that of a group, and only while
        # somebody is in it.
        self._reaped = False

    def say(self, words: str) -> None:
        try:
            os.write(self._sock, f"{words}\n".encode())
        except OSError:
            pass  # nobody is there to hear it

    def reap(self) -> bool:
        """Reap whoever has ended; whether anybody is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return not self._complete and self._signal(self._leader, 0)
            if pid == 0:
                return True
            if pid == self._leader:
                self._reaped = True
                self.say(f"exit {status}")

    def _groups(self) -> set[int]:
        """The process groups of our children. None has been reaped, so each is the group of somebody beneath us."""
        if not self._complete:
            return {self._leader}
        with open(_CHILDREN, "rb") as file:  # noqa: PTH123 - pathlib costs its import
            return {os.getpgid(int(pid)) for pid in file.read().split()}

    def _signal(self, group: int, number: int) -> bool:
        """Send a signal; whether anybody is there."""
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # somebody who has become another user: nothing more can be done, and nobody says that he is dead
        return True

    def signal_all(self, number: int) -> None:
        for group in self._groups():
            self._signal(group, number)

    def kill(self) -> None:
        """Kill children, and those who become children thereby, until there are none."""
        pause = _SOON
        while self.reap():
            self.signal_all(signal.SIGKILL)
            self._wait(pause)
            pause = min(2 * pause, _LATE)

    def run(self) -> None:
        """Listen until nobody is left."""
        while self.reap():
            timeout = _LOOK if self._reaped and not self._complete else None
            if self._sock in self._wait(timeout, self._sock):
                if os.read(self._sock, 1) != b"T":
                    return  # to be killed, or nobody is there any more
                self.signal_all(signal.SIGTERM)

    def _wait(self, milliseconds: int | None, *fds: int) -> list[int]:
        """Wait until one of these can be read, or somebody has ended; those that can be read."""
        poll = select.poll()
        for fd in (self._woken, *fds):
            poll.register(fd, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(milliseconds)]
        if self._woken in ready:
            os.read(self._woken, 512)
        return ready


def _asked(sock: int) -> tuple[list[bytes], dict[bytes, bytes]]:
    """What to start: the number of arguments, of bytes, and then the arguments and the environment.

    It comes by the socket, because a list of processes shows arguments to everybody.
    """
    head = data = b""
    while not head.endswith(b"\n"):
        head += os.read(sock, 1) or sys.exit(1)  # not a byte too much: a word to kill may follow
    count, length = map(int, head.split())
    while len(data) < length:
        data += os.read(sock, length - len(data)) or sys.exit(1)
    words = data.split(b"\0")[:-1]
    environment = {name: value for name, _, value in (word.partition(b"=") for word in words[count:])}
    return words[:count], environment


def main() -> None:
    """`warden.py SOCKET STDIN STDOUT STDERR`."""
    sock, *stdio = map(int, sys.argv[1:])
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    argv, environment = _asked(sock)
    complete = _prctl(_PR_SET_CHILD_SUBREAPER, 1) and os.access(_CHILDREN, os.R_OK)
    woken, wake = os.pipe()
    for fd in (woken, wake):
        os.set_blocking(fd, False)
    for number in _LISTENED:
        signal.signal(number, lambda *_: None)  # the gateway says when it ends
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        leader = _start(argv, environment, tuple(stdio))
    except OSError as error:
        os.write(sock, f"failed {error.errno}\n".encode())
        os._exit(AGREED)
    for fd in stdio:
        os.close(fd)
    warden = _Warden(sock, leader, woken, complete)
    warden.say(f"started {leader} {'job-init' if complete else 'group'}")
    try:
        warden.run()
    finally:  # also when the socket is broken: it held what the gateway had not read when it was killed
        warden.kill()
        warden.say("dead")
        os._exit(AGREED if complete else PARTIAL)


if __name__ == "__main__":
    main()
