"""A tool sees the same wherever it runs, but for what the table in docs/workers.md says."""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import ztrio
from tests.kit.nobody import as_nobody
from tests.workers.walk_of_parity import WAYS, observe

DOCS = Path(__file__).parents[2] / "docs" / "workers.md"


def table() -> dict[str, dict[str, str]]:
    """The table of differences in the documentation: way → what is seen → word."""
    text = DOCS.read_text().partition("<!-- parity -->")[2]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in re.findall(r"^\|.*\|$", text, re.MULTILINE)]
    heads = rows[0][1:]
    return {head: {row[0]: row[column] for row in rows[2:]} for column, head in enumerate(heads, start=1)}


@pytest.fixture
def place() -> Iterator[Path]:
    """A workspace with a short path, because multiprocessing puts sockets into TMPDIR, and for everybody."""
    path = Path(tempfile.mkdtemp(prefix="z", dir="/tmp")).resolve()
    yield path
    shutil.rmtree(path)


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that the tool declares, and one that it does not."""
    monkeypatch.setenv("ZTRIO_TEST_DECLARED", "declared")
    monkeypatch.setenv("ZTRIO_TEST_OTHER", "not declared")


def test_the_table_is_about_every_way() -> None:
    """The documentation has a column for each way of running a tool."""
    assert list(WAYS) == list(table())


def check(first: dict[str, str], second: dict[str, str], way: str) -> None:
    """Assert that two ways of running a tool differ as documented."""
    documented = table()
    here, there = documented["spawn, group"], documented[way]
    names = [name for name in first | second if first.get(name) != second.get(name)]
    expected = {name: (here[name], there[name]) for name in here if here[name] != there[name]}
    assert expected == {name: (first.get(name), second.get(name)) for name in names}


# What a tool sees in each way, once it was looked at.
known: dict[str, dict[str, str]] = {}


async def seen(workspace: Path, way: str) -> dict[str, str]:
    """What a tool sees; the test is skipped where it cannot be run in this way."""
    try:
        if way not in known:
            known[way] = await observe(workspace, way)
        return known[way]
    except ztrio.UnsupportedPlatform as error:
        pytest.skip(f"{way} does not work here: {error.message}")


@pytest.mark.parametrize("other", [way for way in WAYS if way != "spawn, group"])
async def test_what_a_tool_sees(place: Path, other: str) -> None:
    """Between two ways of running a tool there are the documented differences and no others."""
    check(await seen(place, "spawn, group"), await seen(place, other), other)


@pytest.mark.skipif(os.geteuid() != 0, reason="is an ordinary user already")
@pytest.mark.parametrize("other", ["zygote, pidns", "zygote, job-init"])
async def test_what_the_tool_of_an_ordinary_user_sees(place: Path, other: str) -> None:
    """The same holds when neither ztrio nor its tools have any privileges."""
    place.chmod(0o777)
    for each in ("spawn, group", other):
        if f"{each}, nobody" in known:
            continue
        command, environment = as_nobody([str(Path(__file__).with_name("walk_of_parity.py")), str(place), each])
        environment |= {"TMPDIR": str(place), "HOME": str(place)}
        done = await trio.run_process(command, env=environment, cwd=place, capture_stdout=True)
        known[f"{each}, nobody"] = json.loads(done.stdout)
    check(known["spawn, group, nobody"], known[f"{other}, nobody"], other)
