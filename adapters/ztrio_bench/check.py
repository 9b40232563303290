"""The gate: what a brief run must show on any machine, however slow or busy it is.

Nothing here is an absolute time. Either a thing holds always (no process outlives its call, nobody hangs), or one
figure is compared with another of the same run, with room for a machine that does other things meanwhile.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import attrs

from ztrio_bench.cases import CASES
from ztrio_bench.report import Report, Result
from ztrio_bench.runner import Plan, run
from ztrio_bench.statistics import compare
from ztrio_bench.subjects import Subject

__all__ = ["Verdict", "judge", "run_check"]


@attrs.frozen
class Verdict:
    """The answer to one rule.

    Args:
        rule: What must hold.
        ok: Whether it does.
        found: What was found.
    """

    rule: str
    ok: bool
    found: str


@attrs.frozen
class _Limit:
    """One figure of ztrio's divided by another of the same run is at most so much; see `_LIMITS`."""

    rule: str
    over: tuple[str, str, str, str]  # case, variant, subject, metric
    under: tuple[str, str, str, str]
    most: float
    # Whether it only holds with a fork server; spawning an interpreter has costs of its own.
    zygote: bool = False


_SLEEPING: Final = ("cancel", "sleeping", "ztrio", "resume")

# The ratios that are aimed at on a quiet machine are in docs/benchmarks.md; here each has a factor of about five of
# room, and a canceller that waits for anybody's goodwill is off by hundreds.
_LIMITS: Final = (
    _Limit(
        "a tool that ignores SIGTERM ends like one that sleeps", ("cancel", "ignoring", "ztrio", "resume"), _SLEEPING, 4
    ),
    _Limit("a tool that computes in C ends like one that sleeps", ("cancel", "cpu", "ztrio", "resume"), _SLEEPING, 5),
    _Limit("a tool with children ends like one without", ("cancel", "forking", "ztrio", "resume"), _SLEEPING, 8),
    _Limit("a tool with a daemon ends like one without", ("cancel", "daemon", "ztrio", "resume"), _SLEEPING, 8),
    _Limit(
        "a cancel costs a small multiple of killpg and wait", _SLEEPING, ("cancel", "sleeping", "floor", "resume"), 30
    ),
    _Limit("a timeout ends a call like a cancel", ("timeout", "sleeping", "ztrio", "overshoot"), _SLEEPING, 8),
    _Limit(
        "more callers do not make fewer calls",
        ("throughput", "1", "ztrio", "rate"),
        ("throughput", "16", "ztrio", "rate"),
        1.5,
    ),
    _Limit(
        "a call costs a small multiple of fork and wait",
        ("call", "trivial", "ztrio", "latency"),
        ("call", "trivial", "floor", "latency"),
        20,
        zygote=True,
    ),
    _Limit(
        "a file and state cost less than four calls without",
        ("call", "file", "ztrio", "latency"),
        ("call", "trivial", "ztrio", "latency"),
        4,
    ),
    _Limit(
        "to publish durably costs a small multiple of its syncs",
        ("publication", "3", "ztrio", "latency"),
        ("publication", "3", "floor", "latency"),
        8,
    ),
    _Limit(
        "a worker is not much larger than an interpreter",
        ("memory", "16", "ztrio", "beyond"),
        ("memory", "16", "floor", "beyond"),
        4,
    ),
    _Limit(
        "a round trip is like that of the SDK's own server",
        ("stdio", "empty", "ztrio", "latency"),
        ("stdio", "empty", "mcp-sdk", "latency"),
        3,
    ),
)


