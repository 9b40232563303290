"""Markdown pages to HTML: the part of the site builder that knows nothing of tools, sessions or processes.

One convention beyond Markdown: an image whose source is a CSV file (`![Tide](data/tides.csv)`) is a chart. The page
then shows the SVG of the same name, which somebody else draws.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

_CHART = re.compile(r"!\[(?P<title>[^\]]*)\]\((?P<csv>[^)\s]+\.csv)\)")
_TITLE = re.compile(r"^#\s+(?P<title>.+?)\s*$", re.MULTILINE)
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")


class Chart(NamedTuple):
    """A chart that a page asks for: its title, its CSV relative to the content folder, the name of its SVG."""

    title: str
    csv: str
    svg: str


class Page(NamedTuple):
    """One Markdown file: its name without suffix, its first heading, its text and the charts it asks for."""

    name: str
    title: str
    text: str
    charts: tuple[Chart, ...]


def read_page(path: Path) -> Page:
    """Read one Markdown file; its title is the first level-one heading, else the file's name."""
    text = path.read_text(encoding="utf-8")
    heading = _TITLE.search(text)
    return Page(
        name=path.stem,
        title=heading["title"] if heading else path.stem,
        text=text,
        charts=tuple(Chart(found["title"], found["csv"], _svg_name(found["csv"])) for found in _CHART.finditer(text)),
    )


def read_pages(content: Path) -> list[Page]:
    """Every page of the content folder, `index` first, the others by name."""
    return sorted(
        (read_page(path) for path in content.glob("*.md")), key=lambda page: (page.name != "index", page.name)
    )


def render_page(page: Page, pages: list[Page], *, site_title: str) -> str:
    """The page as a whole HTML document with a navigation over `pages`."""
    body = _MARKDOWN.render(_CHART.sub(lambda found: f"![{found['title']}]({_svg_name(found['csv'])})", page.text))
    links = "".join(
        f'<a href="{html.escape(other.name)}.html"{" class=here" if other.name == page.name else ""}>'
        f"{html.escape(other.title)}</a>"
        for other in pages
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f"<title>{html.escape(page.title)} - {html.escape(site_title)}</title>\n"
        f'<link rel="stylesheet" href="style.css">\n'
        f"<header><strong>{html.escape(site_title)}</strong><nav>{links}</nav></header>\n"
        f"<main>\n{body}</main>\n</html>\n"
    )


def _svg_name(csv: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", csv.removesuffix(".csv")).strip("-") + ".svg"


STYLE = """\
body { margin: 0; font: 1rem/1.6 Georgia, serif; color: #222; }
header { display: flex; gap: 2rem; padding: 1rem 2rem; background: #1f6f8b; color: white; }
header a { color: white; margin-right: 1rem; text-decoration: none; }
header a.here { border-bottom: 2px solid white; }
main { max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
img { max-width: 100%; }
td, th { padding: 0.2rem 0.8rem; border-bottom: 1px solid #ddd; text-align: left; }
"""
