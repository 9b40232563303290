"""Finding code: a user's tools file, and a worker's way back to a function."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ztrio.errors import ToolboxError
from ztrio.loading import (
    MAIN_NAME,
    FunctionRef,
    ModuleRef,
    function_ref,
    load_function,
    load_module,
    load_toolbox,
)

TOOLS = """\
import ztrio

toolbox = ztrio.Toolbox("found")
second = ztrio.Toolbox("second")
number = 3


@toolbox.tool(capability="write")
def double(value: int) -> int:
    return 2 * value
"""


@pytest.fixture(autouse=True)
def unchanged_imports() -> Iterator[None]:
    """Loading changes the interpreter's tables; each test gets them as they were."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    importlib.invalidate_caches()


def write(path: Path, source: str = TOOLS) -> Path:
    """A file with this source."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return path


def python(*arguments: str | Path, cwd: Path) -> Any:
    """What a Python of its own prints as JSON."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    return json.loads(done.stdout)


def refusal(spec: str) -> str:
    """Why this toolbox cannot be loaded."""
    with pytest.raises(ToolboxError) as caught:
        load_toolbox(spec)
    return caught.value.message


def test_a_file_has_its_toolbox(tmp_path: Path) -> None:
    """`FILE.py` gives its `toolbox`, `FILE.py:NAME` another one, and the file is loaded once."""
    file = write(tmp_path / "zt_board_tools.py")
    toolbox = load_toolbox(str(file))
    assert ("found", ["double"]) == (toolbox.name, [tool.name for tool in toolbox])
    assert toolbox is load_toolbox(f"{file}:toolbox")
    assert "second" == load_toolbox(f"{file}:second").name
    assert str(tmp_path) == sys.path[0]
    assert 1 == sys.path.count(str(tmp_path))


def test_a_relative_file_and_a_colon_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are taken as they are, also those that hold a colon."""
    write(tmp_path / "a:b" / "zt_colon_tools.py")
    monkeypatch.chdir(tmp_path)
    assert "found" == load_toolbox("a:b/zt_colon_tools.py").name
    assert "second" == load_toolbox("a:b/zt_colon_tools.py:second").name


def test_a_file_imports_its_neighbours(tmp_path: Path) -> None:
    """The file's folder is importable, as for a script."""
    write(tmp_path / "zt_neighbour.py", "NAME = 'from next door'\n")
    file = write(
        tmp_path / "zt_importing.py", "import zt_neighbour, ztrio\ntoolbox = ztrio.Toolbox(zt_neighbour.NAME)\n"
    )
    assert "from next door" == load_toolbox(str(file)).name


