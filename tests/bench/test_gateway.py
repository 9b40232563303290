"""The gateway's benchmark, with a stand-in for the gateway: what it counts and keeps, and that all of it ends."""

import json
import os
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest

from benchmarks import bench_gateway
from ztrio_bench.gateway import client, late, record, ways
from ztrio_bench.gateway.client import Client, Failed
from ztrio_bench.gateway.record import Distribution, Late, Look, Record, Timeouts, Trip
from ztrio_bench.gateway.seam import seam
from ztrio_bench.gateway.servers import ECHO, SILENT, Server
from ztrio_bench.gateway.table import markdown
from ztrio_bench.gateway.trips import round_trips, turns
from ztrio_bench.gateway.ways import DIRECT, Way, open_way

AT_ONCE = Server(
    name="at-once",
    text="answers at once",
    arguments=SILENT.arguments,
    call={"name": "late", "arguments": {"seconds": 0}},
    right=lambda result: bool(result["content"][0]["text"] == "late"),
)


def stand_in(*options: str) -> Way:
    """A way through the fake gateway."""
    script = str(Path(__file__).with_name("fake_gateway.py"))
    return Way(
        name="wrap",
        title="a stand-in",
        text="a stand-in",
        command=lambda python, server, _port: [python, script, *options, "--", *server],
    )


def saying_nothing(_text: str) -> None:
    """Progress that nobody reads."""


def processes_of(folder: Path) -> list[str]:
    """The processes that were started for a folder and are still there."""
    mark = f"ZTRIO_BENCH_FOLDER={folder}".encode()
    found = []
    for place in Path("/proc").iterdir():
        try:
            if place.name.isdecimal() and mark in (place / "environ").read_bytes():
                found.append(place.name)
        except OSError:
            continue
    return found


def test_every_way_has_its_turn_and_none_is_always_first() -> None:
    """Over as many rounds as there are ways, twice, each way is once at each place forwards and once backwards."""
    rounds = [turns(["a", "b", "c"], number) for number in range(6)]
    assert [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]] == rounds[:3]
    assert [["c", "b", "a"], ["a", "c", "b"], ["b", "a", "c"]] == rounds[3:]


def test_round_trips_are_counted_and_a_broken_way_stops_nobody(tmp_path: Path) -> None:
    """Each way has its calls of each round; one that does not start has a reason instead, without a path."""
    broken = Way(name="gone", title="", text="", command=lambda python, _server, _port: [python, "-I", "-S", "-c", ""])
    found = round_trips(
        AT_ONCE,
        [DIRECT, stand_in(), broken],
        rounds=2,
        calls=5,
        pythons={},
        folder=tmp_path,
        say=saying_nothing,
    )
    assert ["direct", "wrap", "gone"] == [trip.way for trip in found]
    direct, through, gone = found
    assert direct.times is not None
    assert through.times is not None
    assert (10, 10, 2) == (direct.times.n, through.times.n, len(direct.times.rounds))
    assert direct.times.p50 < through.times.p50
    assert gone.times is None
    assert gone.reason in {"it closed its output", "it closed its input"}
    assert [] == processes_of(tmp_path)


def test_a_wrong_result_is_no_round_trip(tmp_path: Path) -> None:
    """A way that gives something else than the server gave is broken, however quick it is."""
    wrong = attrs.evolve(AT_ONCE, right=lambda _result: False)
    [trip] = round_trips(wrong, [DIRECT], rounds=1, calls=1, pythons={}, folder=tmp_path, say=saying_nothing)
    assert (None, "the tool's result is not what it has to be") == (trip.times, trip.reason)


def test_the_echo_server_says_it_again(tmp_path: Path) -> None:
    """The SDK's server answers the call that is timed with what it was given."""
    with open_way(DIRECT, ECHO.command(), folder=tmp_path) as caller:
        taken, result = caller.trip(ECHO.call)
        assert ECHO.right(result)
        assert 0 < taken < 20e9
        with pytest.raises(Failed, match="error instead of a result"):
            caller.ask("no/such/method", {})


def test_a_hanging_server_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer within the bound is a failure that says so, and the process is gone afterwards."""
    monkeypatch.setattr(client, "_ANSWER", 0.2)
    with (
        open_way(DIRECT, SILENT.command(), folder=tmp_path) as caller,
        pytest.raises(Failed, match=r"it hung: no answer within 0\.2 s"),
    ):
        caller.trip({"name": "never"})
    assert [] == processes_of(tmp_path)


def test_a_tool_that_fails_is_no_round_trip(tmp_path: Path) -> None:
    """A result with `isError` is a failure of the way."""
    options = ("--timeout", "0.05")
    with (
        open_way(stand_in(), SILENT.command(), folder=tmp_path, options=options) as caller,
        pytest.raises(Failed, match="the tool failed"),
    ):
        caller.trip({"name": "never"})


def test_a_stubborn_process_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that does not end with its input is killed."""
    monkeypatch.setattr(client, "_END", 0.2)
    command = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
    caller = Client.start(command, folder=tmp_path, environment=dict(os.environ))
    began = time.monotonic()
    caller.end()
    assert time.monotonic() - began < 10.0


