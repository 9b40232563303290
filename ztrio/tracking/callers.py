"""Whose calls are on the books: each principal has its quota set aside, and new ones may come up at any time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

import attrs

from ztrio.pending import PendingSettings, Registry

__all__ = ["Callers"]


class Callers:
    """The principals that have quotas in a registry.

    Args:
        registry: The registry.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        # Principals that somebody configured, and some that came up since; at most as many as fit.
        self._configured = registry.settings.principals
        self._came_up: set[str] = set()

    @property
    def settings(self) -> PendingSettings:
        """The settings that hold now."""
        return self._registry.settings

    def configure(self, settings: PendingSettings) -> None:
        """Let other settings hold from the next check on.

        Raises:
            ValueError: too many principals; nothing was changed.
        """
        self._registry.configure(settings)
        self._configured = tuple(name for name in settings.principals if name not in self._came_up)

    def know(self, principals: Iterable[str]) -> None:
        """Set memory aside for principals that come up: as long as there is any, or others that came up need none."""
        for principal in principals:
            if principal not in self.settings.all_principals:
                try:
                    self._admit(principal, self.settings.principals)
                except ValueError:
                    # Of those who came up, whoever has nothing on the books gives way; the others stay there.
                    self._came_up.clear()
                    with contextlib.suppress(ValueError):
                        self._admit(principal, self._configured)

    def _admit(self, principal: str, others: Sequence[str]) -> None:
        self._registry.configure(attrs.evolve(self.settings, principals=(*others, principal)))
        self._came_up.add(principal)
