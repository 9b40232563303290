"""Loading a toolbox again from disk, beside the one that is in use.

What is loaded again in this process are the modules that hold tools and the toolbox, each as a new module object under
its old name; everything that runs keeps what it has. The modules that *these* import stay as they are here: somebody
else may hold on to them, and two copies of a module are worse than an old one. Workers load everything anew. So a
change of a helper reaches every tool that runs in a worker, and reads in the server only after a restart.
"""

from __future__ import annotations

import importlib
import linecache
import sys
from collections.abc import Iterator
from types import ModuleType

import attrs

from ztrio.errors import ToolboxError
from ztrio.loading import ModuleRef, blame, load_module, module_ref
from ztrio.tools import Toolbox

__all__ = ["Reloaded", "reload_toolbox"]


@attrs.frozen
class Reloaded:
    """A toolbox that was loaded again.

    Args:
        toolbox: The new one.
    """

    toolbox: Toolbox
    # Module name → what was there before; None for nothing.
    _before: dict[str, ModuleType | None]

    def undo(self) -> None:
        """Put the old modules back in their places."""
        _put(self._before)


def reload_toolbox(toolbox: Toolbox) -> Reloaded:
    """Load the modules of a toolbox again.

    Args:
        toolbox: One that a module has at its top level.

    Raises:
        ToolboxError: it cannot be loaded, naming file, line and reason; then nothing has changed.
    """
    home, attribute = _home(toolbox)
    names = dict.fromkeys((*(tool.function.__module__ for tool in toolbox), home))
    refs: dict[str, ModuleRef] = {}
    for name in names:
        module = sys.modules.get(name)
        ref = None if module is None else module_ref(module)
        if ref is None:
            raise ToolboxError(f"module {name!r} is not in a file, so it cannot be loaded again. Nothing has changed.")
        refs[name] = ref
    before = {ref.name: sys.modules.pop(ref.name, None) for ref in refs.values()}
    importlib.invalidate_caches()
    linecache.checkcache()
    try:
        for ref in refs.values():
            load_module(ref)
        fresh = getattr(sys.modules[refs[home].name], attribute, None)
        if not isinstance(fresh, Toolbox):
            raise ToolboxError(f"{home}: there is no toolbox {attribute!r} in it any more. Nothing has changed.")
        for tool in fresh:
            _ = tool.schema
    except ToolboxError:
        _put(before)
        raise
    except (Exception, SystemExit) as error:
        _put(before)
        raise ToolboxError(f"{blame(error, home)}: {type(error).__name__}: {error}. Nothing has changed.") from error
    except BaseException:
        _put(before)
        raise
    return Reloaded(fresh, before)


def _home(toolbox: Toolbox) -> tuple[str, str]:
    """The module and the name in it by which the toolbox is found."""
    places = list(_places(toolbox))
    if not places:
        raise ToolboxError(f"toolbox {toolbox.name!r} is at the top of no module, so it cannot be loaded again.")
    own = {tool.function.__module__ for tool in toolbox}
    return next((place for place in places if place[0] in own), places[0])


def _places(toolbox: Toolbox) -> Iterator[tuple[str, str]]:
    for name, module in list(sys.modules.items()):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is toolbox:
                yield name, attribute


def _put(modules: dict[str, ModuleType | None]) -> None:
    for name, module in modules.items():
        if module is None:
            sys.modules.pop(name, None)
            continue
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], child, module)
