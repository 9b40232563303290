"""What a run of the gateway's benchmark found, as it is kept, and which of what is promised it holds.

Times are nanoseconds, sizes bytes. Like every record it has no host name, no path and no user, and keeps histograms
whole, so that other percentiles can be asked for later.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Self

import attrs
import msgspec

from ztrio_bench.statistics import decode, summarize

__all__ = [
    "FORMAT",
    "Distribution",
    "Late",
    "Look",
    "Promise",
    "Ratio",
    "Record",
    "Timeouts",
    "Trip",
    "encode",
    "load",
    "promises",
    "ratios",
]

FORMAT: Final = "ztrio-bench-gateway/1"
MOST_RATIO: Final = 1.6
MOST_SEAM: Final = 200e3  # ns
MOST_GROWTH: Final = 2 * 2**20  # bytes over the second half of the timeouts


@attrs.frozen(kw_only=True)
class Distribution:
    """Of some times, all rounds together.

    Args:
        n: Number of samples.
        mean: Arithmetic mean.
        p50: Median.
        p95: 95th percentile.
        p99: 99th percentile.
        maximum: The greatest.
        histogram: All of it: HdrHistogram V2, base64.
        rounds: The median of each round.
    """

    n: int
    mean: float
    p50: float
    p95: float
    p99: float
    maximum: float
    histogram: str
    rounds: list[float]

    @classmethod
    def of(cls, rounds: Sequence[Sequence[float]]) -> Self:
        """The distribution of samples by round; at least one sample in all."""
        found = summarize("latency", rounds)
        return cls(
            n=found.n,
            mean=found.mean,
            p50=found.p50,
            p95=min(float(decode(found).get_value_at_percentile(95)), found.maximum),
            p99=found.p99,
            maximum=found.maximum,
            histogram=found.histogram,
            rounds=found.rounds,
        )


@attrs.frozen(kw_only=True)
class Trip:
    """The round trips of one way to one server.

    Args:
        server: Name of the server.
        way: Name of the way.
        times: How long they took; None if there are none.
        reason: Why there are none.
    """

    server: str
    way: str
    times: Distribution | None = None
    reason: str = ""


@attrs.frozen(kw_only=True)
class Ratio:
    """Two ways to one server, compared: the medians of one, divided by those of the other.

    Args:
        server: Name of the server.
        way: Name of the way.
        to: Name of the way that it is compared with.
        median: Of the rounds' ratios.
        low: The least of them.
        high: The greatest.
        overall: The ratio of the medians of all rounds together.
        rounds: How many rounds there are.
    """

    server: str
    way: str
    to: str
    median: float
    low: float
    high: float
    overall: float
    rounds: int


@attrs.frozen(kw_only=True)
class Late:
    """Calls that were answered after their callers had gone.

    Args:
        calls: How many.
        detected: How many of them the gateway knows to be completed late.
        at_once: How many were under way together.
        timeout: Seconds after which a caller went.
        delay: Seconds after which the server answered.
        states: Last state that the gateway told of them → how many; `no id` where the caller was told none.
    """

    calls: int
    detected: int
    at_once: int
    timeout: float
    delay: float
    states: dict[str, int]


@attrs.frozen
class Look:
    """The gateway's process at one moment.

    Args:
        calls: Calls that had timed out.
        seconds: Since the first call.
        resident: Bytes.
    """

    calls: int
    seconds: float
    resident: int


@attrs.frozen(kw_only=True)
class Timeouts:
    """Very many calls that nobody ever answered.

    Args:
        calls: How many.
        outcomes: What the caller was told → how many.
        at_once: How many were under way together.
        timeout: Seconds after which each ended.
        looks: Memory over time.
        growth: Bytes that the process grew over the second half: the last tenth of the looks less the first tenth of
            that half, medians of both.
    """

    calls: int
    outcomes: dict[str, int]
    at_once: int
    timeout: float
    looks: list[Look]
    growth: float


@attrs.frozen(kw_only=True)
class Promise:
    """What is promised, and what was found.

    Args:
        name: What.
        relation: How found has to be to the bound.
        bound: How much is promised.
        found: How much was found.
        unit: Of both; empty for a ratio.
        held: Whether that is kept.
    """

    name: str
    relation: Literal["≤", "<", "="]
    bound: float
    found: float
    unit: str
    held: bool


@attrs.frozen(kw_only=True)
class Record:
    """A run.

    Args:
        environment: The machine, without its name.
        options: How it was run.
        servers: Name of a server → what it is.
        ways: Name of a way → what it is.
        trips: Round trips.
        ratios: Comparisons of them.
        late: Late answers, if they were asked for.
        timeouts: Calls without an answer, if they were asked for.
        seam: What the seam adds to a call in process, if it was asked for.
        notes: What could not be measured, and why.
        promises: What is promised, and whether it is kept.
        format: Name and version of this format.
    """

    environment: dict[str, Any]
    options: dict[str, Any]
    servers: dict[str, str]
    ways: dict[str, str]
    trips: list[Trip]
    ratios: list[Ratio]
    late: Late | None = None
    timeouts: Timeouts | None = None
    seam: Distribution | None = None
    notes: list[str] = attrs.field(factory=list)
    promises: list[Promise] = attrs.field(factory=list)
    format: Literal["ztrio-bench-gateway/1"] = FORMAT


def ratios(trips: Sequence[Trip]) -> list[Ratio]:
    """Every way compared with the direct one, and `ztrio wrap` with every other proxy."""
    found = {(trip.server, trip.way): trip.times for trip in trips if trip.times is not None}
    pairs = [(server, way, "direct") for server, way in found if way != "direct"]
    pairs += [(server, "wrap", way) for server, way in found if way not in {"direct", "wrap"}]
    compared = []
    for server, way, to in pairs:
        ours, theirs = found.get((server, way)), found.get((server, to))
        if ours is None or theirs is None:
            continue
        each = [one / other for one, other in zip(ours.rounds, theirs.rounds, strict=True)]
        compared.append(
            Ratio(
                server=server,
                way=way,
                to=to,
                median=statistics.median(each),
                low=min(each),
                high=max(each),
                overall=ours.p50 / theirs.p50,
                rounds=len(each),
            )
        )
    return compared


def promises(record: Record) -> Iterator[Promise]:
    """What is promised of what was measured."""
    for each in record.ratios:
        if each.way != "wrap":
            continue
        name = f"round trip through `ztrio wrap` to {each.server}"
        if each.to == "direct":
            held = each.median <= MOST_RATIO
            yield Promise(
                name=f"{name}, ÷ direct", relation="≤", bound=MOST_RATIO, found=each.median, unit="", held=held
            )
        else:
            held = each.median < 1
            yield Promise(name=f"{name}, ÷ {each.to}", relation="<", bound=1, found=each.median, unit="", held=held)
    if (late := record.late) is not None:
        share = 100 * late.detected / late.calls
        held = late.detected == late.calls
        yield Promise(name="late responses detected", relation="=", bound=100, found=share, unit="%", held=held)
    if (lost := record.timeouts) is not None:
        grown, most = lost.growth / 2**20, MOST_GROWTH / 2**20
        name = f"growth over the second half of {lost.calls:,} timeouts"
        yield Promise(name=name, relation="≤", bound=most, found=grown, unit="MiB", held=grown <= most)
    if (seam := record.seam) is not None:
        held = seam.p50 <= MOST_SEAM
        bound, found = MOST_SEAM / 1e3, seam.p50 / 1e3
        yield Promise(name="p50 added by the seam", relation="≤", bound=bound, found=found, unit="µs", held=held)


def encode(record: Record) -> bytes:
    """A record as JSON for people to read, too."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def load(path: Path) -> Record:
    """Read a record.

    Raises:
        msgspec.ValidationError: it is none, or one of another version.
    """
    return msgspec.json.decode(path.read_bytes(), type=Record)
