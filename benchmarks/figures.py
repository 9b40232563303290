"""Put the figures of records into docs/benchmarks.md, between its two marks.

python benchmarks/figures.py benchmarks/records/DATE.json benchmarks/records/DATE-load-64.json
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from ztrio_bench.cases import CASES, METRICS
from ztrio_bench.report import Report, load
from ztrio_bench.table import environment_line, figure, main_metric, ratio, remarks, unit

DOCUMENT = Path(__file__).parent.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- figures: begin", "<!-- figures: end -->"


def tables(report: Report) -> Iterator[str]:
    """The lines of a report in Markdown: a table for each case and variant."""
    rounds = report.options["rounds"]
    yield f"{environment_line(report)}. {report.environment['date']}, {rounds} rounds."
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


def main(paths: list[str]) -> int:
    """Rewrite the document."""
    text = DOCUMENT.read_text()
    head, _, rest = text.partition(BEGIN)
    mark, _, rest = rest.partition("\n")
    _, _, tail = rest.partition(END)
    reports = [load(Path(path)) for path in paths]
    figures = "\n\n".join("\n".join(tables(report)) for report in reports)
    DOCUMENT.write_text(f"{head}{BEGIN}{mark}\n\n{figures}\n\n{END}{tail}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
