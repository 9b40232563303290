"""The client that ways are measured with: it writes a line and waits for a line, and has nothing else to do.

What it costs is in every figure, so it costs little: no event loop, no thread, no library between it and the pipes. A
request is made before the clock starts, and an answer is looked into after it has stopped. That it polls before it
reads, because a server may hang, is a microsecond.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from ztrio_bench.drivers.kit import now

__all__ = ["Client", "Failed", "last_words", "open_client"]

_START: Final = 60.0  # seconds for the first answer: a proxy first starts a server, and some import for seconds
_ANSWER: Final = 20.0  # seconds for any other
_END: Final = 5.0  # seconds for a process to end by itself when its input has
_LOG: Final = "stderr.log"
_HELLO: Final = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "benchmark", "version": "1"},
}


class Failed(Exception):
    """A way broke: it hung, closed its output, or answered what it must not. The text says which, and no path."""


class Client:
    """A client on the pipes of a process. Made by `open_client`.

    Attributes:
        pid: The process.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid = process.pid
        self._process = process
        self._in, self._out = process.stdin.fileno(), process.stdout.fileno()
        self._poll = select.poll()
        self._poll.register(self._out, select.POLLIN | select.POLLHUP)
        # All of one length, so that no id is the beginning of another.
        self._id = 1_000_000
        # What was received beyond the last whole line.
        self._rest = b""

    @classmethod
    def start(cls, command: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> Self:
        """Start the process in the folder; what it says on stderr goes into a file there."""
        with (folder / _LOG).open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
                env=environment,
                bufsize=0,
                start_new_session=True,
            )
        return cls(process)

    def greet(self) -> None:
        """Shake hands as clients of protocol 2025-11-25 do.

        Raises:
            Failed: there is nobody to shake hands with.
        """
        self.ask("initialize", _HELLO, within=_START)
        self._write(_line({"method": "notifications/initialized"}))

    def end(self) -> None:
        """End the process, politely and then not, and whatever is in its session's group."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END)
        except subprocess.TimeoutExpired:
            pass  # it is killed now
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # nobody is left
        self._process.wait(_END)
        self._process.stdout.close()

    def begin(self, method: str, params: object) -> int:
        """Send a request; its id."""
        self._id += 1
        self._write(_line({"id": self._id, "method": method, "params": params}))
        return self._id

    def ask(self, method: str, params: object, *, within: float = _ANSWER) -> dict[str, Any]:
        """Send a request and wait for its result; no other request may be under way.

        Raises:
            Failed: there is none, or it is an error.
        """
        number = self.begin(method, params)
        while True:
            for message in self.messages(within):
                if message.get("id") == number and "method" not in message:
                    return _result(message)

    def trip(self, params: object) -> tuple[int, dict[str, Any]]:
        """Call a tool; how many nanoseconds that took from the first byte written to the last one read, and its result.

        Raises:
            Failed: the call did not succeed.
        """
        self._id += 1
        line = _line({"id": self._id, "method": "tools/call", "params": params})
        mark = str(self._id).encode()
        answer = b""
        started = now()
        self._write(line)
        while not (answer.endswith(b"\n") and mark in answer):  # a notification may come before it
            answer += self._read(_ANSWER)
        ended = now()
        for part in answer.splitlines():
            message = json.loads(part)
            if message.get("id") == self._id:
                result = _result(message)
                if result.get("isError"):
                    raise Failed(f"the tool failed: {str(result.get('content'))[:200]}")
                return ended - started, result
        raise Failed("an answer that is none of ours")

    def messages(self, within: float) -> list[dict[str, Any]]:
        """The messages that came, at least one, in at most so many seconds.

        Raises:
            Failed: none did, or there will be no more.
        """
        while b"\n" not in self._rest:
            self._rest += self._read(within)
        lines = self._rest.split(b"\n")
        self._rest = lines.pop()
        return [json.loads(line) for line in lines]

    def _write(self, line: bytes) -> None:
        try:
            os.write(self._in, line)  # far below what a pipe takes at once
        except BrokenPipeError:
            raise Failed("it closed its input") from None

    def _read(self, within: float) -> bytes:
        if not self._poll.poll(within * 1e3):
            raise Failed(f"it hung: no answer within {within:g} s")
        chunk = os.read(self._out, 65536)
        if not chunk:
            raise Failed("it closed its output")
        return chunk


def last_words(folder: Path) -> str:
    """What a process that was started in the folder said last on stderr; for the screen, since it may name paths."""
    try:
        lines = (folder / _LOG).read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1][:300] if lines else ""


def _line(message: Mapping[str, object]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n"


def _result(message: Mapping[str, Any]) -> dict[str, Any]:
    if "error" in message:
        raise Failed(f"an error instead of a result: {str(message['error'].get('message'))[:200]}")
    result: dict[str, Any] = message["result"]
    return result


@contextmanager
def open_client(command: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> Iterator[Client]:
    """A client that has shaken hands with what the command starts; on leaving, that is ended.

    Args:
        command: Program and arguments.
        folder: Current directory of the process, where it also leaves what it has to say.
        environment: All of its environment.

    Raises:
        Failed: it does not start.
    """
    client = Client.start(command, folder=folder, environment=environment)
    try:
        client.greet()
        yield client
    finally:
        client.end()
