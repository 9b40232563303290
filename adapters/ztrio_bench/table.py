"""A report as tables for a terminal: one for each case and variant, a line for each subject."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ztrio_bench.cases import CASES, METRICS
from ztrio_bench.report import Comparison, Report, Result

__all__ = ["environment_line", "figure", "main_metric", "ratio", "remarks", "show", "unit"]


def unit(metric: str) -> str:
    """The unit that figures of a metric are shown in."""
    return {"ns": "ms", "bytes": "MiB", "per second": "1/s"}[METRICS[metric].unit]


def figure(metric: str, value: float) -> str:
    """A figure with three significant digits, in the unit of `unit`."""
    shown = value / {"ns": 1e6, "bytes": 2**20, "per second": 1}[METRICS[metric].unit]
    digits = 0 if shown >= 100 else 1 if shown >= 10 else 2 if shown >= 1 else 3
    return f"{shown:,.{digits}f}"


def main_metric(result: Result) -> str | None:
    """The metric that a result is judged by, or None if it has no figures."""
    preferred = "last" if result.variant.startswith("load-") else CASES[result.case].metric
    return preferred if preferred in result.metrics else next(iter(result.metrics), None)


def remarks(result: Result) -> Iterator[str]:
    """What happened beside the figures, in phrases."""
    if result.status != "ok":
        yield f"{result.status}: {result.reason}"
    counts = result.counts
    if hung := counts.get("hung"):
        yield f"{hung} hung more than 5 s and had to be freed"
    if left := counts.get("survivors"):
        yield f"{left} still running 3.5 s later"
    alive = counts.get("alive", 0) - counts.get("survivors", 0)
    if alive > 0:
        dead = result.metrics.get("dead")
        when = f"; all dead after {figure('dead', dead.p50)} ms (p50)" if dead and not left else ""
        yield f"{alive} alive when the caller resumed{when}"
    if dropped := counts.get("dropped"):
        yield f"{dropped} samples dropped"
    if unresolved := counts.get("unresolved"):
        yield f"{unresolved} unresolved"
    yield from result.notes
    shown = [str(result.facts[name]) for name in ("what", "backend", "containment") if name in result.facts]
    if shown:
        yield ", ".join(shown)


def environment_line(report: Report) -> str:
    """The machine in a line."""
    facts = report.environment
    memory = facts["memory_bytes"] / 2**30
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {memory:.0f} GiB, {facts['system']} {facts['kernel']}, "
        f"{facts['python']}; load before {facts['load_before']}; clock step {facts['clock_step_ns']} ns"
    )


def show(report: Report, console: Console) -> None:
    """Print a report."""
    console.print(environment_line(report))
    comparisons = {(each.case, each.variant, each.metric, each.subject): each for each in report.comparisons}
    for case, variant in dict.fromkeys((result.case, result.variant) for result in report.results):
        group = [result for result in report.results if (result.case, result.variant) == (case, variant)]
        metric = next((found for result in group if (found := main_metric(result))), CASES[case].metric)
        table = Table(box=None, pad_edge=False)
        table.add_column("")
        for heading in ("n", "p50", "p90", "p99", "p99.9", "max", "÷ ztrio", "spread"):
            table.add_column(heading, justify="right")
        table.add_column("")
        for result in group:
            comparison = comparisons.get((case, variant, metric, result.subject))
            table.add_row(*_row(result, metric, comparison), style="bold" if result.subject == "ztrio" else None)
        console.print()
        console.print(f"{CASES[case].title}, {variant}: {METRICS[metric].label}, {unit(metric)}", style="underline")
        console.print(table)


def _row(result: Result, metric: str, comparison: Comparison | None) -> list[Text]:
    summary = result.metrics.get(metric)
    if summary is None:
        cells = [""] * 6
    elif METRICS[metric].unit == "per second":
        cells = [str(summary.n), figure(metric, summary.p50), "", "", "", figure(metric, summary.maximum)]
    else:
        points = (summary.p50, summary.p90, summary.p99, summary.p999, summary.maximum)
        cells = [str(summary.n), *(figure(metric, point) for point in points)]
    middle, spread = "", ""
    if comparison is not None:
        middle = ratio(comparison.median)
        spread = f"{ratio(comparison.low)} … {ratio(comparison.high)}"
    return [Text(cell) for cell in (result.subject, *cells, middle, spread, "; ".join(remarks(result)))]


def ratio(value: float) -> str:
    """A ratio, with two significant digits or as many as it takes to the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2g}"
