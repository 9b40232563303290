"""Round trips of a call through every way, interleaved.

All ways to a server are up at once and idle but for one; round by round each has its turn, in another order each time.
So what the machine does meanwhile is in all of them, and a ratio taken within a round has little of it left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from ztrio_bench.gateway.client import Client, Failed, last_words
from ztrio_bench.gateway.record import Distribution, Trip
from ztrio_bench.gateway.servers import Server
from ztrio_bench.gateway.ways import Way, open_way

__all__ = ["round_trips", "turns"]

_WARM: Final = 20  # calls before the clock starts in each turn: others have had the processor since the last one


def turns(ways: Sequence[str], number: int) -> list[str]:
    """The ways in the order of a round: each begins as often as any other, and each follows each."""
    start = number % len(ways)
    order = [*ways[start:], *ways[:start]]
    return order[::-1] if number // len(ways) % 2 else order


def round_trips(
    server: Server,
    ways: Sequence[Way],
    *,
    rounds: int,
    calls: int,
    pythons: Mapping[str, str],
    folder: Path,
    say: Callable[[str], object],
) -> list[Trip]:
    """Measure every way to a server.

    Args:
        server: The server.
        ways: The ways.
        rounds: How many rounds.
        calls: How many calls of each way in each round.
        pythons: Name of a way or a server → its interpreter, where it is not this one.
        folder: For what is started.
        say: Told how far it is.

    Returns:
        One for each way; a way that broke has none of its times, and the others go on.
    """
    found: dict[str, list[list[float]]] = {way.name: [] for way in ways}
    broken: dict[str, str] = {}
    command = server.command(pythons.get(server.name))
    with ExitStack() as stack:
        clients: dict[str, Client] = {}
        for way in ways:
            say(f"{server.name}: starting {way.name}")
            place = folder / f"{server.name}-{way.name}"
            place.mkdir()
            try:
                clients[way.name] = stack.enter_context(
                    open_way(way, command, folder=place, python=pythons.get(way.name))
                )
                clients[way.name].ask("tools/list", {})  # as every client does, and some proxies have to
            except Failed as failure:
                broken[way.name] = str(failure)
                say(f"{server.name}: {way.name} does not start: {failure}\n{last_words(place)}")
        for number in range(rounds):
            say(f"{server.name}: round {number + 1} of {rounds}")
            for name in turns([way.name for way in ways], number):
                if name in broken:
                    continue
                try:
                    found[name].append(_turn(clients[name], server, calls))
                except Failed as failure:
                    broken[name] = str(failure)
                    say(f"{server.name}: {name} broke: {failure}\n{last_words(folder / f'{server.name}-{name}')}")
    return [
        Trip(server=server.name, way=way.name, reason=broken[way.name])
        if way.name in broken
        else Trip(server=server.name, way=way.name, times=Distribution.of(found[way.name]))
        for way in ways
    ]


def _turn(client: Client, server: Server, calls: int) -> list[float]:
    times = []
    for number in range(-_WARM, calls):
        taken, result = client.trip(server.call)
        if not server.right(result):
            raise Failed("the tool's result is not what it has to be")
        if number >= 0:
            times.append(float(taken))
    return times
