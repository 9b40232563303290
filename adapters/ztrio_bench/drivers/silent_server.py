"""A server on stdin and stdout whose tools answer late, or never; run by its path. Standard library only.

`late` answers `seconds` after it was called, however many calls wait already; `never` does not. It forgets a call of
`never` at once: what grows is then what stands in front of it.
"""

from __future__ import annotations

import heapq
import json
import os
import select
import time
from typing import Any

__all__ = ["serve"]

_SCHEMA = {"type": "object", "properties": {"seconds": {"type": "number"}}}
_TOOLS = [{"name": name, "description": f"Answer {name}.", "inputSchema": _SCHEMA} for name in ("late", "never")]


def serve() -> None:
    """Serve until stdin ends."""
    due: list[tuple[float, int, dict[str, Any]]] = []
    rest, count = b"", 0
    while True:
        wait = max(0.0, due[0][0] - time.monotonic()) if due else None
        if select.select([0], [], [], wait)[0]:
            chunk = os.read(0, 65536)
            if not chunk:
                return
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                message = json.loads(line)
                count += 1
                answer, seconds = _answer(message)
                if answer is not None:
                    heapq.heappush(due, (time.monotonic() + seconds, count, answer))
        while due and due[0][0] <= time.monotonic():
            os.write(1, json.dumps(heapq.heappop(due)[2]).encode() + b"\n")


def _answer(message: dict[str, Any]) -> tuple[dict[str, Any] | None, float]:
    """What is answered, and after how many seconds."""
    if "id" not in message or "method" not in message:
        return None, 0.0
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    params = message.get("params") or {}
    seconds = 0.0
    if message["method"] == "initialize":
        answer["result"] = {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "silent", "version": "1"},
        }
    elif message["method"] == "tools/list":
        answer["result"] = {"tools": _TOOLS}
    elif message["method"] == "ping":
        answer["result"] = {}
    elif message["method"] != "tools/call":
        answer["error"] = {"code": -32601, "message": f"no such method: {message['method']}"}
    elif params["name"] == "late":
        seconds = params["arguments"]["seconds"]
        answer["result"] = {"content": [{"type": "text", "text": "late"}]}
    else:
        return None, 0.0
    return answer, seconds


if __name__ == "__main__":
    serve()
