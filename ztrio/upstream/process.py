"""One run of a foreign server: its warden, its pipes, what it writes to stderr, and the proof of its death.

What is started is a warden (`warden.py`), which starts the server and outlives nobody. Everything about the server is
learned from it over one socket, in words, and everything is asked of it the same way; when this process ends, the
socket does, and the warden kills. Nothing here uses a thread.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final, Self

import trio

from ztrio.upstream.words import Command, Death, how_it_ended

__all__ = ["STDERR_KEPT", "ServerProcess"]

STDERR_KEPT: Final = 64 * 1024
"""Bytes of stderr that are kept, the last ones."""

_WARDEN: Final = str(Path(__file__).with_name("warden.py"))
_ALL_DEAD: Final = (99, 98)  # what a warden exits with; 98 where it could not be a subreaper
_CHUNK: Final = 65536
_REAP: Final = 1.0  # seconds for a warden that has said its last word to exit


class ServerProcess:
    """A server that was started. Made by `start`.

    Attributes:
        epoch: Number of this generation.
        pid: Process id of the program that was started; 0 where it could not be.
        stdin: File descriptor that it reads from; ours to write to. -1 once closed.
        stdout: File descriptor that it writes to; ours to read from.
        started: Set when it runs, or could not be started.
        failure: Why it could not be started; None while it could.
        dead: Set when its process tree is proven dead, or its warden is gone.
    """

    def __init__(
        self, epoch: int, process: trio.Process, sock: socket.socket, stdin: int, stdout: int, stderr: int
    ) -> None:
        self.epoch = epoch
        self.pid = 0
        self.stdin = stdin
        self.stdout = stdout
        self.failure: OSError | None = None
        self.started = trio.Event()
        self.exited = trio.Event()
        self.dead = trio.Event()
        self._warden = process
        self._sock = sock
        self._stderr = stderr
        self._tail = bytearray()
        self._rung = "group"
        # What the warden said of the program's end, as `waitpid` has it.
        self._status: int | None = None
        # The warden has said that nobody is left.
        self._all_dead = False
        self._asked_at: float | None = None

    @classmethod
    async def start(cls, command: Command, epoch: int) -> Self:
        """Start a server.

        Args:
            command: What.
            epoch: Its number.

        Raises:
            OSError: not even its warden can be started.
        """
        ends: list[int] = []
        ours, theirs = socket.socketpair()
        try:
            for _ in range(3):
                ends += os.pipe()
            in_read, in_write, out_read, out_write, err_read, err_write = ends
            given = (theirs.fileno(), in_read, out_write, err_write)
            process = await trio.lowlevel.open_process(
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
        environment = dict(os.environ) if command.env is None else dict(command.env)
        ours.sendall(json.dumps([command.argv, environment]).encode() + b"\n")
        for fd in (in_write, out_read, err_read):
            os.set_blocking(fd, False)
        ours.setblocking(False)
        return cls(epoch, process, ours, in_write, out_read, err_read)

    # ---- tasks

    async def run(self) -> None:
        """Listen to the warden and drain stderr until everything is over."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._drain)
                nursery.start_soon(self._listen)
                await self.dead.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.kill()
            with trio.move_on_after(_REAP, shield=True):
                await self._warden.wait()
            if self._warden.returncode is None:
                self._warden.kill()
            self._drain_now()

    def close(self) -> None:
        """Let go of every descriptor. Only when `run` has ended and nobody reads or writes any more."""
        self._sock.close()
        self.close_stdin()
        os.close(self.stdout)
        os.close(self._stderr)

    async def _listen(self) -> None:
        words = b""
        while not self.dead.is_set():
            await trio.lowlevel.wait_readable(self._sock)
            try:
                chunk = self._sock.recv(_CHUNK)
            except BlockingIOError:
                continue
            except ConnectionError:
                chunk = b""
            *lines, words = (words + chunk).split(b"\n")
            for line in lines:
                self._heard(line.decode().split())
            if not chunk:
                self._over()

    def _heard(self, words: list[str]) -> None:
        match words:
            case ["started", pid, rung]:
                self.pid, self._rung = int(pid), rung
                self.started.set()
            case ["failed", number]:
                self.failure = OSError(int(number), os.strerror(int(number)))
                self._all_dead = True
                self._over()
            case ["exit", status]:
                self._status = int(status)
                self.exited.set()
            case ["dead"]:
                self._all_dead = True
                self._over()

    def _over(self) -> None:
        self.started.set()
        self.exited.set()
        self.dead.set()

    async def _drain(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._stderr)
            if not self._drain_now():
                return

    def _drain_now(self) -> bool:
        """Read what there is of stderr; False at its end."""
        for _ in range(16):
            try:
                chunk = os.read(self._stderr, _CHUNK)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not chunk:
                return False
            self._tail += chunk
            del self._tail[:-STDERR_KEPT]
        return True

    # ---- what it is

    @property
    def alive(self) -> bool:
        """Whether the program that was started runs, as far as is known."""
        return not self.exited.is_set()

    def stderr_tail(self) -> str:
        """The end of what it wrote to stderr."""
        return self._tail.decode(errors="replace")

    def death(self, *, expected: bool, why: str | None = None) -> Death:
        """What is known of its end.

        Args:
            expected: Whether we ended it.
            why: Why, where that is not said by its status.
        """
        status, how = how_it_ended(self._status)
        if self.failure is not None:
            how = f"could not be started: {self.failure.strerror}"
        seconds = None if self._asked_at is None else round(trio.current_time() - self._asked_at, 4)
        return Death(
            epoch=self.epoch,
            status=status,
            how=how if why is None else why,
            stderr_tail=self.stderr_tail(),
            proven=self._all_dead and self._rung == "job-init",
            proof={"rung": self._rung, "pid": self.pid, "seconds": seconds},
            expected=expected,
        )

    # ---- its end

    async def discard(self) -> None:
        """Read and throw away what it writes while it is stopped, so that it cannot be stuck in that."""
        while True:
            await trio.lowlevel.wait_readable(self.stdout)
            try:
                if not os.read(self.stdout, _CHUNK):
                    return
            except BlockingIOError:
                continue
            except OSError:
                return

    def close_stdin(self) -> None:
        """Let its stdin end."""
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1

    def terminate(self) -> None:
        """Send SIGTERM to its process group."""
        self._say(b"T")

    def give_up(self) -> None:
        """Do not wait for the proof of its death any longer; `death` says whether there was one."""
        self._over()

    def kill(self) -> None:
        """Kill everything."""
        if self._asked_at is None:
            self._asked_at = trio.current_time()
        self._say(b"K")

    def _say(self, word: bytes) -> None:
        try:
            self._sock.send(word)
        except OSError:
            pass  # its warden is gone, and with it everything