def test_a_module_has_its_toolbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`MODULE` and `MODULE:NAME` are imported by name, packages included."""
    write(tmp_path / "zt_package" / "__init__.py", "")
    write(tmp_path / "zt_package" / "tools.py")
    monkeypatch.syspath_prepend(tmp_path)
    assert "found" == load_toolbox("zt_package.tools").name
    assert "second" == load_toolbox("zt_package.tools:second").name


def test_a_main_part_does_not_run(tmp_path: Path) -> None:
    """Loading a file has no side effect beyond its definitions: its main part stays quiet."""
    file = write(tmp_path / "zt_main_part.py", TOOLS + "\nif __name__ == '__main__':\n    raise SystemExit(9)\n")
    assert "found" == load_toolbox(str(file)).name


def test_loading_prints_nothing_and_starts_nothing(tmp_path: Path) -> None:
    """No output, no thread, no child, no file: only the module and its folder on the path."""
    write(tmp_path / "zt_quiet.py")
    code = (
        "import json, os, sys, threading\n"
        "from ztrio.loading import load_toolbox\n"
        "before, path = set(os.listdir('.')), list(sys.path)\n"
        "load_toolbox('zt_quiet.py')\n"
        "after = set(os.listdir('.')) - {'__pycache__'}\n"
        "new = [entry for entry in sys.path if entry not in path]\n"
        "alone = threading.active_count() == 1\n"
        "print(json.dumps([after == before, alone, new == [os.getcwd()], 'pydantic' in sys.modules]))\n"
    )
    assert [True, True, True, False] == python("-c", code, cwd=tmp_path)


@pytest.mark.parametrize(
    ("source", "line", "reason"),
    [
        ("import ztrio\ntoolbox = = 3\n", 2, "SyntaxError: invalid syntax"),
        ("x = 1\n\n\nimport zt_no_such_module\n", 4, "ModuleNotFoundError: No module named 'zt_no_such_module'"),
        ("def helper():\n    return 1 / 0\n\nhelper()\n", 2, "ZeroDivisionError: division by zero"),
        ("import json\n\njson.loads('{')\n", 3, "JSONDecodeError: "),
        ("import attrs\n\nattrs.evolve(3)\n", 3, "NotAnAttrsClassError: "),
        ("import ztrio\n\ntoolbox = ztrio.Toolbox()\n", 3, "TypeError: "),
        ("import ztrio\nztrio.Output(kind='link')\n", 2, "ValueError: "),
        ("import ztrio\n\nztrio.load_toolbox\nraise SystemExit(2)\n", 4, "SystemExit: 2"),
        ("\x00", 0, ""),
    ],
)
def test_a_broken_file_is_named_with_the_users_line(tmp_path: Path, source: str, line: int, reason: str) -> None:
    """Whatever is wrong with a file, the message has its line, not the line of a library that noticed."""
    file = write(tmp_path / "zt_broken.py", source)
    message = refusal(str(file))
    if line:
        assert f"{file}:{line}: {reason}" == message[: len(f"{file}:{line}: {reason}")]
    else:
        assert str(file) in message
    assert "zt_broken" not in sys.modules


def test_a_broken_neighbour_is_named(tmp_path: Path) -> None:
    """The line is in the file that is broken, not in the one that imports it."""
    neighbour = write(tmp_path / "zt_broken_neighbour.py", "\nnumber = int('x')\n")
    file = write(tmp_path / "zt_importer.py", "import zt_broken_neighbour\n")
    assert refusal(str(file)).startswith(f"{neighbour}:2: ValueError: ")
    neighbour.write_text("def f(:\n")
    assert refusal(str(file)).startswith(f"{neighbour}:1: SyntaxError: ")


def test_a_library_inside_the_folder_is_not_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual environment often lies in the user's folder; its lines are not the user's."""
    library = tmp_path / ".venv" / "lib"
    write(library / "zt_library.py", "def fail():\n    raise RuntimeError('no')\n")
    monkeypatch.syspath_prepend(library)
    monkeypatch.setattr("ztrio.loading._INSTALLED", (f"{library}{os.sep}",))
    file = write(tmp_path / "zt_user.py", "import zt_library\n\nzt_library.fail()\n")
    assert f"{file}:3: RuntimeError: no" == refusal(str(file))
    # Where nothing is the user's, the library's own line is the best there is.
    write(library / "zt_installed.py", "import zt_library\nzt_library.fail()\n")
    assert f"{library / 'zt_library.py'}:2: RuntimeError: no" == refusal("zt_installed")


def test_a_broken_tool_is_named_once(tmp_path: Path) -> None:
    """A registration error keeps its own file and line."""
    file = write(
        tmp_path / "zt_bad_tool.py",
        "import ztrio\ntoolbox = ztrio.Toolbox('x')\n\n@toolbox.tool(capability='write')\ndef f(x): ...\n",
    )
    assert f"{file}:4: parameter 'x' has no annotation" == refusal(str(file))


def test_what_is_not_there(tmp_path: Path) -> None:
    """Missing files and modules, and specifications that name nothing, are refused by name."""
    missing = tmp_path / "zt_missing.py"
    assert f"{missing}: there is no such file" == refusal(str(missing))
    assert f"{missing}: there is no such file" == refusal(f"{missing}:toolbox")
    assert f"{tmp_path / 'x.py'}: there is no such file" == refusal(str(write(tmp_path / "x.py" / "y").parent))
    assert "zt_missing: ModuleNotFoundError: No module named 'zt_missing'" == refusal("zt_missing")
    assert refusal("").endswith(": ValueError: Empty module name")
    assert ".relative: TypeError: " in refusal(".relative")


