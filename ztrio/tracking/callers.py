"""Whose calls are on the books: each principal that is configured has its quota set aside, whatever others do.

Where the settings name nobody, as when a program embeds ztrio and brings its own principals, books are made for whoever
calls, as long as there is room. Where they name somebody they name everybody: a caller who came up by itself would take
what is set aside for nobody, and somebody else who came up later would find nothing left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

import attrs

from ztrio.calls import LOCAL
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
    def _open(self) -> bool:
        """Whether books are made for whoever calls."""
        return set(self._configured) <= {LOCAL.principal.id}

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
        """Make books for principals that come up, as long as there is room, or others that came up need none.

        Nothing happens where the settings name those who may call.
        """
        for principal in principals if self._open else ():
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
