"""A mail server for agents that takes its time: what `ztrio wrap` is tried with.

    ztrio wrap --timeout 1 -- python examples/slow_mail/server.py outbox.txt

It speaks MCP 2025-11-25 over stdio with the standard library alone. `send_mail` needs three seconds, longer than the
example's clients wait, and then writes a line to the outbox; `list_sent` reads that. Nothing of it knows about ztrio.
"""

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

OUTBOX = Path(sys.argv[1] if len(sys.argv) > 1 else "outbox.txt")
DELAY = float(sys.argv[2]) if len(sys.argv) > 2 else 3.0  # seconds

TEXT = {"type": "string"}
TOOLS = [
    {
        "name": "send_mail",
        "description": f"Send a mail. Takes {DELAY:g} seconds.",
        "inputSchema": {
            "type": "object",
            "properties": {"to": TEXT, "subject": TEXT},
            "required": ["to", "subject"],
        },
    },
    {
        "name": "list_sent",
        "description": "List the mails that were sent.",
        "inputSchema": {"type": "object", "properties": {}},
        "annotations": {"readOnlyHint": True},
    },
]

_writing = threading.Lock()


def send(message: dict[str, Any]) -> None:
    """Write one message."""
    with _writing:
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def call(name: str, arguments: dict[str, str]) -> str:
    """Do what a tool does."""
    if name == "send_mail":
        time.sleep(DELAY)
        with OUTBOX.open("a") as outbox:
            outbox.write(f"{arguments['to']}: {arguments['subject']}\n")
        return "sent"
    return OUTBOX.read_text() if OUTBOX.exists() else ""


def answer(request: dict[str, Any]) -> None:
    """Answer one request."""
    method, params = request["method"], request.get("params") or {}
    if method == "initialize":
        result: dict[str, Any] = {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "slow-mail", "version": "1"},
        }
    elif method == "tools/list":
        result = {"tools": TOOLS}
    elif method == "tools/call":
        text = call(params["name"], params.get("arguments") or {})
        result = {"content": [{"type": "text", "text": text}]}
    elif method == "ping":
        result = {}
    else:
        send({"id": request["id"], "error": {"code": -32601, "message": f"no method {method}"}})
        return
    send({"id": request["id"], "result": result})


def main() -> None:
    """Serve until the input ends; each request in a thread of its own."""
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request and "method" in request:
            threading.Thread(target=answer, args=(request,), daemon=True).start()


if __name__ == "__main__":
    main()
