"""The documentation agrees with the code where a reader would rely on it."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

from ztrio import errors

ROOT = Path(__file__).parent.parent


def _classes() -> list[type[errors.ZtrioError]]:
    found = [value for value in vars(errors).values() if inspect.isclass(value)]
    return [value for value in found if issubclass(value, errors.ZtrioError)]


def test_every_error_code_is_documented_with_its_class() -> None:
    """docs/errors.md has one row for each code of each class, and no other."""
    rows = re.findall(r"^\| `([A-Z_]+)` \| `(\w+)` \|", (ROOT / "docs/errors.md").read_text(), re.MULTILINE)
    expected = sorted((code, each.__name__) for each in _classes() for code in each.codes)
    assert expected == sorted(rows)


def test_the_tool_in_the_readme_works(tmp_path: Path) -> None:
    """A newcomer who copies the README's tool and its embedding program gets what the README says."""
    tool, program = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "my_tools.py").write_text(tool)
    (tmp_path / "program.py").write_text(program)
    (tmp_path / "boards").mkdir()
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert "y" == (tmp_path / "boards/out/board.txt").read_text()
    lines = done.stdout.splitlines()
    assert lines[0].endswith("committed committed")
    assert ["allow None", "start None", "commit committed"] == lines[1:]
