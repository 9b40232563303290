"""The project's files speak of the project alone, whatever machine they were written on."""

import ast
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
# What is made here and not committed.
MADE = re.compile(
    r"(^|/)(\.git|\.venv[^/]*|\.[a-z]+_cache|\.hypothesis|__pycache__|htmlcov|build|dist)(/|$)|(^|/)\.cov"
)
# Somebody's home directory means nothing on the reader's machine.
HOME = re.compile(r"/(?:home|Users)/[a-z]\w*/|(?<!\w)/(?:root)/")
LINK = re.compile(r"https?://([A-Za-z0-9.-]+)")
# Whom the project refers its readers to.
HOSTS = {
    "docs.pytest.org",
    "semver.org",
    "trio.readthedocs.io",
    "www.apache.org",
    "www.w3.org",
}


def committed() -> list[Path]:
    """The files that are, or would be, part of a commit; without git every file that is not made here."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        names = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True).stdout
        paths = [ROOT / name for name in names.decode().split("\0") if name]
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive
        paths = list(ROOT.rglob("*"))
    return [path for path in paths if path.is_file() and not MADE.search(str(path.relative_to(ROOT)))]


def test_no_file_names_a_machine() -> None:
    """No file holds a path of somebody's home, or a link to a host that readers are not meant to be sent to."""
    found = []
    for path in committed():
        if path == Path(__file__):
            continue
        text = path.read_bytes().decode("utf-8", errors="ignore")
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in HOME.finditer(text)]
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in LINK.finditer(text) if match[1] not in HOSTS]
    assert found == []


def test_modules_stay_readable_in_one_sitting() -> None:
    """No module is longer than 400 lines."""
    lengths = {
        str(path.relative_to(ROOT)): path.read_text().count("\n") for path in committed() if path.suffix == ".py"
    }
    assert {name: length for name, length in lengths.items() if length > 400} == {}


def test_every_text_file_ends_with_one_newline() -> None:
    """Text files end with exactly one newline and have no spaces before it."""
    for path in committed():
        if path.suffix in {".py", ".md", ".toml"} and path.stat().st_size:
            text = path.read_text()
            assert (path.name, text.endswith("\n"), text.endswith("\n\n")) == (path.name, True, False)


def test_every_test_states_its_promise() -> None:
    """Each test function has a docstring that says what is promised."""
    silent = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in committed()
        if re.fullmatch(r"test_.*\.py", path.name)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test")
        and not ast.get_docstring(node)
    ]
    assert silent == []
