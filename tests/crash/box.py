"""A workspace with a store in which servers live one after another, each killed from outside."""

import errno
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.crash.checker import Seen, check, descendants
from ztrio.store import KEY_LIFETIME

ROOT = Path(__file__).parents[2]
SCHEDULED = os.environ.get("ZTRIO_CRASH_PROFILE", "ci") == "scheduled"
PATIENCE = 30.0  # seconds for anything that takes milliseconds


def seed() -> int:
    """The seed of this run; printed, so that a failure can be repeated."""
    number = int(os.environ.get("ZTRIO_CRASH_SEED", "0")) or random.randrange(1, 2**31)
    print(f"ZTRIO_CRASH_SEED={number}")
    return number


class Server:
    """A server process, as its killer sees it.

    Args:
        pid: Its process id.
        sock: Where it says what happens.
        note: Gets what its callers ask and are told.
        clock: Seconds that its clock is ahead.
    """

    def __init__(self, pid: int, sock: socket.socket, note: Callable[[dict[str, Any]], None], clock: float) -> None:
        self.pid = pid
        self.clock = clock
        self._pidfd = os.pidfd_open(pid)
        self._sock = sock
        self._note = note
        self._rest = b""
        self._ended = False

    def say(self, **words: Any) -> None:
        """Say something to it."""
        self._sock.sendall(json.dumps(words).encode() + b"\n")

    def wait_for(self, *kinds: str, seconds: float = PATIENCE) -> dict[str, Any] | None:
        """The next message of one of these kinds; None when its end comes first, or the time is over."""
        until = time.monotonic() + seconds
        while True:
            while b"\n" in self._rest:
                line, _, self._rest = self._rest.partition(b"\n")
                message: dict[str, Any] = json.loads(line)
                self._note(message)
                if message["type"] in kinds:
                    return message
            left = until - time.monotonic()
            if self._ended or left <= 0 or not select.select([self._sock], [], [], left)[0]:
                return None
            try:
                data = self._sock.recv(65536)
            except ConnectionResetError:
                data = b""
            self._ended = not data
            self._rest += data

    def kill(self) -> None:
        """SIGKILL, and take what it had said."""
        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self.join()

    def join(self) -> None:
        """Wait for its end, and take what it had said."""
        self.wait_for("nothing")
        assert select.select([self._pidfd], [], [], PATIENCE)[0]
        self.close()

    def close(self) -> None:
        """Let go of it."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._sock.close()
            self._pidfd = -1


class Box:
    """A place where servers are killed.

    Args:
        root: An empty directory.
        callers: How many callers a server has.
        dice: Chooses.
    """

    def __init__(self, root: Path, *, callers: int, dice: random.Random) -> None:
        self.workspace = root.resolve() / "ws"
        self.store = self.workspace / ".ztrio" / "state.db"
        self.callers = callers
        self.dice = dice
        # Everything that callers were told, ever.
        self.answers: list[dict[str, Any]] = []
        # Caller → kind and attempt of a call with an idempotency key that has no answer yet.
        self._asked: dict[str, list[str]] = {}
        # Whether the store could not be written at times.
        self.troubled = False
        self.lives = 0
        self.kills = 0
        self._servers: list[Server] = []
        for caller in range(callers):
            place = self.workspace / f"c{caller}"
            place.mkdir(parents=True)

    def __enter__(self) -> Self:
        self._control, theirs = socket.socketpair()
        with theirs:
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            command = [sys.executable, "-m", "tests.crash.driver", str(theirs.fileno())]
            self._nest = subprocess.Popen(command, cwd=ROOT, env=environment, pass_fds=[theirs.fileno()])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for pid, _ in descendants(self._nest.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError as gone:
                if gone.errno != errno.ESRCH:
                    raise
        for server in self._servers:
            server.close()
        self._control.close()
        self._nest.wait(PATIENCE)

    def fork(self, role: str, **order: Any) -> Server:
        """Start a process."""
        ours, theirs = socket.socketpair()
        with theirs:
            order |= {"role": role, "workspace": str(self.workspace), "store": str(self.store), "life": self.lives}
            socket.send_fds(self._control, [json.dumps(order).encode()], [theirs.fileno()])
            pid = int(self._control.recv(64))
        self.lives += 1
        server = Server(pid, ours, self._note, order.get("clock", 0.0))
        self._servers.append(server)
        server.say()  # not before, else it might have ended already
        return server

    def start(self, **order: Any) -> Server:
        """Start a server in what the last one left, and wait until it would answer."""
        server = self.fork("serve", callers=self.callers, **order)
        up = server.wait_for("up")
        assert up is not None, "it did not start"
        assert [] == up["locked"]
        return server

    def begin(self, server: Server, **order: Any) -> None:
        """Let the callers call."""
        # Nobody repeats a call by a key that is outlived by now: that would be another call.
        outlived = server.clock >= KEY_LIFETIME
        again = {} if order.get("script") or outlived else dict(self._asked)
        server.say(seed=self.dice.random(), again=again, **order)

    def _note(self, message: dict[str, Any]) -> None:
        if message["type"] not in ("asked", "answer"):
            return
        caller = str(message["caller"])
        if message["type"] == "asked":
            if message["kind"] == "publish":
                self._asked[caller] = [message["kind"], message["attempt"]]
        else:
            self.answers.append(message)
            self._asked.pop(caller, None)

    def kill(self, server: Server) -> None:
        """Kill the server; everything that it had started ends by itself."""
        server.kill()
        self.kills += 1
        self.nobody_is_left()

    def nobody_is_left(self) -> None:
        """Assert that no worker is alive, or soon none is."""
        until = time.monotonic() + 5.0
        while (left := descendants(self._nest.pid)) and time.monotonic() < until:
            time.sleep(0.005)
        assert [] == left

    def below(self, server: Server) -> list[int]:
        """What a server has started."""
        return [pid for pid, _ in descendants(server.pid)]

    def check(self) -> Seen:
        """Assert everything that is promised. While nobody calls."""
        return check(self.workspace, self.store, self.answers, callers=self.callers, troubled=self.troubled)
