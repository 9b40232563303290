"""What a run found, as it is kept: attrs classes whose JSON form has a version and a schema.

Histograms are kept whole (in the interchange format of HdrHistogram), so reports of several machines or days can be
merged and asked for other percentiles later.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import attrs
import msgspec

__all__ = ["FORMAT", "Comparison", "Report", "Result", "Summary", "encode", "load", "schema"]

FORMAT: Final = "ztrio-bench/1"

Status = Literal["ok", "unsupported", "failed", "unavailable"]


@attrs.frozen(kw_only=True)
class Summary:
    """The distribution of one metric, all rounds together.

    Args:
        n: Number of samples.
        minimum: The least.
        p50: Median.
        p90: 90th percentile.
        p99: 99th percentile.
        p999: 99.9th percentile; the maximum, where n is less than a thousand.
        maximum: The greatest.
        mean: Arithmetic mean.
        histogram: All of it: HdrHistogram V2, base64. Empty for a rate.
        rounds: What each round is represented by where subjects are compared; see `cases.Metric`.
    """

    n: int
    minimum: float
    p50: float
    p90: float
    p99: float
    p999: float
    maximum: float
    mean: float
    histogram: str
    rounds: list[float]


@attrs.frozen(kw_only=True)
class Result:
    """What one subject did in one case.

    Args:
        case: Name of the case.
        variant: Its variant; `load-N` for N calls cancelled at once.
        subject: Name of the subject.
        status: `ok`; `unsupported`: it has no way to do it; `failed`: it broke, or hung past every bound;
            `unavailable`: it could not be installed or started.
        reason: Why not `ok`.
        metrics: Name of a metric -> its distribution.
        counts: `dropped` samples; calls that `hung` longer than the patience; processes still `alive` when the caller
            resumed; `survivors` that lived on 3.5 s later.
        notes: Sentences about what happened.
        facts: What the subject says of how it did it: its backend and containment.
    """

    case: str
    variant: str
    subject: str
    status: Status
    reason: str = ""
    metrics: dict[str, Summary] = attrs.field(factory=dict)
    counts: dict[str, int] = attrs.field(factory=dict)
    notes: list[str] = attrs.field(factory=list)
    facts: dict[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Comparison:
    """One subject beside ztrio: the ratio of the two, round by round.

    Args:
        case: Name of the case.
        variant: Its variant.
        metric: Which metric.
        subject: Who is compared; the ratio is this subject's figure divided by ztrio's of the same round.
        median: Of the rounds' ratios.
        low: The least of them.
        high: The greatest.
        rounds: How many rounds both have.
    """

    case: str
    variant: str
    metric: str
    subject: str
    median: float
    low: float
    high: float
    rounds: int


@attrs.frozen(kw_only=True)
class Report:
    """A run.

    Args:
        environment: The machine, without its name.
        options: How it was run.
        subjects: Name -> version and other facts.
        results: Every case with every subject.
        comparisons: The ratios.
        format: Name and version of this format.
    """

    environment: dict[str, Any]
    options: dict[str, Any]
    subjects: dict[str, dict[str, Any]]
    results: list[Result]
    comparisons: list[Comparison]
    format: Literal["ztrio-bench/1"] = FORMAT


def schema() -> dict[str, Any]:
    """The JSON Schema of a report."""
    return msgspec.json.schema(Report)


def encode(report: Report) -> bytes:
    """A report as JSON for people to read, too."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


def load(path: Path) -> Report:
    """Read a report.

    Raises:
        msgspec.ValidationError: it is none, or one of another version.
    """
    return msgspec.json.decode(path.read_bytes(), type=Report)
