"""What every driver needs: start markers, the processes behind them, samples, and the clock. Standard library only.

Death is seen through pidfds that are opened when a process announces itself: a pid alone may be another process by
the time one looks. "Dead" is what the kernel says of the process, reaped or not.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = [
    "EXPECTED",
    "Listener",
    "Samples",
    "Tree",
    "Unsupported",
    "announced",
    "judge",
    "living",
    "now",
    "pss",
    "supported",
    "version_of",
]

now = time.perf_counter_ns
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: struct ucred, unix(7)


class Unsupported(Exception):
    """The subject has no way to do this case; the text says what it lacks."""


class Samples:
    """What a round found.

    Attributes:
        values: Metric -> samples in the metric's unit (nanoseconds, bytes), or one rate.
        counts: What else happened, by name: `dropped` samples, calls that `hung`, processes `alive` when the caller
            resumed, `survivors` after the bound.
        notes: What is worth a sentence, each once.
    """

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {}
        self.counts: dict[str, int] = {}
        self.notes: list[str] = []
        self.facts: dict[str, Any] = {}

    def add(self, metric: str, *values: float) -> None:
        """Keep samples of a metric."""
        self.values.setdefault(metric, []).extend(values)

    def count(self, name: str, number: int = 1) -> None:
        """Count an incident; with 0, say that it was looked for."""
        self.counts[name] = self.counts.get(name, 0) + number

    def note(self, text: str) -> None:
        """Keep a sentence."""
        if text not in self.notes:
            self.notes.append(text)

    def as_dict(self) -> dict[str, Any]:
        """The answer to a `run` request."""
        return {"values": self.values, "counts": self.counts, "notes": self.notes, "facts": self.facts}


def living(pidfds: Iterable[int], within: float = 0.0) -> int:
    """How many of the processes live; with `within`, after waiting at most that many seconds for none to."""
    deadline = time.monotonic() + within
    poll = select.poll()
    left = set(pidfds)
    for pidfd in left:
        poll.register(pidfd, select.POLLIN)
    while left:
        ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        for pidfd, _ in ready:
            poll.unregister(pidfd)
            left.discard(pidfd)
        if not ready and time.monotonic() >= deadline:
            break
    return len(left)


class Tree:
    """The processes of one call that have announced themselves."""

    def __init__(self, *, track: bool = True) -> None:
        # Whether announcements are of processes that belong to the call alone.
        self._track = track
        # pid -> pidfd of what has announced itself and was not closed.
        self._pidfds: dict[int, int] = {}
        # How often each role was announced.
        self.roles: dict[str, int] = {}

    @property
    def pids(self) -> list[int]:
        """Their process ids."""
        return list(self._pidfds)

    def announce(self, role: str, pid: int) -> None:
        """Take in one announcement."""
        self.roles[role] = self.roles.get(role, 0) + 1
        if self._track and role != "finished" and pid != os.getpid() and pid not in self._pidfds:
            try:
                self._pidfds[pid] = os.pidfd_open(pid)
            except ProcessLookupError:
                pass  # dead already

    def alive(self, within: float = 0.0) -> int:
        """How many are alive; with `within`, after waiting at most that many seconds for none to be."""
        return living(self._pidfds.values(), within)

    def kill(self) -> None:
        """SIGKILL to each that is alive."""
        for pidfd in self._pidfds.values():
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def close(self) -> None:
        """Kill what is alive, wait briefly, and forget all."""
        self.kill()
        self.alive(within=2.0)
        for pidfd in self._pidfds.values():
            os.close(pidfd)
        self._pidfds.clear()


class Listener:
    """A datagram socket at which tools announce themselves, and the tree behind each token."""

    def __init__(self, folder: str) -> None:
        self.place = str(Path(folder) / "m")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(self.place)
        Path(self.place).chmod(0o777)  # workers may run as another user
        self._socket.setblocking(False)
        self.trees: dict[str, Tree] = {}
        self._tokens = 0

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self._socket.fileno()

    def expect(self, *, track: bool = True) -> tuple[str, Tree]:
        """A new token and the tree that will gather under it.

        Args:
            track: Whether who announces itself is the call's own process; not so where a server runs tools in itself.
        """
        self._tokens += 1
        token = f"t{self._tokens}"
        tree = self.trees[token] = Tree(track=track)
        return token, tree

    def drain(self) -> None:
        """Take in what has arrived; waits for nothing."""
        while True:
            try:
                text, extra, _, _ = self._socket.recvmsg(256, socket.CMSG_SPACE(_CREDENTIALS.size))
            except BlockingIOError:
                return
            pid = next(
                (
                    _CREDENTIALS.unpack(data[: _CREDENTIALS.size])[0]
                    for level, kind, data in extra
                    if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS)
                ),
                0,
            )
            token, _, role = text.decode().partition(" ")
            tree = self.trees.get(token)
            if tree is not None:
                tree.announce(role, pid)

    def wait(self, tree: Tree, roles: Iterable[str], within: float) -> bool:
        """Block until each role has been announced; whether that was within so many seconds."""
        deadline = time.monotonic() + within
        while not announced(tree, roles):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            select.select([self], [], [], left)
            self.drain()
        return True

    def forget(self, token: str) -> None:
        """Kill what is left of a call, and forget it."""
        tree = self.trees.pop(token, None)
        if tree is not None:
            tree.close()

    def close(self) -> None:
        """Kill everything and stop listening."""
        for token in list(self.trees):
            self.forget(token)
        self._socket.close()
        Path(self.place).unlink(missing_ok=True)


EXPECTED = {
    "sleeping": ["tool"],
    "cpu": ["tool"],
    "ignoring": ["tool"],
    "forking": ["child", "child", "child", "tool"],
    "daemon": ["daemon", "tool"],
}
"""Variant of `cancel` -> the announcements that say that its tool is under way."""


def announced(tree: Tree, roles: Iterable[str]) -> bool:
    """Whether each role was announced as often as it is named."""
    wanted = list(roles)
    return all(tree.roles.get(role, 0) >= wanted.count(role) for role in wanted)


def judge(samples: Samples, tree: Tree, cancelled: int, resumed: int, linger: float) -> None:
    """Keep how long a cancelled caller waited, how long until its tree was dead, and what is still alive.

    Args:
        samples: Where to.
        tree: The call's processes, no longer announced to.
        cancelled: When the cancel was issued, nanoseconds.
        resumed: When the caller went on, nanoseconds.
        linger: Seconds to wait for those that are alive; what is alive then is a survivor.
    """
    alive = tree.alive()
    samples.count("alive", alive)
    samples.add("resume", resumed - cancelled)
    left = tree.alive(within=linger) if alive else 0
    if left == 0:
        samples.add("dead", (now() if alive else resumed) - cancelled)
    samples.count("survivors", left)


def pss(pid: int) -> int:
    """The process's proportional set size in bytes: private pages, and its share of the shared ones."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise OSError("no Pss line")


def version_of(distribution: str) -> str:
    """The installed version of a distribution, or a word where it runs from its source tree."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - slow, and used once

    try:
        return version(distribution)
    except PackageNotFoundError:
        return "source tree"


def supported(request: dict[str, Any], cases: Iterable[str], *, files: bool = True, durable: bool = False) -> None:
    """Refuse a case that the driver does not have, or that needs files, sessions or durability where there is none."""
    if not files and (request["case"], request["variant"]) == ("call", "file"):
        raise Unsupported("it knows neither outputs nor sessions")
    if not durable and (request["case"], request.get("variant")) == ("call", "durable"):
        raise Unsupported("it has no durable transactions")
    # A `host` is what the driver of the case `orphans` starts.
    if {"host": "orphans"}.get(request["case"], request["case"]) not in cases:
        raise Unsupported(f"it has nothing that corresponds to {request['case']}")
