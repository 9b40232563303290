"""`ztrio bench` on the command line; what it measures is tested beside this."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench.conftest import MakeReport, result
from ztrio_bench import check, report, runner
from ztrio_bench.cases import CASES
from ztrio_bench.report import Report
from ztrio_bench.runner import Plan
from ztrio_bench.subjects import SUBJECTS
from ztrio_cli.main import main


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch, make_report: MakeReport) -> list[Plan]:
    """The plans that would have been run; each gives a report of one sample."""
    seen: list[Plan] = []

    async def run(plan: Plan, *, say: Any) -> Report:
        seen.append(plan)
        say("running")
        return make_report(result("cancel", "sleeping", "ztrio", samples={"resume": [[1.0]]}))

    monkeypatch.setattr(runner, "run", run)
    return seen


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    """The help has the one line that people want, and says how to read the figures."""
    assert main(["bench", "--help"]) == 0
    text = capsys.readouterr().out
    assert "ztrio bench cancel --load 64 --against zaptrace" in text
    assert "÷ ztrio" in text


def test_list_explains_every_case_and_subject(capsys: pytest.CaptureFixture[str]) -> None:
    """`ztrio bench list` names everything that can be given on the command line."""
    assert main(["bench", "list"]) == 0
    text = capsys.readouterr().out
    assert [name for name in (*CASES, *SUBJECTS) if f"  {name}: " not in text] == []
    assert "Python 3.13" in text


def test_one_line_compares_a_load_with_a_peer(plans: list[Plan], capsys: pytest.CaptureFixture[str]) -> None:
    """The words of the command line are the plan."""
    assert main(["bench", "cancel", "--load", "64", "--against", "zaptrace", "--backend", "spawn"]) == 0
    [plan] = plans
    assert (["cancel"], 64, ["ztrio", "floor", "zaptrace"]) == (plan.cases, plan.load, plan.subjects)
    assert ("spawn", None, None, True) == (plan.backend, plan.containment, plan.sandbox, plan.install)
    printed = capsys.readouterr()
    assert "cancel latency, sleeping" in printed.out
    assert "running\n" == printed.err


def test_all_means_all(plans: list[Plan], capsys: pytest.CaptureFixture[str]) -> None:
    """`all` is every case, and `--against all` every peer; `--quiet` says nothing on the way."""
    assert main(["bench", "all", "--against", "all", "--no-install", "-q"]) == 0
    assert (list(CASES), list(SUBJECTS), False) == (plans[0].cases, plans[0].subjects, plans[0].install)
    assert "" == capsys.readouterr().err


def test_json_goes_to_a_file_or_to_stdout(
    plans: list[Plan], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`--json FILE` keeps the report beside the table, `--json -` prints nothing else."""
    path = tmp_path / "run.json"
    assert main(["bench", "cancel", "--json", str(path)]) == 0
    assert "÷ ztrio" in capsys.readouterr().out
    assert main(["bench", "cancel", "--json", "-"]) == 0
    assert json.loads(path.read_bytes()) == json.loads(capsys.readouterr().out)
    assert main(["bench", "show", str(path)]) == 0
    assert "cancel latency, sleeping" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "status", "complaint"),
    [
        (["canel"], 2, "error: USAGE: canel: not known; choose from call, throughput, cancel"),
        (["cancel", "--against", "nobody"], 2, "error: USAGE: nobody: not known"),
        (["cancel", "--variant", "x"], 2, "error: USAGE: x: not known"),
        (["show"], 2, "error: USAGE: show takes one file"),
        (["show", "missing.json"], 1, "error: OS_ERROR:"),
        (["cancel", "--rounds", "0"], 2, "error: USAGE:"),
        ([], 2, "error: USAGE:"),
    ],
)
def test_wrong_words_are_named(
    words: list[str], status: int, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is wrong with the command line is one line with a code, and nothing runs."""
    assert status == main(["bench", *words])
    assert capsys.readouterr().err.startswith(complaint)


def test_a_file_that_is_no_report_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another file is told from a report."""
    path = tmp_path / "other.json"
    path.write_text('{"format": "ztrio-bench/0"}')
    assert main(["bench", "show", str(path)]) == 1
    assert "NOT_A_REPORT" in capsys.readouterr().err


def test_the_check_exits_by_its_verdicts(
    monkeypatch: pytest.MonkeyPatch, make_report: MakeReport, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`ztrio bench check` exits with 0 when every rule holds and 1 when one is broken, and names it."""
    kept: list[Report] = [make_report(), make_report(result("memory", "16", "ztrio", status="failed", reason="x"))]
    reports = list(kept)

    async def run_check(**options: Any) -> Report:
        assert {"backend": None, "containment": "require"} == {
            name: options[name] for name in ("backend", "containment")
        }
        return reports.pop(0)

    monkeypatch.setattr(check, "run_check", run_check)
    assert main(["bench", "check", "--containment", "require"]) == 0
    assert "all 0 rules hold" in capsys.readouterr().err
    path = tmp_path / "check.json"
    assert main(["bench", "check", "--containment", "require", "--json", str(path)]) == 1
    printed = capsys.readouterr()
    assert "BROKEN  memory 16 is right: failed: x" in printed.out
    assert "rules broken" in printed.err
    assert kept[1] == report.load(path)


def test_a_missing_extra_is_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the libraries of the extra, the command says what to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert main(["bench", "cancel"]) == 1
    assert "pip install 'ztrio[bench]'" in capsys.readouterr().err


def test_other_platforms_are_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where there is no /proc, nothing is tried."""
    monkeypatch.setattr("sys.platform", "darwin")
    assert main(["bench", "cancel"]) == 1
    assert "UNSUPPORTED_PLATFORM" in capsys.readouterr().err


def test_a_subject_that_failed_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, make_report: MakeReport, capsys: pytest.CaptureFixture[str]
) -> None:
    """If ztrio could not do a case, the exit status is 1; a peer that could not is only shown."""
    for subject, status in (("ztrio", 1), ("pebble", 0)):

        async def run(plan: Plan, *, say: Any, subject: str = subject) -> Report:
            return make_report(result("cancel", "sleeping", subject, status="failed", reason="it hung"))

        monkeypatch.setattr(runner, "run", run)
        assert status == main(["bench", "cancel"])
        assert "failed: it hung" in capsys.readouterr().out
