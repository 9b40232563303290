"""Which module starts a thread while it is imported: forking copies one thread only, so somebody has to be told."""

from __future__ import annotations

import functools
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from ztrio.workers.namespaces import thread_count

__all__ = ["ThreadWatch"]


class ThreadWatch:
    """Finds out which module starts a thread while it is imported: the first after whose execution there is one more.

    Attributes:
        culprit: Its name, or None.
    """

    def __init__(self) -> None:
        self.culprit: str | None = None
        # Threads seen so far.
        self._seen = thread_count()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Let the other finders find the module, and watch it being executed."""
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: importlib.machinery.ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                self._watch(spec)
                return spec
        return None

    def look(self, name: str) -> None:
        """The module has been executed."""
        now = thread_count()
        if now > self._seen and self.culprit is None:
            self.culprit = name
        self._seen = now

    def _watch(self, spec: importlib.machinery.ModuleSpec) -> None:
        loader: Any = spec.loader
        execute: Callable[[ModuleType], None] | None = getattr(loader, "exec_module", None)
        if execute is None or isinstance(loader, type):
            return  # built in or frozen: they start none

        @functools.wraps(execute)
        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            self.look(spec.name)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            return  # a loader with slots; its module is named by whoever imports it
