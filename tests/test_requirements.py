"""Every number in docs/requirements.md has a test, or says here what is missing; checked both ways."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "requirements.md"

# Number -> what is missing. This map only shrinks: the change that brings a test for a number takes its line out, and
# no line is ever added for a number that had a test.
LATER = {
    "R67": "configuration files",
}


def documented() -> set[str]:
    """The numbers that open a row of a table in the document."""
    numbers = re.findall(r"^\| ([PIR]\d+) \|", DOCUMENT.read_text(), flags=re.MULTILINE)
    assert sorted(set(numbers)) == sorted(numbers), "a number has two rows"
    return set(numbers)


def cited(source: str) -> Iterator[tuple[str, str]]:
    """(marker, number) of each `pytest.mark.req` and `pytest.mark.case` that reaches a test in this source.

    Read from the source and not from pytest's collection, so that it also holds when only a part is collected. What
    pytest would not collect does not count: only test functions, `Test` classes, `pytestmark` and parameters.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            collected = node.name.startswith("Test" if isinstance(node, ast.ClassDef) else "test")
            marks = node.decorator_list if collected else []
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.param":
            marks = [keyword.value for keyword in node.keywords if keyword.arg == "marks"]
        elif isinstance(node, ast.Assign) and any(ast.unparse(target) == "pytestmark" for target in node.targets):
            marks = [node.value]
        else:
            continue
        for mark in (found for tree in marks for found in ast.walk(tree)):
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) in {"pytest.mark.req", "pytest.mark.case"}:
                for argument in mark.args:
                    yield ast.unparse(mark.func).rpartition(".")[2], ast.literal_eval(argument)


def proven() -> dict[str, set[str]]:
    """Number -> the test files that cite it."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for _, number in cited(path.read_text()):
            found.setdefault(number, set()).add(str(path.relative_to(ROOT)))
    return found


def test_every_number_has_a_test_or_a_reason() -> None:
    """A number with neither a test nor a line in LATER is a promise that nobody keeps."""
    assert sorted(documented() - set(proven()) - set(LATER)) == []


def test_later_only_names_what_has_no_test() -> None:
    """A number that has a test leaves LATER with the change that brings the test."""
    assert {number: files for number, files in proven().items() if number in LATER} == {}


def test_every_cited_number_is_documented() -> None:
    """A test cites only numbers of the document, and so does LATER."""
    assert sorted((set(proven()) | set(LATER)) - documented()) == []


def test_markers_fit_their_numbers() -> None:
    """Field cases are cited with `case`, requirements and invariants with `req`."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        for marker, number in cited(path.read_text()):
            assert (path.name, number, "case" if number.startswith("R") else "req") == (path.name, number, marker)


def test_document_is_whole() -> None:
    """The requirements are numbered without gaps and every row says something."""
    expected = {f"P{number}" for number in range(1, 61)} | {f"I{number}" for number in range(1, 11)}
    assert expected == {number for number in documented() if number[0] in "PI"}
    for row in re.findall(r"^\| [PIR]\d+ \|(.*)\|$", DOCUMENT.read_text(), flags=re.MULTILINE):
        assert all(cell.strip() for cell in row.split(" | ")), row


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('@pytest.mark.req("P1")\nasync def test_x(): ...', {("req", "P1")}),
        ('@pytest.mark.case("R01", "R02")\nclass TestX: ...', {("case", "R01"), ("case", "R02")}),
        ('pytestmark = [pytest.mark.req("I1")]', {("req", "I1")}),
        (
            '@pytest.mark.parametrize("a", [pytest.param(1, marks=pytest.mark.case("R03"))])\ndef test(a): ...',
            {("case", "R03")},
        ),
        ('@pytest.mark.req("P1")\ndef helper(): ...', set()),
        ('CASES = [pytest.param(1, marks=[pytest.mark.case("R04")])]', {("case", "R04")}),
        ("def test_x():\n    \"pytest.mark.req('P1')\"", set()),
    ],
)
def test_only_marks_that_reach_a_test_count(source: str, expected: set[tuple[str, str]]) -> None:
    """A mark counts where pytest would see it, and nowhere else."""
    assert expected == set(cited(source))
