"""A record as tables: the same rows for a terminal and for a document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ztrio_bench.gateway.record import Promise, Record
from ztrio_bench.gateway.ways import WAYS
from ztrio_bench.table import figure, ratio

__all__ = ["factor", "found", "how", "markdown", "show", "title"]

TRIPS = ("", "n", "p50", "p95", "p99", "mean", "÷ direct", "spread", "")
PROMISES = ("promised", "", "found", "")


def title(way: str) -> str:
    """A way's name in print."""
    return WAYS[way].title if way in WAYS else way


def factor(value: float) -> str:
    """A ratio with two digits behind the point while that tells apart what is promised from what is not."""
    return f"{value:.2f}" if value < 10 else ratio(value)


def how(record: Record) -> str:
    """The machine and the run in a sentence or two."""
    facts, options = record.environment, record.options
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_bytes'] / 2**30:.0f} GiB, {facts['system']} "
        f"{facts['kernel']}, {facts['python']}; load before {facts['load_before']}. {facts['date']}, "
        f"{options['rounds']} rounds of {options['calls']} calls each."
    )


def _trips(record: Record, server: str) -> Iterator[Sequence[str]]:
    compared = {each.way: each for each in record.ratios if (each.server, each.to) == (server, "direct")}
    for trip in record.trips:
        if trip.server != server:
            continue
        if trip.times is None:
            yield (title(trip.way), *[""] * 7, trip.reason)
            continue
        times = trip.times
        cells = [figure("latency", value) for value in (times.p50, times.p95, times.p99, times.mean)]
        other = compared.get(trip.way)
        spread = ["", ""] if other is None else [factor(other.median), f"{factor(other.low)} … {factor(other.high)}"]
        yield (title(trip.way), str(times.n), *cells, *spread, "")


def _promises(record: Record) -> Iterator[Sequence[str]]:
    for each in record.promises:
        bound = f"{each.relation} {each.bound:g} {each.unit}".strip()
        yield (each.name, bound, found(each), "held" if each.held else "**not held**")


def found(promise: Promise) -> str:
    """What was found, with its unit and as many digits as say something."""
    number = f"{promise.found:.3g}" if abs(promise.found) < 1000 else f"{promise.found:,.0f}"
    return f"{number} {promise.unit}".strip()


def _markdown(headings: Sequence[str], rows: Iterator[Sequence[str]], words: int) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"|{'|'.join('---' if place in {0, words} else '--:' for place in range(len(headings)))}|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def markdown(record: Record) -> Iterator[str]:
    """The lines of a record for a document: a table for each server, and what is promised."""
    yield how(record)
    for server, text in record.servers.items():
        yield ""
        yield f"**round trip, {server}** ({text}): call to result, ms"
        yield ""
        yield from _markdown(TRIPS, _trips(record, server), len(TRIPS) - 1)
    yield ""
    yield from _markdown(PROMISES, _promises(record), len(PROMISES) - 1)
    for note in record.notes:
        yield ""
        yield f"Not measured: {note}."


def show(record: Record, console: Console) -> None:
    """Print a record."""
    console.print(how(record))
    for server, text in record.servers.items():
        console.print()
        console.print(f"round trip, {server} ({text}): call to result, ms", style="underline")
        _print(TRIPS, _trips(record, server), console)
    console.print()
    if record.promises:
        _print(PROMISES, _promises(record), console)
    for note in record.notes:
        console.print(f"not measured: {note}")


def _print(headings: Sequence[str], rows: Iterator[Sequence[str]], console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place in {0, len(headings) - 1} else "right")
    for row in rows:
        table.add_row(*(Text(cell.strip("*")) for cell in row))
    console.print(table)
