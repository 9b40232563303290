"""Plots of a report, as PNG and SVG: for each case its figures side by side, and its percentiles as curves.

The axis of times is logarithmic: subjects differ by factors, and so do median and tail.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

from ztrio_bench.cases import CASES, METRICS
from ztrio_bench.report import Report, Result, Summary
from ztrio_bench.statistics import decode
from ztrio_bench.subjects import SUBJECTS
from ztrio_bench.table import environment_line, figure, main_metric, remarks, unit

__all__ = ["draw", "save"]

# Okabe and Ito's colours, told apart by everybody; ztrio's is the strongest.
_COLOURS: Final = ("#0072B2", "#999999", "#D55E00", "#E69F00", "#009E73", "#CC79A7", "#56B4E9")
_COLOUR: Final = dict(zip(SUBJECTS, _COLOURS, strict=True))
_SCALE: Final = {"ns": 1e-6, "bytes": 2**-20, "per second": 1.0}


def draw(report: Report, folder: Path) -> list[Path]:
    """Draw everything that a report has.

    Args:
        report: The report.
        folder: Where to; made if need be.

    Returns:
        The files written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return [save(drawing, folder / f"{name}.{kind}") for name, drawing in _drawings(report) for kind in ("png", "svg")]


def save(drawing: Figure, path: Path, *, outlines: bool = False) -> Path:
    """Write a drawing as PNG or SVG, as the path's suffix says: the same drawing gives the same bytes.

    Args:
        drawing: The drawing.
        path: Where to.
        outlines: Whether letters of an SVG are shapes, which look alike everywhere, or text, which can be searched.

    Returns:
        The path.
    """
    # One salt, no date, and no word about the library.
    nothing = {"png": ("Software",), "svg": ("Date", "Creator", "Format", "Type")}[path.suffix[1:]]
    with mpl.rc_context({"svg.hashsalt": "ztrio", "svg.fonttype": "path" if outlines else "none"}):
        drawing.savefig(path, dpi=160, bbox_inches="tight", metadata=dict.fromkeys(nothing))
    return path


def _drawings(report: Report) -> Iterator[tuple[str, Figure]]:
    for case in dict.fromkeys(result.case for result in report.results):
        everybody = [result for result in report.results if result.case == case]
        results = [result for result in everybody if result.metrics]
        if not results:
            continue
        if case == "throughput":
            yield case, _throughput(report, results)
            continue
        yield case, _side_by_side(report, case, everybody)
        if METRICS[CASES[case].metric].unit == "ns":
            yield f"{case}-percentiles", _percentiles(report, case, results)


def _new(report: Report, title: str, *, rows: int, height: float) -> tuple[Figure, Sequence[Any]]:
    drawing = Figure(figsize=(9, height), layout="constrained")
    axes = drawing.subplots(rows, 1, squeeze=False)[:, 0]
    drawing.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    drawing.supxlabel(environment_line(report), x=0.01, ha="left", fontsize=7, color="#555555")
    return drawing, list(axes)


def _side_by_side(report: Report, case: str, results: Sequence[Result]) -> Figure:
    """A line from p50 to p99 for each subject, the variants below each other."""
    groups = {variant: [r for r in results if r.variant == variant] for variant in dict.fromkeys(_variants(results))}
    lines = sum(len(group) + 1.5 for group in groups.values())
    drawing, [axes] = _new(report, _title(case, results), rows=1, height=1.3 + 0.25 * lines)
    row = 0.0
    ticks: list[tuple[float, str]] = []
    for variant, group in groups.items():
        axes.text(0.01, row, variant, transform=axes.get_yaxis_transform(), fontweight="bold", va="center", fontsize=9)
        row += 1
        for result in group:
            _line(axes, row, result)
            ticks.append((row, result.subject))
            row += 1
        row += 0.5
    axes.set_yticks([place for place, _ in ticks], [name for _, name in ticks], fontsize=8)
    axes.set_ylim(row - 0.5, -0.7)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(low, high * max(4.0, (high / low) ** 0.4))  # room for the labels
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel(f"{unit(CASES[case].metric)}; dot: p50, line: to p99; logarithmic", fontsize=8)
    _plain(axes)
    return drawing


