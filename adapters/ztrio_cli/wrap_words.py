"""The command line of `ztrio wrap` as data: what reads it and what acts on it need not load each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

__all__ = ["DASHES", "Wrap"]

DASHES: Final = "--"
"""What parts our options from the server's command."""


class Wrap(NamedTuple):
    """A command line of `ztrio wrap`.

    Args:
        command: The server's command.
        name: What the gateway is called, or None.
        config: The file of settings, or None.
        log_level: debug, info, warning or error.
        as_json: Whether the log is JSON lines.
        settings: Key → value of the settings; None for those that were not given.
    """

    command: tuple[str, ...]
    name: str | None = None
    config: Path | None = None
    log_level: str = "info"
    as_json: bool = False
    settings: Mapping[str, Any] = {}
