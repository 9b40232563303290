"""The demo: it runs, it checks from outside, and it can fail."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.cli.conftest import EXAMPLE, Command, Started
from ztrio_cli import demo
from ztrio_cli.console import Complaint
from ztrio_cli.demo import scenes
from ztrio_cli.demo.client import Answer
from ztrio_cli.demo.facts import Facts
from ztrio_cli.demo.observe import Process, below, processes, read_tree, still_alive, unfinished_charts
from ztrio_cli.demo.promises import PROMISES, check
from ztrio_cli.demo.report import Report

PROOF = {"pid": 50, "rung": "group", "containment": "partial", "killed_at": 1.0, "proven_at": 1.004}
WORKER, CHART = Process(50, "1", 9, 50, "python"), Process(51, "2", 50, 50, "python chart.py in out")
TREE = {"content/index.md": "1"}
SITE = {**TREE, "site/index.html": "2"}


def event(name: str, job: str = "job-1", at: float = 1.0, **facts: Any) -> dict[str, Any]:
    return {"event": name, "execution_job_id": job, "capability": "write", "monotonic": at, "session": "s", **facts}


def killed(*names: str, **facts: Any) -> tuple[dict[str, Any], ...]:
    """The sequence of a call that was stopped."""
    proven: dict[str, Any] = {"proof": PROOF, "termination_confirmed": True, **facts}
    return tuple(event(name, **(proven if name == "worker_terminated" else facts)) for name in names)


STOPPED = Facts(
    scene="timeout",
    seconds=2.1,
    limit=4.0,
    answers=(Answer(value={}, error={"code": "TOOL_TIMEOUT"}, outcome="rolled_back", job_id="job-1"),),
    events=killed("allow", "start", "timeout", "worker_terminated", "rollback"),
    before=TREE,
    after=TREE,
    sightings=(TREE,),
    seen=(WORKER, CHART),
    half_written=(".ztrio-job-1/0/site/a.svg",),
    extra={"history": {"default": 1}},
)
COMMIT = attrs.evolve(
    STOPPED,
    scene="commit",
    answers=(Answer(value={"site": "/w/site"}, outcome="committed", job_id="job-1"),),
    events=(event("allow"), event("start"), event("commit", proof=PROOF, termination_confirmed=True)),
    after=SITE,
    extra={
        "history": {"default": 1},
        "expected_files": ("site/index.html",),
        "unfinished": [],
        "target": "/w/site",
    },
)
CANCEL = attrs.evolve(
    STOPPED,
    scene="client cancels",
    answers=(),
    events=killed("allow", "start", "cancel", "worker_terminated", "rollback", cause="cancelled by client: bored"),
)
ERROR = attrs.evolve(
    STOPPED,
    scene="tool error",
    answers=(
        Answer(value={}, error={"code": "TOOL_ERROR", "message": "BadTable: x.csv: line 4: no"}, outcome="rolled_back"),
    ),
    events=(event("allow"), event("start"), event("error"), event("rollback", proof=PROOF, termination_confirmed=True)),
)
TWO = attrs.evolve(
    COMMIT,
    scene="two sessions, one target",
    answers=(Answer(value={}, outcome="committed"), Answer(value={}, outcome="committed")),
    events=(
        event("allow", "a", 1.0, session="morning"),
        event("allow", "b", 1.1, session="evening"),
        event("start", "b", 1.2, session="evening"),
        event("commit", "b", 1.9, session="evening", proof=PROOF, termination_confirmed=True),
        event("start", "a", 2.0, session="morning"),
        event("commit", "a", 2.9, session="morning", proof={**PROOF, "pid": 60}, termination_confirmed=True),
    ),
    sightings=("Harbour", "evening", "morning"),
    extra={
        "history": {"morning": 1, "evening": 1},
        "titles": ["morning", "morning"],
        "whole_versions": ("Harbour", "morning", "evening"),
    },
)
REFUSED = Answer(value={}, error={"code": "SESSION_DESTROYED"}, outcome="not_started")
DESTROYED = attrs.evolve(STOPPED, scene="destroyed session", answers=(REFUSED,), events=(), extra={"read": REFUSED})
VANISHED = attrs.evolve(
    STOPPED,
    scene="client vanishes",
    answers=(),
    events=killed("allow", "start", "cancel", "worker_terminated", "rollback", cause="client_gone"),
    extra={"ended_after": 0.3, "status": 0, "recorded": (event("allow"), event("rollback"))},
)
CRASHED = attrs.evolve(
    STOPPED,
    scene="server killed",
    answers=(Answer(value={}, outcome="committed", job_id="job-2"),),
    events=(event("allow"), event("start"), event("recovered", outcome="rolled_back")),
    extra={"history": {"crash": 1}, "history_found": 0, "rebuilt": SITE},
)
FORWARD = attrs.evolve(
    CRASHED,
    events=(event("allow"), event("start"), event("commit", outcome="committed")),
    after=SITE,
    extra={**CRASHED.extra, "history_found": 1},
)
KEPT = (COMMIT, STOPPED, CANCEL, ERROR, TWO, DESTROYED, VANISHED, CRASHED, FORWARD)


def broken(facts: Facts) -> list[str]:
    return [promise.text for promise in check(facts) if not promise.kept]


def with_extra(facts: Facts, **extra: Any) -> Facts:
    return attrs.evolve(facts, extra={**facts.extra, **extra})


@pytest.mark.parametrize("facts", KEPT, ids=lambda facts: str(facts.scene))
def test_good_facts_break_no_promise(facts: Facts) -> None:
    """Facts as they ought to be keep every promise of their scene."""
    assert broken(facts) == []


def test_every_scene_is_tried_with_good_and_with_broken_facts() -> None:
    """The facts of these tests cover every scene there is."""
    assert {facts.scene for facts in KEPT} == PROMISES.keys()


TOLD = "the client is told"
OLD = "every file is bit for bit as before"
READER = "a reader that looks all the time sees the old files only"
GONE = "the worker's child process was seen at work, and every process of the call is gone"
HALF = "a file was half written, in staging and nowhere else"
PROVEN = "the audit carries the proof of death of each worker that ran"


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        (attrs.evolve(STOPPED, answers=(Answer(value={}, outcome="committed"),)), TOLD),
        (attrs.evolve(STOPPED, answers=()), TOLD),
        (attrs.evolve(STOPPED, answers=(attrs.evolve(STOPPED.answers[0], outcome="unresolved"),)), "the outcome is"),
        (attrs.evolve(STOPPED, events=STOPPED.events[:-1]), "the audit reads"),
        (attrs.evolve(STOPPED, events=()), "the audit reads"),
        (attrs.evolve(STOPPED, seconds=9.0), "it takes at most 4 s"),
        (attrs.evolve(STOPPED, after=SITE), OLD),
        (attrs.evolve(STOPPED, after={}), OLD),
        (attrs.evolve(STOPPED, before={}, after={}), OLD),
        (attrs.evolve(STOPPED, sightings=(TREE, SITE)), READER),
        (attrs.evolve(STOPPED, sightings=()), READER),
        (attrs.evolve(STOPPED, alive=(CHART,)), GONE),
        (attrs.evolve(STOPPED, seen=(WORKER,)), GONE),
        (attrs.evolve(STOPPED, half_written=()), HALF),
        (attrs.evolve(STOPPED, half_written=(*STOPPED.half_written, "site/a.svg")), HALF),
        (attrs.evolve(STOPPED, events=killed("allow", "start", "timeout", "rollback")), PROVEN),
        (attrs.evolve(STOPPED, leftovers=(".ztrio-job-1",)), "no staging folder is left"),
        (with_extra(STOPPED, history={"default": 2}), "session state counts"),
        (attrs.evolve(CANCEL, events=STOPPED.events), "the audit says why: cancelled by client"),
        (attrs.evolve(CANCEL, answers=STOPPED.answers), TOLD),
        (attrs.evolve(COMMIT, after=TREE), "the new site is there and whole"),
        (with_extra(COMMIT, unfinished=["site/a.svg"]), "the new site is there and whole"),
        (with_extra(COMMIT, target="/w/.ztrio-job-1/site"), "the result names the public path"),
        (attrs.evolve(ERROR, answers=STOPPED.answers), "the error names"),
        (attrs.evolve(TWO, events=TWO.events[:-1]), "one call ran after the other"),
        (
            attrs.evolve(TWO, events=(*TWO.events[:4], {**TWO.events[4], "monotonic": 1.5}, TWO.events[5])),
            "one call ran after the other",
        ),
        (with_extra(TWO, titles=["morning", "evening"]), "every page is of the site committed last"),
        (with_extra(TWO, titles=["evening", "evening"]), "every page is of the site committed last"),
        (attrs.evolve(TWO, events=()), "every page is of the site committed last"),
        (attrs.evolve(TWO, sightings=("Harbour", "missing")), "a reader always finds a whole page"),
        (attrs.evolve(TWO, sightings=("half written",)), "a reader always finds a whole page"),
        (with_extra(DESTROYED, read=Answer(value={"result": []})), "its state cannot be read again"),
        (with_extra(VANISHED, ended_after=None), "end of input ends the server"),
        (with_extra(VANISHED, status=1), "end of input ends the server"),
        (with_extra(VANISHED, recorded=()), "in the audit log"),
        (with_extra(VANISHED, recorded=(event("allow"), event("commit"), event("rollback"))), "in the audit log"),
        (with_extra(VANISHED, recorded=(event("allow"), event("error"))), "in the audit log"),
        (attrs.evolve(CRASHED, after={**SITE, "site/index.html": "half"}), "after the crash every file"),
        (with_extra(CRASHED, rebuilt=TREE), "after the crash every file"),
        (attrs.evolve(CRASHED, after=SITE), "the audit has one terminal event"),
        (attrs.evolve(FORWARD, after=TREE), "the audit has one terminal event"),
        (with_extra(FORWARD, history_found=0), "the audit has one terminal event"),
        (attrs.evolve(CRASHED, events=CRASHED.events[:-1]), "the audit has one terminal event"),
        (attrs.evolve(CRASHED, events=(*CRASHED.events, CRASHED.events[-1])), "the audit has one terminal event"),
        (attrs.evolve(CRASHED, events=(*CRASHED.events, event("allow", "job-2"))), "the audit has one terminal event"),
        (attrs.evolve(CRASHED, alive=(WORKER,)), "whatever the killed server ran is gone"),
        (attrs.evolve(CRASHED, seen=()), "whatever the killed server ran is gone"),
        (with_extra(CRASHED, history={"crash": 2}), "session state counts"),
    ],
)
def test_a_broken_promise_is_noticed(facts: Facts, text: str) -> None:
    """Each kind of broken promise, one fact changed at a time, is reported by its name."""
    assert any(line.startswith(text) for line in broken(facts)), broken(facts)


def test_a_read_that_failed_has_its_end() -> None:
    """The error of a read is its end; that of a mutating call is not."""
    recorded = (event("allow", capability="read"), event("error", capability="read"))
    assert broken(with_extra(VANISHED, recorded=recorded)) == []


def test_the_report_counts_and_proves() -> None:
    """A report is kept when each promise is, and shows the proofs of its workers."""
    good, bad = Report.of(STOPPED), Report.of(attrs.evolve(STOPPED, after=SITE))
    assert (good.kept, bad.kept, good.proofs) == (True, False, [PROOF])
    assert [promise["kept"] for promise in bad.as_dict()["promises"]].count(False) == 1


def test_all_promises_are_kept(started: Started, tmp_path: Path) -> None:
    """The whole demo, in processes of its own: every scene keeps every promise, and --keep leaves the site behind."""
    folder = tmp_path / "kept"
    with started("demo", "--json", "--keep", folder) as process:
        out, err = process.communicate(timeout=100)
    report = json.loads(out)
    assert [promise for scene in report["scenes"] for promise in scene["promises"] if not promise["kept"]] == []
    assert (process.returncode, report["kept"], err) == (0, True, "")
    assert [scene["scene"] for scene in report["scenes"]] == list(PROMISES)
    assert (folder / "site" / "index.html").exists()


def sabotaged(tmp_path: Path, old: str, new: str) -> Path:
    """A copy of the example with one change to its tools."""
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__", ".ztrio*", "site"))
    text = (folder / "site_tools.py").read_text()
    assert old in text
    (folder / "site_tools.py").write_text(text.replace(old, new))
    return folder


def test_the_demo_fails_when_something_is_wrong(cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real server whose tool takes bad data after all breaks promises: they are named, and the status is 1."""
    folder = sabotaged(tmp_path, '        raise BadTable(f"{file}: line {line}: {text', '        return text  # (f"{')
    monkeypatch.setattr(demo, "example_folder", lambda: folder)
    monkeypatch.setattr(scenes, "SCENES", (scenes.tool_error,))
    ran = cli("demo")
    assert ran.status == 1
    assert "BROKEN  tool error: the client is told TOOL_ERROR. Seen: committed." in ran.out
    assert "BROKEN  tool error: every file is bit for bit as before. Seen: content/data/bathing.csv." in ran.out


