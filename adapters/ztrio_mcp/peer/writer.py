"""The one writer of a connection: whole frames, in order, claimed just before their first byte.

A frame is written by whoever sends it as long as the pipe takes it: that is one system call, where waking a task costs
a turn of the event loop. What the pipe does not take is left to a task of the connection's own, so no caller's
cancellation can leave half a frame (P3), and whoever sends never waits.

The pipe is asked before each frame whether it takes anything. Otherwise a frame would be claimed, and with that called
sent, although it then waits at a full pipe and could still be taken back. It also tells beforehand that nobody reads
any more, so nothing is claimed for a server that is gone.

A stream in which a frame is stuck half-way can carry nothing else, and one whose reader takes nothing for long is not
going to do better: both are given up after a while (R38), and nobody waits for them with a lock in hand.
"""

from __future__ import annotations

import errno
import os
import select
from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from ztrio_mcp.peer.messages import Ending, Exchange, Outgoing, PeerQueueFull

__all__ = ["Writer"]

_BURST: Final = 64  # frames that are written before others have their turn


class Writer:
    """Writes frames to a file descriptor that does not block, and is written to by nobody else.

    Args:
        fd: The descriptor.
        queue_limit: Frames that may wait; as many again that go past them.
        stall: Seconds after which a stream that takes no byte is given up.
        dropped: Told of an exchange whose claim does not hold.
        broken: Told that nothing can be written any more, at least once.

    Attributes:
        written: Frames written so far.
    """

    def __init__(
        self,
        fd: int,
        *,
        queue_limit: int,
        stall: float,
        dropped: Callable[[Exchange], None],
        broken: Callable[[Ending], None],
    ) -> None:
        self.written = 0
        self._fd = fd
        self._limit = queue_limit
        self._stall = stall
        self._dropped = dropped
        self._broken = broken
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        # What is left of a frame that was claimed; it goes before everything else.
        self._rest: bytes | memoryview = b""
        # Frames that go past those in the queue; like those, none has been claimed. Each at most `queue_limit` long.
        self._front: deque[Outgoing] = deque()
        self._queue: deque[Outgoing] = deque()
        # The task has the queue, or `_flush` is under way: nobody else may write. True whenever anything is left.
        self._busy = False
        # When the stream last took something, or what is left began to wait; has a meaning while anything is left.
        self._since = 0.0
        # Set when something was left to the task.
        self._left = trio.Event()

    @property
    def queued(self) -> int:
        """Frames that wait, with the one that is half written."""
        return len(self._queue) + len(self._front) + bool(self._rest)

    def send(self, frame: Outgoing, *, front: bool = False) -> None:
        """Write a frame, or queue it.

        Args:
            frame: The frame.
            front: Whether it goes past those that are queued.

        Raises:
            PeerQueueFull: too many are queued. The frame was not claimed, and is not kept.
        """
        queue = self._front if front else self._queue
        if len(queue) >= self._limit:
            raise PeerQueueFull(f"{len(queue)} frames wait to be written")
        queue.append(frame)
        if not self._busy:
            self._flush()
        elif self.queued == 1:  # the others were withdrawn, this one has only begun to wait
            self._since = trio.current_time()

    def withdraw(self, exchange: Exchange) -> bool:
        """Take the frame of an exchange back; whether it was still there."""
        for frame in self._queue:
            if frame.exchange is exchange:
                self._queue.remove(frame)
                return True
        return False

    def clear(self) -> None:
        """Give up what is left."""
        self._rest = b""
        self._front.clear()
        self._queue.clear()

    async def run(self) -> None:
        """Write what the pipe did not take at once, for as long as it takes something."""
        while True:
            await self._left.wait()
            try:
                with trio.move_on_at(self._since + self._stall):
                    await trio.lowlevel.wait_writable(self._fd)
            except (OSError, trio.ClosedResourceError) as error:
                self._broken(Ending("broken", f"writing failed: {error}"))
                return
            moved = self._flush()
            if not moved and self._busy and trio.current_time() >= self._since + self._stall:
                self._broken(Ending("write_stalled", f"no byte was taken for {self._stall:g} s"))
            if not self._busy:
                self._left = trio.Event()

    def _flush(self) -> bool:
        """Write what the pipe takes now; whether it took anything, or a claim did not hold."""
        waited, moved = self._busy, False
        self._busy = True
        try:
            for _ in range(_BURST):
                if not self._rest:
                    frame = self._next()
                    if frame is None:
                        break
                    moved = True
                    if not self._claimed(frame):
                        continue
                    self._rest = frame.data
                count = self._write()
                if not count:
                    break
                moved = True
                if count < len(self._rest):
                    self._rest = memoryview(self._rest)[count:]
                    break
                self._rest = b""
                self.written += 1
        finally:
            self._busy = bool(self._rest or self._front or self._queue)
            if self._busy:
                if moved or not waited:
                    self._since = trio.current_time()
                self._left.set()
        return moved

    def _write(self) -> int:
        """Write of the frame that was claimed what the pipe takes; the number of bytes."""
        try:
            return os.write(self._fd, self._rest)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._broken(Ending("broken", f"writing failed: {error.strerror}"))
            return 0

    def _next(self) -> Outgoing | None:
        """The next frame, which may be claimed now; None when there is none, or the pipe takes nothing."""
        queue = self._front or self._queue
        if not queue:
            return None
        events = self._poll.poll(0)
        if not events:
            return None
        if events[0][1] & ~select.POLLOUT:
            self._broken(Ending("broken", f"writing failed: {os.strerror(errno.EPIPE)}"))
            return None
        return queue.popleft()

    def _claimed(self, frame: Outgoing) -> bool:
        """Ask the claim, and mark the exchange as sent."""
        exchange = frame.exchange
        try:
            holds = frame.claim is None or frame.claim()
        except BaseException:
            if exchange is not None:
                self._dropped(exchange)
            raise
        if exchange is not None:
            if holds:
                exchange.sent = True
            else:
                self._dropped(exchange)
        return holds
