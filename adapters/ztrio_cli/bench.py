"""`ztrio bench`: measure ztrio beside the floors of this machine and beside its peers; `ztrio_bench` does the work.

Only what the command line needs is imported before the words are understood: the benchmarks' own libraries (an extra
of the package) may be missing, and that is a sentence and not a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import attrs
import typer

from ztrio_bench.cases import CASES
from ztrio_bench.subjects import ALWAYS, PEERS, SUBJECTS
from ztrio_cli.console import FAILED, OK, USAGE, Complaint, console, note, write_line

if TYPE_CHECKING:
    from ztrio_bench.report import Report
    from ztrio_bench.runner import Plan

__all__ = ["bench"]

WORDS: Final = ("list", "check", "show", "all")


@attrs.frozen
class _Output:
    json: Path | None
    plots: Path | None


def bench(
    what: Annotated[
        list[str],
        typer.Argument(metavar="CASE...", help=f"{', '.join(CASES)}; or all, list, check, show.", show_default=False),
    ],
    against: Annotated[
        str,
        typer.Option("--against", metavar="PEERS", help=f"Peers, separated by commas: {', '.join(PEERS)}, or all."),
    ] = "",
    load: Annotated[
        int, typer.Option("--load", min=0, metavar="N", help="cancel: N computing calls, cancelled in one instant.")
    ] = 0,
    hogs: Annotated[
        int, typer.Option("--hogs", min=0, metavar="N", help="N processes that compute beside everything.")
    ] = 0,
    variant: Annotated[
        str, typer.Option("--variant", metavar="NAMES", help="Only these variants, separated by commas.")
    ] = "",
    rounds: Annotated[int, typer.Option("--rounds", min=1, metavar="N", help="Rounds, the subjects in turn.")] = 5,
    count: Annotated[
        int | None,
        typer.Option("--count", min=1, metavar="N", help="Samples per round.", show_default="the case's own"),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", min=0.1, metavar="S", help="Most seconds per round.", show_default="the case's own"),
    ] = None,
    backend: Annotated[
        Literal["auto", "zygote", "spawn"], typer.Option("--backend", metavar="NAME", help="How ztrio makes workers.")
    ] = "auto",
    containment: Annotated[
        Literal["auto", "require", "pidns", "cgroup", "job-init", "group"],
        typer.Option("--containment", metavar="RUNG", help="What ztrio's workers cannot escape."),
    ] = "auto",
    sandbox: Annotated[
        Literal["auto", "require", "off"], typer.Option("--sandbox", metavar="MODE", help="ztrio's sandbox.")
    ] = "auto",
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Keep everything in this file, histograms too; - for stdout."),
    ] = None,
    plots: Annotated[
        Path | None, typer.Option("--plots", metavar="DIR", help="Draw PNG and SVG files into this folder.")
    ] = None,
    no_install: Annotated[
        bool, typer.Option("--no-install", help="Use peers that were installed before, and install none.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False,
) -> int:
    """Measure ztrio on this machine, beside the bare system calls and beside its peers, in one run.

    \b
      ztrio bench list                                       cases and peers, explained
      ztrio bench cancel                                     how soon is a cancelled caller back, and is all dead?
      ztrio bench cancel --load 64 --against zaptrace        64 busy calls cancelled at once, beside ZapTrace
      ztrio bench call throughput --against zaptrace,pebble --plots plots --json run.json
      ztrio bench all --against all                          everything; about an hour
      ztrio bench show run.json --plots plots                a kept run again
      ztrio bench check                                      a minute: only what must hold on any machine

    Each figure is a distribution (p50, p90, p99, p99.9, max). Subjects take turns within each round, so the last
    columns, "÷ ztrio" and its spread over the rounds, compare what ran under the same conditions: 100 means that the
    subject took a hundred times as long. Whatever a subject leaves running, or how long it hangs, is in the last
    column. A peer is installed when it is first named, into an environment of its own in your cache folder.

    Needs the extra: pip install 'ztrio[bench]'. Linux only.
    """
    output = _Output(json_file, plots)
    if what[0] == "list":
        return _list()
    _require()
    import trio

    if what[0] == "show":
        return _show(what[1:], output)
    chosen_backend = None if backend == "auto" else backend
    chosen_containment = None if containment == "auto" else containment

    def say(text: str) -> None:
        if not quiet:
            note(text)

    if what[0] == "check":
        from ztrio_bench.check import run_check

        return _judge(
            trio.run(lambda: run_check(backend=chosen_backend, containment=chosen_containment, say=say)), output
        )
    from ztrio_bench.runner import Plan

    plan = Plan(
        cases=_names(what, known=tuple(CASES), all_of=tuple(CASES)),
        variants=_names([variant], known=tuple({name for case in CASES.values() for name in case.variants})),
        subjects=[*ALWAYS, *_names([against], known=PEERS, all_of=PEERS)],
        rounds=rounds,
        count=count,
        seconds=seconds,
        load=load,
        hogs=hogs,
        sandbox=None if sandbox == "auto" else sandbox,
        install=not no_install,
        backend=chosen_backend,
        containment=chosen_containment,
    )
    return _measure(plan, output, say)


def _measure(plan: Plan, output: _Output, say: Callable[[str], None]) -> int:
    import trio

    from ztrio_bench.runner import run

    report = trio.run(lambda: run(plan, say=say))
    _put_out(report, output)
    return FAILED if any(r.subject == "ztrio" and r.status != "ok" for r in report.results) else OK


def _judge(report: Report, output: _Output) -> int:
    from ztrio_bench.check import judge

    verdicts = judge(report)
    _put_out(report, output)
    if output.json != Path("-"):
        write_line()
        for verdict in verdicts:
            write_line(f"{'ok    ' if verdict.ok else 'BROKEN'}  {verdict.rule}: {verdict.found}")
    broken = sum(not verdict.ok for verdict in verdicts)
    note(f"{broken} of {len(verdicts)} rules broken" if broken else f"all {len(verdicts)} rules hold")
    return FAILED if broken else OK


def _put_out(report: Report, output: _Output) -> None:
    from ztrio_bench import report as reports
    from ztrio_bench.table import show

    if output.json == Path("-"):
        sys.stdout.write(reports.encode(report).decode())
    else:
        # A table is wide; a pipe or file takes it whole.
        screen = console()
        show(report, screen if screen.is_terminal else console(width=200))
        if output.json is not None:
            output.json.write_bytes(reports.encode(report))
    if output.plots is not None:
        from ztrio_bench.plots import draw

        for path in draw(report, output.plots):
            note(f"wrote {path}")


def _show(words: list[str], output: _Output) -> int:
    import msgspec

    from ztrio_bench.report import load

    if len(words) != 1:
        raise Complaint("USAGE", "show takes one file, as --json wrote it.", status=USAGE)
    try:
        report = load(Path(words[0]))
    except msgspec.DecodeError as error:
        raise Complaint("NOT_A_REPORT", f"{words[0]} is not a report of this version: {error}") from None
    _put_out(report, output)
    return OK


def _list() -> int:
    write_line("Cases")
    for case in CASES.values():
        write_line(f"  {case.name}: {case.title} ({', '.join(case.variants)})")
        write_line(f"      {case.text}")
    write_line()
    write_line("Subjects (ztrio and floor always take part)")
    for subject in SUBJECTS.values():
        needs = [subject.requirement] if subject.requirement else []
        needs += [f"Python {subject.python[0]}.{subject.python[1]}"] if subject.python else []
        needed = f"; needs {', '.join(needs)}" if needs else ""
        write_line(f"  {subject.name}: {subject.text}{needed}")
        write_line(f"      {', '.join(subject.cases)}")
    return OK


def _names(words: list[str], *, known: tuple[str, ...], all_of: tuple[str, ...] = ()) -> list[str]:
    names = [name for word in words for name in (part.strip() for part in word.split(",")) if name]
    if all_of and names == ["all"]:
        return list(all_of)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise Complaint("USAGE", f"{', '.join(unknown)}: not known; choose from {', '.join(known)}.", status=USAGE)
    return list(dict.fromkeys(names))


def _require() -> None:
    if sys.platform != "linux":
        raise Complaint("UNSUPPORTED_PLATFORM", "The benchmarks read /proc and use pidfds: they run on Linux only.")
    from importlib.util import find_spec

    missing = [name for name in ("hdrh", "matplotlib") if find_spec(name) is None]
    if missing:
        message = f"The benchmarks need more libraries ({', '.join(missing)}): pip install 'ztrio[bench]'"
        raise Complaint("EXTRA_MISSING", message)
