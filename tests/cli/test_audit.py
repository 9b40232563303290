"""`ztrio audit` and the reader of JSON lines beneath it."""

from __future__ import annotations

import io
import json
import signal
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.cli.conftest import Command, Started
from ztrio.audit import AuditEvent
from ztrio.errors import Outcome
from ztrio_cli import audit_log, audit_show
from ztrio_cli.audit_log import Damage, JsonLines
from ztrio_sql import StoreReader, open_store

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
    (workspace / ".ztrio").mkdir(exist_ok=True)
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
    monkeypatch.setattr(audit_show, "console", lambda: Console(file=screen, force_terminal=True, width=150))
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


# ---- the store


def recorded(number: int, name: str = "allow", **facts: Any) -> AuditEvent:
    """A stamped event."""
    return AuditEvent(
        event=name, execution_job_id=f"job_{number}", seq=number, time="2026-01-01T10:00:00.5+00:00", **facts
    )


def put(workspace: Path, *events: AuditEvent) -> Path:
    """Append events to the workspace's store; its file."""
    path = workspace / ".ztrio" / "state.db"

    async def record() -> None:
        async with open_store(path) as store:
            for event in events:
                store.record(event)

    trio.run(record)
    return path


@pytest.fixture(name="store")
def audit_store(workspace: Path) -> Path:
    """A store with a few events."""
    return put(
        workspace,
        recorded(1, principal="ann", tool="build", timeout=30.0),
        recorded(1, "start", principal="ann", pid=7),
        recorded(2, principal="bob"),
        recorded(1, "commit", principal="ann", outcome=Outcome.COMMITTED),
        recorded(2, "deny", principal="bob", reason="no"),
    )


def positions(out: str) -> list[int]:
    """The `log_pos` of each event that was printed as JSON."""
    return [json.loads(line)["log_pos"] for line in out.splitlines()]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], [1, 2, 3, 4, 5]),
        (["--job", "job_1"], [1, 2, 4]),
        (["--event", "allow"], [1, 3]),
        (["--principal", "bob"], [3, 5]),
        (["--principal", "bob", "--event", "allow", "--last", "9"], [3]),
        (["--last", "2"], [4, 5]),
        (["--last", "2", "--job", "job_1"], [2, 4]),
        (["--last", "0"], []),
        (["--after", "3"], [4, 5]),
        (["--after", "3", "--last", "9"], [4, 5]),
        (["--job", "job_9"], []),
    ],
)
def test_filters_of_the_store(
    cli: Command, workspace: Path, store: Path, words: list[str], expected: list[int]
) -> None:
    """With a store it is read, and filters do there what they do with a file; the file is not looked at."""
    (workspace / ".ztrio" / "audit.jsonl").write_bytes(lines(*EVENTS))
    ran = cli("audit", "-w", workspace, "--json", *words)
    assert (ran.status, ran.err, positions(ran.out)) == (0, "", expected)
    if "--last" not in words:
        assert positions(cli("audit", "export", "-w", workspace, *words).out) == expected


def test_the_store_for_people(cli: Command, workspace: Path, store: Path) -> None:
    """What a caller chose cannot move the cursor, nor end the output, of whoever reads it."""
    put(workspace, recorded(3, session="a\x1b[2J\nb", tool="\ud800"))
    out = cli("audit", "-w", workspace).out.splitlines()
    assert out[0] == "10:00:00.5+0  allow  build  job_1  timeout 30 s"
    assert out[-1] == "10:00:00.5+0  allow  \\ud800  a\\x1b[2J\\nb  job_3"
    last = cli("audit", "-w", workspace, "--json", "--last", "1").out
    assert ("\ud800", "hash" in last) == (json.loads(last)["tool"], False)


def test_other_places(cli: Command, workspace: Path, store: Path, file: Path, tmp_path: Path) -> None:
    """`--state` names another store or none, `--file` a file of JSON lines; a store that is not there is an error."""
    moved = tmp_path / "other.db"
    store.rename(moved)
    assert positions(cli("audit", "-w", workspace, "--state", moved, "--json").out) == [1, 2, 3, 4, 5]
    for words in (["--state", "memory"], [], ["--state", moved, "--file", file]):
        assert shown(cli("audit", "-w", workspace, "--json", *words).out) == [1, 2, 3, 4, 5]
    assert cli("audit", "-w", workspace, "--state", tmp_path / "none.db").status == 2


@pytest.mark.parametrize(
    "words", [["verify", "--last", "1"], ["export", "--follow"], ["show", "--output", "x"], ["frobnicate"]]
)
def test_options_that_do_not_fit(cli: Command, workspace: Path, store: Path, words: list[str]) -> None:
    """An option that an action would ignore is refused."""
    ran = cli("audit", *words, "-w", workspace)
    assert (ran.status, ran.err[:12]) == (2, "error: USAGE")


