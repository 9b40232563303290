"""A raw MCP client on the pipes of a stdio server, the same for every server: what differs is the server.

It blocks, has no library and no event loop, so a round trip is one write, the server, and one read.
"""

from __future__ import annotations

import json
import select
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ztrio_bench.drivers.kit import Listener, Samples, now

__all__ = ["Server", "cancels", "round_trips", "timeouts"]

START = 30.0  # seconds for a server to answer its first request


class Server:
    """A server process and its pipes."""

    def __init__(self, command: Sequence[str], folder: str) -> None:
        with (Path(folder) / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=folder, bufsize=0
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._send = self._process.stdin
        self._receive = self._process.stdout
        self._ids = 0
        # What was read and is not a whole line yet.
        self._rest = b""

    def __enter__(self) -> Self:
        try:
            self.ask(
                "initialize",
                {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}},
                within=START,
            )
            self._write({"method": "notifications/initialized"})
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the server: politely, then not."""
        self._send.close()
        try:
            self._process.wait(3)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._receive.close()

    def _write(self, message: dict[str, Any]) -> None:
        self._send.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def begin(self, method: str, params: dict[str, Any]) -> int:
        """Send a request; its id."""
        self._ids += 1
        self._write({"id": self._ids, "method": method, "params": params})
        return self._ids

    def cancel(self, request_id: int) -> None:
        """Send the notification that the client no longer wants an answer."""
        self._write({"method": "notifications/cancelled", "params": {"requestId": request_id, "reason": "benchmark"}})

    def answer(self, request_id: int, within: float) -> dict[str, Any] | None:
        """Wait for an answer, at most so many seconds."""
        deadline = time.monotonic() + within
        while True:
            while b"\n" in self._rest:
                line, _, self._rest = self._rest.partition(b"\n")
                if b'"id"' in line:
                    message: dict[str, Any] = json.loads(line)
                    if message.get("id") == request_id:
                        return message
            if not select.select([self._receive], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            chunk = self._receive.read(65536)
            if not chunk:
                raise RuntimeError("the server closed its output")
            self._rest += chunk

    def ask(self, method: str, params: dict[str, Any], *, within: float) -> dict[str, Any]:
        """Send a request and wait for its answer.

        Raises:
            RuntimeError: there was none, or it is an error.
        """
        message = self.answer(self.begin(method, params), within)
        if message is None or "error" in message:
            raise RuntimeError(f"{method}: {'no answer' if message is None else message['error']}")
        return message


def round_trips(command: Sequence[str], request: dict[str, Any]) -> dict[str, Any]:
    """Time calls of the tool `empty`."""
    samples = Samples()
    with Server(command, request["folder"]) as server:
        deadline = time.monotonic() + request["seconds"]
        done = -20  # to warm up
        while done < request["count"] and (done <= 0 or time.monotonic() < deadline):
            start = now()
            message = server.ask("tools/call", {"name": "empty", "arguments": {}}, within=10.0)
            if done >= 0:
                samples.add("latency", now() - start)
            if message["result"].get("isError"):
                raise RuntimeError(f"the tool failed: {message['result']}")
            done += 1
    return samples.as_dict()


def timeouts(command: Sequence[str], request: dict[str, Any], limit: float, seconds: float) -> dict[str, Any]:
    """Let calls run into the server's own limit for a tool that runs `seconds`; the clock starts with the request."""
    samples = Samples()
    listener = Listener(request["folder"])
    try:
        with Server(command, request["folder"]) as server:
            deadline = time.monotonic() + request["seconds"]
            done = 0
            while not done or (done < request["count"] and time.monotonic() < deadline):
                token, tree = listener.expect(track=False)
                start = now()
                request_id = server.begin(
                    "tools/call", {"name": "limited", "arguments": {"place": listener.place, "token": token}}
                )
                message = server.answer(request_id, request["patience"])
                if message is None:
                    samples.count("hung")
                samples.add("overshoot", max(0.0, now() - start - limit * 1e9))
                ran_on = listener.wait(tree, ["finished"], seconds + 0.5)
                samples.count("survivors", int(ran_on))
                if ran_on:
                    samples.note("the tool ran on to its end in the server after the answer")
                listener.forget(token)
                done += 1
    finally:
        listener.close()
    return samples.as_dict()


def cancels(command: Sequence[str], request: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Cancel calls of a tool that would run `seconds`, and see whether it does run on to its end."""
    samples = Samples()
    listener = Listener(request["folder"])
    try:
        with Server(command, request["folder"]) as server:
            deadline = time.monotonic() + request["seconds"]
            done = 0
            while not done or (done < request["count"] and time.monotonic() < deadline):
                token, tree = listener.expect(track=False)
                arguments = {"place": listener.place, "token": token, "seconds": seconds}
                request_id = server.begin("tools/call", {"name": "sleeping", "arguments": arguments})
                if not listener.wait(tree, ["tool"], request["start_bound"]):
                    samples.count("dropped")
                    continue
                cancelled = now()
                server.cancel(request_id)
                message = server.answer(request_id, seconds + 0.5)
                if message is not None:
                    samples.add("resume", now() - cancelled)
                else:
                    samples.note("a cancelled request gets no answer, so nobody learns when it ended")
                ran_on = listener.wait(tree, ["finished"], 0.5)
                samples.count("survivors", int(ran_on))
                if ran_on:
                    samples.note("the tool ran on to its end after the cancel")
                listener.forget(token)
                done += 1
    finally:
        listener.close()
    return samples.as_dict()
