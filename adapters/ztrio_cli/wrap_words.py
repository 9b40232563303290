"""The command line of `ztrio wrap` as data, and how one without a mistake is read at once.

Typer reads command lines, names mistakes and shows help. It takes a quarter of a second to do so, most of it pydantic,
and a client waits for every start of a gateway. So the words that clients have in their configurations are read here:
each option once, spelt out, with a value of the plainest form. Whatever else there is, right or wrong, is left to
typer, and a test holds both to the same reading.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

__all__ = ["DASHES", "Wrap", "plain_words"]

DASHES: Final = "--"
"""What parts our options from the server's command."""

_SECONDS: Final = re.compile(r"\d{1,12}(\.\d{1,6})?", re.ASCII)
_NUMBER: Final = re.compile(r"\d{1,12}", re.ASCII)
_TEXT: Final = re.compile(r"[\w./][\w./-]*", re.ASCII)

_FORMS: Final[Mapping[str, tuple[re.Pattern[str], type]]] = {
    "timeout": (_SECONDS, float),
    "idle-timeout": (_SECONDS, float),
    "max-timeout": (_SECONDS, float),
    "queue-timeout": (_SECONDS, float),
    "start-timeout": (_SECONDS, float),
    "health-interval": (_SECONDS, float),
    "concurrency": (_NUMBER, int),
    "queue": (_NUMBER, int),
    "gate": (re.compile("off|warn|enforce"), str),
    "forward-cancel": (re.compile("never|explicit"), str),
    "on-expire": (re.compile("open|hold"), str),
    "on-reset": (re.compile("open|hold"), str),
    "journal-sync": (re.compile("process|power"), str),
    "name": (_TEXT, str),
    "config": (_TEXT, Path),
    "log-level": (_TEXT, str),
}
_FLAGS: Final = {
    "late-results": ("late-results", True),
    "no-late-results": ("late-results", False),
    "json": ("json", True),
}


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


def plain_words(words: Sequence[str]) -> Wrap | None:
    """A command line that has nothing but the plainest words; None for any other.

    Args:
        words: The words behind `ztrio wrap`.
    """
    if DASHES not in words:
        return None
    parted = list(words).index(DASHES)
    found: dict[str, Any] = {}
    ours = iter(words[:parted])
    for word in ours:
        key, equals, text = word.removeprefix("--").partition("=")
        value: Any
        if key in _FLAGS and not equals:
            key, value = _FLAGS[key]
        elif key in _FORMS:
            form, kind = _FORMS[key]
            text = text if equals else next(ours, "")
            if not form.fullmatch(text):
                return None
            value = kind(text)
        else:
            return None
        if not word.startswith("--") or key in found:
            return None
        found[key] = value
    return Wrap(
        command=tuple(words[parted + 1 :]),
        name=found.pop("name", None),
        config=found.pop("config", None),
        log_level=found.pop("log-level", "info"),
        as_json=found.pop("json", False),
        settings=found,
    )