def test_what_runs_beside_a_way_is_ended_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client is started when the process beside it listens, and neither is there afterwards; one that does not
    listen is a way that does not start.
    """
    listen = "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(600)"
    beside = attrs.evolve(DIRECT, beside=lambda python, _server, port: [python, "-I", "-c", listen, str(port)])
    with open_way(beside, AT_ONCE.command(), folder=tmp_path) as caller:
        caller.trip(AT_ONCE.call)
        assert 2 == len(processes_of(tmp_path))
    deaf = attrs.evolve(DIRECT, beside=lambda python, _server, _port: [python, "-I", "-S", "-c", ""])
    with pytest.raises(Failed, match="does not listen"), open_way(deaf, AT_ONCE.command(), folder=tmp_path):
        pass
    assert [] == processes_of(tmp_path)


def test_late_answers_are_counted_by_what_the_gateway_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are detected where all are known; where a gateway forgets some, their last states say how many."""
    monkeypatch.setattr(late, "LATE_TIMEOUT", 0.03)
    monkeypatch.setattr(late, "DELAY", 0.1)
    monkeypatch.setattr(late, "_SOON", 0.5)
    places = [tmp_path / "all", tmp_path / "some"]
    for place in places:
        place.mkdir()
    known = late.late_responses(20, folder=places[0], say=saying_nothing, way=stand_in())
    assert (20, {"completed_late": 20}) == (known.detected, known.states)
    some = late.late_responses(8, folder=places[1], say=saying_nothing, way=stand_in("--forget", "4"))
    assert (4, {"no id": 2, "unresolved": 2, "completed_late": 4}) == (some.detected, some.states)


def test_timeouts_are_counted_and_memory_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call is told to have timed out, and there are a hundred looks at the gateway's memory."""
    monkeypatch.setattr(late, "LOST_TIMEOUT", 0.01)
    found = late.timeouts(300, folder=tmp_path, say=saying_nothing, way=stand_in())
    assert {"TOOL_TIMEOUT": 300} == found.outcomes
    assert (100, 300) == (len(found.looks), found.looks[-1].calls)
    assert min(look.resident for look in found.looks) > 2**20


def test_growth_is_of_the_second_half() -> None:
    """What a process grows while it warms up does not count, and neither does a single peak."""
    sizes = [*range(0, 1000, 20), *[1000.0] * 49, 5000.0]
    looks = [Look(number, 0.0, int(size)) for number, size in enumerate(sizes)]
    assert late.growth(looks) == 0
    assert late.growth([Look(n, 0.0, n * 10) for n in range(100)]) == 400


def made(*, wrap: float, peer: float, detected: int, growth: float, seam: float) -> Record:
    """A record with these figures; times are milliseconds, growth is MiB, and the seam microseconds."""
    trips = [
        Trip(server="echo", way=way, times=Distribution.of([[value * 1e6] * 5, [value * 2e6] * 5]))
        for way, value in (("direct", 1.0), ("wrap", wrap), ("fastmcp", peer))
    ]
    trips.append(Trip(server="echo", way="mcp-proxy", reason="it hung"))
    found = Record(
        environment={
            "cpu": "a processor",
            "cores": 2,
            "memory_bytes": 8 << 30,
            "system": "Linux",
            "kernel": "6.1",
            "python": "CPython 3.11",
            "load_before": 0.1,
            "date": "2026-01-02",
        },
        options={"rounds": 2, "calls": 5},
        servers={"echo": "a server"},
        ways={},
        trips=trips,
        ratios=record.ratios(trips),
        late=Late(calls=10, detected=detected, at_once=2, timeout=0.1, delay=0.2, states={}),
        timeouts=Timeouts(calls=10_000, outcomes={}, at_once=2, timeout=0.1, looks=[], growth=growth * 2**20),
        seam=Distribution.of([[seam * 1e3]]),
        notes=["seam: it broke"],
    )
    found.promises.extend(record.promises(found))
    return found


def test_the_record_says_what_is_held() -> None:
    """Each promise has its bound and what was found, and is held or not."""
    kept = made(wrap=1.5, peer=4.0, detected=10, growth=0.5, seam=150.0)
    assert [1.5, 0.375, 100.0, 0.5] == pytest.approx([each.found for each in kept.promises[:4]], rel=1e-2)
    assert [True] * 5 == [each.held for each in kept.promises]
    broken = made(wrap=1.7, peer=1.6, detected=9, growth=2.5, seam=250.0)
    assert [False] * 5 == [each.held for each in broken.promises]


