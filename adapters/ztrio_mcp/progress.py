"""Progress of one call as MCP notifications: never after the end, and no more of them than a client can use.

A tool may report a million times a second. The call's callback only remembers the latest report; one task sends what
is there, waits out an interval, and sends again. So there is at most one report in memory, one being written, and
`INTERVAL` between two. Reports that do not grow are dropped, because MCP says that progress must increase (2025-11-25,
Progress).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

__all__ = ["INTERVAL", "ProgressPump", "Send"]

INTERVAL: Final = 0.05
"""Seconds between two notifications of one call."""

Send = Callable[[float, float | None, str | None], Awaitable[None]]
"""Writes one notification: progress, total, message."""


class ProgressPump:
    """Sends the latest report of one call.

    Args:
        send: Writes one notification.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        # The newest report not sent yet.
        self._latest: tuple[float, float | None, str | None] | None = None
        # The largest progress reported; only grows.
        self._highest = float("-inf")
        # Set by a report and by the end; replaced when the task has seen it.
        self._woken = trio.Event()
        # Set once; the task sends what there is and returns.
        self._ended = trio.Event()

    def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Remember a report; the call's `on_progress`."""
        if progress > self._highest:
            self._highest = progress
            self._latest = (progress, total, message)
            self._woken.set()

    def end(self) -> None:
        """Let `run` send the last report and return."""
        self._ended.set()
        self._woken.set()

    async def run(self) -> None:
        """Send reports until the end."""
        while True:
            await self._woken.wait()
            self._woken = trio.Event()
            if self._latest is not None:
                latest, self._latest = self._latest, None
                await self._send(*latest)
            if self._ended.is_set():
                return
            with trio.move_on_after(INTERVAL):
                await self._ended.wait()