def test_a_server_that_does_not_serve(cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that ends at once is one error with a code, below what it said."""
    folder = sabotaged(tmp_path, "import ztrio\n", "raise ValueError('broken on purpose')\n")
    monkeypatch.setattr(demo, "example_folder", lambda: folder)
    ran = cli("demo")
    assert (ran.status, "broken on purpose" in ran.err) == (1, True)
    assert ran.err.splitlines()[-1].startswith("error: DEMO_FAILED: ")


def test_a_server_that_does_not_answer(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scene that does not end is given up after its bound: the demo fails instead of hanging."""

    async def endless(_: scenes.Stage) -> Facts:
        """Nothing happens."""
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(scenes, "SCENES", (endless,))
    monkeypatch.setattr(demo, "SCENE", 0.1)
    ran = cli("demo")
    assert (ran.status, ran.err.splitlines()[-1][:19]) == (1, "error: DEMO_FAILED:")


def test_a_folder_with_something_in_it_is_not_used(cli: Command, workspace: Path) -> None:
    """--keep wants a new or empty folder: nothing of the user's is overwritten."""
    (workspace / "mine").write_text("mine")
    ran = cli("demo", "--keep", workspace)
    assert (ran.status, ran.err[:13], (workspace / "mine").read_text()) == (2, "error: USAGE:", "mine")


def test_where_there_is_no_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without the example says so."""
    monkeypatch.setattr(demo, "TOOLS", "no_such_tools.py")
    with pytest.raises(Complaint) as caught:
        demo.example_folder()
    assert (caught.value.code, caught.value.status) == ("EXAMPLE_NOT_FOUND", 1)


@pytest.mark.leaves("a staging folder of a call that there never was")
def test_what_is_seen_of_files(tmp_path: Path) -> None:
    """A tree is the content of files, without ztrio's own; an unfinished chart is one that has begun and not ended."""
    (tmp_path / ".ztrio-job-1").mkdir()
    (tmp_path / ".ztrio-job-1" / "a.svg").write_text("<svg ...")
    (tmp_path / "b.svg").write_text("<svg ...></svg>\n")
    (tmp_path / "c.svg").write_text("")
    assert sorted(read_tree(tmp_path)) == ["b.svg", "c.svg"]
    assert unfinished_charts(tmp_path) == [".ztrio-job-1/a.svg"]


def test_what_is_seen_of_processes() -> None:
    """A process is the same only if it also started at the same time; descendants are found through any depth."""
    table = {process.pid: process for process in (WORKER, CHART, Process(9, "0", 1, 9, "server"))}
    assert below(9, table) == [WORKER, CHART]
    here = processes()[os.getpid()]
    assert still_alive([here, attrs.evolve(here, started="long ago")]) == [here]


def test_the_process_table_without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where there is no /proc, `ps` tells the same: pid, parent, start time and command; zombies are left out."""
    program = tmp_path / "ps"
    program.write_text(
        "#!/bin/sh\n"
        "echo '  10     1    10 S Mon Nov 30 15:43:00 2026 python chart.py'\n"
        "echo '  11    10    10 Z Mon Nov 30 15:43:01 2026 (gone)'\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr("ztrio_cli.demo.observe._PROC", tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert processes() == {10: Process(10, "Mon Nov 30 15:43:00 2026", 1, 10, "python chart.py")}