def test_a_record_comes_back_as_it_was_and_is_shown(tmp_path: Path) -> None:
    """Writing and reading changes nothing, and the document's tables have every way, ratio and promise."""
    kept = made(wrap=1.5, peer=4.0, detected=9, growth=0.5, seam=150.0)
    path = tmp_path / "record.json"
    path.write_bytes(record.encode(kept))
    assert kept == record.load(path)
    text = "\n".join(markdown(kept))
    assert "| ztrio wrap | 10 | 1.50 | 3.00 | 3.00 | 2.25 | 1.50 | 1.50 … 1.50 |  |" in text
    assert "| mcp-proxy |  |  |  |  |  |  |  | it hung |" in text
    assert "| late responses detected | = 100 % | 90 % | **not held** |" in text
    assert "| p50 added by the seam | ≤ 200 µs | 150 µs | held |" in text
    assert "Not measured: seam: it broke." in text


def test_the_document_and_its_plots_are_made_of_a_record(tmp_path: Path) -> None:
    """The newest record's tables replace what stood between the marks; the plots are the same each time, one for each
    background, and name no other place.
    """
    records, docs = tmp_path / "records", tmp_path / "docs"
    records.mkdir()
    docs.mkdir()
    for name, wrap in (("2025-12-31", 9.0), ("2026-01-02", 1.25)):
        kept = made(wrap=wrap, peer=4.0, detected=10, growth=0.5, seam=150.0)
        (records / f"{name}.json").write_bytes(record.encode(kept))
    document = docs / "benchmarks.md"
    document.write_text("a\n\n<!-- gateway: begin (made) -->\nold\n<!-- gateway: end -->\n\nb\n")
    # In a process of its own: the library keeps the fonts open that it has used.
    code = (
        "import sys; from pathlib import Path; from benchmarks import gateway_figures as figures; "
        "figures.ROOT = Path(sys.argv[1]); figures.RECORDS = Path(sys.argv[2]); figures.main(sys.argv[3:])"
    )
    seen = []
    for words in ([], [], ["--plots", str(tmp_path / "elsewhere")]):
        subprocess.run([sys.executable, "-c", code, str(tmp_path), str(records), *words], check=True)
        folder = Path(words[1]) if words else docs
        seen.append([(folder / f"gateway-{mode}.svg").read_bytes() for mode in ("light", "dark")])
    assert seen[0] == seen[1] == seen[2]
    light, dark = (content.decode() for content in seen[0])
    assert light != dark
    assert {"www.w3.org"} == {link.split("/")[0] for link in (light + dark).split("http://")[1:]}
    text = document.read_text()
    assert text.startswith("a\n\n<!-- gateway: begin (made) -->\n\n<picture>")
    assert text.endswith("\n\n<!-- gateway: end -->\n\nb\n")
    assert "1.25 … 1.25" in text
    assert "old" not in text


def test_the_command_keeps_a_record_that_names_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole run on a small scale: status 0, every part, and no path, host or user in the record."""
    monkeypatch.setattr(ways, "WAYS", {**ways.WAYS, "wrap": stand_in()})
    monkeypatch.setattr(bench_gateway, "WAYS", ways.WAYS)
    for name in ("late_responses", "timeouts"):
        monkeypatch.setattr(bench_gateway, name, partial(getattr(late, name), way=stand_in()))
    path = tmp_path / "record.json"
    words = ["--rounds", "1", "--calls", "3", "--late", "4", "--timeouts", "100", "--seam", "0"]
    chosen = ["--peers", "wrap", "--servers", "echo", "--output", str(path)]
    assert bench_gateway.main([*words, *chosen]) == 0
    printed = capsys.readouterr()
    assert "round trip, echo" in printed.out
    assert "echo: round 1 of 1" in printed.err
    found: dict[str, Any] = json.loads(path.read_text())
    assert [("echo", "direct"), ("echo", "wrap")] == [(trip["server"], trip["way"]) for trip in found["trips"]]
    assert (4, 100) == (found["late"]["detected"], found["timeouts"]["outcomes"]["TOOL_TIMEOUT"])
    text = path.read_text()
    private = [sys.prefix, str(Path.home()), str(tmp_path), socket.gethostname(), "/tmp/"]
    assert [] == [word for word in private if len(word) > 3 and word in text]


def test_what_is_not_known_or_not_there_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown peer is a usage error; one that is not installed is left out, and a note says why."""
    with pytest.raises(SystemExit):
        bench_gateway.main(["--peers", "nobody"])
    assert "nobody: not one of wrap, fastmcp" in capsys.readouterr().err
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = ["--no-install", "--peers", "fastmcp", "--servers", "time", "--rounds", "0", "--json"]
    assert bench_gateway.main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert ([], []) == (found["trips"], found["promises"])
    assert ["fastmcp: it is not installed; leave out --no-install", "time"] == [
        found["notes"][0],
        found["notes"][1][:4],
    ]


def test_the_seam_is_measured() -> None:
    """Calls go through the real seam, and each is timed."""
    found = seam(5)
    assert 5 == found.n
    assert found.p50 > 0
