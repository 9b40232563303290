"""`ztrio audit` and the reader of JSON lines beneath it."""

from __future__ import annotations

import io
import json
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.cli.conftest import Command, Started
from ztrio_cli import audit as audit_module
from ztrio_cli import audit_log
from ztrio_cli.audit_log import Damage, JsonLines

PROOF = {"pid": 77, "rung": "group", "containment": "partial"}
EVENTS: list[dict[str, Any]] = [
    {
        "seq": 1,
        "event": "allow",
        "execution_job_id": "job-1",
        "tool": "build",
        "timeout": 30.0,
        "time": "2026-01-01T10:00:00.5+00:00",
    },
    {"seq": 2, "event": "start", "execution_job_id": "job-1", "tool": "build", "pid": 77, "duration": 0.1},
    {"seq": 3, "event": "allow", "execution_job_id": "job-2", "tool": "add", "time": "?"},
    {"seq": 4, "event": "commit", "execution_job_id": "job-1", "tool": "build", "outcome": "committed", "proof": PROOF},
    {"seq": 5, "event": "gap", "missed": 3},
]


def lines(*events: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


@pytest.fixture(name="file")
def audit_file(workspace: Path) -> Path:
    """An audit file with a few events."""
    (workspace / ".ztrio").mkdir()
    path = workspace / ".ztrio" / "audit.jsonl"
    path.write_bytes(lines(*EVENTS))
    return path


def shown(out: str) -> list[int]:
    """The `seq` of each event that was printed as JSON."""
    return [json.loads(line)["seq"] for line in out.splitlines()]


def test_events_come_as_they_are(cli: Command, workspace: Path, file: Path) -> None:
    """With --json each event is one line, unchanged, in the order of the file."""
    ran = cli("audit", "-w", workspace, "--json")
    assert (ran.status, ran.err, [json.loads(line) for line in ran.out.splitlines()]) == (0, "", EVENTS)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--job", "job-1"], [1, 2, 4]),
        (["--event", "allow"], [1, 3]),
        (["--event", "allow", "--job", "job-2"], [3]),
        (["--last", "2"], [4, 5]),
        (["--last", "1", "--event", "allow"], [3]),
        (["--last", "0"], []),
        (["--job", "job-9"], []),
    ],
)
def test_filters(cli: Command, workspace: Path, file: Path, words: list[str], expected: list[int]) -> None:
    """Filters combine, and --last counts what passed them."""
    assert shown(cli("audit", "-w", workspace, "--json", *words).out) == expected


def test_events_for_people(cli: Command, workspace: Path, file: Path) -> None:
    """Each event is one line with what makes it different from others of its name."""
    out = cli("audit", "-w", workspace).out.splitlines()
    assert out[0] == "10:00:00.5+0  allow  build  job-1  timeout 30 s"
    assert out[3].endswith("committed, worker 77 proven dead (group, partial)")
    assert out[4] == "gap  3 events missed"


def test_a_table_on_a_terminal(cli: Command, workspace: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal events are a table; none at all is said in words."""
    screen = io.StringIO()
    monkeypatch.setattr(audit_module, "console", lambda: Console(file=screen, force_terminal=True, width=150))
    assert cli("audit", "-w", workspace).status == 0
    assert "worker 77 proven dead" in screen.getvalue()
    assert cli("audit", "-w", workspace, "--job", "job-9").err == "No such events.\n"


def test_damage_is_named_and_skipped(cli: Command, workspace: Path, file: Path) -> None:
    """Lines that are no events are named with their number; all others are shown; a torn last line is mentioned."""
    file.write_bytes(lines(EVENTS[0]) + b"{half\n\n[1]\n\xff\xfe\n" + lines(EVENTS[1]) + b'{"seq": 9, "eve')
    ran = cli("audit", "-w", workspace, "--json")
    assert (ran.status, shown(ran.out)) == (0, [1, 2])
    warnings = [line.partition(": not")[0] for line in ran.err.splitlines()[:-1]]
    assert warnings == [f"warning: AUDIT_DAMAGED: line {number}" for number in (2, 4, 5)]
    assert ran.err.splitlines()[-1].startswith("note: the last line is not complete")


def test_nothing_recorded_yet(cli: Command, workspace: Path) -> None:
    """A workspace without an audit is an error that says what that means."""
    ran = cli("audit", "-w", workspace, "--json")
    assert (ran.status, json.loads(ran.out)["error"]["code"]) == (1, "AUDIT_NOT_FOUND")


def test_follow_survives_rotation_and_truncation(started: Started, workspace: Path, file: Path) -> None:
    """--follow shows old events and new ones, also after the file was replaced or cut; Ctrl-C ends it with 130."""
    with started("audit", "-w", workspace, "--follow", "--last", "1", "--json") as process:
        assert process.stdout is not None
        assert shown(process.stdout.readline()) == [5]
        with file.open("ab") as out:
            out.write(lines({"seq": 6, "event": "allow"}) + b'{"seq": 7, ')
        assert shown(process.stdout.readline()) == [6]
        new = file.with_name("new")
        new.write_bytes(lines({"seq": 8, "event": "allow"}, {"seq": 9, "event": "start"}))
        new.replace(file)
        assert shown(process.stdout.readline() + process.stdout.readline()) == [8, 9]
        file.write_bytes(lines({"seq": 1, "event": "deny"}))
        assert shown(process.stdout.readline()) == [1]
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")


def test_a_file_that_does_not_exist_yet(tmp_path: Path) -> None:
    """A poll before the file exists finds nothing; one after finds its lines; one after it was moved away nothing."""
    path = tmp_path / "audit.jsonl"
    with JsonLines(path) as reader:
        assert list(reader.poll()) == []
        path.write_bytes(lines(EVENTS[0]))
        assert list(reader.poll()) == [EVENTS[0]]
        path.rename(tmp_path / "away")
        assert list(reader.poll()) == []
        path.write_bytes(b"x\n" + lines(EVENTS[1]))
        assert list(reader.poll()) == [Damage(1, "not JSON (Expecting value: line 1 column 1 (char 0))"), EVENTS[1]]


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 20))
def test_lines_do_not_depend_on_chunks(cuts: list[int], chunk: int) -> None:
    """However the writer's and the reader's pieces fall, every line is read once and whole."""
    data = lines(*EVENTS)
    found: list[Any] = []
    saved, audit_log.CHUNK = audit_log.CHUNK, chunk
    try:
        with tempfile.NamedTemporaryFile(buffering=0) as file, JsonLines(Path(file.name)) as reader:
            for cut in [*cuts, len(data)]:
                piece, data = data[:cut], data[cut:]
                file.write(piece)
                found += reader.poll()
    finally:
        audit_log.CHUNK = saved
    assert found == EVENTS
