"""`ztrio call`."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest

import ztrio
from tests.cli.conftest import Command, Started
from ztrio.workers.landlock import why_unavailable
from ztrio_cli.call import Interrupted, _Reporter, _show_interrupted
from ztrio_cli.demo.observe import processes
from ztrio_sql import StoreReader


def events(workspace: Path) -> list[dict[str, Any]]:
    """The audit log."""
    with StoreReader.open(workspace / ".ztrio" / "state.db") as reader:
        return list(reader.export())


def test_a_commit_for_people(cli: Command, tools: Path, workspace: Path) -> None:
    """A call that commits exits with 0, shows its value and outcome, and its progress on stderr."""
    ran = cli("call", tools, "write", "target=a.txt", "text=hello", "-w", workspace)
    assert ran.status == 0
    assert (workspace / "a.txt").read_text() == "hello"
    assert "committed" in ran.out
    assert "1/2 half way" in ran.err


def test_a_commit_for_programs(cli: Command, tools: Path, workspace: Path) -> None:
    """With --json stdout is one object and stderr has no progress."""
    ran = cli("call", tools, "write", "target=a.txt", "text=hello", "-w", workspace, "--json")
    answer = json.loads(ran.out)
    assert answer == {
        "value": str(workspace / "a.txt"),
        "job_id": answer["job_id"],
        "outcome": "committed",
        "targets": {"target": str(workspace / "a.txt")},
    }
    assert "half way" not in ran.err
    assert [event["event"] for event in events(workspace)] == ["allow", "start", "commit"]
    assert {(event["surface"], event["execution_job_id"]) for event in events(workspace)} == {("cli", answer["job_id"])}


@pytest.mark.parametrize(("state", "name"), [((), "state.db"), (("--state", "memory"), "audit.jsonl")])
def test_the_audit_is_private(cli: Command, tools: Path, workspace: Path, state: tuple[str, ...], name: str) -> None:
    """Nobody but its owner can read the audit, in the store or, where there is none, in its file."""
    cli("call", tools, "echo", "-w", workspace, *state)
    assert (workspace / ".ztrio" / name).stat().st_mode & 0o777 == 0o600
    assert {"state.db", "audit.jsonl"} & {path.name for path in (workspace / ".ztrio").iterdir()} == {name}


def test_what_tools_print_is_not_the_answer(cli: Command, tools: Path, workspace: Path) -> None:
    """Prints of the toolbox at import and of a read go to stderr; stdout holds the answer alone."""
    ran = cli("call", tools, "echo", "text=1", "number=7", "flag=true", "rows=[1]", "-w", workspace, "--json")
    assert json.loads(ran.out)["value"] == {"text": "1", "number": 7, "flag": True, "rows": [1]}
    assert "a read that talks" in ran.err


@pytest.mark.parametrize(("tool", "shown"), [("say", "hello"), ("count", "[1, 2]"), ("echo", "number")])
def test_every_kind_of_value_is_readable(cli: Command, tools: Path, workspace: Path, tool: str, shown: str) -> None:
    """Text, lists and objects are shown as what they are."""
    words = ["text=hello"] if tool == "say" else []
    ran = cli("call", tools, tool, *words, "-w", workspace)
    assert (ran.status, shown in ran.out, "completed" in ran.out) == (0, True, True)


def test_arguments_from_stdin(cli: Command, tools: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--arguments -` reads them from stdin; words add to them."""
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"text": "x"}'))
    ran = cli("call", tools, "echo", "--arguments", "-", "number=1", "-w", workspace, "--json")
    assert json.loads(ran.out)["value"] == {"text": "x", "number": 1, "flag": False, "rows": None}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["echo", "number=x"], "USAGE"),
        (["echo", "text=a", "--arguments", '{"text": "b"}'], "USAGE"),
        (["echo", "session=s"], "USAGE"),
        (["echo", "number:=1.5"], "INVALID_ARGUMENTS"),
        (["echo", "colour=red"], "INVALID_ARGUMENTS"),
        (["frobnicate"], "INVALID_ARGUMENTS"),
        (["echo", "--timeout", "-1"], "INVALID_ARGUMENTS"),
    ],
)
def test_a_wrong_call_exits_with_2(cli: Command, tools: Path, workspace: Path, words: list[str], code: str) -> None:
    """Where the words are wrong nothing runs, and the code says so in both forms."""
    ran = cli("call", tools, *words, "-w", workspace)
    assert (ran.status, ran.out) == (2, "")
    assert f"error: {code}: " in ran.err
    as_json = cli("call", tools, *words, "-w", workspace, "--json")
    assert (as_json.status, json.loads(as_json.out)["error"]["code"]) == (2, code)


def test_a_tool_error_for_people(cli: Command, tools: Path, workspace: Path) -> None:
    """A tool that raises exits with 1: one line with the code, then the outcome and the tool's traceback."""
    ran = cli("call", tools, "write", "target=a.txt", "text=no", "fail=true", "-w", workspace)
    error = next(line for line in ran.err.splitlines() if line.startswith("error: "))
    assert (ran.status, ran.out, (workspace / "a.txt").exists()) == (1, "", False)
    assert error.startswith("error: TOOL_ERROR: ")
    assert "it was asked to: no" in error
    assert ": rolled_back" in ran.err
    assert "  | Traceback" in ran.err


