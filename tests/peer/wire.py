"""The other side of a peer, byte by byte."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import termios
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import msgspec
import trio
from trio.testing import wait_all_tasks_blocked

from ztrio_mcp.peer import Ending, Exchange, Id, Peer, Response

CAPACITY = 64 * 1024  # bytes of a Linux pipe
LARGE = b'"' + b"x" * (3 * CAPACITY) + b'"'  # a value that is more than the pipe holds


@attrs.define
class Recorder:
    """A handler that keeps everything, as `("request", number, method, params)` and the like."""

    seen: list[tuple[Any, ...]] = attrs.field(factory=list)

    def request(self, number: Id, method: str, params: msgspec.Raw | None) -> None:
        self.seen.append(("request", number, method, None if params is None else bytes(params)))

    def notification(self, method: str, params: msgspec.Raw | None) -> None:
        self.seen.append(("notification", method, None if params is None else bytes(params)))

    def skipped(self, why: str, sample: bytes) -> None:
        self.seen.append(("skipped", why, sample))


@attrs.define
class Told:
    """What the callbacks of an exchange were told."""

    responses: list[Response] = attrs.field(factory=list)
    endings: list[tuple[bool, str]] = attrs.field(factory=list)
    progress: list[bytes] = attrs.field(factory=list)

    def responded(self, response: Response) -> None:
        self.responses.append(response)

    def ended(self, exchange: Exchange, ending: Ending) -> None:
        self.endings.append((exchange.sent, ending.reason))

    def progressed(self, params: msgspec.Raw) -> None:
        self.progress.append(bytes(params))

    @property
    def result(self) -> bytes:
        [response] = self.responses
        assert response.result is not None
        assert (response.error, response.malformed) == (None, "")
        return bytes(response.result)

    @property
    def malformed(self) -> str:
        [response] = self.responses
        assert (response.result, response.error) == (None, None)
        return response.malformed


@attrs.define
class Wire:
    """A peer and the other ends of its pipes."""

    peer: Peer
    handler: Recorder
    stdin: int
    stdout: int
    taken: int | None
    given: int | None
    ending: Ending | None = None

    def __attrs_post_init__(self) -> None:
        for fd in (self.taken, self.given):
            assert fd is not None
            os.set_blocking(fd, False)

    def close(self) -> None:
        self.stop_taking()
        self.stop_giving()
        os.close(self.stdin)
        os.close(self.stdout)

    def stop_taking(self) -> None:
        if self.taken is not None:
            os.close(self.taken)
            self.taken = None

    def stop_giving(self) -> None:
        if self.given is not None:
            os.close(self.given)
            self.given = None

    def ask(self, method: str = "m", params: bytes | None = None, **options: Any) -> tuple[Exchange, Told]:
        told = Told()
        options.setdefault("on_progress", told.progressed)
        return self.peer.request(method, params, on_response=told.responded, on_ended=told.ended, **options), told

    def fill(self) -> None:
        """Make the pipe to the other side full, with blank lines."""
        assert os.write(self.stdin, b"\n" * (2 * CAPACITY)) == CAPACITY

    def take(self, count: int = 1 << 20) -> bytes:
        """What has been written and not taken yet."""
        assert self.taken is not None
        data = b""
        while len(data) < count:
            try:
                chunk = os.read(self.taken, count - len(data))
            except BlockingIOError:
                break
            if not chunk:
                break
            data += chunk
        return data

    def taken_messages(self) -> list[Any]:
        return messages(self.take())

    async def take_all(self) -> bytes:
        """Everything that is written, until nothing more comes."""
        data = self.take()
        await wait_all_tasks_blocked()
        while chunk := self.take():
            data += chunk
            await wait_all_tasks_blocked()
        return data

    async def give(self, data: bytes) -> None:
        """Send bytes to the peer, and wait until it has seen them."""
        assert self.given is not None
        while data:
            try:
                data = data[os.write(self.given, data) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self.given)
        await wait_all_tasks_blocked()

    def over(self) -> str | None:
        """Why `run` has returned, if it has."""
        return None if self.ending is None else self.ending.reason

    async def run(self) -> None:
        self.ending = await self.peer.run()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Callable[[], None]]:
        """The peer runs; what is yielded cancels it."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.run)
            await wait_all_tasks_blocked()
            yield nursery.cancel_scope.cancel
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()


def messages(data: bytes) -> list[Any]:
    """The messages of whole frames; blank lines are what the pipe was filled with."""
    assert not data or data.endswith(b"\n")
    return [json.loads(line) for line in data.split(b"\n") if line]


def answer(number: int, result: bytes = b"{}") -> bytes:
    return b'{"jsonrpc":"2.0","id":%d,"result":%b}\n' % (number, result)


def in_the_pipe(fd: int | None) -> int:
    assert fd is not None
    return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4))[0])
