"""What is kept of a run, and how it is shown and drawn."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import jsonschema
import msgspec
import pytest
from rich.console import Console

from tests.bench.conftest import MakeReport, result
from ztrio_bench import environment, report
from ztrio_bench.table import figure, remarks, show


@pytest.fixture
def everything(make_report: MakeReport) -> report.Report:
    """A report with a result of each kind."""
    return make_report(
        result(
            "cancel",
            "sleeping",
            "ztrio",
            samples={"resume": [[1.0, 1.5], [2.0]], "dead": [[1.0, 1.5], [2.0]]},
            counts={"alive": 0, "survivors": 0},
            facts={"backend": "zygote", "containment": "pidns", "complete": True},
        ),
        result(
            "cancel",
            "sleeping",
            "pebble",
            samples={"resume": [[0.2], [0.2]], "dead": [[90.0], [95.0]]},
            counts={"alive": 2},
        ),
        result(
            "cancel", "sleeping", "zaptrace", samples={"resume": [[5e3], [9.0]]}, counts={"hung": 1, "survivors": 2}
        ),
        result("cancel", "sleeping", "fastmcp", status="unsupported", reason="it has no way"),
        result("cancel", "load-64", "ztrio", samples={"resume": [[1.0]], "last": [[60.0]]}, counts={"dropped": 3}),
        *(
            result("throughput", str(callers), "ztrio", samples={"rate": [[100.0 * callers], [110.0 * callers]]})
            for callers in (1, 16, 64)
        ),
        result("memory", "16", "ztrio", samples={"beyond": [[3.0], [3.1]]}),
    )


def test_a_report_comes_back_as_it_was(everything: report.Report, tmp_path: Path) -> None:
    """Writing and reading a report changes nothing."""
    path = tmp_path / "run.json"
    path.write_bytes(report.encode(everything))
    assert everything == report.load(path)


def test_a_report_fits_its_schema(everything: report.Report) -> None:
    """What is written is what the JSON Schema of this version says."""
    document = msgspec.json.decode(report.encode(everything))
    jsonschema.validate(document, report.schema())
    assert document["format"] == "ztrio-bench/1"


def test_another_version_is_refused(everything: report.Report, tmp_path: Path) -> None:
    """A report of another version is not taken for one of this."""
    path = tmp_path / "run.json"
    path.write_bytes(report.encode(everything).replace(b"ztrio-bench/1", b"ztrio-bench/9"))
    with pytest.raises(msgspec.ValidationError):
        report.load(path)


def test_the_environment_names_nobody() -> None:
    """What is kept of the machine has neither its name, nor a path, nor a user."""
    text = msgspec.json.encode(environment.describe()).decode()
    assert "/" not in text.replace("/s", "")
    assert socket.gethostname() not in text
    assert {"cpu", "cores", "kernel", "python", "libraries", "clock_step_ns"} <= set(environment.describe())
    assert os.uname().release.split("-")[0] in text


def test_the_table_says_everything(everything: report.Report) -> None:
    """Every subject has a line with its figures, its ratio, and what it left behind."""
    console = Console(width=220, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file:
        show(everything, console)
    text = console.export_text()
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "cancel latency, sleeping: cancel to caller resumed, ms" in text
    assert "0.200" in lines["pebble"]
    assert "2 alive when the caller resumed; all dead after 90.0 ms (p50)" in lines["pebble"]
    assert "1 hung more than 5 s" in lines["zaptrace"]
    assert "2 still running 3.5 s later" in lines["zaptrace"]
    assert "unsupported: it has no way" in lines["fastmcp"]
    assert "zygote, pidns" in text


def test_figures_have_three_digits() -> None:
    """Milliseconds, mebibytes and rates are shown with three significant digits."""
    shown = [figure("latency", value * 1e6) for value in (0.0123, 1.234, 12.34, 1234.0)]
    assert ["0.012", "1.23", "12.3", "1,234"] == shown
    assert "2.00" == figure("beyond", 2 << 20)
    assert "857" == figure("rate", 857.2)


def test_remarks_tell_dropped_samples_and_open_ends() -> None:
    """Nothing that was counted goes unsaid."""
    found = list(remarks(result("call", "trivial", "ztrio", counts={"dropped": 2, "unresolved": 1}, notes=["odd"])))
    assert ["2 samples dropped", "1 unresolved", "odd"] == found


def test_plots_are_drawn_for_every_case(everything: report.Report, tmp_path: Path) -> None:
    """Each case gives a PNG and an SVG, cases of time also their percentiles; the same report gives the same
    files."""
    path = tmp_path / "run.json"
    path.write_bytes(report.encode(everything))
    # In a process of its own: the library keeps the fonts open that it has used.
    code = "import sys; from ztrio_cli.main import main; [main(words.split()) for words in sys.argv[1:]]"
    words = [f"bench show {path} --plots {tmp_path / folder}" for folder in ("one", "two")]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert 2 == done.stdout.count("cancel latency, sleeping")
    stems = ("cancel", "cancel-percentiles", "throughput", "memory")
    assert {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")} == set(os.listdir(tmp_path / "one"))
    for stem in stems:
        for kind in ("svg", "png"):
            drawn = [(tmp_path / folder / f"{stem}.{kind}").read_bytes() for folder in ("one", "two")]
            assert drawn[0] == drawn[1]
            assert b"matplotlib.org" not in drawn[0]
        assert drawn[0].startswith(b"\x89PNG")
    assert "leaves 2 running, 1 hung" in (tmp_path / "one" / "cancel.svg").read_text()
