"""What the supervisor and the fork server say to each other: one datagram per message, with descriptors.

The socket pair is of type SOCK_SEQPACKET, so a message arrives as a whole or not at all and needs no framing, and the
end of one side is seen by the other. No tool code ever holds either end.
"""

from __future__ import annotations

import array
import os
import socket
from typing import Final

import msgspec

__all__ = [
    "MAX_BOOT",
    "Boot",
    "Born",
    "Ended",
    "Launch",
    "Launched",
    "Message",
    "NotBorn",
    "Preloaded",
    "Reap",
    "Spawn",
    "Sweep",
    "Swept",
    "Trial",
    "make_pair",
    "receive",
    "send",
]

_MAX_DESCRIPTORS: Final = 4
_MAX_MESSAGE: Final = 64 * 1024  # bytes
MAX_BOOT: Final = 4 * 2**20
"""Bytes of the largest `Boot`, which holds the names of all tools; received once."""


class Trial(msgspec.Struct, frozen=True):
    """What came of trying one rung of the containment ladder.

    Args:
        rung: Its name.
        works: Whether a whole little tree could be ended and was seen to be.
        reason: What happened instead, or empty.
    """

    rung: str
    works: bool
    reason: str = ""


class Launch(msgspec.Struct, frozen=True, tag=True):
    """Supervisor → launcher, first.

    Args:
        rungs: Rungs to try, the strongest first.
        cgroup: The cgroup in which to make one per job, or None where there is none.
        try_all: Go on after the first that works, to tell people about the rest.
    """

    rungs: list[str]
    cgroup: str | None = None
    try_all: bool = False


class Launched(msgspec.Struct, frozen=True, tag=True):
    """Launcher → supervisor: what was tried, and the first rung that works, or None; then it has ended.

    Args:
        rung: The rung, or None.
        trials: In the order of trying.
    """

    rung: str | None
    trials: list[Trial]


class Boot(msgspec.Struct, frozen=True, tag=True):
    """Supervisor → fork server, first: what to load, see `wire.Boot`."""

    modules: list[tuple[str, str | None]]
    functions: list[tuple[str, str]]


class Preloaded(msgspec.Struct, frozen=True, tag=True):
    """Fork server → supervisor: everything is loaded; or why not, and then it has ended.

    Args:
        problem: Why something could not be loaded, or None.
        threads: More than one thread: forking would lose them.
        culprit: The module whose loading started one, as far as that is known.
    """

    problem: str | None = None
    threads: int = 1
    culprit: str | None = None


class Spawn(msgspec.Struct, frozen=True, tag=True):
    """Supervisor → fork server: make a worker.

    With it come the worker's socket, the write end of its output pipe, and on the rung `job-init` the write end of the
    verdict pipe, on `cgroup` the `cgroup.procs` of its cgroup.

    Args:
        job: The worker's number, never used twice.
        wanted: Whether a call waits for it; then it must not take the time to rehearse.
    """

    job: int
    wanted: bool = False


class Born(msgspec.Struct, frozen=True, tag=True):
    """Fork server → supervisor: the worker is there. With it: its pidfd.

    Args:
        job: Its number.
        namespace: Inode number of its PID namespace, or None.
    """

    job: int
    namespace: int | None = None


class NotBorn(msgspec.Struct, frozen=True, tag=True):
    """Fork server → supervisor: there is no worker of this number."""

    job: int
    problem: str


class Ended(msgspec.Struct, frozen=True, tag=True):
    """Fork server → supervisor: a worker (on the rung `job-init` its guard) has ended; it stays unreaped until `Reap`.

    Args:
        job: The worker's number.
        status: Exit status, negative for the signal that ended it.
    """

    job: int
    status: int


class Sweep(msgspec.Struct, frozen=True, tag=True):
    """Supervisor → fork server, on the rung `job-init`: a guard was killed, so kill what was left to you.

    Args:
        job: The worker's number.
    """

    job: int


class Swept(msgspec.Struct, frozen=True, tag=True):
    """Fork server → supervisor: nobody is left who was re-parented to the fork server.

    Args:
        job: The worker's number.
    """

    job: int


class Reap(msgspec.Struct, frozen=True, tag=True):
    """Supervisor → fork server: the end is proven, or nobody waits for it; reap the worker as soon as it has ended."""

    job: int


Message = Launch | Launched | Boot | Preloaded | Spawn | Born | NotBorn | Ended | Sweep | Swept | Reap

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def make_pair() -> tuple[socket.socket, socket.socket]:
    """The two ends of a control socket."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        # The kernel takes as much of it as it allows; a large toolbox needs more than the usual.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_BOOT)
    return ends


def send(sock: socket.socket, message: Message, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message.

    Raises:
        OSError: nobody listens, or (a non-blocking socket) there is no room.
    """
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    sock.sendmsg([_encoder.encode(message)], rights)


def receive(sock: socket.socket, size: int = _MAX_MESSAGE) -> tuple[Message, tuple[int, ...]] | None:
    """Receive one message with its descriptors, which are close-on-exec; None at the end.

    Args:
        sock: Our end.
        size: Bytes of the largest message.

    Raises:
        OSError: a non-blocking socket has none.
        msgspec.MsgspecError: it is no message.
    """
    room = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)
    try:
        data, ancillary, _, _ = sock.recvmsg(size, room, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        return None
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    if not data:
        return None
    try:
        return _decoder.decode(data), tuple(descriptors)
    except msgspec.MsgspecError:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
