"""Runs: real drivers, real processes, a few samples; nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from ztrio_bench import drivers, process, venvs
from ztrio_bench.cases import CASES
from ztrio_bench.process import DriverFailed, open_driver, stop_leftovers
from ztrio_bench.report import Report, Result
from ztrio_bench.runner import Plan, run
from ztrio_bench.subjects import SUBJECTS, Subject
from ztrio_bench.venvs import Unavailable, find_python, interpreter

HERE = Path(__file__).parent
PEER = Subject(name="pebble", text="a peer", driver=str(HERE / "peer_driver.py"), cases=tuple(CASES))
BRIEF: dict[str, Any] = {"rounds": 1, "count": 2, "seconds": 0.5, "install": False, "patience": 1.0, "linger": 0.5}


async def brief(*cases: str, **options: Any) -> Report:
    """A run of a few samples."""
    with trio.fail_after(90):
        return await run(Plan(cases=cases, **{**BRIEF, **options}))


def only(report: Report, subject: str) -> list[Result]:
    """What a subject did."""
    return [result for result in report.results if result.subject == subject]


@pytest.mark.parametrize("case", CASES)
async def test_ztrio_does_every_case(case: str) -> None:
    """Every case of the catalogue gives figures for ztrio, and nobody hangs."""
    report = await brief(case, subjects=("ztrio", "floor", *(["mcp-sdk"] if case == "stdio" else [])))
    mine = only(report, "ztrio")
    assert list(CASES[case].variants) == [result.variant for result in mine]
    for result in mine:
        assert ("ok", "") == (result.status, result.reason)
        assert result.metrics[CASES[case].metric].n >= 1
        assert not result.counts.get("hung")
        assert not result.counts.get("dropped")
    without = {"daemon", "launcher", "fork-server"}  # the system calls alone have nothing that corresponds
    others = [result for result in report.results if result.subject != "ztrio"]
    assert [] == [other for other in others if other.status != ("unsupported" if other.variant in without else "ok")]
    assert {"version", "text", "trio", "backend"} == set(report.subjects["ztrio"])


@pytest.mark.case("R66")
async def test_cancel_beside_hogs_says_how_it_was_measured() -> None:
    """With processes that compute beside it, cancelling still works and the report has quantiles, drops and clock."""
    report = await brief("cancel", variants=("sleeping",), hogs=2)
    [result] = only(report, "ztrio")
    resume = result.metrics["resume"]
    assert resume.n == 2
    assert 0 < resume.minimum <= resume.p50 <= resume.p99 <= resume.maximum
    assert {"alive": 0, "survivors": 0} == result.counts
    assert report.environment["clock_step_ns"] > 0
    assert {"hogs": 2, "rounds": 1} == {name: report.options[name] for name in ("hogs", "rounds")}
    assert report.comparisons[0].subject == "floor"


async def test_many_calls_are_cancelled_at_once() -> None:
    """With a load, all calls compute when all are cancelled, and the last resumption counts."""
    report = await brief("cancel", load=4)
    [result] = only(report, "ztrio")
    assert ("load-4", 4, 1) == (result.variant, result.metrics["resume"].n, result.metrics["last"].n)
    assert 0 == result.counts["alive"] + result.counts["survivors"] + result.counts["hung"]


async def test_a_run_that_is_cancelled_leaves_nothing() -> None:
    """Leaving in the middle of a round ends every driver, worker and tool, and removes their folders."""
    with trio.move_on_after(2.0) as scope:
        await run(Plan(cases=["cancel"], load=4, rounds=1000, hogs=1, install=False))
    assert scope.cancelled_caught
    assert [] == list(Path(tempfile.gettempdir()).glob("ztb-*"))


async def test_the_spawn_backend_is_measured_when_it_is_named() -> None:
    """The backend that the plan names is the one that ran."""
    report = await brief("cancel", variants=("sleeping",), backend="spawn", subjects=("ztrio",))
    [result] = only(report, "ztrio")
    assert ("spawn", False) == (result.facts["backend"], result.facts["complete"])


async def test_a_peer_on_asyncio_is_measured_and_told_what_it_leaves() -> None:
    """A peer that only sends SIGTERM to its child hangs where that is ignored, leaks a daemon, and shows so."""
    report = await brief(
        "cancel", variants=("sleeping", "ignoring", "daemon"), subjects=("pebble",), count=1, replaced={"pebble": PEER}
    )
    sleeping, ignoring, daemon = only(report, "pebble")
    assert {"alive": 0, "survivors": 0} == sleeping.counts
    assert 1 == ignoring.counts["hung"]
    assert ignoring.metrics["resume"].maximum == pytest.approx(1e9, rel=0.5)
    assert {"alive": 1, "survivors": 1} == daemon.counts
    assert "dead" not in daemon.metrics


async def test_a_peer_on_asyncio_does_the_other_cases() -> None:
    """Latency, throughput, load, timeout, stall and memory work for a peer, and what it cannot do is told."""
    options = {"subjects": ("pebble",), "replaced": {"pebble": PEER}, "seconds": 0.2}
    report = await brief("call", "timeout", "memory", **options)
    found = {(result.case, result.variant): result for result in report.results}
    assert ("unsupported", "no files") == (found["call", "file"].status, found["call", "file"].reason)
    for key, metric in ((("call", "trivial"), "latency"), (("timeout", "sleeping"), "overshoot")):
        assert found[key].metrics[metric].n >= 1
    assert found["memory", "16"].metrics["beyond"].n == 16
    report = await brief("throughput", "stall", variants=("16",), **options)
    assert [("throughput", "ok")] == [(result.case, result.status) for result in report.results]
    [burst] = (await brief("cancel", load=3, **options)).results
    assert (3, 1) == (burst.metrics["resume"].n, burst.metrics["last"].n)


async def test_what_a_peer_leaves_behind_when_it_is_killed_is_told() -> None:
    """Where nothing ties workers to the process that calls, all of them live on when it is killed, and are counted."""
    report = await brief("orphans", subjects=("pebble",), count=1, replaced={"pebble": PEER})
    supervisor, launcher, server = only(report, "pebble")
    # One sleeps, one has three children, one left a daemon; a short call's may have been there, too.
    assert 7 <= supervisor.counts["survivors"] <= 11
    assert {} == supervisor.metrics
    assert [("unsupported", "it has no launcher"), ("unsupported", "it has no fork-server")] == [
        (result.status, result.reason) for result in (launcher, server)
    ]


async def test_the_sdk_runs_a_cancelled_tool_to_its_end() -> None:
    """A tool in a thread of its server survives its cancel, and the report says so."""
    report = await brief("cancel", variants=("sleeping", "cpu"), subjects=("mcp-sdk",), count=1)
    sleeping, cpu = only(report, "mcp-sdk")
    assert 1 == sleeping.counts["survivors"]
    assert "unsupported" == cpu.status


async def test_a_driver_that_hangs_or_dies_fails_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A subject that ends in the middle is shown as failed with its last words, and one that hangs with its bound."""
    script = tmp_path / "driver.py"
    script.write_text(
        "import sys\nfor line in sys.stdin:\n"
        '    if \'hello\' in line: print(\'{"status": "ok", "facts": {}}\', flush=True)\n'
        "    else: sys.exit('that was too much')\n"
    )
    dying = attrs.evolve(PEER, driver=str(script))
    report = await brief("call", subjects=("floor", "pebble"), replaced={"pebble": dying})
    assert {("failed", "its process ended: that was too much")} == {
        (r.status, r.reason) for r in only(report, "pebble")
    }
    assert {"ok"} == {result.status for result in only(report, "floor")}

    script.write_text("import time; time.sleep(60)")
    async with open_driver(dying, sys.executable) as driver:
        with pytest.raises(DriverFailed, match="no answer within 1 s"):
            await driver.ask({"op": "hello"}, bound=0.6)
        monkeypatch.setattr(process, "_GONE", 0.2)


