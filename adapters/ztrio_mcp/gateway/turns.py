"""Places on a server: so many calls run on it at once, and the others wait in the order in which they came.

A place is asked for where a call is read from its wire, without a checkpoint. Trio's limiter is asked by a task, when
it first runs; but the calls of one chunk are tasks of one batch, and trio runs a batch in any order, so whoever came
first would not go first.
"""

from __future__ import annotations

from collections import OrderedDict
from types import TracebackType
from typing import Self

import trio

__all__ = ["Turn", "Turns"]


class Turn:
    """A place among the calls that run, or in the queue for it. A context that gives it back.

    Attributes:
        granted: Whether the call may run.
        refused: Whether the queue was full, so that it never may.
    """

    __slots__ = ("_called", "_turns", "granted", "refused")

    def __init__(self, turns: Turns) -> None:
        self.granted = False
        self.refused = False
        self._turns = turns
        # Set when it is granted, of one that had to wait.
        self._called: trio.Event | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.give_back()

    async def wait(self) -> None:
        """Wait until it is granted."""
        if self.granted:
            return
        self._called = trio.Event()
        await self._called.wait()

    def give_back(self) -> None:
        """Let the next one have it, or leave the queue; a second time it does nothing."""
        self._turns._give_back(self)

    def _grant(self) -> None:
        self.granted = True
        if self._called is not None:
            self._called.set()


class Turns:
    """The places on one server.

    Args:
        running: Calls that run at once.
        waiting: Calls that wait for one of these places; one more is refused.
    """

    def __init__(self, running: int, waiting: int) -> None:
        self.running = running
        self.waiting = waiting
        self._free = running
        # In the order in which they came; empty while a place is free.
        self._queue: OrderedDict[Turn, None] = OrderedDict()

    def take(self) -> Turn:
        """Take a place, or one in the queue."""
        turn = Turn(self)
        if self._free:
            self._free -= 1
            turn._grant()
        elif len(self._queue) < self.waiting:
            self._queue[turn] = None
        else:
            turn.refused = True
        return turn

    def _give_back(self, turn: Turn) -> None:
        if not turn.granted:
            self._queue.pop(turn, None)
            return
        turn.granted = False
        if self._queue:
            self._queue.popitem(last=False)[0]._grant()
        else:
            self._free += 1
