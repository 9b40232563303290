"""What the README shows of a record, and how it gets there."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import figures
from tests.bench.conftest import MakeReport, result
from ztrio_bench import headline, report
from ztrio_bench.documents import put
from ztrio_bench.report import Report


def cancelled(variant: str, subject: str, milliseconds: float, **counts: int) -> Any:
    """A result of `cancel`, over for good after so many milliseconds."""
    samples = {} if counts.get("survivors") else {"dead": [[milliseconds]]}
    return result("cancel", variant, subject, samples={"resume": [[milliseconds]], **samples}, counts=counts)


@pytest.fixture
def record(make_report: MakeReport) -> Report:
    """A report in which a peer is slow once, hangs once and leaves something running once."""
    made = make_report(
        result("call", "trivial", "ztrio", samples={"latency": [[4.0]]}),
        result("call", "trivial", "zaptrace", samples={"latency": [[500.0]]}),
        result("throughput", "64", "ztrio", samples={"rate": [[321.0]]}),
        cancelled("sleeping", "ztrio", 2.5),
        cancelled("sleeping", "floor", 0.2),
        cancelled("sleeping", "zaptrace", 8.0),
        cancelled("daemon", "ztrio", 3.0),
        cancelled("daemon", "zaptrace", 4.0, survivors=2),
        result("cancel", "load-64", "ztrio", samples={"resume": [[60.0]], "last": [[90.0]]}),
        result("cancel", "load-64", "zaptrace", samples={"resume": [[5e3]], "last": [[5e3]]}, counts={"hung": 64}),
        result("memory", "16", "ztrio", status="failed", reason="it broke"),
    )
    made.options.update(rounds=3, seconds=2.0)
    made.environment["date"] = "2026-01-02"
    return made


def test_the_table_has_medians_and_says_what_never_ends(record: Report) -> None:
    """Each line has its unit, ours is bold, and what a peer leaves running or hangs in is `never`, not slow."""
    assert [
        "| median | ztrio | the bare system calls | ZapTrace |",
        "|---|--:|--:|--:|",
        "| one call that changes something | **4.00 ms** |  | 500 ms |",
        "| calls per second, 64 callers | **321** |  |  |",
        "| cancel a tool that sleeps | **2.50 ms** | 0.200 ms | 8.00 ms |",
        "| … that left a daemon | **3.00 ms** |  | never |",
        "| cancel 64 computing calls at once, the last | **90.0 ms** |  | never |",
        "| memory per worker |  |  |  |",
    ] == list(headline.table([record]))


def test_documents_and_plots_are_filled_from_a_record(
    record: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest record's figures replace what stood between the marks, and nothing else; the same record gives the
    same files, which name nobody.
    """
    records = tmp_path / "records"
    records.mkdir()
    for name in ("2025-12-31", "2026-01-02", "2026-01-02-load-64"):
        (records / f"{name}.json").write_bytes(report.encode(record))
    monkeypatch.setattr(figures, "RECORDS", records)
    assert ["2026-01-02", "2026-01-02-load-64"] == [path.stem for path in figures.newest()]
    (tmp_path / "docs").mkdir()
    readme, document = tmp_path / "README.md", tmp_path / "docs" / "benchmarks.md"
    readme.write_text("a\n\n<!-- headline: begin (made) -->\nold\n<!-- headline: end -->\n\nb\n")
    document.write_text("c\n\n<!-- figures: begin (made) -->\nold\n<!-- figures: end -->\n\nd\n")
    # In a process of its own: the library keeps the fonts open that it has used.
    code = (
        "import sys; from pathlib import Path; from benchmarks import figures; figures.ROOT = Path(sys.argv[1]); "
        "figures.main([Path(word) for word in sys.argv[2:]])"
    )
    words = [str(tmp_path), *(str(path) for path in figures.newest())]
    seen = []
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True)
        plots = [(tmp_path / figures.PLOTS[mode]).read_bytes() for mode in ("light", "dark")]
        seen.append([*plots, readme.read_bytes(), document.read_bytes()])
    assert seen[0] == seen[1]
    light, dark, front, details = (content.decode() for content in seen[0])
    assert light != dark
    assert {"www.w3.org"} == {link.split("/")[0] for link in (light + dark).split("http://")[1:]}
    assert "https://" not in light + dark
    assert front.startswith("a\n\n<!-- headline: begin (made) -->\n\n## How soon")
    assert front.endswith("\n\n<!-- headline: end -->\n\nb\n")
    assert "2026-01-02, 3 rounds of 2 s each" in front
    assert "old" not in front + details
    assert "**success latency, trivial**: call to result, ms" in details
    readme.write_text("no marks\n")
    with pytest.raises(ValueError, match=r"README\.md has no marks for headline"):
        put(readme, "headline", [])
