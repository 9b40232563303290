"""Distributions and ratios."""

import pytest

from tests.bench.conftest import MILLISECOND, result
from ztrio_bench.statistics import compare, decode, summarize


def test_percentiles_are_of_all_rounds_together() -> None:
    """A thousand samples in four rounds give the percentiles of the thousand, to three digits."""
    rounds = [[float(value * 1000) for value in range(start, 1001, 4)] for start in range(1, 5)]
    summary = summarize("latency", rounds)
    assert summary.n == 1000
    assert (summary.minimum, summary.maximum) == (1000.0, 1_000_000.0)
    assert [500_000, 900_000, 990_000, 999_000] == pytest.approx(
        [summary.p50, summary.p90, summary.p99, summary.p999], rel=2e-3
    )


def test_no_percentile_is_beyond_the_greatest_sample() -> None:
    """The buckets of the histogram do not show in what is reported."""
    summary = summarize("latency", [[33_300_001.0]])
    assert [33_300_001.0] * 5 == [summary.p50, summary.p90, summary.p99, summary.p999, summary.maximum]


def test_samples_out_of_range_are_kept_at_its_end() -> None:
    """Zero and two hours are samples too."""
    summary = summarize("late", [[0.0, 7.2e12]])
    assert (2, 0.0, 7.2e12) == (summary.n, summary.minimum, summary.maximum)


def test_the_histogram_is_kept_whole() -> None:
    """What is kept decodes to a histogram with every sample."""
    histogram = decode(summarize("resume", [[1e6, 2e6], [3e6]]))
    assert histogram.get_total_count() == 3
    assert histogram.get_value_at_percentile(50) == pytest.approx(2e6, rel=1e-3)


def test_a_round_is_represented_by_its_median_or_its_worst() -> None:
    """A latency's round is its median; a stall's round is its longest."""
    assert [2.0, 5.0] == summarize("latency", [[1.0, 2.0, 9.0], [5.0]]).rounds
    assert [9.0, 5.0] == summarize("late", [[1.0, 2.0, 9.0], [5.0]]).rounds


def test_rates_need_no_histogram() -> None:
    """A rate per round is shown with its median, least and greatest."""
    summary = summarize("rate", [[100.0], [300.0], [200.0]])
    assert (3, 200.0, 100.0, 300.0, "") == (
        summary.n,
        summary.p50,
        summary.minimum,
        summary.maximum,
        summary.histogram,
    )


def test_ratios_are_taken_round_by_round() -> None:
    """A machine that is ten times slower in one round does not change a ratio that is 4 in every round."""
    ours = result("call", "trivial", "ztrio", samples={"latency": [[1.0], [10.0], [1.0]]})
    theirs = result("call", "trivial", "peer", samples={"latency": [[4.0], [40.0], [4.4]]})
    [comparison] = compare([ours, theirs])
    assert ("peer", "latency", 3) == (comparison.subject, comparison.metric, comparison.rounds)
    assert [4.0, 4.0, 4.4] == pytest.approx([comparison.median, comparison.low, comparison.high])


def test_only_the_like_is_compared() -> None:
    """Without the same case, variant and metric of ztrio there is no ratio."""
    ours = result("cancel", "sleeping", "ztrio", samples={"resume": [[1.0]]})
    others = [
        result("cancel", "daemon", "peer", samples={"resume": [[1.0]]}),
        result("cancel", "sleeping", "peer", samples={"dead": [[1.0]]}),
    ]
    assert [] == compare([ours, *others])
    assert MILLISECOND == ours.metrics["resume"].rounds[0]
