"""What the gateway costs, beside other proxies of MCP in the same run, and what it knows of calls that were given up.

    python benchmarks/bench_gateway.py [--rounds 12] [--calls 150] [--late 320] [--timeouts 10000] [--seam 5000]
                                       [--peers wrap,fastmcp,mcp-proxy,mcp-proxy-core] [--servers echo,time]
                                       [--output FILE] [--json] [--no-install]

Round trips of a `tools/call` over stdio from a raw client, direct and through each proxy, round by round in turn; then
late answers, calls that are never answered, and the gateway's seam in process. Peers and servers are installed from
PyPI when first needed, each into an environment of its own below `~/.cache/ztrio/bench`. A number of 0 leaves a part
out. It takes about five minutes. The exit status is 0 whatever the figures are: the record says of each promise
whether it held.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio
from rich.console import Console

from ztrio_bench.environment import describe
from ztrio_bench.gateway.client import Failed, last_words
from ztrio_bench.gateway.late import late_responses, timeouts
from ztrio_bench.gateway.record import Record, Trip, encode, promises, ratios
from ztrio_bench.gateway.seam import seam
from ztrio_bench.gateway.servers import SERVERS
from ztrio_bench.gateway.table import show
from ztrio_bench.gateway.trips import round_trips
from ztrio_bench.gateway.ways import DIRECT, WAYS
from ztrio_bench.venvs import Unavailable, cache_folder, interpreter

Say = Callable[[str], object]


def main(words: list[str]) -> int:
    """Measure, print and keep."""
    options = _options(words)
    say = partial(_say, terminal=sys.stderr.isatty())
    pythons, notes = _install(options, say)
    record = Record(
        environment=describe(),
        options={
            name: getattr(options, name) for name in ("rounds", "calls", "late", "timeouts", "seam", "peers", "servers")
        },
        servers={name: SERVERS[name].text for name in options.servers},
        ways={name: _described(name) for name in ("direct", *options.peers)},
        trips=[],
        ratios=[],
        notes=notes,
    )
    with tempfile.TemporaryDirectory(prefix="ztrio-gateway-") as folder:
        record.trips.extend(_trips(options, pythons, Path(folder), say))
        record.ratios.extend(ratios(record.trips))
        found: dict[str, Any] = {}
        if "wrap" in options.peers:
            for name, measure in _further(options, Path(folder), say):
                try:
                    found[name] = measure()
                except Failed as failure:
                    record.notes.append(f"{name}: {failure}")
                    say(f"{name}: {failure}\n{last_words(Path(folder, name))}")
    say("")
    record = attrs.evolve(record, **found)
    record.promises.extend(promises(record))
    if options.output is not None:
        options.output.write_bytes(encode(record))
    if options.json:
        sys.stdout.write(encode(record).decode())
    else:
        show(record, Console(highlight=False, markup=False))
    return 0


def _options(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peers = [name for name in WAYS if name != "direct"]
    parser.add_argument("--rounds", type=int, default=12, metavar="N")
    parser.add_argument("--calls", type=int, default=150, metavar="N", help="of each way in each round")
    parser.add_argument("--late", type=int, default=320, metavar="N", help="calls that are answered too late")
    parser.add_argument("--timeouts", type=int, default=10_000, metavar="N", help="calls that are never answered")
    parser.add_argument("--seam", type=int, default=5000, metavar="N", help="calls in process")
    parser.add_argument("--peers", type=partial(_names, peers), default=peers, metavar="NAMES", help=", ".join(peers))
    parser.add_argument(
        "--servers",
        type=partial(_names, list(SERVERS)),
        default=list(SERVERS),
        metavar="NAMES",
        help=", ".join(SERVERS),
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="keep the record")
    parser.add_argument("--json", action="store_true", help="print the record instead of a table")
    parser.add_argument("--no-install", action="store_true", help="leave out what is not installed")
    return parser.parse_args(words)


def _names(known: list[str], text: str) -> list[str]:
    wanted = [word for word in text.split(",") if word]
    if strange := [name for name in wanted if name not in known]:
        raise argparse.ArgumentTypeError(f"{', '.join(strange)}: not one of {', '.join(known)}")
    return wanted


def _say(text: str, *, terminal: bool) -> None:
    """Progress: one line that is written over, or lines where nobody sees that."""
    sys.stderr.write(f"\r\x1b[K{text}" + "\n" * text.count("\n") if terminal else f"{text}\n" if text else "")
    sys.stderr.flush()


def _install(options: argparse.Namespace, say: Say) -> tuple[dict[str, str], list[str]]:
    """The interpreters of what needs one of its own; what cannot be had is left out, with a note."""
    pythons: dict[str, str] = {}
    notes = []
    for kind, known in (("peers", WAYS), ("servers", SERVERS)):
        for name in list(getattr(options, kind)):
            package = known[name].package
            if package is None:
                continue
            say(f"looking for {package.requirement}")
            find = partial(interpreter, package, cache=cache_folder(), install=not options.no_install)
            try:
                pythons[name] = trio.run(find)
            except Unavailable as reason:
                getattr(options, kind).remove(name)
                notes.append(f"{name}: {reason}")
    return pythons, notes


def _described(name: str) -> str:
    way = WAYS[name]
    return way.text if way.package is None else f"{way.package.requirement}: {way.text}"


def _trips(options: argparse.Namespace, pythons: dict[str, str], folder: Path, say: Say) -> Iterator[Trip]:
    if options.rounds and options.calls:
        ways = [DIRECT, *(WAYS[name] for name in options.peers)]
        for name in options.servers:
            yield from round_trips(
                SERVERS[name],
                ways,
                rounds=options.rounds,
                calls=options.calls,
                pythons=pythons,
                folder=folder,
                say=say,
            )


def _further(options: argparse.Namespace, folder: Path, say: Say) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The parts that are about the gateway alone."""
    for name, measure in (("late", late_responses), ("timeouts", timeouts)):
        if calls := getattr(options, name):
            place = folder / name
            place.mkdir()
            yield name, partial(measure, calls, folder=place, say=say)
    if options.seam:
        yield "seam", partial(seam, options.seam)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