async def run_check(
    *,
    backend: str | None = None,
    containment: str | None = None,
    replaced: Mapping[str, Subject] | None = None,
    cases: tuple[str, ...] = tuple(CASES),
    variants: tuple[str, ...] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Make the brief run that `judge` judges. Installs nothing.

    Args:
        backend: ztrio's backend; its own choice when None.
        containment: ztrio's containment; its own choice when None.
        replaced: Other definitions of subjects, by name.
        cases: Only these cases.
        variants: Only these variants; all when empty.
        say: Receives a line about each step.
    """
    plan = Plan(
        cases=cases,
        subjects=("ztrio", "floor", "mcp-sdk"),
        variants=variants,
        rounds=2,
        count=8,
        seconds=1.5,
        backend=backend,
        containment=containment,
        install=False,
        replaced=replaced or {},
    )
    # Of the SDK, only the round trip is wanted.
    report = await run(
        attrs.evolve(plan, cases=[name for name in cases if name != "stdio"], subjects=plan.subjects[:2]), say=say
    )
    parts = [report]
    if "stdio" in cases:
        parts.append(await run(attrs.evolve(plan, cases=["stdio"], count=300), say=say))
    if "cancel" in cases and not variants:
        parts.append(await run(attrs.evolve(plan, cases=["cancel"], load=16, subjects=plan.subjects[:2]), say=say))
    results = [result for part in parts for result in part.results]
    return attrs.evolve(
        report,
        results=results,
        comparisons=compare(results),
        subjects={name: facts for part in parts for name, facts in part.subjects.items()},
    )


def judge(report: Report) -> list[Verdict]:
    """Apply every rule to a report."""
    return [*_of_each(report), *_ratios(report)]


def _of_each(report: Report) -> Iterator[Verdict]:
    for result in report.results:
        if result.subject == "ztrio":
            found = list(_broken(result))
            samples = max((summary.n for summary in result.metrics.values()), default=0)
            looked = result.case in _LOOKS and not _exempt(result)
            good = f"{samples} samples, nobody hung" + (", no process was left" if looked else "")
            yield Verdict(f"{result.case} {result.variant} is right", not found, "; ".join(found) or good)


def _broken(result: Result) -> Iterator[str]:
    """What is wrong with one result."""
    if result.status != "ok":
        yield f"{result.status}: {result.reason}"
        return
    samples = max((summary.n for summary in result.metrics.values()), default=0)
    if not samples:
        yield "there are no figures"
    if 10 * result.counts.get("dropped", 0) > samples:
        yield f"{result.counts['dropped']} samples dropped, and only {samples} left"
    for name, text in (("hung", "callers hung"), ("unresolved", "ends were not proven")):
        if result.counts.get(name):
            yield f"{result.counts[name]} {text}"
    if result.case in _LOOKS and not _exempt(result):
        for name, text in _LOOKS[result.case].items():
            if name not in result.counts:
                yield "nobody looked for processes left over"
            elif result.counts[name]:
                yield f"{result.counts[name]} processes {text}"


# What must not be left of whom, by case.
_LATER: Final = {"survivors": "still running later"}
_LOOKS: Final = {
    "cancel": {"alive": "alive when the caller resumed", **_LATER},
    "timeout": {"alive": "alive when the caller resumed", **_LATER},
    "orphans": _LATER,
}


def _exempt(result: Result) -> bool:
    """Whether the containment in use does not promise that what this tool starts is ended, and says so."""
    return (result.case == "orphans" or result.variant == "daemon") and result.facts.get("complete") is False


def _ratios(report: Report) -> Iterator[Verdict]:
    found = {
        (result.case, result.variant, result.subject, metric): statistics.median(summary.rounds)
        for result in report.results
        for metric, summary in result.metrics.items()
    }
    cases = {result.case for result in report.results}
    backends = {result.facts["backend"] for result in report.results if "backend" in result.facts}
    for limit in _LIMITS:
        if not {limit.over[0], limit.under[0]} <= cases or (limit.zygote and backends != {"zygote"}):
            continue
        over, under = found.get(limit.over), found.get(limit.under)
        if not over or not under:
            yield Verdict(limit.rule, ok=False, found="a figure is missing")
        else:
            ratio = over / under
            yield Verdict(limit.rule, ratio <= limit.most, f"ratio {ratio:.2f}, at most {limit.most:g}")
