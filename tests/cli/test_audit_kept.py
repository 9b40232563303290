"""What a server and a call leave in the audit: how much of it, where, and nothing that is secret."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command, Started
from tests.cli.test_serve import converse, frame
from ztrio_cli.audit_retention import parse_retention
from ztrio_cli.console import Complaint
from ztrio_sql import Retention, StoreReader

SECRET = "ghp_" + "a1B2" * 9


def served(started: Started, tools: Path, workspace: Path, *requests: str, words: tuple[str | Path, ...] = ()) -> Any:
    """The answers of a server that is started for these requests, by their ids."""
    with started("serve", tools, "-w", workspace, *words, stdin=subprocess.PIPE) as process:
        answers = converse(process, *requests)
        process.communicate(timeout=30)
    assert process.returncode == 0
    return answers


def resource(number: int, query: str = "") -> str:
    """A reading of the audit resource."""
    return frame("resources/read", number, uri=f"ztrio://audit/events{query}")


def events_of(answer: Any) -> list[dict[str, Any]]:
    """The events in a reading of the audit resource."""
    events: list[dict[str, Any]] = json.loads(answer["result"]["contents"][0]["text"])["events"]
    return events


def test_the_resource_survives_restarts(started: Started, tools: Path, workspace: Path) -> None:
    """`?after=<log_pos>` goes on where the reading before the restart ended, and finds what came since."""
    call = frame("tools/call", 1, name="write", arguments={"target": "a.txt", "text": "x"})
    first = events_of(served(started, tools, workspace, call, resource(2))[2])
    assert [event["event"] for event in first] == ["allow", "start", "commit"]
    last = first[-1]["log_pos"]
    answers = served(started, tools, workspace, resource(1), resource(2, f"?after={last}"), call.replace(": 1", ": 3"))
    assert events_of(answers[1]) == first
    assert events_of(answers[2]) == []
    later = events_of(served(started, tools, workspace, resource(1, f"?after={last}"))[1])
    assert [event["event"] for event in later] == ["allow", "start", "commit"]
    assert [event["log_pos"] for event in [*first, *later]] == [1, 2, 3, 4, 5, 6]


@pytest.mark.case("R56")
@pytest.mark.parametrize("words", [(), ("--state", "memory")])
def test_nothing_secret_is_kept(started: Started, tools: Path, workspace: Path, words: tuple[str, ...]) -> None:
    """A token in a tool's error and in a refusal is in no file and no resource; where it was is told."""
    fail = {"target": "a.txt", "text": f"push: {SECRET}", "fail": True}
    answers = served(
        started,
        tools,
        workspace,
        frame("tools/call", 1, name="write", arguments=fail),
        frame("tools/call", 2, name="write", arguments={"target": f"../{SECRET}", "text": "x"}),
        resource(3),
        words=(*words, "--audit-file", workspace / "lines.jsonl"),
    )
    assert SECRET in json.dumps(answers[1])  # whoever called is told what happened
    assert SECRET not in json.dumps(answers[3])
    assert "asked to: push: [redacted]" in json.dumps(answers[3])
    kept = [path for path in workspace.rglob("*") if path.is_file()]
    assert (workspace / "lines.jsonl").stat().st_mode & 0o777 == 0o600
    assert [] == [path for path in kept if SECRET.encode() in path.read_bytes()]


def test_how_much_a_server_keeps(started: Started, tools: Path, workspace: Path) -> None:
    """`--keep-audit` is written down, and holds for whoever comes next without it."""
    call = frame("tools/call", 1, name="write", arguments={"target": "a.txt", "text": "x"})
    served(started, tools, workspace, call, words=("--keep-audit", "30d,1GB"))
    served(started, tools, workspace, call)
    with StoreReader.open(workspace / ".ztrio" / "state.db") as reader:
        assert Retention(age=30 * 86400.0, size=10**9) == reader.retention()


@pytest.mark.parametrize("words", [("--keep-audit", "some"), ("--keep-audit", "1d", "--state", "memory")])
def test_a_bound_that_makes_no_sense(cli: Command, tools: Path, workspace: Path, words: tuple[str, ...]) -> None:
    """It is refused before anything is served."""
    ran = cli("serve", tools, "-w", workspace, *words)
    assert (ran.status, ran.err[:12]) == (2, "error: USAGE")


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("30d", Retention(age=30 * 86400.0, size=None)),
        ("1GB", Retention(size=10**9)),
        (" 2 w , 512 mib ", Retention(age=14 * 86400.0, size=2**29)),
        ("12h", Retention(age=12 * 3600.0, size=None)),
        ("forever", Retention(size=None)),
    ],
)
def test_how_much_is_kept(words: str, kept: Retention) -> None:
    """An age, a size, both, or everything."""
    assert kept == parse_retention(words)


@pytest.mark.parametrize(
    "words", ["", "30", "0d", "30d,", "30d,2w", "1GB,2GB", "-1d", "1.5GB", "3 years", "forever,1GB"]
)
def test_what_is_no_bound(words: str) -> None:
    """Anything else is refused, with what would do."""
    with pytest.raises(Complaint, match="give an age") as caught:
        parse_retention(words)
    assert caught.value.status == 2
