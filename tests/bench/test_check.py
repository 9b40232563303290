"""The gate: it passes what is right on any machine, and finds a canceller that is broken."""

import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.bench.conftest import MakeReport, result
from ztrio_bench.check import Verdict, judge, run_check
from ztrio_bench.report import Result
from ztrio_bench.subjects import Subject

HERE = Path(__file__).parent
RIGHT = {"alive": 0, "survivors": 0}
COMPLETE = {"backend": "zygote", "containment": "pidns", "complete": True}


def cancelled(variant: str = "sleeping", **options: Any) -> Result:
    """A right result of `cancel`, with these differences."""
    chosen: dict[str, Any] = {"samples": {"resume": [[1.0] * 20]}, "counts": RIGHT, "facts": COMPLETE, **options}
    return result("cancel", variant, "ztrio", **chosen)


def broken(verdicts: list[Verdict]) -> list[str]:
    """What the broken rules found."""
    return [f"{verdict.rule}: {verdict.found}" for verdict in verdicts if not verdict.ok]


def floor(milliseconds: float) -> Result:
    """The floor of `cancel sleeping`."""
    return result("cancel", "sleeping", "floor", samples={"resume": [[milliseconds]]})


ALL = ("sleeping", "ignoring", "cpu", "forking", "daemon")


def test_what_is_right_passes(make_report: MakeReport) -> None:
    """Whether a machine is quick or slow, equal ratios and nobody left pass every rule."""
    for slow in (1.0, 100.0):
        each = [cancelled(variant, samples={"resume": [[slow] * 20]}) for variant in ALL]
        assert [] == broken(judge(make_report(*each, floor(slow / 5))))


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"counts": {"alive": 1, "survivors": 0}}, "1 processes alive when the caller resumed"),
        ({"counts": {"alive": 1, "survivors": 1}}, "1 processes still running later"),
        ({"counts": {"alive": 0}}, "nobody looked for processes left over"),
        ({"counts": {**RIGHT, "hung": 1}}, "1 callers hung"),
        ({"counts": {**RIGHT, "unresolved": 1}}, "1 ends were not proven"),
        ({"counts": {**RIGHT, "dropped": 3}}, "3 samples dropped, and only 20 left"),
        ({"samples": {}}, "there are no figures"),
        ({"status": "failed", "reason": "its process ended"}, "failed: its process ended"),
        ({"status": "unsupported", "reason": "no way"}, "unsupported: no way"),
    ],
)
def test_each_wrong_is_found(make_report: MakeReport, options: dict[str, Any], found: str) -> None:
    """Each thing that can be wrong with a result breaks the rule of that result and is named."""
    verdict = judge(make_report(cancelled(**options)))[0]
    assert (False, True) == (verdict.ok, found in verdict.found), verdict


def test_a_daemon_may_escape_only_partial_containment(make_report: MakeReport) -> None:
    """Where containment says that it is partial, a daemon is exempt; nothing else is, and nowhere else is it."""
    left = {"alive": 5, "survivors": 5}
    partial = {"backend": "spawn", "containment": "group", "complete": False}
    assert judge(make_report(cancelled("daemon", counts=left, facts=partial)))[0].ok
    assert not judge(make_report(cancelled("forking", counts=left, facts=partial)))[0].ok
    assert not judge(make_report(cancelled("daemon", counts=left)))[0].ok
    assert not judge(make_report(cancelled("daemon", counts=left, facts={})))[0].ok


def test_a_slow_end_breaks_a_ratio(make_report: MakeReport) -> None:
    """A tool that ignores SIGTERM and takes ten times as long to end breaks the gate."""
    slow = cancelled("ignoring", samples={"resume": [[10.0] * 20]})
    found = broken(judge(make_report(cancelled(), *(cancelled(name) for name in ALL[2:]), slow, floor(0.2))))
    assert ["a tool that ignores SIGTERM ends like one that sleeps: ratio 10.00, at most 4"] == found


def test_a_figure_that_is_missing_breaks_its_ratio(make_report: MakeReport) -> None:
    """A rule whose figures are not there does not hold."""
    found = broken(judge(make_report(cancelled())))
    assert "a tool that ignores SIGTERM ends like one that sleeps: a figure is missing" in found


def test_a_rule_for_the_zygote_is_not_asked_of_spawn(make_report: MakeReport) -> None:
    """Starting an interpreter is not compared with fork."""
    for backend, asked in (("zygote", True), ("spawn", False)):
        ours = result("call", "trivial", "ztrio", samples={"latency": [[300.0]]}, facts={"backend": backend})
        file = attrs.evolve(ours, variant="file")
        bare = result("call", "trivial", "floor", samples={"latency": [[1.0]]})
        found = broken(judge(make_report(ours, file, bare)))
        assert asked == any("fork and wait" in line for line in found)


@pytest.mark.case("R66")
@pytest.mark.parametrize(
    ("how", "found"), [("leaves", "alive when the caller resumed"), ("waits", "a small multiple of killpg and wait")]
)
async def test_a_broken_canceller_fails_the_gate(how: str, found: str) -> None:
    """A backend that leaves the tool alive, or waits for it politely, fails the gate: real processes, a real run."""
    driver = Subject(
        name="ztrio", text="broken", driver=str(HERE / "broken_driver.py"), arguments=(how,), cases=("cancel",)
    )
    with trio.fail_after(100):
        report = await run_check(replaced={"ztrio": driver}, cases=("cancel",), variants=("sleeping",))
    lines = broken(judge(report))
    assert any(found in line for line in lines), lines
    assert sys.executable not in str(report)