def test_an_export_is_private_and_whole(cli: Command, workspace: Path, store: Path, tmp_path: Path) -> None:
    """`--output` makes a file that only its owner can read, never over another; on stdout come the same lines."""
    out = tmp_path / "audit.jsonl"
    ran = cli("audit", "export", "-w", workspace, "-o", out)
    assert (ran.status, ran.out, ran.err) == (0, "", f"5 events written to {out}.\n")
    assert (out.stat().st_mode & 0o777, out.read_text()) == (0o600, cli("audit", "export", "-w", workspace).out)
    with StoreReader.open(store) as reader:
        assert list(reader.export()) == [json.loads(line) for line in out.read_text().splitlines()]
    assert cli("audit", "export", "-w", workspace, "-o", out).status == 2
    assert positions(cli("audit", "--file", out, "--after", "2", "--json", "-w", workspace).out) == [3, 4, 5]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_ends_an_export(started: Started, workspace: Path, store: Path) -> None:
    """An export that cannot be written fails in one line with a status, and the store is as it was."""
    before = store.read_bytes()
    for words in (("export",), ("show", "--json"), ("verify",)):
        with Path("/dev/full").open("w") as full, started("audit", *words, "-w", workspace, stdout=full) as process:
            _, err = process.communicate(timeout=30)
        assert (process.returncode, err) == (1, "error: OS_ERROR: [Errno 28] No space left on device\n")
    assert store.read_bytes() == before


def test_half_an_export_is_removed(
    cli: Command, workspace: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the disk is full in the middle, no file stays that could be taken for the whole."""

    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ztrio_cli.audit_export.json.dumps", full)
    ran = cli("audit", "export", "-w", workspace, "-o", tmp_path / "out")
    assert (ran.status, ran.err, (tmp_path / "out").exists()) == (
        1,
        "error: OS_ERROR: [Errno 28] No space left on device\n",
        False,
    )


def test_follow_a_store(started: Started, workspace: Path) -> None:
    """--follow waits for a store that is not there yet, shows what comes, and goes on where another takes its place."""
    with started("audit", "-w", workspace, "--follow", "--event", "allow", "--json") as process:
        assert process.stdout is not None
        put(workspace, recorded(1), recorded(1, "start"))
        assert positions(process.stdout.readline()) == [1]
        store = put(workspace, recorded(2))
        assert positions(process.stdout.readline()) == [3]
        for part in store.parent.glob("state.db*"):  # its log as well: somebody is looking at it
            part.rename(workspace / part.name.replace("state", "old"))
        put(workspace, recorded(7))
        assert json.loads(process.stdout.readline())["seq"] == 7
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")
    with started("audit", "-w", workspace, "-f", "-n", "1", "--json", "--state", workspace / "old.db") as process:
        assert process.stdout is not None
        assert positions(process.stdout.readline()) == [3]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


def test_verify(cli: Command, workspace: Path, store: Path) -> None:
    """A log that is as it was written is said to be, with its head; an empty one too."""
    ran = cli("audit", "verify", "-w", workspace)
    with StoreReader.open(store) as reader:
        (head,) = (event["hash"] for event in reader.export(after=4))
        store_id = reader.store_id
    assert (ran.status, ran.out) == (
        0,
        f"The chain holds: 5 events, 1 to 5, are as they were written.\nhead: 5:{head}\n",
    )
    assert json.loads(cli("audit", "verify", "-w", workspace, "--json").out) == {
        "ok": True,
        "events": 5,
        "first": 1,
        "last": 5,
        "head": head,
        "bad": None,
        "problem": None,
        "store": str(store),
        "store_id": store_id,
    }
    store.unlink()
    put(workspace)
    out = cli("audit", "verify", "-w", workspace).out
    assert out == f"The chain holds: there is no event yet.\nhead: 0:{'0' * 64}\n"


@pytest.mark.parametrize(("changed", "before"), [(4, "3 events, 1 to 3, are as"), (1, "No event is before it.")])
def test_verify_names_the_first_bad_link(cli: Command, workspace: Path, store: Path, changed: int, before: str) -> None:
    """What was changed is named, with how much is right before it, and the exit status is 1."""
    with closing(sqlite3.connect(store)) as connection, connection:
        statement = "UPDATE audit SET event = replace(event, 'job_', 'bob_') WHERE log_pos = ?"
        connection.execute(statement, (changed,))
    ran = cli("audit", "verify", "-w", workspace)
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.startswith(f"error: AUDIT_BROKEN: {store}: event {changed}: its hash does not follow")
    assert before in ran.err
    ran = cli("audit", "verify", "-w", workspace, "--json")
    found = json.loads(ran.out)
    assert (ran.status, found["ok"], found["bad"], found["events"]) == (1, False, changed, changed - 1)


def test_verify_without_a_store(cli: Command, workspace: Path, file: Path) -> None:
    """A file of JSON lines has no chain, and that is said; so is what is no store."""
    ran = cli("audit", "verify", "-w", workspace, "--json")
    assert (ran.status, json.loads(ran.out)["error"]["code"]) == (1, "AUDIT_NOT_FOUND")
    ran = cli("audit", "verify", "-w", workspace, "--state", file, "--json")
    assert (ran.status, json.loads(ran.out)["error"]["code"]) == (1, "STORE_FOREIGN")
