"""Put the figures of a record of `bench_gateway.py` into docs/benchmarks.md, and draw its plot.

    python benchmarks/gateway_figures.py [RECORD] [--plots FOLDER]

RECORD is the newest of `records/gateway` when omitted. The plots, `gateway-light.svg` and `gateway-dark.svg`, go to
`docs`, where the document shows them, unless another folder is named; then the document stays as it is.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ztrio_bench.documents import put
from ztrio_bench.gateway.record import Distribution, Record, load
from ztrio_bench.gateway.table import factor, how, markdown, title
from ztrio_bench.plots import save
from ztrio_bench.table import figure

ROOT = Path(__file__).parent.parent
RECORDS = Path(__file__).parent / "records" / "gateway"
ROW = 0.34  # inches
# Told apart by everybody (after Okabe and Ito), and each with enough contrast to its background.
LIGHT = {
    "direct": "#767676",
    "wrap": "#0072B2",
    "fastmcp": "#A8457C",
    "mcp-proxy": "#C04F00",
    "mcp-proxy-core": "#A06A00",
}
DARK = {
    "direct": "#A0A0A0",
    "wrap": "#56B4E9",
    "fastmcp": "#E39AC4",
    "mcp-proxy": "#FF8A3D",
    "mcp-proxy-core": "#F0B83A",
}


def lines(record: Record) -> Iterator[str]:
    """The part of the document: the plot for either background, and the tables."""
    yield "<picture>"
    yield '  <source media="(prefers-color-scheme: dark)" srcset="gateway-dark.svg">'
    yield '  <img src="gateway-light.svg" width="100%"'
    yield '    alt="How long a call takes, direct and through each proxy; the figures are in the tables below">'
    yield "</picture>"
    yield ""
    yield from markdown(record)


def plot(record: Record, *, dark: bool) -> Figure:
    """A row for each way, below each other for each server: the median, and how far the slow calls are from it.

    Args:
        record: Where from.
        dark: Whether it will stand on a dark background; it has none of its own.
    """
    ink, faint = ("#E6EDF3", "#6E7681") if dark else ("#1F2328", "#8C959F")
    colours = DARK if dark else LIGHT
    servers = [name for name in record.servers if any(trip.server == name and trip.times for trip in record.trips)]
    rows = sum(1 for trip in record.trips if trip.times) + 1.4 * len(servers)
    drawing = Figure(figsize=(8.4, 1.1 + ROW * rows), layout="constrained")
    axes = drawing.subplots()
    drawing.patch.set_alpha(0)
    axes.patch.set_alpha(0)
    compared = {(each.server, each.way): each for each in record.ratios if each.to == "direct"}
    place, ticks = 0.0, []
    for server in servers:
        axes.text(
            0.0, place, f"{server}: {record.servers[server]}", transform=axes.get_yaxis_transform(),
            fontsize=9, fontweight="bold", color=ink, va="center",
        )  # fmt: skip
        place += 1
        for trip in record.trips:
            if trip.server != server or trip.times is None:
                continue
            colour = colours.get(trip.way, ink)
            other = compared.get((server, trip.way))
            beside = "" if other is None else f"   {factor(other.median)} × direct"  # noqa: RUF001 - in print
            _line(axes, place, trip.times, colour, beside, bold=trip.way == "wrap")
            ticks.append((place, title(trip.way)))
            place += 1
        place += 0.4
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(low, high * (high / low) ** 0.45)  # room for the labels
    axes.set_ylim(place - 0.5, -0.7)
    axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks], fontsize=9, color=ink)
    marks = [mark for mark in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500) if low <= mark <= high]
    axes.set_xticks(marks, [f"{mark:g} ms" for mark in marks], fontsize=8.5, color=ink)
    axes.minorticks_off()
    axes.tick_params(length=0)
    axes.grid(visible=True, axis="x", color=faint, alpha=0.35, lw=0.5)
    axes.spines[:].set_visible(False)
    axes.set_title("A tool is called over stdio, and its result is there after …", loc="left", fontsize=10, color=ink)
    axes.set_xlabel(
        f"dot: median; thick line: to the 95th percentile, thin: to the 99th; logarithmic\n{how(record)}",
        fontsize=7.5, color=faint,
    )  # fmt: skip
    return drawing


def _line(axes: Any, place: float, times: Distribution, colour: str, beside: str, *, bold: bool) -> None:
    middle, most, tail = (value * 1e-6 for value in (times.p50, times.p95, times.p99))
    axes.plot([middle, tail], [place, place], color=colour, lw=1.2)
    axes.plot([middle, most], [place, place], color=colour, lw=3, alpha=0.6, solid_capstyle="butt")
    axes.plot([tail, tail], [place - 0.14, place + 0.14], color=colour, lw=1.2)
    axes.plot(middle, place, "o", color=colour, ms=5.5)
    axes.annotate(
        f"{figure('latency', times.p50)} ms{beside}", (tail, place), (6, 0), textcoords="offset points",
        va="center", fontsize=8, color=colour, fontweight="bold" if bold else "normal",
    )  # fmt: skip


def main(words: list[str]) -> int:
    """Draw, and rewrite the document unless the plots go elsewhere."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", nargs="?", type=Path, metavar="RECORD")
    parser.add_argument("--plots", type=Path, metavar="FOLDER")
    options = parser.parse_args(words)
    record = load(options.record or max(RECORDS.glob("*.json"), key=lambda path: path.stem))
    folder = options.plots or ROOT / "docs"
    folder.mkdir(parents=True, exist_ok=True)
    for mode in ("light", "dark"):
        save(plot(record, dark=mode == "dark"), folder / f"gateway-{mode}.svg", outlines=True)
    if options.plots is None:
        put(ROOT / "docs" / "benchmarks.md", "gateway", list(lines(record)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
