"""What a README shows of reports: one table of medians, and one plot of how soon a cancelled call is over for good.

Over means that the caller has resumed *and* every process of the tool is dead. A subject that leaves one running, or
hangs until its tool is killed from outside, is not slow: it never gets there, and that is what is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import attrs
from matplotlib.figure import Figure

from ztrio_bench.cases import METRICS
from ztrio_bench.report import Report, Result, Summary
from ztrio_bench.subjects import SUBJECTS
from ztrio_bench.table import figure, unit

__all__ = ["NAMES", "plot", "table"]

NAMES: Final = {
    "ztrio": "ztrio",
    "floor": "the bare system calls",
    "zaptrace": "ZapTrace",
    "pebble": "pebble",
    "trio-parallel": "trio-parallel",
    "mcp-sdk": "MCP SDK",
    "fastmcp": "FastMCP",
}
"""Subject → its name in print."""

_NEVER: Final = "never"


@attrs.frozen
class _Line:
    """One line of the table, and of the plot if it is of the case `cancel`.

    Args:
        text: What it is, for the table.
        case: Name of the case.
        variant: Its variant; a load of whatever size is `load`.
        metric: What is shown.
        label: What the plot calls it.
    """

    text: str
    case: str
    variant: str
    metric: str
    label: str = ""


_LINES: Final = (
    _Line("one call that changes something", "call", "trivial", "latency"),
    _Line("calls per second, 64 callers", "throughput", "64", "rate"),
    _Line("cancel a tool that sleeps", "cancel", "sleeping", "dead", "sleeps"),
    _Line("… that computes in C", "cancel", "cpu", "dead", "computes in C"),
    _Line("… that ignores SIGTERM", "cancel", "ignoring", "dead", "ignores SIGTERM"),
    _Line("… that has three children", "cancel", "forking", "dead", "has three children"),
    _Line("… that left a daemon", "cancel", "daemon", "dead", "left a daemon"),
    _Line("cancel {load} computing calls at once, the last", "cancel", "load", "last", "{load} compute,\nthe last one"),
    _Line("past its time limit", "timeout", "sleeping", "overshoot"),
    _Line("SIGKILL of all that, until nothing runs", "orphans", "supervisor", "gone"),
    _Line("memory per worker", "memory", "16", "beyond"),
    _Line("round trip over stdio", "stdio", "empty", "latency"),
)


def _results(reports: Sequence[Report], line: _Line) -> list[Result]:
    """The results that a line is about."""
    return [
        result
        for report in reports
        for result in report.results
        if result.case == line.case and result.variant.partition("-")[0] == line.variant.partition("-")[0]
    ]


def _value(result: Result, metric: str) -> Summary | str | None:
    """The distribution of a metric; `never` where that end does not come; None where there is nothing to show."""
    if result.counts.get("survivors") or (result.counts.get("hung") and result.case == "cancel"):
        return _NEVER
    return result.metrics.get(metric)


def _filled(text: str, results: Sequence[Result]) -> str:
    return text.format(load=results[0].variant.rpartition("-")[2])


def table(reports: Sequence[Report]) -> Iterator[str]:
    """The lines of a Markdown table: what was measured, and the median of each subject."""
    lines = [(line, found) for line in _LINES if (found := _results(reports, line))]
    taking_part = {result.subject for line, found in lines for result in found if _value(result, line.metric)}
    subjects = [name for name in SUBJECTS if name in taking_part]
    yield f"| median | {' | '.join(NAMES[name] for name in subjects)} |"
    yield f"|---|{'--:|' * len(subjects)}"
    for line, found in lines:
        values = {result.subject: _value(result, line.metric) for result in found}
        cells = [_cell(line.metric, values.get(name), bold=name == "ztrio") for name in subjects]
        yield f"| {_filled(line.text, found)} | {' | '.join(cells)} |"


def _cell(metric: str, value: Summary | str | None, *, bold: bool) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    text = figure(metric, value.p50)
    if METRICS[metric].unit != "per second":
        text = f"{text} {unit(metric)}"
    return f"**{text}**" if bold else text


# Told apart by everybody (after Okabe and Ito), and each with enough contrast to its background.
_LIGHT: Final = ("#0072B2", "#767676", "#C04F00", "#A06A00", "#007A5A", "#A8457C", "#3D7EA6")
_DARK: Final = ("#56B4E9", "#A0A0A0", "#FF8A3D", "#F0B83A", "#2FC796", "#E39AC4", "#9CCBE8")
_LEAST, _MOST, _BEYOND = 0.1, 1e4, 3.2e4  # milliseconds; the last is where `never` stands
_ROW: Final = 0.62  # inches


def plot(reports: Sequence[Report], *, dark: bool) -> Figure:
    """From the cancel until the caller is back and everything is dead: a row for each kind of tool, all subjects in it.

    Args:
        reports: Where from.
        dark: Whether it will stand on a dark background; it has none of its own.
    """
    ink, faint = ("#E6EDF3", "#6E7681") if dark else ("#1F2328", "#8C959F")
    lines = [(line, found) for line in _LINES if line.case == "cancel" and (found := _results(reports, line))]
    present = [name for name in SUBJECTS if any(r.subject == name and _value(r, n.metric) for n, f in lines for r in f)]
    colours = dict(zip(SUBJECTS, _DARK if dark else _LIGHT, strict=True))
    drawing = Figure(figsize=(8.4, 1.3 + _ROW * len(lines)), layout="constrained")
    axes = drawing.subplots()
    drawing.patch.set_alpha(0)
    axes.patch.set_alpha(0)
    for row, (line, found) in enumerate(lines):
        axes.axhline(row + 0.5, color=faint, lw=0.4)
        for result in found:
            value = _value(result, line.metric)
            if value is None:
                continue
            colour = colours[result.subject]
            place = row + 0.82 * ((present.index(result.subject) + 0.5) / len(present) - 0.5)
            weight = "bold" if result.subject == "ztrio" else "normal"
            if isinstance(value, str):
                axes.plot(_BEYOND, place, "x", color=colour, ms=5, mew=1.6)
                continue
            middle, tail = value.p50 * 1e-6, value.p99 * 1e-6
            axes.plot([middle, tail], [place, place], color=colour, lw=1.6, alpha=0.6)
            axes.plot(middle, place, "o", color=colour, ms=5)
            label = f"{figure(line.metric, value.p50)} ms"
            axes.annotate(
                label, (tail, place), (5, 0), textcoords="offset points",
                va="center", fontsize=7.5, color=colour, fontweight=weight,
            )  # fmt: skip
    axes.axvspan(_MOST, _BEYOND * 3.2, color=faint, alpha=0.18, lw=0)
    axes.set_xscale("log")
    axes.set_xlim(_LEAST, _BEYOND * 3.2)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_yticks(range(len(lines)), [_filled(line.label, found) for line, found in lines], fontsize=9, color=ink)
    marks = [
        (0.1, "0.1 ms"),
        (1, "1 ms"),
        (10, "10 ms"),
        (100, "100 ms"),
        (1000, "1 s"),
        (_MOST, ""),
        (_BEYOND, _NEVER),
    ]
    axes.set_xticks([mark for mark, _ in marks], [name for _, name in marks], fontsize=8.5, color=ink)
    axes.minorticks_off()
    axes.tick_params(length=0)
    axes.grid(visible=True, axis="x", color=faint, alpha=0.35, lw=0.5)
    axes.spines[:].set_visible(False)
    axes.set_title(
        "A tool call is cancelled: the caller is back, and every process of the tool is dead, after …",
        loc="left", fontsize=10, color=ink, pad=24,
    )  # fmt: skip
    for name in present:
        axes.plot([], [], "o", color=colours[name], ms=5, label=NAMES[name])
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=len(present), fontsize=8.5, frameon=False,
        labelcolor=ink, handletextpad=0.1, columnspacing=1.2, borderaxespad=0.1,
    )  # fmt: skip
    axes.set_xlabel("dot: median; line: to the 99th percentile; logarithmic", fontsize=7.5, color=faint)
    return drawing
