"""The documentation shows what the code does, because it is made from it."""

import re
from pathlib import Path

import pytest

from ztrio.pending import LateOutcome
from ztrio.pending.bounds import Bounds
from ztrio.pending.reasons import codes_table, not_processed_table, reasons_table, states_table
from ztrio.pending.shown import PENDING_CALL_SCHEMA
from ztrio.pending.states import diagram, table

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "pending-calls.md"
GENERATED = {
    "diagram": f"```mermaid\n{diagram()}\n```",
    "states": states_table(),
    "table": table(),
    "reasons": reasons_table(),
    "codes": codes_table(),
    "not-processed": not_processed_table(),
}


def regenerated(text: str) -> str:
    """The document with what is made from the code made anew."""
    for name, content in GENERATED.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text, count = pattern.subn(lambda found, made=content: f"{found[1]}{made}\n{found[2]}", text)  # type: ignore[misc]
        assert 1 == count, name
    return text


@pytest.mark.req("P1", "P4", "P5")
def test_the_documentation_is_made_from_the_code() -> None:
    """Diagram and tables of docs/pending-calls.md are what the code makes; `python -m tests.pending.test_documentation`
    writes them."""
    assert regenerated(DOCUMENT.read_text()) == DOCUMENT.read_text()


def test_every_word_is_in_the_documentation() -> None:
    """Every late outcome, every field of the object, and every promised number is documented."""
    text = DOCUMENT.read_text()
    for word in (*LateOutcome, *PENDING_CALL_SCHEMA["properties"]):
        assert f"`{word}`" in text, word
    bounds = Bounds()
    for what, number in [
        ("all records", bounds.records),
        ("calls in flight", bounds.in_flight),
        ("gating calls of one server and scope", bounds.gating),
        ("blockers", bounds.blockers),
        ("settled calls and unresolved reads of one server", bounds.kept),
        ("late responses waited for", bounds.late_waits),
        ("callers", bounds.principals),
    ]:
        assert re.search(rf"^\| {what} \| {number}\b", text, re.MULTILINE), what


if __name__ == "__main__":
    DOCUMENT.write_text(regenerated(DOCUMENT.read_text()))