def test_no_toolbox_where_one_was_expected(tmp_path: Path) -> None:
    """The message says which toolboxes there are, or how to write one."""
    file = write(tmp_path / "zt_other_names.py", "import ztrio\nb = ztrio.Toolbox('b')\na = ztrio.Toolbox('a')\n")
    assert f"{file}: there is no 'toolbox' in it; it has a, b" == refusal(str(file))
    empty = write(tmp_path / "zt_empty.py", "")
    assert f"{empty}: there is no 'box' in it; write: toolbox = ztrio.Toolbox('name')" == refusal(f"{empty}:box")
    wrong = write(tmp_path / "zt_wrong_kind.py")
    assert f"{wrong}: 'number' is a int, not a ztrio.Toolbox" == refusal(f"{wrong}:number")


def test_a_file_named_like_a_standard_module_leaves_it_alone(tmp_path: Path) -> None:
    """`colorsys.py`, loaded as tools, is not what `import colorsys` gives, here and in what is imported later."""
    write(tmp_path / "colorsys.py")
    code = (
        "import json, sys\n"
        "from ztrio.loading import function_ref, load_toolbox\n"
        "assert 'colorsys' not in sys.modules\n"
        "toolbox = load_toolbox('colorsys.py')\n"
        "ref = function_ref(toolbox.get('double').function)\n"
        "import colorsys\n"
        "print(json.dumps([toolbox.name, hasattr(colorsys, 'rgb_to_hsv'), ref.module.name, ref.module.file]))\n"
    )
    expected = ["found", True, "_ztrio_tools1_colorsys", str(tmp_path.resolve() / "colorsys.py")]
    # `-P` keeps Python itself from putting the folder in front of the standard library.
    assert expected == python("-P", "-c", code, cwd=tmp_path)


def test_files_of_one_name_are_different_toolboxes(tmp_path: Path) -> None:
    """The same file name in three folders gives three toolboxes, each its own again when asked again."""
    files = [
        write(tmp_path / folder / "zt_same_name.py", TOOLS.replace("found", folder))
        for folder in ("one", "two", "three")
    ]
    for _ in range(2):
        assert ["one", "two", "three"] == [load_toolbox(str(file)).name for file in files]


def test_a_file_named_like_a_loaded_module_leaves_it_alone(tmp_path: Path) -> None:
    """A name that is taken stays taken by whoever has it."""
    before = sys.modules["attrs"]
    assert "found" == load_toolbox(str(write(tmp_path / "attrs.py"))).name
    assert before is sys.modules["attrs"]


def test_a_function_of_an_importable_module_is_found_by_name() -> None:
    """Where the module's name is enough, the reference holds nothing else."""
    assert FunctionRef(ModuleRef("json", None), "dumps") == function_ref(json.dumps)
    assert FunctionRef(ModuleRef("ztrio.loading", None), "load_module") == function_ref(load_module)
    assert json.dumps is load_function(function_ref(json.dumps))


def test_a_function_of_a_loaded_file_is_found_by_its_file(tmp_path: Path) -> None:
    """A file that no name finds is loaded again from its path, under the same name, in another process."""
    file = write(tmp_path / "tools" / "zt-board.tools.py")
    tool = load_toolbox(str(file)).get("double")
    assert tool is not None
    ref = function_ref(tool.function)
    assert FunctionRef(ModuleRef("zt-board.tools", str(file)), "double") == ref
    assert tool.function is load_function(ref)
    code = (
        "import json, sys\n"
        "from ztrio.loading import FunctionRef, ModuleRef, load_function, load_module\n"
        f"ref = FunctionRef(ModuleRef({ref.module.name!r}, {ref.module.file!r}), {ref.name!r})\n"
        "function = load_function(ref)\n"
        "assert load_module(ref.module) is sys.modules[ref.module.name]\n"
        "print(json.dumps([function(4), function.__module__]))\n"
    )
    assert [8, "zt-board.tools"] == python("-c", code, cwd=tmp_path)


def test_a_file_on_the_path_needs_its_name_only(tmp_path: Path) -> None:
    """The folder of a tools file is on the path, so its name is enough for a worker with the same path."""
    tool = load_toolbox(str(write(tmp_path / "zt_by_name.py"))).get("double")
    assert tool is not None
    assert FunctionRef(ModuleRef("zt_by_name", None), "double") == function_ref(tool.function)
    # Hidden by another file of that name further up the path, only the file is left.
    write(tmp_path / "front" / "zt_by_name.py")
    sys.path.insert(0, str(tmp_path / "front"))
    importlib.invalidate_caches()
    assert FunctionRef(ModuleRef("zt_by_name", str(tmp_path / "zt_by_name.py")), "double") == function_ref(
        tool.function
    )


