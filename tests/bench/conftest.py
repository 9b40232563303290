"""Reports made by hand, for everything that looks at reports."""

from collections.abc import Callable
from typing import Any

import pytest

from ztrio_bench.report import Report, Result
from ztrio_bench.statistics import compare, summarize

MILLISECOND = 1_000_000


def result(case: str, variant: str, subject: str, **options: Any) -> Result:
    """A result; `samples` is metric -> samples by round, in milliseconds for metrics of time."""
    samples = options.pop("samples", {})
    scale = 1 if case == "throughput" else MILLISECOND
    metrics = {
        name: summarize(name, [[value * scale for value in values] for values in rounds])
        for name, rounds in samples.items()
    }
    status = options.pop("status", "ok")
    return Result(case=case, variant=variant, subject=subject, status=status, metrics=metrics, **options)


MakeReport = Callable[..., Report]


@pytest.fixture
def make_report() -> MakeReport:
    """Makes a report of results."""

    def make(*results: Result) -> Report:
        return Report(
            environment={
                "cpu": "a processor",
                "cores": 2,
                "memory_bytes": 8 << 30,
                "system": "Linux",
                "kernel": "6.1",
                "python": "CPython 3.11",
                "load_before": 0.1,
                "clock_step_ns": 40,
            },
            options={},
            subjects={each.subject: {} for each in results},
            results=list(results),
            comparisons=compare(results),
        )

    return make