def test_a_timeout_for_programs(cli: Command, tools: Path, workspace: Path) -> None:
    """A tool that takes too long is killed; the error says that everything was rolled back."""
    ran = cli("call", tools, "hang", "target=a.txt", "--timeout", "0.3", "-w", workspace, "--json")
    error = json.loads(ran.out)["error"]
    assert (ran.status, error["code"], error["outcome"]) == (1, "TOOL_TIMEOUT", "rolled_back")
    assert not (workspace / "a.txt").exists()


def test_sessions_are_named(cli: Command, tools: Path, workspace: Path) -> None:
    """`--session` is what the audit shows."""
    cli("call", tools, "echo", "--session", "s1", "-w", workspace)
    assert {event["session"] for event in events(workspace)} == {"s1"}


def _child(stderr: IO[str]) -> int:
    """The process id that `hang` reports."""
    for line in stderr:
        if "child " in line:
            return int(line.split()[-1])
    raise AssertionError("the tool did not start")


def _hanging(tools: Path, workspace: Path, *more: str) -> tuple[str | Path, ...]:
    return ("call", tools, "hang", "target=a.txt", "-w", workspace, *more)


@pytest.mark.parametrize("repeats", [1, 3])
def test_ctrl_c_waits_for_the_rollback_and_says_so(
    started: Started, tools: Path, workspace: Path, repeats: int
) -> None:
    """Ctrl-C kills the tool and its child, puts everything back, says so and exits with 130; more change nothing."""
    with started(*_hanging(tools, workspace)) as process:
        assert process.stderr is not None
        child = _child(process.stderr)
        for _ in range(repeats):
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert "error: INTERRUPTED: The call was stopped by SIGINT; everything is as it was before." in err
    assert child not in processes()
    assert not (workspace / "a.txt").exists()
    last = events(workspace)
    assert [event["event"] for event in last] == ["allow", "start", "cancel", "worker_terminated", "rollback"]
    assert last[-1]["cause"] == "interrupted by SIGINT"


def test_sigterm_for_programs(started: Started, tools: Path, workspace: Path) -> None:
    """SIGTERM does the same with status 143, and --json carries job, outcome and proof."""
    with started(*_hanging(tools, workspace, "--json")) as process:
        store = workspace / ".ztrio" / "state.db"
        while not (store.exists() and "start" in [event["event"] for event in events(workspace)]):
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    error = json.loads(out)["error"]
    assert (process.returncode, err.replace("a toolbox that talks while it is loaded\n", "")) == (143, "")
    assert (error["code"], error["outcome"]) == ("INTERRUPTED", "rolled_back")
    assert (error["job_id"], error["proof"]["pid"] in processes()) == (events(workspace)[0]["execution_job_id"], False)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ((), "the tool never ran"),
        ((ztrio.AuditEvent(event="commit", outcome=ztrio.Outcome.COMMITTED),), "it came too late"),
        ((ztrio.AuditEvent(event="unresolved", outcome=ztrio.Outcome.UNRESOLVED),), "cannot be known"),
    ],
)
def test_interrupted_at_other_moments(
    capsys: pytest.CaptureFixture[str], seen: tuple[ztrio.AuditEvent, ...], said: str
) -> None:
    """What a signal did to the call is read off its last event, whatever the moment was."""
    _show_interrupted(Interrupted(signal.SIGINT, seen), as_json=False)
    assert said in capsys.readouterr().err


def test_progress_on_a_terminal(tools: Path, workspace: Path) -> None:
    """On a terminal progress is a bar that is gone in the end."""
    ours, theirs = os.openpty()
    command = [
        sys.executable,
        "-m",
        "ztrio_cli",
        "call",
        str(tools),
        "write",
        "target=a",
        "text=b",
        "-w",
        str(workspace),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        try:
            while chunk := os.read(ours, 4096):
                shown += chunk
        except OSError:
            pass  # the other end was closed
        os.close(ours)
    assert process.returncode == 0
    assert b"half way" in shown


def test_a_report_without_total_or_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A bar and a line can be drawn of whatever a tool reports."""
    with _Reporter(show=True) as report:
        assert report is not None
        report(3.0, None, None)
    assert capsys.readouterr().err == "3\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with _Reporter(show=True) as report:
        assert report is not None
        report(3.0, None, None)
        report(4.0, 8.0, "more")
    assert "more" in capsys.readouterr().err


@pytest.mark.skipif(why_unavailable() is not None, reason="no Landlock here")
def test_the_sandbox_is_chosen(cli: Command, workspace: Path, tmp_path: Path) -> None:
    """A tool that writes elsewhere is denied, and the path named; with `--sandbox off` it may."""
    tools, place = Path(__file__).parents[1] / "workers" / "tools_for_sandbox.py", tmp_path / "elsewhere"
    words = ("call", tools, "write_to", f"path={place}", "-w", workspace, "--json")
    denied = cli(*words, "--sandbox", "require")
    error = json.loads(denied.out)["error"]
    assert (1, "TOOL_ERROR", str(place), False) == (denied.status, error["code"], error["path"], place.exists())
    assert (0, True) == (cli(*words, "--sandbox", "off").status, place.exists())
    wrong = cli(*words, "--sandbox", "perhaps")
    assert (2, "USAGE") == (wrong.status, json.loads(wrong.out)["error"]["code"])
