"""Draw a CSV file as an SVG line chart: `python chart.py tides.csv tides.svg --title "Tide at the east pier"`.

A program of its own on purpose, as a plotting tool or a converter would be: the site builder starts it as a child
process and knows nothing of its inside. Standard library only. The first column labels the x axis, every other
column is one line. The file is written as it is drawn, so a program that is stopped half way leaves half a file.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 40, 64
COLOURS = ("#1f6f8b", "#d1495b", "#edae49", "#66a182", "#6d5a8c", "#2e4057")
MAX_LABELS = 8


class BadTable(ValueError):
    """The CSV is no table of numbers; the message names the line."""


class Table(NamedTuple):
    """Labels of the x axis, and one named series per further column."""

    labels: list[str]
    series: dict[str, list[float]]


def read_table(path: Path) -> Table:
    """Read a CSV with a header line.

    Raises:
        BadTable: names the file and line.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file)
        header = next(rows, [])
        if len(header) < 2:
            raise BadTable(f"{path.name}: line 1: a header with at least two columns is needed")
        if len(set(header)) != len(header):
            raise BadTable(f"{path.name}: line 1: two columns have the same name")
        table = Table([], {name: [] for name in header[1:]})
        for row in rows:
            if not row:
                continue
            if len(row) != len(header):
                raise BadTable(f"{path.name}: line {rows.line_num}: {len(row)} columns where {len(header)} are needed")
            table.labels.append(row[0])
            for name, text in zip(header[1:], row[1:], strict=True):
                try:
                    table.series[name].append(float(text))
                except ValueError:
                    raise BadTable(f"{path.name}: line {rows.line_num}: {name} is {text!r}, not a number") from None
    if not table.labels:
        raise BadTable(f"{path.name}: there are no rows")
    return table


def draw(table: Table, title: str) -> Iterator[str]:
    """The SVG in pieces, in the order in which they are written: frame, axes, then one line per series."""
    values = [value for series in table.series.values() for value in series]
    low, high = min(0.0, *values), max(0.0, *values)
    span = (high - low) or 1.0
    plot_width, plot_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(index: int) -> float:
        return LEFT + plot_width * (index / max(1, len(table.labels) - 1))

    def y(value: float) -> float:
        return TOP + plot_height * (1 - (value - low) / span)

    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-family="sans-serif">\n'
        f"<title>{escape(title)}</title>\n"
        f'<text x="{LEFT}" y="24" font-size="16" fill="#222">{escape(title)}</text>\n'
    )
    for step in range(5):
        value = low + span * step / 4
        yield (
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>'
            f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" font-size="11" text-anchor="end">{value:g}</text>\n'
        )
    every = -(-len(table.labels) // MAX_LABELS)
    for index in range(0, len(table.labels), every):
        label = escape(table.labels[index])
        yield f'<text x="{x(index):.1f}" y="{HEIGHT - 40}" font-size="11" text-anchor="middle">{label}</text>\n'
    for number, (name, series) in enumerate(table.series.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{x(index):.1f},{y(value):.1f}" for index, value in enumerate(series))
        yield (
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
            f'<text x="{LEFT + 130 * number}" y="{HEIGHT - 12}" font-size="12" fill="{colour}">{escape(name)}</text>\n'
        )
    yield "</svg>\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; the exit status: 0 drawn, 1 the CSV cannot be drawn (reason on stderr)."""
    parser = argparse.ArgumentParser(description="Draw a CSV file as an SVG line chart.")
    parser.add_argument("csv", type=Path)
    parser.add_argument("svg", type=Path)
    parser.add_argument("--title", default="")
    parser.add_argument(
        "--linger", type=float, default=0.0, metavar="SECONDS", help="pause after the frame, as a slow renderer would"
    )
    options = parser.parse_args(argv)
    try:
        pieces = draw(read_table(options.csv), options.title or options.csv.stem)
        frame = next(pieces)
    except (BadTable, OSError, UnicodeDecodeError) as error:
        print(f"chart: {error}", file=sys.stderr)
        return 1
    with options.svg.open("w", encoding="utf-8") as file:
        file.write(frame)
        file.flush()
        time.sleep(options.linger)
        file.writelines(pieces)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
