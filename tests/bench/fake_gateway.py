"""A stand-in for a gateway in front of a stdio server: `[--timeout S] [--forget N] -- COMMAND`.

A call of a tool that is not answered in time is answered for it, with an id; that it was answered later is told when
asked. With `--forget N` every N-th call is told without an id, and the one after it never counts as answered.
"""

import argparse
import json
import os
import select
import subprocess
import sys
import time
from typing import Any

parser = argparse.ArgumentParser()
parser.add_argument("--timeout", type=float, default=60.0)
parser.add_argument("--forget", type=int, default=0)
parser.add_argument("command", nargs="+")
options = parser.parse_args()

server = subprocess.Popen(options.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
assert server.stdin is not None
assert server.stdout is not None
waiting: dict[Any, float] = {}
states: dict[str, str] = {}
rests = {0: b"", server.stdout.fileno(): b""}
count = 0


def say(number: Any, content: dict[str, Any], *, failed: bool) -> None:
    result = {"content": [], "structuredContent": content, "isError": failed}
    os.write(1, json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode() + b"\n")


def lines(fd: int) -> list[dict[str, Any]]:
    chunk = os.read(fd, 65536)
    if not chunk:
        server.kill()
        server.wait()
        sys.exit()
    *whole, rests[fd] = (rests[fd] + chunk).split(b"\n")
    return [json.loads(line) for line in whole]


while True:
    for fd in select.select(list(rests), [], [], 0.005)[0]:
        for message in lines(fd):
            params = message.get("params", {})
            if fd == 0 and params.get("name") == "ztrio_pending_call":
                state = states.get(params["arguments"]["call_id"])
                say(message["id"], {"pending_call": {"state": state}}, failed=state is None)
            elif fd == 0:
                if message["method"] == "tools/call":
                    waiting[message["id"]] = time.monotonic() + options.timeout
                server.stdin.write(json.dumps(message).encode() + b"\n")
            elif f"pc_{message['id']}" in states:
                if not options.forget or message["id"] % options.forget != 1:
                    states[f"pc_{message['id']}"] = "completed_late"
            else:
                waiting.pop(message["id"], None)
                os.write(1, json.dumps(message).encode() + b"\n")
    for number, limit in list(waiting.items()):
        if limit < time.monotonic():
            del waiting[number]
            call_id = f"pc_{number}"
            states[call_id] = "unresolved"
            content: dict[str, Any] = {"error": {"code": "TOOL_TIMEOUT"}}
            if not options.forget or number % options.forget:
                content["pending_call"] = {"call_id": call_id, "state": "unresolved"}
            say(number, content, failed=True)
