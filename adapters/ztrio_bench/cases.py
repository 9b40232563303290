"""What is measured: the cases, their variants, and the metrics they give."""

from __future__ import annotations

from typing import Final, Literal

import attrs

__all__ = ["CASES", "METRICS", "Case", "Metric"]

Unit = Literal["ns", "bytes", "per second"]


@attrs.frozen
class Metric:
    """One quantity.

    Args:
        name: Its key.
        unit: What its samples are in.
        label: For people.
        better: Whether `less` or `more` is better.
        statistic: What a round is represented by where subjects are compared: its median, or its worst sample.
    """

    name: str
    unit: Unit
    label: str
    better: Literal["less", "more"] = "less"
    statistic: Literal["median", "worst"] = "median"


METRICS: Final = {
    metric.name: metric
    for metric in (
        Metric("latency", "ns", "call to result"),
        Metric("rate", "per second", "calls per second", better="more"),
        Metric("resume", "ns", "cancel to caller resumed"),
        Metric("dead", "ns", "cancel to caller resumed and every process dead"),
        Metric("last", "ns", "cancel to the last caller resumed and every process dead", statistic="worst"),
        Metric("gone", "ns", "SIGKILL to the last process dead"),
        Metric("overshoot", "ns", "limit to caller resumed"),
        Metric("late", "ns", "lateness of a 1 ms timer", statistic="worst"),
        Metric("beyond", "bytes", "memory per worker beyond the tool's own"),
    )
}


@attrs.frozen
class Case:
    """One case.

    Args:
        name: Its key, also on the command line.
        title: What it is, in a few words.
        text: What is done, in a sentence or two.
        variants: Its variants, each measured on its own.
        metric: The metric that subjects are compared by.
        count: Samples per round of an ordinary run.
        seconds: Most seconds per round of an ordinary run.
    """

    name: str
    title: str
    text: str
    variants: tuple[str, ...]
    metric: str
    count: int
    seconds: float


CASES: Final = {
    case.name: case
    for case in (
        Case(
            "call",
            "success latency",
            "One caller, one mutating call after the other, warm. trivial: a tool that returns its argument. file: a "
            "tool that writes one output file and counts in its session's state. durable: the same with the store on "
            "the disk, everything synced. Floor: fork, exit, wait; of durable, one sync of 4 KiB.",
            ("trivial", "file", "durable"),
            "latency",
            200,
            4.0,
        ),
        Case(
            "throughput",
            "throughput",
            "1, 16 or 64 callers, each with its own session, call the trivial tool as fast as they can.",
            ("1", "16", "64"),
            "rate",
            1,
            3.0,
        ),
        Case(
            "cancel",
            "cancel latency",
            "The tool says that it is under way, then its call is cancelled. The clock runs from the cancel to the "
            "caller's next step; every process of the tool is then looked up. With --load N: N calls that compute, all "
            "cancelled in one instant. Floor: killpg, wait.",
            ("sleeping", "cpu", "ignoring", "forking", "daemon"),
            "resume",
            100,
            4.0,
        ),
        Case(
            "timeout",
            "timeout overshoot",
            "A sleeping tool runs into its time limit. From the end of the limit to the caller's next step.",
            ("sleeping",),
            "overshoot",
            20,
            6.0,
        ),
        Case(
            "orphans",
            "end of what was orphaned",
            "A process that calls is killed (or ztrio's launcher or fork server below it) while tools sleep, have "
            "children, left a daemon and are in their grace, and short calls are made all the time. From the kill to "
            "the end of the last process. Floor: a child with a parent-death signal.",
            ("supervisor", "launcher", "fork-server"),
            "gone",
            10,
            6.0,
        ),
        Case(
            "stall",
            "event-loop stall",
            "64 calls that sleep 0.2 s start at once, again and again; how late is a 1 ms timer in the caller's event "
            "loop? Floor: the same timer with nothing beside it.",
            ("64",),
            "late",
            10,
            4.0,
        ),
        Case(
            "publication",
            "durable publication",
            "Three files of 2 kB are inspected and replaced, with everything synced, up to the commit. Floor: the same "
            "syncs and renames without looking at anything.",
            ("3",),
            "latency",
            100,
            4.0,
        ),
        Case(
            "memory",
            "memory per worker",
            "16 calls run, each with 8 MiB of its own. Proportional set size of each worker, less those 8 MiB. Floor: "
            "a bare interpreter for each call.",
            ("16",),
            "beyond",
            1,
            10.0,
        ),
        Case(
            "stdio",
            "stdio round trip",
            "A raw client calls an empty read tool of a server process over its pipes. Floor: a process that echoes "
            "lines.",
            ("empty",),
            "latency",
            1000,
            4.0,
        ),
    )
}
