"""The worker's end of its socket: what a worker says to the supervisor, and hears from it."""

from __future__ import annotations

import math
import os
import threading
import time
from typing import Final

from ztrio.workers.failures import encodable
from ztrio.workers.wire import Frame, FrameDecoder, Progress, Started, encode_frame

__all__ = ["Channel"]

_CHUNK: Final = 64 * 1024  # bytes
_PROGRESS_RATE: Final = 50.0  # Progress frames per second in the long run; what comes beyond is dropped
_PROGRESS_BURST: Final = 100.0  # so that only a flood loses any, and never a tool that reports a step before a long one
_MAX_MESSAGE: Final = 1000  # characters of a progress message
_STARTED: Final = encode_frame(Started())


class Channel:
    """The worker's end of its socket. Forked copies of the process are mute.

    Args:
        fd: The socket, blocking; a mere descriptor, because making a socket object costs a fork fifty pages.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._decoder = FrameDecoder()
        self._pid = os.getpid()
        # Frames from several threads must not be mixed.
        self._lock = threading.Lock()
        # Progress frames that may be sent now, and when that was last counted (`time.monotonic`).
        self._progress_credit = _PROGRESS_BURST
        self._progress_at = time.monotonic()

    @property
    def mine(self) -> bool:
        """False in a copy of the process that the tool forked."""
        return os.getpid() == self._pid

    def take_over(self) -> None:
        """This process, a fork of the one that made the channel, is the worker now."""
        self._pid = os.getpid()

    def send(self, frame: Frame) -> None:
        """Send a frame.

        Raises:
            OSError: nobody listens.
            ProtocolError: the frame is too large.
        """
        if self.mine:
            self._write(encode_frame(frame))

    def start(self) -> None:
        """Send a `Started` frame without a problem, as `send` does."""
        if self.mine:
            self._write(_STARTED)

    def _write(self, data: bytes) -> None:
        with self._lock:
            while data:
                data = data[os.write(self._fd, data) :]

    def receive(self) -> Frame | None:
        """Wait for a frame; None at the end of the stream.

        Raises:
            ProtocolError: the other side sent something else.
        """
        while (frame := self._decoder.next_frame()) is None:
            try:
                chunk = os.read(self._fd, _CHUNK)
            except ConnectionError:
                return None
            if not chunk:
                return None
            self._decoder.feed(chunk)
        return frame

    def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Send progress, unless there was a flood of it just now.

        Raises:
            ValueError: a number is not finite.
        """
        progress, total = float(progress), None if total is None else float(total)
        if not math.isfinite(progress) or not math.isfinite(total or 0.0):
            raise ValueError("progress and total must be finite numbers")
        now = time.monotonic()
        earned = (now - self._progress_at) * _PROGRESS_RATE
        self._progress_credit, self._progress_at = min(_PROGRESS_BURST, self._progress_credit + earned), now
        if self._progress_credit < 1:
            return
        self._progress_credit -= 1
        text = None if message is None else encodable(str(message)[:_MAX_MESSAGE])
        try:
            self.send(Progress(progress=progress, total=total, message=text))
        except OSError:
            pass  # nobody listens: the call is over, and this process about to be
