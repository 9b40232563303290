"""`ztrio serve`, as a client meets it: a process on pipes."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.cli.conftest import Command, Started
from ztrio_cli.console import Complaint
from ztrio_cli.logs import configure_logging

INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "0"},
}


def frame(method: str, number: int | None = None, **params: Any) -> str:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(message if number is None else {**message, "id": number}) + "\n"


def converse(process: subprocess.Popen[str], *requests: str) -> dict[int, dict[str, Any]]:
    """Send the handshake and the requests one after the other; the answers by id."""
    assert process.stdin is not None
    assert process.stdout is not None
    answers = {}
    for request in (frame("initialize", 0, **INITIALIZE), frame("notifications/initialized"), *requests):
        process.stdin.write(request)
        process.stdin.flush()
        if "id" not in json.loads(request):
            continue
        answer = json.loads(process.stdout.readline())
        answers[answer["id"]] = answer
    return answers


def test_a_client_is_served_until_it_is_gone(started: Started, tools: Path, workspace: Path) -> None:
    """Calls are answered, stdout holds frames alone, the log is on stderr, and end of input ends the process with 0."""
    call = frame("tools/call", 1, name="write", arguments={"target": "a.txt", "text": "x"})
    with started("serve", tools, "-w", workspace, "--json", stdin=subprocess.PIPE) as process:
        answers = converse(process, call)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "")
    assert answers[1]["result"]["_meta"]["ztrio/outcome"] == "committed"
    assert (workspace / "a.txt").read_text() == "x"
    logged = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert [entry["event"] for entry in logged] == ["serving", "ended"]
    assert (logged[0]["audit"], logged[1]["status"]) == (str(workspace / ".ztrio" / "state.db"), 0)
    assert not (workspace / ".ztrio" / "audit.jsonl").exists()
    assert (workspace / ".ztrio" / "state.db").stat().st_mode & 0o777 == 0o600


def test_allow_is_a_limit(started: Started, tools: Path, workspace: Path) -> None:
    """What `--allow` leaves out is denied, and nothing of it runs."""
    (workspace / "folder").mkdir()
    (workspace / "folder" / "a.txt").write_text("a")
    calls = (
        frame("tools/call", 1, name="forget", arguments={"target": "folder"}),
        frame("tools/call", 2, name="say", arguments={"text": "x"}),
    )
    with started("serve", tools, "-w", workspace, "--allow", "read, write", stdin=subprocess.PIPE) as process:
        answers = converse(process, *calls)
        process.communicate(timeout=30)
    denied = answers[1]["result"]["structuredContent"]["error"]
    assert (denied["code"], denied["outcome"]) == ("PERMISSION_DENIED", "not_started")
    assert answers[2]["result"]["structuredContent"] == {"result": "x"}
    assert (workspace / "folder" / "a.txt").read_text() == "a"


@pytest.mark.parametrize(
    ("words", "code", "status"),
    [
        (["--allow", "read,everything"], "USAGE", 2),
        (["--allow", " , "], "USAGE", 2),
        (["--log-level", "loud"], "USAGE", 2),
        (["--workspace", "nowhere"], "USAGE", 2),
        (["--frobnicate"], "USAGE", 2),
    ],
)
def test_errors_never_go_to_stdout(cli: Command, tools: Path, words: list[str], code: str, status: int) -> None:
    """What is wrong with the command line is said on stderr: stdout is the client's."""
    ran = cli("serve", tools, *words)
    assert (ran.status, ran.out) == (status, "")
    assert ran.err.splitlines()[-1].startswith(f"error: {code}: ")


def test_a_broken_toolbox_is_json_on_stderr(started: Started, workspace: Path) -> None:
    """With --json even an error is on stderr, as an object; the status is 1."""
    with started("serve", "nothing.py", "-w", workspace, "--json") as process:
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (1, "")
    assert json.loads(err.splitlines()[-1])["error"]["code"] == "TOOLBOX_INVALID"


def test_both_kinds_of_logging_look_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines of structlog and of the standard library's logging are of one format, below the level nothing is."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        configure_logging("warning", as_json=False)
        structlog.get_logger("ours").warning("said", number=1)
        logging.getLogger("theirs").warning("said too")
        logging.getLogger("theirs").info("not said")
    finally:
        root.handlers[:], root.level = before[0], before[1]
        structlog.reset_defaults()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "said" in lines[0]
    assert "number=1" in lines[0]
    assert "[theirs]" in lines[1]


def test_there_is_no_such_level() -> None:
    """A level that does not exist is named with those that do."""
    with pytest.raises(Complaint, match="debug, info, warning, error"):
        configure_logging("loud", as_json=True)


@pytest.mark.parametrize("words", ["nobody", "1000", "1000:", "-1:5"])
def test_the_user_is_two_numbers(cli: Command, tools: Path, workspace: Path, words: str) -> None:
    """`--run-as` takes user and group id; anything else is a usage error before anything is served."""
    ran = cli("serve", tools, "-w", workspace, f"--run-as={words}")
    assert (2, "") == (ran.status, ran.out)
    assert "1000:1000" in ran.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can serve as somebody else")
def test_serving_as_somebody_else(started: Started, tools: Path) -> None:
    """With `--run-as` what a tool makes belongs to that user."""
    with tempfile.TemporaryDirectory(prefix="ztrio-test-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        shutil.copy(tools, folder)
        words = ("serve", Path(folder) / tools.name, "-w", folder, "--run-as", "65534:65534", "--sandbox", "auto")
        with started(*words, stdin=subprocess.PIPE) as process:
            call = frame("tools/call", 1, name="write", arguments={"target": "a.txt", "text": "x"})
            answers = converse(process, call)
            process.communicate(timeout=30)
        assert answers[1]["result"]["_meta"]["ztrio/outcome"] == "committed"
        assert (Path(folder) / "a.txt").stat().st_uid == 65534
