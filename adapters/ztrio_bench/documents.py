"""Documents that show what records say: text between two marks, which is made anew and nothing else with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

__all__ = ["put"]


def put(document: Path, name: str, lines: Sequence[str]) -> None:
    """Replace what stands between the two marks of a name.

    Raises:
        ValueError: the document does not have them.
    """
    begin, end = f"<!-- {name}: begin", f"<!-- {name}: end -->"
    text = document.read_text()
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"{document.name} has no marks for {name}: {begin} … --> and {end}")
    head, _, rest = text.partition(begin)
    words, _, rest = rest.partition("\n")
    _, _, tail = rest.partition(end)
    document.write_text("\n".join([head + begin + words, "", *lines, "", end + tail]))
