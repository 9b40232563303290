"""A toolbox that turns a folder of Markdown and CSV files into a static web site with charts.

    ztrio serve examples/report_site/site_tools.py --workspace examples/report_site
    ztrio call  examples/report_site/site_tools.py build_site content=content site=site

It is written as if nothing could go wrong, and that is the point. `build_site` writes straight into `site`, page after
page, with a child process for every chart; there is no temporary folder, no lock, no clean-up, no undo. ztrio hands
it a staging folder instead of `site`, kills it with all its children when its time is up or its caller leaves, and
shows the new site only once it is whole: to a reader the old site turns into the new one in a single step.
"""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

from chart import BadTable, read_table
from pages import STYLE, Chart, read_pages, render_page
from pydantic import Field

import ztrio

toolbox = ztrio.Toolbox("report-site")

CHART_PROGRAM = Path(__file__).with_name("chart.py")
HISTORY = 20

Content = Annotated[Path, ztrio.Input(kind="dir"), Field(description="Folder with the Markdown and CSV files.")]


@toolbox.tool(capability="read", title="List sources")
def list_sources(content: Content = Path("content")) -> dict[str, Any]:
    """List the pages and data files of a content folder, with what is wrong with them."""
    return {
        "pages": [
            {"name": page.name, "title": page.title, "charts": [chart.csv for chart in page.charts]}
            for page in read_pages(content)
        ],
        "data": [_inspect(path, content) for path in sorted(content.rglob("*.csv"))],
    }


@toolbox.tool(capability="read", title="Build history")
def build_history(ctx: ztrio.ToolContext) -> list[dict[str, Any]]:
    """List the sites built in this session, oldest first."""
    history: list[dict[str, Any]] = ctx.session.get("builds", [])
    return history


@toolbox.tool(capability="write", title="Build the site", timeout=60.0, max_timeout=600.0)
def build_site(
    ctx: ztrio.ToolContext,
    site: Annotated[Path, ztrio.Output(kind="dir", existing="replace")],
    content: Content = Path("content"),
    title: Annotated[str, Field(description="Name of the site, shown on every page.")] = "Report",
    slow_charts: Annotated[float, Field(ge=0, description="Extra seconds per chart, to see a slow program.")] = 0.0,
) -> dict[str, Any]:
    """Build the whole site: one HTML page per Markdown file, one SVG per chart, a style sheet."""
    pages = read_pages(content)
    if not pages:
        raise FileNotFoundError(f"there is no Markdown file in {content}")
    charts = {chart.svg: chart for page in pages for chart in page.charts}
    total = len(pages) + len(charts)

    site.mkdir()
    (site / "style.css").write_text(STYLE, encoding="utf-8")
    for done, page in enumerate(pages):
        ctx.progress(done, total, f"writing {page.name}.html")
        (site / f"{page.name}.html").write_text(render_page(page, pages, site_title=title), encoding="utf-8")
    for done, chart in enumerate(charts.values(), start=len(pages)):
        with _chart_program(chart, content, site, linger=slow_charts) as program:
            ctx.progress(done, total, f"drawing {chart.svg}")
            _, complaint = program.communicate()
        if program.returncode:
            raise RuntimeError(f"{chart.svg}: {complaint.strip() or f'the program ended with {program.returncode}'}")

    build = {"title": title, "pages": len(pages), "charts": len(charts)}
    ctx.session["builds"] = [*ctx.session.get("builds", []), build][-HISTORY:]
    return {"site": str(site), "build": len(ctx.session["builds"]), **build}


@toolbox.tool(capability="write", title="Add a page")
def add_page(
    page: Annotated[Path, ztrio.Output(existing="refuse")],
    title: Annotated[str, Field(min_length=1)],
    text: str = "",
) -> dict[str, Any]:
    """Write a new Markdown page; an existing one is never touched."""
    page.write_text(f"# {title}\n\n{text.strip()}\n", encoding="utf-8")
    return {"page": str(page)}


@toolbox.tool(capability="write", title="Import data")
def import_csv(
    source: Annotated[Path, ztrio.Input(kind="file")],
    data: Annotated[Path, ztrio.Output(kind="file", existing="replace")],
) -> dict[str, Any]:
    """Copy a CSV file into the content in a clean form: UTF-8, commas, every value a number."""
    with source.open(newline="", encoding="utf-8-sig") as lines, data.open("w", newline="", encoding="utf-8") as out:
        rows = csv.reader(lines)
        writer = csv.writer(out, lineterminator="\n")
        header = [name.strip() for name in next(rows, [])]
        writer.writerow(header)
        imported = 0
        for row in rows:
            if len(row) != len(header):
                raise BadTable(
                    f"{source.name}: line {rows.line_num}: {len(row)} columns where {len(header)} are needed"
                )
            writer.writerow([row[0].strip(), *(_number(text, source.name, rows.line_num) for text in row[1:])])
            imported += 1
    return {"data": str(data), "columns": header, "rows": imported}


@toolbox.tool(capability="destructive", title="Remove pages")
def remove_pages(
    names: Annotated[list[str], Field(min_length=1, description="Names of the pages, without .md.")],
    content: Annotated[Path, ztrio.Output(kind="dir", existing="copy_in")] = Path("content"),
) -> dict[str, Any]:
    """Remove pages from the content folder: all of those named, or none."""
    for name in names:
        if name not in {path.stem for path in content.glob("*.md")}:
            raise FileNotFoundError(f"there is no page {name!r}")
        (content / f"{name}.md").unlink()
    return {"removed": names, "left": sorted(path.stem for path in content.glob("*.md"))}


def _chart_program(chart: Chart, content: Path, site: Path, *, linger: float) -> subprocess.Popen[str]:
    """Start the child process that draws `chart` into `site`."""
    command = [sys.executable, str(CHART_PROGRAM), str(content / chart.csv), str(site / chart.svg)]
    command += ["--title", chart.title, "--linger", str(linger)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def _inspect(path: Path, content: Path) -> dict[str, Any]:
    name = path.relative_to(content).as_posix()
    try:
        table = read_table(path)
    except (BadTable, UnicodeDecodeError) as error:
        return {"name": name, "problem": str(error)}
    return {"name": name, "columns": list(table.series), "rows": len(table.labels)}


def _number(text: str, file: str, line: int) -> str:
    try:
        float(text)
    except ValueError:
        raise BadTable(f"{file}: line {line}: {text.strip()!r} is not a number") from None
    return text.strip()
