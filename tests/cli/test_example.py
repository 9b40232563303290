"""The example does its job, used like a reader of its README would."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.cli.conftest import EXAMPLE, Command


def call(cli: Command, site_tools: Path, site: Path, tool: str, *words: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(cli("call", site_tools, tool, *words, "-w", site, "--json").out)
    return answer


def test_the_site_is_built(cli: Command, site_tools: Path, site: Path) -> None:
    """Every page and chart is there, charts are well-formed, and a page shows the chart it asked for."""
    answer = call(cli, site_tools, site, "build_site", "site=site", "title=A & B")
    assert answer["value"] == {"site": str(site / "site"), "build": 1, "title": "A & B", "pages": 3, "charts": 3}
    for chart in (site / "site").glob("*.svg"):
        assert ET.parse(chart).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    page = (site / "site" / "tides.html").read_text()
    assert '<img src="data-tides.svg" alt="Tide at the east pier"' in page
    assert "<strong>A &amp; B</strong>" in page
    assert "<table>" in (site / "site" / "index.html").read_text()


def test_a_chart_that_cannot_be_drawn_leaves_the_old_site(cli: Command, site_tools: Path, site: Path) -> None:
    """When the chart program fails, its complaint is in the error and the old site stands."""
    (site / "site").mkdir()
    (site / "site" / "index.html").write_text("old")
    (site / "content" / "data" / "tides.csv").write_text("month,high\nJanuary\n")
    answer = call(cli, site_tools, site, "build_site", "site=site")
    assert (answer["error"]["code"], answer["error"]["outcome"]) == ("TOOL_ERROR", "rolled_back")
    assert "tides.csv: line 2" in answer["error"]["message"]
    assert [path.name for path in (site / "site").iterdir()] == ["index.html"]


def test_sources_are_listed_with_their_faults(cli: Command, site_tools: Path, site: Path) -> None:
    """A data file that is no table is listed with what is wrong with it."""
    (site / "content" / "data" / "cargo.csv").write_text("month\n")
    listed = call(cli, site_tools, site, "list_sources")["value"]
    assert [page["name"] for page in listed["pages"]] == ["index", "tides", "traffic"]
    assert listed["data"][1] == {
        "name": "data/cargo.csv",
        "problem": "cargo.csv: line 1: a header with at least two columns is needed",
    }


def test_pages_are_added_and_never_overwritten(cli: Command, site_tools: Path, site: Path) -> None:
    """A new page is written; one that exists is refused before anything runs."""
    words = ("page=content/pilots.md", "title=Pilots", "text=On call.")
    assert call(cli, site_tools, site, "add_page", *words)["outcome"] == "committed"
    assert (site / "content" / "pilots.md").read_text() == "# Pilots\n\nOn call.\n"
    assert call(cli, site_tools, site, "add_page", *words)["error"]["code"] == "OUTPUT_EXISTS"


def test_data_is_imported_whole_or_not_at_all(cli: Command, site_tools: Path, site: Path) -> None:
    """A good file is cleaned up; a bad line anywhere leaves nothing."""
    good = call(cli, site_tools, site, "import_csv", "source=incoming/bathing.csv", "data=content/data/b.csv")
    assert good["value"]["rows"] == 2
    assert (site / "content" / "data" / "b.csv").read_text().splitlines()[0] == "month,water temperature,swimmers"
    bad = call(cli, site_tools, site, "import_csv", "source=incoming/broken.csv", "data=content/data/c.csv")
    assert (bad["error"]["code"], (site / "content" / "data" / "c.csv").exists()) == ("TOOL_ERROR", False)


def test_pages_are_removed_all_or_none(cli: Command, site_tools: Path, site: Path) -> None:
    """One name that is not there keeps every page; otherwise those named are gone and the rest is as it was."""
    kept = call(cli, site_tools, site, "remove_pages", 'names=["tides", "nothing"]')
    assert (kept["error"]["code"], (site / "content" / "tides.md").exists()) == ("TOOL_ERROR", True)
    removed = call(cli, site_tools, site, "remove_pages", 'names=["tides"]')
    assert removed["value"] == {"removed": ["tides"], "left": ["index", "traffic"]}
    assert (site / "content" / "data" / "tides.csv").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a header with at least two columns"),
        ("a,b,b\n", "two columns have the same name"),
        ("a,b\n", "there are no rows"),
        ("a,b\nx,1\ny\n", "line 3: 1 columns where 2 are needed"),
        ("a,b\nx,high\n", "line 2: b is 'high', not a number"),
    ],
)
def test_the_chart_program_names_what_it_cannot_draw(tmp_path: Path, text: str, said: str) -> None:
    """A bad table ends the program with 1, one line on stderr and no file."""
    (tmp_path / "t.csv").write_text(text)
    command = [sys.executable, str(EXAMPLE / "chart.py"), str(tmp_path / "t.csv"), str(tmp_path / "t.svg")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, said in done.stderr, done.stderr.count("\n")) == (1, True, 1)
    assert not (tmp_path / "t.svg").exists()
