"""What an installation gives its user: these packages, from one place, and nothing else."""

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ["ztrio", "ztrio_bench", "ztrio_cli", "ztrio_mcp", "ztrio_sql"]
FOREIGN = ["anyio", "asyncio", "mcp", "multiprocessing", "pydantic", "rich", "sqlalchemy", "structlog", "typer"]


def isolated(code: str) -> object:
    """What `code` prints as JSON in an interpreter that sees only what is installed, and is not measured."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd="/", env=environment, capture_output=True, check=False
    )
    assert (done.stderr.decode(), done.returncode) == ("", 0)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    """The wheel, built by the declared backend without network."""
    place = tmp_path_factory.mktemp("wheel")
    build = "import sys, hatchling.build; print(hatchling.build.build_wheel(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", build, str(place)], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    [path] = place.glob("*.whl")
    return zipfile.Path(path)


def contents(wheel: zipfile.Path) -> list[str]:
    """Names of all files in the wheel."""
    return zipfile.ZipFile(str(wheel.root.filename)).namelist()


def test_only_the_packages_are_importable() -> None:
    """What lies in the repository beside the packages is not importable by whoever installs ztrio."""
    code = """if True:
        import importlib.util, json
        names = ["adapters", "tests", "benchmarks", "examples", "docs"]
        print(json.dumps([name for name in names if importlib.util.find_spec(name) is not None]))"""
    assert isolated(code) == []


def test_packages_come_from_one_root() -> None:
    """Core and adapters are of one installation, never half of an older one."""
    code = f"""if True:
        import importlib.util, json, pathlib
        found = {{name: pathlib.Path(importlib.util.find_spec(name).origin).parent for name in {PACKAGES}}}
        print(json.dumps({{name: str(path) for name, path in found.items()}}))"""
    found = isolated(code)
    assert isinstance(found, dict)
    assert {
        "ztrio": ROOT / "ztrio",
        "ztrio_bench": ROOT / "adapters" / "ztrio_bench",
        "ztrio_cli": ROOT / "adapters" / "ztrio_cli",
        "ztrio_mcp": ROOT / "adapters" / "ztrio_mcp",
        "ztrio_sql": ROOT / "adapters" / "ztrio_sql",
    } == {name: Path(path) for name, path in found.items()}


def test_core_imports_nothing_foreign() -> None:
    """`import ztrio` stays quick and runs without adapters, their libraries or another event loop."""
    assert isolated(f"import json, sys, ztrio; print(json.dumps(sorted(set({FOREIGN}) & set(sys.modules))))") == []


def test_worker_imports_no_protocol_library() -> None:
    """A worker starts without what only a server needs."""
    names = ["anyio", "asyncio", "mcp", "multiprocessing", "rich", "starlette", "structlog", "typer"]
    code = f"import json, sys, ztrio.workers.child; print(json.dumps(sorted(set({names}) & set(sys.modules))))"
    assert isolated(code) == []


def test_command_is_installed() -> None:
    """The `ztrio` command of this installation exists and starts."""
    command = Path(sys.executable).with_name("ztrio")
    done = subprocess.run([command, "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert (done.returncode, "Usage" in done.stdout.decode()) == (0, True), done.stdout.decode()


def test_wheel_holds_every_module_and_nothing_else(wheel: zipfile.Path) -> None:
    """The wheel has exactly the modules of the source tree, each package at its top."""
    sources = {
        str((Path(folder) / name).relative_to(base))
        for base, package in [(ROOT, "ztrio"), *((ROOT / "adapters", name) for name in PACKAGES[1:])]
        for folder, _, names in os.walk(base / package, followlinks=True)  # the example is a link to examples/
        for name in names
        if "__pycache__" not in folder
    }
    assert sorted(sources) == sorted(name for name in contents(wheel) if ".dist-info/" not in name)


def test_wheel_is_typed_and_licensed(wheel: zipfile.Path) -> None:
    """Type checkers see the annotations of every package, and the licence travels with them."""
    names = contents(wheel)
    assert [f"{package}/py.typed" for package in PACKAGES if f"{package}/py.typed" not in names] == []
    [metadata] = [name for name in names if name.endswith(".dist-info/METADATA")]
    text = (wheel / metadata).read_text()
    assert "License-Expression: Apache-2.0\n" in text
    assert "Requires-Python: >=3.11\n" in text
    assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")] != []


def test_installed_version_is_the_declared_one() -> None:
    """What is installed says the version that the project declares."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert declared == isolated(
        "import importlib.metadata, json; print(json.dumps(importlib.metadata.version('ztrio')))"
    )
