"""Finding code again: loading a user's tools file, and telling a worker which modules to load.

A worker must find a tool's function by module and name. Where the module can be imported by name, the name is
enough; the main script, and a file that was loaded by its path, are loaded again from the same file under the same
name (the main script under `MAIN_NAME`, so that its `if __name__ == "__main__"` part stays quiet).
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from weakref import WeakKeyDictionary

import attrs

from ztrio.errors import ToolboxError
from ztrio.tools import Toolbox

__all__ = [
    "MAIN_NAME",
    "FunctionRef",
    "ModuleRef",
    "blame",
    "function_ref",
    "known_ref",
    "load_function",
    "load_module",
    "load_toolbox",
    "module_ref",
]

MAIN_NAME: Final = "__ztrio_main__"

_OURS: Final = (
    str(Path(__file__).parent) + os.sep,
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")),
)
_INSTALLED: Final = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))


@attrs.frozen
class ModuleRef:
    """How to load a module again.

    Args:
        name: Its name in `sys.modules`.
        file: Path of its file, where the name alone would not find it.
    """

    name: str
    file: str | None = None


@attrs.frozen
class FunctionRef:
    """How to find a top-level function again."""

    module: ModuleRef
    name: str


def function_ref(function: Callable[..., Any]) -> FunctionRef:
    """Say how a worker finds `function`.

    Raises:
        ToolboxError: its module has no file, as in an interactive session.
    """
    module = sys.modules.get(function.__module__)
    ref = None if module is None else module_ref(module)
    if ref is None:
        raise ToolboxError(f"{function.__qualname__} is not in a file, so a worker cannot load it")
    return FunctionRef(ref, function.__name__)


_known: Final[WeakKeyDictionary[Callable[..., Any], FunctionRef]] = WeakKeyDictionary()


def known_ref(function: Callable[..., Any]) -> FunctionRef:
    """`function_ref`, found out once: every call of a tool asks, and walking along `sys.path` takes 0.2 ms.

    Raises:
        ToolboxError: see there.
    """
    ref = _known.get(function)
    if ref is None:
        ref = _known[function] = function_ref(function)
    return ref


def module_ref(module: ModuleType) -> ModuleRef | None:
    """Say how to load `module` again; None where it has no file."""
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    if module.__name__ == "__main__":
        # `python -m package.module` can be imported by that name, and must be: it may have relative imports.
        spec = module.__spec__
        by_name = spec is not None and spec.name != "__main__"
        return ModuleRef(spec.name) if spec and by_name else ModuleRef(MAIN_NAME, file)
    by_name = _found_by_name(module.__name__, file)
    return ModuleRef(module.__name__, None if by_name else file)


def _found_by_name(name: str, file: str) -> bool:
    try:
        parent, _, _ = name.rpartition(".")
        path = sys.modules[parent].__path__ if parent else None
        # `importlib.util.find_spec` would look at the loaded module only.
        spec = next(filter(None, (finder.find_spec(name, path) for finder in sys.meta_path)), None)
    except (ImportError, LookupError, AttributeError, ValueError):
        return False
    return spec is not None and spec.origin is not None and Path(spec.origin) == Path(file)


def load_module(ref: ModuleRef) -> ModuleType:
    """Import the module that `ref` names, once per process."""
    if ref.name in sys.modules:
        return sys.modules[ref.name]
    if ref.file is None:
        return importlib.import_module(ref.name)
    spec = importlib.util.spec_from_file_location(ref.name, ref.file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{ref.file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[ref.name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[ref.name]
        raise
    return module


def load_function(ref: FunctionRef) -> Callable[..., Any]:
    """Import the function that `ref` names."""
    function: Callable[..., Any] = getattr(load_module(ref.module), ref.name)
    return function


def load_toolbox(spec: str) -> Toolbox:
    """Load the toolbox that a user named.

    Args:
        spec: `FILE.py`, `FILE.py:NAME`, `MODULE` or `MODULE:NAME`; NAME defaults to `toolbox`. The file's folder
            goes in front of `sys.path`, as Python does for a script; at the end when the file is named like a
            module of the standard library.

    Raises:
        ToolboxError: names file, line and reason.
    """
    source, _, attribute = (spec, "", "") if spec.endswith(".py") or ":" not in spec else spec.rpartition(":")
    attribute = attribute or "toolbox"
    try:
        module = _load_source(source)
    except ToolboxError:
        raise
    except (Exception, SystemExit) as error:
        raise ToolboxError(f"{blame(error, source)}: {type(error).__name__}: {error}") from error
    toolbox = getattr(module, attribute, None)
    if toolbox is None:
        candidates = sorted(name for name, value in vars(module).items() if isinstance(value, Toolbox))
        hint = f"; it has {', '.join(candidates)}" if candidates else "; write: toolbox = ztrio.Toolbox('name')"
        raise ToolboxError(f"{source}: there is no {attribute!r} in it{hint}")
    if not isinstance(toolbox, Toolbox):
        raise ToolboxError(f"{source}: {attribute!r} is a {type(toolbox).__name__}, not a ztrio.Toolbox")
    return toolbox


def _load_source(source: str) -> ModuleType:
    if not source.endswith(".py"):
        return importlib.import_module(source)
    path = Path(source).resolve()
    if not path.is_file():
        raise ToolboxError(f"{source}: there is no such file")
    folder = str(path.parent)
    # A tools file named like a module that exists (`calendar.py`) must not take that module's place.
    standard = path.stem in sys.stdlib_module_names
    if folder not in sys.path:
        sys.path.insert(len(sys.path) if standard else 0, folder)
    names = itertools.chain(
        () if standard else (path.stem,), (f"_ztrio_tools{number}_{path.stem}" for number in itertools.count(1))
    )
    for name in names:
        loaded = sys.modules.get(name)
        if loaded is None:
            return load_module(ModuleRef(name, str(path)))
        if getattr(loaded, "__file__", None) == str(path):
            return loaded
    raise AssertionError("the names never end")


def blame(error: BaseException, source: str) -> str:
    """File and line of the innermost frame that is the user's, for the message."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    # The user's virtual environment is often inside the user's folder, so being near is not being the user's.
    own = [frame for frame in frames if not frame.filename.startswith((*_OURS, *_INSTALLED))]
    if not own:  # the toolbox is an installed package's
        own = [frame for frame in frames if not frame.filename.startswith(_OURS)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else source
