"""Distributions and ratios.

Percentiles come from HdrHistogram (three significant digits from a nanosecond to an hour), never from a mean. Two
subjects are compared round by round: rounds lie close together in time, so what the machine does meanwhile is in both
figures of a ratio, and the spread of the ratios shows how much of it is left.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, Final

from hdrh.histogram import HdrHistogram

from ztrio_bench.cases import METRICS
from ztrio_bench.report import Comparison, Result, Summary

__all__ = ["compare", "decode", "summarize"]

_LARGEST: Final = 3_600_000_000_000  # an hour in nanoseconds; 3.6 TB
_DIGITS: Final = 3


def summarize(metric: str, rounds: Sequence[Sequence[float]]) -> Summary:
    """The distribution of all samples of all rounds.

    Args:
        metric: Name of the metric.
        rounds: The samples, by round; at least one sample in all.
    """
    kind = METRICS[metric]
    samples = [sample for samples in rounds for sample in samples]
    each = [_represent(metric, samples) for samples in rounds if samples]
    if kind.unit == "per second":  # a rate per round: too few for a histogram
        ordered = sorted(samples)
        return Summary(
            n=len(samples),
            minimum=ordered[0],
            p50=statistics.median(samples),
            p90=ordered[0],
            p99=ordered[0],
            p999=ordered[0],
            maximum=ordered[-1],
            mean=statistics.fmean(samples),
            histogram="",
            rounds=each,
        )
    histogram = HdrHistogram(1, _LARGEST, _DIGITS)
    for sample in samples:
        # Whatever is out of range counts at the end of the range: a sample is never lost.
        histogram.record_value(min(_LARGEST, max(1, round(sample))))

    def percentile(number: float) -> float:
        # The histogram rounds up to the end of a bucket; no percentile is beyond the greatest sample.
        return float(min(histogram.get_value_at_percentile(number), max(samples)))

    return Summary(
        n=histogram.get_total_count(),
        minimum=min(samples),
        p50=percentile(50),
        p90=percentile(90),
        p99=percentile(99),
        p999=percentile(99.9),
        maximum=max(samples),
        mean=statistics.fmean(samples),
        histogram=histogram.encode().decode(),
        rounds=each,
    )


def _represent(metric: str, samples: Sequence[float]) -> float:
    return max(samples) if METRICS[metric].statistic == "worst" else statistics.median(samples)


def decode(summary: Summary) -> Any:
    """The histogram of a summary."""
    return HdrHistogram.decode(summary.histogram)


def compare(results: Iterable[Result], *, base: str = "ztrio") -> list[Comparison]:
    """The ratio of every subject to `base`, for every case, variant and metric that both have."""
    found = {(result.case, result.variant, result.subject): result for result in results}
    comparisons = []
    for (case, variant, subject), result in found.items():
        other = found.get((case, variant, base))
        if subject == base or other is None:
            continue
        for metric, summary in result.metrics.items():
            if metric not in other.metrics:
                continue
            pairs = zip(summary.rounds, other.metrics[metric].rounds, strict=False)
            ratios = [theirs / ours for theirs, ours in pairs if ours > 0]
            if ratios:
                comparisons.append(
                    Comparison(
                        case=case,
                        variant=variant,
                        metric=metric,
                        subject=subject,
                        median=statistics.median(ratios),
                        low=min(ratios),
                        high=max(ratios),
                        rounds=len(ratios),
                    )
                )
    return comparisons
