"""A stdio MCP server that misbehaves on demand: each tool is a fault, its arguments say how bad.

Standard library only, so that it starts in a moment, and no SDK, so that nothing is in order that should not be. Every
frame that it receives goes into RECORD with the time, every write of its `write` tool into LEDGER.

    python fake_server.py RECORD LEDGER [OPTION …]      options: modern, stubborn, wrapper, refuse, slow-start, no-tools
"""

import json
import os
import signal
import sys
import threading
import time
from typing import Any

RECORD, LEDGER, *OPTIONS = sys.argv[1:]
TEXT = {"type": "object", "properties": {}}
READ = {"readOnlyHint": True}
TOOLS = [
    {"name": "look", "inputSchema": TEXT, "annotations": READ, "x-unknown": [1e5, 10**30]},
    *(
        {"name": name, "inputSchema": TEXT}
        for name in ("write", "silent", "progress", "die", "noise", "ask", "odd", "block")
    ),
]
lock = threading.Lock()
answers: dict[Any, Any] = {}
answered = threading.Condition()


def put(text: str) -> None:
    with lock:
        os.write(1, text.encode())


def send(**message: Any) -> None:
    put(json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")) + "\n")


def note(path: str, text: str) -> None:
    with lock, open(path, "a") as file:
        file.write(text + "\n")


def text(words: str, **more: Any) -> dict[str, Any]:
    result: dict[str, Any] = {"content": [{"type": "text", "text": words}], **more}
    return {**result, "resultType": "complete"} if "modern" in OPTIONS else result


def call(number: Any, params: dict[str, Any]) -> dict[str, Any] | None:
    name, given = params["name"], params.get("arguments") or {}
    token = params.get("_meta", {}).get("progressToken")
    echoed = {"_meta": {"ztrio/call_id": params["_meta"]["ztrio/call_id"]}} if given.get("ids") else {}
    if name == "look":
        return text(open(LEDGER).read() if os.path.exists(LEDGER) else "", echo=given, **echoed)
    if name == "write":
        time.sleep(given.get("delay", 0))
        note(LEDGER, given.get("line", "written"))
        return text("written", isError=given.get("fails", False), **echoed)
    if name == "silent":
        return None
    if name == "progress":
        for step in range(given["times"]):
            time.sleep(given["every"])
            send(method="notifications/progress", params={"progressToken": given.get("token", token), "progress": step})
        return text("done")
    if name == "die":
        os.write(2, given.get("says", "").encode())
        time.sleep(given.get("delay", 0))
        os._exit(given.get("status", 3))
    if name == "noise":
        os.write(2, b"x" * given.get("stderr", 0))
        put('Welcome!\n\n[]\nnull\n123\n{"half":\n' + given.get("more", ""))
        return text("heard")
    if name == "ask":
        with answered:
            send(id="q1", method=given.get("method", "elicitation/create"), params={"message": "sure?"})
            answered.wait_for(lambda: "q1" in answers, timeout=given.get("patience", 10))
        return text(json.dumps(answers.pop("q1", None)))
    if name == "odd":
        kind = given["kind"]
        if kind == "string id":
            send(id=str(number), result=text("to a string"))
        elif kind == "neither":
            send(id=number)
        elif kind == "error":
            send(id=number, error={"code": -32000, "message": "no", "data": {"n": 10**30}})
        elif kind == "twice":
            send(id=number, result=text("first"))
            send(id=number, result=text("second"))
        elif kind == "input":
            send(id=number, result={"resultType": "input_required", "requestState": "state", "inputRequests": {}})
        elif kind == "surrogate":
            put('{"jsonrpc":"2.0","id":' + str(number) + ',"result":{"content":[{"type":"text","text":"\\ud800"}]}}\n')
        return None
    raise AssertionError(name)


def answer(request: dict[str, Any]) -> None:
    method, number, params = request["method"], request["id"], request.get("params") or {}
    if method == "initialize":
        if "refuse" in OPTIONS or "modern" in OPTIONS:
            code = -32602 if "refuse" in OPTIONS else -32601
            send(id=number, error={"code": code, "message": "not today"})
            return
        result: Any = {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}, "resources": {"subscribe": True}, "logging": {}},
            "serverInfo": {"name": "fake", "version": "1"},
        }
        if "books" in OPTIONS:
            result["capabilities"]["experimental"] = {"ztrio/calls": {"version": 1}}
    elif method == "server/discover" and "modern" in OPTIONS:
        result = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "resultType": "complete"}
        result["serverInfo"] = {"name": "fake", "version": "1"}
    elif method == "tools/list":
        half = len(TOOLS) // 2
        result = {"tools": TOOLS[half:]} if params.get("cursor") else {"tools": TOOLS[:half], "nextCursor": "2"}
    elif method == "tools/call":
        result = call(number, params)
        if result is None:
            return
    elif method == "resources/read" and params["uri"].startswith("ztrio://calls/"):
        call_id = params["uri"].removeprefix("ztrio://calls/")
        outcome = "not_started" if "forgetful" in OPTIONS else "committed"
        content = {"uri": params["uri"], "text": json.dumps({"call_id": call_id, "outcome": outcome})}
        result = {"contents": [content]}
    elif method == "resources/read":
        result = {"contents": [{"uri": params["uri"], "text": "r"}]}
    elif method in {"logging/setLevel", "resources/subscribe", "resources/unsubscribe", "ping", "completion/complete"}:
        result = {}
    else:
        send(id=number, error={"code": -32601, "message": f"no {method}"})
        return
    send(id=number, result=result)


def main() -> None:
    if "wrapper" in OPTIONS and os.fork():
        os._exit(0)
    if "stubborn" in OPTIONS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(RECORD, json.dumps({"time": time.time(), "pid": os.getpid()}))
    for line in sys.stdin:
        frame = json.loads(line)
        note(RECORD, json.dumps({"time": time.time(), "frame": frame}))
        if "method" not in frame:
            with answered:
                answers[frame["id"]] = frame.get("result", frame.get("error"))
                answered.notify_all()
        elif "id" not in frame:
            continue
        elif frame["method"] == "tools/call" and frame["params"]["name"] == "block":
            time.sleep(frame["params"]["arguments"]["seconds"])
            send(id=frame["id"], result=text("awake"))
        else:
            threading.Thread(target=answer, args=(frame,), daemon=True).start()
    while "stubborn" in OPTIONS:
        time.sleep(1)


main()