async def test_a_peer_that_is_not_there_is_shown_so(tmp_path: Path) -> None:
    """Without leave to install, a missing peer takes no part and the report says why."""
    report = await brief("call", subjects=("floor", "pebble"), cache=tmp_path)
    assert {"unavailable"} == {result.status for result in only(report, "pebble")}
    assert [] == list(tmp_path.iterdir())


async def test_an_environment_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer is installed into its own environment; the second time nothing runs, and a failure is a sentence."""
    commands: list[list[str]] = []

    async def noting(command: list[str]) -> None:
        await trio.lowlevel.checkpoint()
        commands.append(command)
        if "venv" in command:
            python = Path(command[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.touch()

    with monkeypatch.context() as patch:
        patch.setattr(venvs, "_run", noting)
        first = await interpreter(SUBJECTS["pebble"], cache=tmp_path)
        assert first == await interpreter(SUBJECTS["pebble"], cache=tmp_path)
    assert ["venv", "pip"] == [command[2] for command in commands]
    assert Path(first).is_relative_to(tmp_path)
    with pytest.raises(Unavailable, match="could not be installed: mend me"):
        await venvs._run([sys.executable, "-c", "import sys; sys.exit('mend me')"])
    with pytest.raises(Unavailable, match="could not be installed"):
        await venvs._run([str(tmp_path / "nothing")])


def test_a_driver_starts_where_nothing_of_ztrio_is_installed() -> None:
    """Run by its path under a foreign interpreter, a driver finds its own modules and nothing else of ours."""
    start = Path(drivers.__file__).with_name("start.py")
    done = subprocess.run(
        [sys.executable, "-I", "-S", start, "floor"], input=b'{"op": "hello"}\n', capture_output=True, check=True
    )
    assert "ok" == json.loads(done.stdout)["status"]


def test_an_interpreter_is_found_or_missed_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The running interpreter serves where it fits; another is looked for, tried, and missed with its number."""
    assert sys.executable == find_python(None) == find_python((sys.version_info[0], sys.version_info[1]))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    place = tmp_path / "versions" / "9.9.1" / "bin"
    place.mkdir(parents=True)
    with pytest.raises(Unavailable, match=r"needs Python 9\.9"):
        find_python((9, 9))
    python = place / "python"
    python.write_text("#!/bin/sh\necho 9 9\n")
    python.chmod(0o755)
    (tmp_path / "python9.9").write_text("")
    assert str(python) == find_python((9, 9))


def test_leftovers_are_found_by_their_folder(tmp_path: Path) -> None:
    """A process that made its own session, left its folder and lost its parent is still found and ended."""
    code = "import os, sys, time; os.setsid(); os.chdir('/'); print(flush=True); time.sleep(60)"
    environment = {**os.environ, "ZTRIO_BENCH_FOLDER": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        start = time.monotonic()
        assert 1 == stop_leftovers(tmp_path)
        assert -signal.SIGKILL == child.wait(5)
        assert time.monotonic() - start < 5
    assert 0 == stop_leftovers(tmp_path)
