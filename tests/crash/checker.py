"""Looks at what a crash left, with its own eyes: files by content, the database through sqlite3, processes in /proc.

Nothing here asks ztrio. What is said to have been promised is said once, in `check`.
"""

import hashlib
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import msgspec

from tests.crash.content import text_of

WITHOUT_EFFECT = {"rolled_back", "not_started", "completed"}
FINAL = {"committed", *WITHOUT_EFFECT}


@attrs.frozen
class Seen:
    """A database as it was found.

    Args:
        jobs: Call → its row.
        events: The audit log in order.
        sessions: Name → (version, state).
    """

    jobs: dict[str, dict[str, Any]]
    events: list[dict[str, Any]]
    sessions: dict[str, tuple[int, dict[str, Any]]]

    def outcomes(self) -> Counter[str]:
        """How often each outcome."""
        return Counter(str(row["outcome"]) for row in self.jobs.values())


def read(store: Path) -> Seen:
    """Read a database, and assert that it and the hash chain in it are whole."""
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        connection.execute("BEGIN")
        assert "ok" == connection.execute("PRAGMA quick_check").fetchone()[0]
        jobs = {row["job_id"]: dict(row) for row in connection.execute("SELECT * FROM jobs")}
        sessions = {
            row["name"]: (row["version"], msgspec.msgpack.decode(row["state"]))
            for row in connection.execute("SELECT * FROM sessions")
        }
        previous, events = bytes(32), []
        for position, row in enumerate(connection.execute("SELECT * FROM audit ORDER BY log_pos"), 1):
            assert position == row["log_pos"]
            previous = hashlib.sha256(previous + row["event"].encode()).digest()
            assert previous == row["hash"]
            events.append(json.loads(row["event"]))
    return Seen(jobs, events, sessions)


def check(
    workspace: Path, store: Path, answers: Iterable[dict[str, Any]], *, callers: int, troubled: bool = False
) -> Seen:
    """Assert that everything is as promised after a crash and the start that followed it.

    Args:
        workspace: The workspace.
        store: The database.
        answers: What callers were told, ever.
        callers: How many there were.
        troubled: Whether the store could not be written at times. Then it is not known any more of a call without
            effects whether it had begun, nor perhaps that it was there.
    """
    seen = read(store)
    _check_ends(seen)
    _check_answers(seen, answers, troubled=troubled)
    for caller in range(callers):
        _check_caller(seen, workspace, caller)
    left = [
        os.path.join(folder, name)
        for folder, folders, files in os.walk(workspace)
        for name in (*folders, *files)
        if name.startswith(".ztrio-")
    ]
    assert [] == left, f"left: {left}"
    return seen


def _check_ends(seen: Seen) -> None:
    """Every accepted call has exactly one terminal event, its row says the same, and nothing is open."""
    ends: dict[str, list[str]] = {}
    begun, doubted = set(), Counter[str]()
    for event in seen.events:
        job = event["execution_job_id"]
        if event["event"] == "start":
            begun.add(job)
        if event["event"] == "unresolved":
            doubted[job] += 1
        elif event.get("outcome") is not None:
            ends.setdefault(job, []).append(event["outcome"])
    accepted = {event["execution_job_id"] for event in seen.events if event["event"] == "allow"}
    assert set() == accepted - seen.jobs.keys(), "allowed, and has no row"
    for job, row in seen.jobs.items():
        assert row["outcome"] in FINAL, row
        assert [row["outcome"]] == ends.get(job), (row, ends.get(job))
        assert ("ended", 0) == (row["phase"], row["needs_recovery"]), row
        assert not (row["outcome"] == "not_started" and job in begun), row
    assert all(times == 1 for times in doubted.values())
    for job in ends.keys() - seen.jobs.keys():
        assert ["not_started"] == ends[job], (job, ends[job])  # refused at the door


def _check_answers(seen: Seen, answers: Iterable[dict[str, Any]], *, troubled: bool) -> None:
    """What a caller was told is so, for ever."""
    for answer in answers:
        outcome = answer["outcome"]
        row = seen.jobs.get(answer["job"])
        if troubled and outcome in WITHOUT_EFFECT:
            assert row is None or row["outcome"] in WITHOUT_EFFECT, (answer, row)
        elif row is None:
            assert outcome in ("not_started", "completed"), answer  # of which nothing has to be known
        elif outcome != "unresolved":  # of which nothing was promised
            assert outcome == row["outcome"], (answer, row)


def _check_caller(seen: Seen, workspace: Path, caller: int) -> None:
    """The session is at its last commit, and each file as the last commit that made it left it."""
    name = f"s{caller}"
    committed = [
        event["execution_job_id"]
        for event in seen.events
        if event.get("outcome") == "committed" and event["session"] == name
    ]
    version, state = seen.sessions.get(name, (0, {}))
    assert len(committed) == version == state.get("count", 0)
    made = [json.loads(seen.jobs[job]["targets"])["fresh"] for job in committed if seen.jobs[job]["tool"] == "publish"]
    assert len(set(made)) == len(made), "one idempotency key, and two commits"
    expected: dict[str, str] = {}
    for number, job in enumerate(committed, 1):
        text = text_of(job, number)
        targets = json.loads(seen.jobs[job]["targets"])
        for parameter, path in targets.items():
            if parameter in ("page", "fresh"):
                expected[path] = text
            else:
                expected |= {f"{path}/index": text, f"{path}/deep/leaf": text}
    if committed:
        assert state["job"] == committed[-1]
    place = workspace / f"c{caller}"
    found = {os.path.join(folder, file) for folder, _, files in os.walk(place) for file in files}
    assert expected.keys() == found, (sorted(expected.keys() - found), sorted(found - expected.keys()))
    for path, text in expected.items():
        assert text == Path(path).read_text(), path


def descendants(ancestor: int) -> list[tuple[int, str]]:
    """(pid, name) of every process below one that has not ended."""
    parents: dict[int, tuple[int, str, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                text = (entry / "stat").read_text(errors="replace")
            except OSError:
                continue
            name, _, rest = text.partition("(")[2].rpartition(")")
            state, parent = rest.split()[:2]
            parents[int(entry.name)] = (int(parent), state, name)
    below = {ancestor}
    while more := {pid for pid, (parent, _, _) in parents.items() if parent in below} - below:
        below |= more
    return sorted((pid, parents[pid][2]) for pid in below - {ancestor} if parents[pid][1] not in "ZX")