def test_a_broken_finder_is_not_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where looking for a name fails, the file is used, and the module stays loaded."""
    tool = load_toolbox(str(write(tmp_path / "zt_finder.py"))).get("double")
    assert tool is not None

    class Broken:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "zt_finder":
                assert name in sys.modules  # other threads may import it meanwhile
                raise ImportError("no")

    monkeypatch.setattr(sys, "meta_path", [Broken, *sys.meta_path])
    assert str(tmp_path / "zt_finder.py") == function_ref(tool.function).module.file
    assert "zt_finder" in sys.modules


MAIN = """
import json, subprocess, sys
import {package}ztrio
from ztrio.loading import function_ref

def tool(value: int) -> int:
    return 2 * value

if __name__ == "__main__":
    ref = function_ref(tool)
    code = (
        "import json, sys; sys.path[:] = {{}}\\n"
        "from ztrio.loading import FunctionRef, ModuleRef, load_function\\n"
        "function = load_function(FunctionRef(ModuleRef({{!r}}, {{!r}}), {{!r}}))\\n"
        "print(json.dumps([function(4), function.__module__]))\\n"
    ).format(sys.path, ref.module.name, ref.module.file, ref.name)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    print(json.dumps([ref.module.name, ref.module.file, done.stdout.strip() or done.stderr]))
"""


def test_a_function_of_the_main_script(tmp_path: Path) -> None:
    """A worker loads the main script again under another name, so that its main part stays quiet."""
    script = write(tmp_path / "zt_script.py", MAIN.format(package=""))
    assert [MAIN_NAME, str(script), f'[8, "{MAIN_NAME}"]'] == python(script, cwd=tmp_path)


def test_a_function_of_a_main_module(tmp_path: Path) -> None:
    """`python -m package.module` is imported by its name, so that its relative imports work."""
    write(tmp_path / "zt_app" / "__init__.py", "")
    write(tmp_path / "zt_app" / "helper.py", "")
    write(tmp_path / "zt_app" / "run.py", "from . import helper\n" + MAIN.format(package=""))
    write(tmp_path / "zt_app" / "__main__.py", "from . import helper\n" + MAIN.format(package=""))
    assert ["zt_app.run", None, '[8, "zt_app.run"]'] == python("-m", "zt_app.run", cwd=tmp_path)
    assert ["zt_app.__main__", None, '[8, "zt_app.__main__"]'] == python("-m", "zt_app", cwd=tmp_path)


def test_a_function_of_a_main_folder(tmp_path: Path) -> None:
    """`python FOLDER` has no name to import by, so its file is used."""
    script = write(tmp_path / "zt_folder" / "__main__.py", MAIN.format(package=""))
    assert [MAIN_NAME, str(script), f'[8, "{MAIN_NAME}"]'] == python("zt_folder", cwd=tmp_path)


def test_a_function_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was typed at a prompt cannot be loaded by a worker, and is refused saying so."""
    names: dict[str, Any] = {"__name__": "zt_prompt"}
    exec("def typed(): ...", names)
    with pytest.raises(ToolboxError, match="typed is not in a file, so a worker cannot load it"):
        function_ref(names["typed"])
    monkeypatch.setitem(sys.modules, "zt_prompt", type(sys)("zt_prompt"))
    with pytest.raises(ToolboxError, match="typed is not in a file, so a worker cannot load it"):
        function_ref(names["typed"])


def test_a_module_that_fails_is_not_half_there(tmp_path: Path) -> None:
    """A module that raises while it is loaded is forgotten, and a file that is no Python is refused."""
    broken = write(tmp_path / "zt_half.py", "raise RuntimeError('half')\n")
    with pytest.raises(RuntimeError, match="half"):
        load_module(ModuleRef("zt_half", str(broken)))
    assert "zt_half" not in sys.modules
    with pytest.raises(ImportError, match=r"zt\.txt is not a Python file"):
        load_module(ModuleRef("zt_text", str(write(tmp_path / "zt.txt"))))
