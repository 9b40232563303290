"""A server on stdin and stdout that answers as it is told: `slow` and `limited` sleep first, in this process."""

import json
import sys
import time

from bench_tools import announce

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    name = message.get("params", {}).get("name")
    arguments = message.get("params", {}).get("arguments", {})
    answer = {"jsonrpc": "2.0", "id": message["id"], "result": {}}
    if name == "gone":
        sys.exit()
    if name == "wrong":
        answer = {"jsonrpc": "2.0", "id": message["id"], "error": {"code": 1, "message": "wrong"}}
    if name == "empty":
        answer["result"] = {"isError": True}
    if name == "limited":  # says that the limit ran out, and runs on
        time.sleep(0.1)
    if name == "sleeping":
        announce(arguments["place"], arguments["token"], "tool")
        time.sleep(0.1)
    if name != "mute":
        print(json.dumps({"jsonrpc": "2.0", "method": "notifications/message"}))
        print(json.dumps(answer), flush=True)
    if name in {"limited", "sleeping"}:
        announce(arguments["place"], arguments["token"], "finished")