def _line(axes: Any, row: float, result: Result) -> None:
    metric = main_metric(result)
    if metric is None:
        words = next(remarks(result), "no figures").partition(":")[0]
        axes.text(0.01, row, words, transform=axes.get_yaxis_transform(), va="center", fontsize=8, color="#777777")
        return
    summary = result.metrics[metric]
    scale = _SCALE[METRICS[metric].unit]
    colour = _COLOUR.get(result.subject, "black")
    axes.plot([summary.p50 * scale, summary.p99 * scale], [row, row], color=colour, lw=2.5, alpha=0.6)
    axes.plot(summary.p50 * scale, row, "o", color=colour, ms=6)
    label = f"  {figure(metric, summary.p50)}" + _warning(result)
    axes.text(max(summary.p99, summary.p50) * scale, row, label, va="center", fontsize=8)


def _warning(result: Result) -> str:
    counts = result.counts
    parts = []
    if left := counts.get("survivors"):
        parts.append(f"leaves {left} running")
    elif alive := counts.get("alive"):
        parts.append(f"{alive} alive when it returns")
    if hung := counts.get("hung"):
        parts.append(f"{hung} hung")
    return f"   {', '.join(parts)}" if parts else ""


def _percentiles(report: Report, case: str, results: Sequence[Result]) -> Figure:
    """One curve per subject over the percentiles, spread out towards the tail; a plot per variant."""
    variants = list(dict.fromkeys(_variants(results)))
    drawing, places = _new(report, _title(case, results), rows=len(variants), height=1.2 + 2.6 * len(variants))
    for axes, variant in zip(places, variants, strict=True):
        for result in results:
            metric = main_metric(result)
            if result.variant == variant and metric is not None and METRICS[metric].unit == "ns":
                across, up = _curve(result.metrics[metric])
                axes.plot(across, up, color=_COLOUR.get(result.subject, "black"), label=result.subject, lw=1.8)
        axes.set_xscale("log")
        axes.set_yscale("log")
        marks = [(1, "0"), (2, "50"), (10, "90"), (100, "99"), (1000, "99.9")]
        axes.set_xticks([mark for mark, _ in marks], [name for _, name in marks])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_ylabel("ms")
        axes.set_title(variant, loc="left", fontsize=9)
        axes.legend(fontsize=7, loc="upper left")
        _plain(axes)
    places[-1].set_xlabel("percentile")
    return drawing


def _curve(summary: Summary) -> tuple[list[float], list[float]]:
    histogram = decode(summary)
    # Where a thousandth of the samples is less than one sample, the curve would only repeat the maximum.
    points = [point for point in (1 - 10 ** (-step / 20) for step in range(61)) if (1 - point) * summary.n >= 1]
    across = [1 / (1 - point) for point in points]
    return across, [histogram.get_value_at_percentile(point * 100) * 1e-6 for point in points]


def _throughput(report: Report, results: Sequence[Result]) -> Figure:
    drawing, [axes] = _new(report, CASES["throughput"].title, rows=1, height=4)
    for subject in dict.fromkeys(result.subject for result in results):
        mine = sorted(
            (r for r in results if r.subject == subject and "rate" in r.metrics), key=lambda r: int(r.variant)
        )
        across = [int(result.variant) for result in mine]
        rates = [result.metrics["rate"] for result in mine]
        colour = _COLOUR.get(subject, "black")
        axes.plot(across, [rate.p50 for rate in rates], "o-", color=colour, label=subject)
        axes.fill_between(across, [r.minimum for r in rates], [r.maximum for r in rates], color=colour, alpha=0.15)
    axes.set_xscale("log")
    axes.set_yscale("log")
    callers = sorted({int(result.variant) for result in results})
    axes.set_xticks(callers, [str(number) for number in callers])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("callers")
    axes.set_ylabel("calls per second, logarithmic")
    axes.legend(fontsize=8)
    _plain(axes)
    return drawing


def _variants(results: Sequence[Result]) -> list[str]:
    return [result.variant for result in results]


def _title(case: str, results: Sequence[Result]) -> str:
    metric = next((found for result in results if (found := main_metric(result))), CASES[case].metric)
    return f"{CASES[case].title}: {METRICS[metric].label}"


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, axis="both", which="major", alpha=0.25)
