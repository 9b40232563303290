"""Staged paths in what a tool says, replaced by the paths that the caller knows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

__all__ = ["Replacement"]


class Replacement:
    """Replaces staging paths by public ones, wherever they stand in JSON-like data.

    Each staging path ends with the target's own name in a directory of its own, so no staging path is the beginning
    of another and plain replacement is exact.

    Args:
        paths: (staging path, the same relative to the workspace, public path), of each output.
    """

    def __init__(self, paths: Iterable[tuple[str, str, str]]) -> None:
        # Absolute before relative: the relative staging path is the end of the absolute one.
        self._pairs: list[tuple[str, str]] = []
        for staged, relative, public in paths:
            self._pairs += [(staged, public), (quote(staged), quote(public)), (relative, public)]

    def apply(self, value: Any) -> Any:
        """A copy of `value` with the paths replaced in strings, also within them, and in dict keys."""
        if isinstance(value, str):
            for staged, public in self._pairs:
                value = value.replace(staged, public)
            return value
        if isinstance(value, dict):
            return {self.apply(key): self.apply(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.apply(item) for item in value]
        return value
