"""The public surface: what `ztrio` exports, at run time and for type checkers."""

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ztrio
import ztrio.errors

ROOT = Path(__file__).parent.parent
INIT = ROOT / "ztrio" / "__init__.py"

# What people rely on beside the errors. A name is added here with its documentation, and leaves with a deprecation.
NAMES = {
    "LOCAL",
    "AuditBus",
    "AuditEvent",
    "CallContext",
    "CallResult",
    "Capability",
    "Cause",
    "Input",
    "Limits",
    "MemoryStore",
    "Outcome",
    "Output",
    "Policy",
    "Principal",
    "Settings",
    "Store",
    "Supervisor",
    "ToolContext",
    "Toolbox",
    "View",
    "allow",
    "load_toolbox",
    "open_supervisor",
}


def test_exports_are_the_documented_ones() -> None:
    """`ztrio.__all__` has these names, every error, and no other."""
    assert sorted(NAMES | set(ztrio.errors.__all__)) == sorted(ztrio.__all__)


def test_all_is_sorted_and_true() -> None:
    """Every name of `__all__` is there once, and every public name is in it."""
    visible = {name for name, value in vars(ztrio).items() if name[0] != "_" and not inspect.ismodule(value)}
    assert sorted(set(ztrio.__all__)) == sorted(ztrio.__all__)
    assert sorted(visible) == sorted(ztrio.__all__)


def test_init_has_nothing_but_names() -> None:
    """`ztrio/__init__.py` is its docstring, imports and `__all__`: no code runs there."""
    docstring, *rest = ast.parse(INIT.read_text()).body
    assert isinstance(docstring, ast.Expr)
    for node in rest:
        names = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        assert isinstance(node, ast.ImportFrom) or names, ast.unparse(node)


def test_layers_are_told_as_they_are_checked() -> None:
    """The layers that the package's docstring tells are the ones that `make layers` checks."""
    told = [
        {name for name in re.split(r"[, ]+", line.strip()) if name}
        for line in re.findall(r"^    ((?:[a-z_]+(?:, )?)+)(?=  |$|, )", ztrio.__doc__ or "", flags=re.MULTILINE)
    ]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [checked] = [contract["layers"] for contract in contracts if contract.get("containers") == ["ztrio"]]
    assert [set(layer.split(" : ")) for layer in checked if layer != "testing"] == told


@pytest.mark.parametrize("name", sorted(ztrio.__all__))
def test_every_export_is_documented(name: str) -> None:
    """Every exported class and function has a docstring, and so has each public method and property of it."""
    value = getattr(ztrio, name)
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return
    assert inspect.getdoc(value)
    assert value.__module__.split(".")[0] == "ztrio"
    if inspect.isclass(value):
        own = [member for member in vars(value) if member[0] != "_" and _has_docstring(value, member)]
        assert [member for member in own if not _documented(value, member)] == []


def _has_docstring(owner: type, member: str) -> bool:
    found = inspect.getattr_static(owner, member)
    return inspect.isroutine(found) or isinstance(found, property | classmethod | staticmethod)


def _documented(owner: type, member: str) -> bool:
    """Whether the member says what it does: itself, in a base class, or in the exported protocol it implements."""
    protocols = [exported for exported in vars(ztrio).values() if getattr(exported, "_is_protocol", False)]
    return any(inspect.getdoc(getattr(place, member, None)) for place in [owner, *protocols] if hasattr(place, member))


def test_exports_are_visible_to_mypy(tmp_path: Path) -> None:
    """A strict type checker accepts an import of every exported name, as re-exported on purpose."""
    module = tmp_path / "user.py"
    module.write_text(f"from ztrio import {', '.join(sorted(ztrio.__all__))}\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--follow-imports=silent",
            "--config-file",
            str(ROOT / "pyproject.toml"),
            str(module),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert (done.stdout.decode().splitlines()[-1:], done.returncode) == (
        ["Success: no issues found in 1 source file"],
        0,
    )
