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
    """Every name of `__all__` is there once, every public name is in it, and there is no other."""
    public = {name for name in dir(ztrio) if name[0] != "_" and not inspect.ismodule(getattr(ztrio, name))}
    assert sorted(set(ztrio.__all__)) == sorted(ztrio.__all__)
    assert sorted(public - {"TYPE_CHECKING", "import_module"}) == sorted(ztrio.__all__)
    assert not hasattr(ztrio, "Nonsense")


def test_init_has_nothing_but_names() -> None:
    """`ztrio/__init__.py` is its docstring, imports, names, and how those for servers are found: no code runs there."""
    docstring, *rest = ast.parse(INIT.read_text()).body
    assert isinstance(docstring, ast.Expr)
    assert ["TYPE_CHECKING"] == [ast.unparse(node.test) for node in rest if isinstance(node, ast.If)]
    for node in rest:
        if isinstance(node, ast.If):
            assert ["__getattr__", "__dir__"] == [
                child.name for child in node.orelse if isinstance(child, ast.FunctionDef)
            ]
            assert len(node.body) == sum(isinstance(child, ast.ImportFrom) for child in node.body)
        elif isinstance(node, ast.Assign):
            assert ast.unparse(node.targets[0]) in ("__all__", "_FOR_SERVERS")
            assert ast.literal_eval(node.value)
        else:
            assert isinstance(node, ast.ImportFrom), ast.unparse(node)


def test_type_checkers_are_told_the_same() -> None:
    """What is found when it is asked for comes from where type checkers are told that it does."""
    [told] = [node.body for node in ast.parse(INIT.read_text()).body if isinstance(node, ast.If)]
    names = {
        alias.name: (node.module or "").removeprefix("ztrio.")
        for node in told
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert names == ztrio._FOR_SERVERS


def test_tools_load_no_server(tmp_path: Path) -> None:
    """A file of tools that imports ztrio, as every worker does, gets neither the supervisor nor trio."""
    tools = tmp_path / "tools.py"
    tools.write_text("from ztrio import Input, Limits, Output, Toolbox, ToolContext, ToolError, load_toolbox\n")
    look = f"import ztrio.workers.launcher; exec(open({str(tools)!r}).read()); "
    unwanted = ("trio", "ztrio.supervisor", "ztrio.publication", "ztrio.store", "tempfile", "ssl")
    look += f"print([name for name in {unwanted!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}; {look}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "[]" == done.stdout.strip()


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
    exports = [getattr(ztrio, name) for name in ztrio.__all__]
    protocols = [exported for exported in exports if getattr(exported, "_is_protocol", False)]
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
