"""Put the figures of a record where people read them: docs/benchmarks.md, the README, and the plot that it shows.

    python benchmarks/figures.py                      # the newest record
    python benchmarks/figures.py records/A.json …     # these

Text stands between two marks in each document, and only that is replaced.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ztrio_bench import headline
from ztrio_bench.cases import CASES, METRICS
from ztrio_bench.documents import put
from ztrio_bench.plots import save
from ztrio_bench.report import Report, load
from ztrio_bench.table import environment_line, figure, main_metric, ratio, remarks, unit

ROOT = Path(__file__).parent.parent
RECORDS = Path(__file__).parent / "records"
PLOTS = {mode: Path("docs") / f"cancel-{mode}.svg" for mode in ("light", "dark")}


def tables(report: Report) -> Iterator[str]:
    """The lines of a report in Markdown: a table for each case and variant."""
    yield f"{environment_line(report)}. {_how(report)}."
    comparisons = {(each.case, each.variant, each.metric, each.subject): each for each in report.comparisons}
    for case, variant in dict.fromkeys((result.case, result.variant) for result in report.results):
        group = [result for result in report.results if (result.case, result.variant) == (case, variant)]
        metric = next((found for result in group if (found := main_metric(result))), CASES[case].metric)
        yield ""
        yield f"**{CASES[case].title}, {variant}**: {METRICS[metric].label}, {unit(metric)}"
        yield ""
        yield "| | n | p50 | p90 | p99 | p99.9 | max | ÷ ztrio | spread | |"
        yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|---|"
        for result in group:
            summary = result.metrics.get(metric)
            cells = [""] * 6
            if summary is not None:
                points = (summary.p50, summary.p90, summary.p99, summary.p999, summary.maximum)
                shown = [figure(metric, point) for point in points]
                if METRICS[metric].unit == "per second":
                    shown[1:4] = ["", "", ""]
                cells = [str(summary.n), *shown]
            comparison = comparisons.get((case, variant, metric, result.subject))
            ratios = ["", ""]
            if comparison is not None:
                ratios = [ratio(comparison.median), f"{ratio(comparison.low)} … {ratio(comparison.high)}"]
            yield f"| {' | '.join([result.subject, *cells, *ratios, '; '.join(remarks(result))])} |"


def _how(report: Report) -> str:
    rounds, seconds = report.options["rounds"], report.options["seconds"]
    length = "" if seconds is None else f" of {seconds:g} s each"
    return f"{report.environment['date']}, {rounds} round{'s' * (rounds != 1)}{length}"


def readme(reports: Sequence[Report]) -> Iterator[str]:
    """The README's part: what is shown, the plot for either background, and the table."""
    facts = reports[0].environment
    yield "## How soon it is over"
    yield ""
    yield "<picture>"
    yield f'  <source media="(prefers-color-scheme: dark)" srcset="{PLOTS["dark"]}">'
    yield f'  <img src="{PLOTS["light"]}" width="100%"'
    yield '    alt="How long after a cancel the caller is back and every process dead; medians are in the table below">'
    yield "</picture>"
    yield ""
    yield from headline.table(reports)
    yield ""
    yield f"Measured side by side on {facts['cores']} cores ({facts['cpu']}, {facts['system']}), {_how(reports[0])}."
    yield "A cancel counts until the caller is back *and* every process of the tool is dead; *never* means that one was"
    yield "still running 3.5 seconds later, or that the caller hung. pebble and trio-parallel are process pools: they"
    yield "know no files, no sessions and no commit, and use a worker again, so their calls cost less. What is compared"
    yield "with what, all distributions, and how to repeat it: [docs/benchmarks.md](docs/benchmarks.md)."


def newest() -> list[Path]:
    """The files of the newest record: of one date, the one with every case first."""
    files = sorted(RECORDS.glob("*.json"), key=lambda path: path.stem)
    date = files[-1].stem[:10]  # year, month and day
    return [path for path in files if path.stem.startswith(date)]


def main(paths: Sequence[Path]) -> int:
    """Rewrite the documents and the plots."""
    reports = [load(path) for path in paths]
    figures = [line for report in reports for line in [*tables(report), ""]]
    put(ROOT / "docs" / "benchmarks.md", "figures", figures[:-1])
    put(ROOT / "README.md", "headline", list(readme(reports)))
    for mode, place in PLOTS.items():
        save(headline.plot(reports, dark=mode == "dark"), ROOT / place, outlines=True)
    sys.stdout.write(f"from {', '.join(os.path.relpath(path) for path in paths)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main([Path(word) for word in sys.argv[1:]] or newest()))
