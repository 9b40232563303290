"""The command itself: `ztrio serve` killed under load, `ztrio recover` after it, and the same checks."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.crash.box import SCHEDULED, seed
from tests.crash.checker import check
from tests.crash.driver import paths

HERE = Path(__file__).parent
CALLERS = 4
CALLS = 12  # of each caller, sent at once


@pytest.mark.timeout(600 if SCHEDULED else 60)
def test_ztrio_serve(tmp_path: Path) -> None:
    """Killed while calls of four sessions wait and run, it leaves what `ztrio recover` puts right."""
    dice = random.Random(seed())
    workspace = tmp_path.resolve() / "ws"
    for caller in range(CALLERS):
        (workspace / f"c{caller}").mkdir(parents=True)
    for life in range(20 if SCHEDULED else 1):
        serve_and_kill(workspace, life, dice.random() * 0.4)
        found = command("recover", "-w", str(workspace), "--json")
        assert 0 == found.returncode, found.stderr
        json.loads(found.stdout)
        seen = check(workspace, workspace / ".ztrio" / "state.db", [], callers=CALLERS)
    assert {"committed", "not_started"} <= seen.outcomes().keys()
    assert 0 == command("audit", "verify", "-w", str(workspace)).returncode


def serve_and_kill(workspace: Path, life: int, seconds: float) -> None:
    """Send everything at once, and kill the server some time after its first answer."""
    frames: list[dict[str, Any]] = [
        {"id": 0, "method": "initialize", "params": {"protocolVersion": "2025-11-25", "capabilities": {},
         "clientInfo": {"name": "test", "version": "0"}}},
        {"method": "notifications/initialized"},
    ]  # fmt: skip
    for number in range(CALLS):
        for caller in range(CALLERS):
            arguments = paths(caller, f"{life}-{number}") | {"session": f"s{caller}"}
            call = {"name": "publish", "arguments": arguments}
            frames.append({"id": 1 + number * CALLERS + caller, "method": "tools/call", "params": call})
    words = ["serve", str(HERE / "tools_for_crashes.py"), "-w", str(workspace)]
    with subprocess.Popen(
        [sys.executable, "-m", "ztrio_cli", *words],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        for frame in frames:
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **frame}).encode() + b"\n")
        server.stdin.flush()
        for _ in range(2):  # the handshake's, and the first call's
            assert b"result" in server.stdout.readline()
        time.sleep(seconds)
        os.kill(server.pid, signal.SIGKILL)


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `ztrio WORDS…`."""
    line = [sys.executable, "-m", "ztrio_cli", *words]
    return subprocess.run(line, env=environment(), capture_output=True, text=True, check=False)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
