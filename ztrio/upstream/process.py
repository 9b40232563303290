"""One run of a foreign server: its warden, its pipes, what it writes to stderr, and the proof of its death.

What is started is a warden (`warden.py`), which starts the server and outlives nobody. Everything about the server is
learned from it over one socket, in words, and everything is asked of it the same way; when this process ends, the
socket does, and the warden kills. Nobody waits for it, or ends it, with a thread.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final, Self

import trio

from ztrio.upstream.stderr import Tail
from ztrio.upstream.words import Command, Death, how_it_ended
from ztrio.workers.ladder import complete

__all__ = ["ServerProcess"]

_WARDEN: Final = str(Path(__file__).with_name("warden.py"))
_CHUNK: Final = 65536
_REAP: Final = 0.25  # seconds for a warden that has said its last word, or was killed, to exit


class ServerProcess:
    """A server that was started. Made by `start`, driven by `run`.

    Attributes:
        epoch: Number of this generation.
        pid: Process id of the program that was started; 0 where it could not be.
        stdin: File descriptor that it reads from, ours to write to without blocking. After `close_stdin` writing to it
            fails with EPIPE; the number stays ours until `close`.
        stdout: File descriptor that it writes to, ours to read from without blocking.
        started: Set when it runs, or could not be started.
        exited: Set when the program that was started has exited; what it started may run on.
        failure: Why it could not be started; None while it could.
        dead: Set when its process tree is proven dead, or nobody is left to prove it.
    """

    def __init__(
        self, command: Command, epoch: int, *, said: bytes, warden: trio.Process, sock: socket.socket, fds: list[int]
    ) -> None:
        self.epoch = epoch
        self.pid = 0
        self.stdin, self.stdout, self._stderr = fds
        self.failure: OSError | None = None
        self.started = trio.Event()
        self.exited = trio.Event()
        self.dead = trio.Event()
        self._warden = warden
        self._sock = sock
        self._program = command.argv[0]
        # What its warden has not been told yet of what it is to start.
        self._unsaid = said
        # Half a line from the warden.
        self._half = b""
        self._tail = Tail(self._stderr)
        self._stdin_open = True
        # Until the warden says otherwise.
        self._rung = "group"
        # What the warden said of the program's end, as `waitpid` has it.
        self._status: int | None = None
        # The warden has said that nobody is left.
        self._all_dead = False
        # When it was first asked to kill, and when it said that nobody was left.
        self._killed_at: float | None = None
        self._proven_at: float | None = None

    @classmethod
    async def start(cls, command: Command, epoch: int) -> Self:
        """Start a server. It has not been executed yet when this returns: see `started`.

        Args:
            command: What.
            epoch: Its number.

        Raises:
            OSError: not even its warden can be started, as when there is no such directory, or no warden could be told.
        """
        said = command.encoded()
        ours, theirs = socket.socketpair()
        ends: list[int] = []
        try:
            for _ in range(3):
                ends += os.pipe()
            in_read, in_write, out_read, out_write, err_read, err_write = ends
            given = (theirs.fileno(), in_read, out_write, err_write)
            warden = await trio.lowlevel.open_process(
                [sys.executable, "-I", "-S", _WARDEN, *map(str, given)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=given,
                cwd=command.cwd,
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            theirs.close()
            for fd in ends:
                os.close(fd)
            raise
        theirs.close()
        for fd in (in_read, out_write, err_write):
            os.close(fd)
        kept = [in_write, out_read, err_read]
        for fd in kept:
            os.set_blocking(fd, False)
        ours.setblocking(False)
        return cls(command, epoch, said=said, warden=warden, sock=ours, fds=kept)

    # ---- tasks

    async def run(self, kill_bound: float) -> None:
        """Listen to the warden and drain stderr until the tree is dead. Being cancelled kills it first.

        Args:
            kill_bound: Seconds that the proof is waited for after a cancellation.
        """
        try:
            await self._follow()
        finally:
            if not self.dead.is_set():
                self.kill()
                with trio.move_on_after(kill_bound, shield=True):
                    await self._follow()
                self.give_up()
            with trio.move_on_after(_REAP, shield=True):
                await self._warden.wait()
            if self._warden.returncode is None:  # what it waits for cannot be killed, and it is not needed any more
                self._warden.kill()
                with trio.move_on_after(_REAP, shield=True):
                    await self._warden.wait()
            self._tail.drain_now()

    async def wait(self) -> None:
        """Wait until the program that was started has exited."""
        await self.exited.wait()

    def close(self) -> None:
        """Let go of every descriptor. Only when `run` has ended and nobody reads or writes any more."""
        self._sock.close()
        for fd in (self.stdin, self.stdout, self._stderr):
            os.close(fd)

    async def _follow(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tail.drain)
            nursery.start_soon(self._converse)
            await self.dead.wait()
            nursery.cancel_scope.cancel()

    async def _converse(self) -> None:
        try:
            while self._unsaid:
                await trio.lowlevel.wait_writable(self._sock)
                self._unsaid = self._unsaid[self._sock.send(self._unsaid) :]
            while not self.dead.is_set():
                await trio.lowlevel.wait_readable(self._sock)
                chunk = self._sock.recv(_CHUNK)
                if not chunk:
                    break
                *lines, self._half = (self._half + chunk).split(b"\n")
                for line in lines:
                    self._heard(line.decode().split())
        except ConnectionError:
            pass  # its warden was killed
        self._over()

    def _heard(self, words: list[str]) -> None:
        match words:
            case ["started", pid, rung]:
                self.pid, self._rung = int(pid), rung
                self.started.set()
            case ["failed", number]:
                self.failure = OSError(int(number), os.strerror(int(number)), self._program)
                self._over()
            case ["exit", status]:
                self._status = int(status)
                self.exited.set()
            case ["dead"]:
                self._all_dead = True
                self._proven_at = trio.current_time()
                self._over()

    def _over(self) -> None:
        self.started.set()
        self.exited.set()
        self.dead.set()

    # ---- what it is

    @property
    def alive(self) -> bool:
        """Whether the program that was started runs, as far as is known."""
        return not self.exited.is_set()

    def stderr_tail(self) -> str:
        """The end of what it wrote to stderr."""
        return self._tail.text()

    def death(self, *, expected: bool, why: str | None = None) -> Death:
        """What is known of its end.

        Args:
            expected: Whether we ended it.
            why: How it ended, where its status does not say it.
        """
        if self.failure is not None:
            return Death.unstarted(self.epoch, self.failure)
        status, how = how_it_ended(self._status)
        seconds = None
        if self._killed_at is not None and self._proven_at is not None:
            seconds = round(self._proven_at - self._killed_at, 4)
        return Death(
            epoch=self.epoch,
            status=status,
            how=how if why is None else why,
            stderr_tail=self.stderr_tail(),
            proven=self._all_dead and (complete(self._rung) or not self.pid),
            proof={"rung": self._rung, "pid": self.pid, "seconds": seconds},
            expected=expected,
        )

    # ---- its end

    async def discard(self) -> None:
        """Read and throw away what it writes from here on, so that it cannot be stuck in that."""
        while True:
            await trio.lowlevel.wait_readable(self.stdout)
            try:
                if not os.read(self.stdout, _CHUNK):
                    return
            except BlockingIOError:
                continue  # nothing after all

    def close_stdin(self) -> None:
        """Let its stdin end.

        The descriptor is not closed but becomes that of a pipe without a reader: whoever still writes to it is told so,
        and cannot hit what the number would stand for next.
        """
        if not self._stdin_open:
            return
        try:
            reader, writer = os.pipe()
        except OSError:
            return  # there are no descriptors left; signals will tell it
        trio.lowlevel.notify_closing(self.stdin)
        os.set_blocking(writer, False)
        os.close(reader)
        os.dup2(writer, self.stdin, inheritable=False)
        os.close(writer)
        self._stdin_open = False

    def terminate(self) -> None:
        """Send SIGTERM to its process group, and to what has left that."""
        self._say(b"T")

    def kill(self) -> None:
        """Kill everything."""
        if self._killed_at is None:
            self._killed_at = trio.current_time()
        self._say(b"K")

    def give_up(self) -> None:
        """Do not wait for the proof of its death any longer; `death` says whether there was one."""
        self._over()

    def _say(self, word: bytes) -> None:
        if self._unsaid:
            self._warden.kill()  # it would take the word for a part of the command
            self._all_dead = True  # nothing was started
            return
        try:
            self._sock.send(word)
        except OSError:
            pass  # its warden is gone, and with it everything
