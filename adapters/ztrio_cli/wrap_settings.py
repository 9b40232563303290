"""The settings of `ztrio wrap`: options of the command line over a TOML file over the defaults.

A key of the file is an option without its dashes in front. Limits of calls are in `[limits]`, those of one tool in
`[tools."NAME"]`, which inherits what it does not say:

    gate = "enforce"
    [limits]
    timeout = 120
    [tools."export"]
    idle-timeout = 30

A file that cannot be understood stops the start: what somebody wrote down and nobody heeds is worse than an error. So
an unknown key is one, too. The file is never written.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, cast

import attrs

from ztrio_cli.console import USAGE, Complaint
from ztrio_mcp.gateway.settings import DEFAULT_TIMEOUT, GatewaySettings, ToolLimits

__all__ = ["LIMITS", "SETTINGS", "read_settings"]

LIMITS: Final = {"timeout": "timeout", "idle-timeout": "idle", "max-timeout": "ceiling"}
"""Key → field of `ToolLimits`."""

SETTINGS: Final = {
    "gate": "gate",
    "concurrency": "concurrency",
    "queue": "queue",
    "queue-timeout": "queue_timeout",
    "forward-cancel": "forward_cancel",
    "on-expire": "on_expire",
    "on-reset": "on_reset",
    "late-results": "late_results",
    "journal-sync": "journal_sync",
    "start-timeout": "start_timeout",
    "health-interval": "health_interval",
}
"""Key → field of `GatewaySettings`."""

_KEYS: Final = {field: key for key, field in (*LIMITS.items(), *SETTINGS.items())}
_NONE_AT_ZERO: Final = {"idle", "health_interval"}
_LARGEST: Final = 2**20  # bytes of a file

Where = tuple[str, ...]
"""Table and key in a file."""


def read_settings(options: Mapping[str, Any], file: Path | None, *, name: str) -> GatewaySettings:
    """The settings that a command line and a file give.

    Args:
        options: Key → value of an option, None where it was not given.
        file: The file, or None.
        name: The gateway's name.

    Raises:
        Complaint: USAGE, an option; CONFIG_INVALID, the file, with line and key.
    """
    document = _Document("", "", {}) if file is None else _read(file)
    document.check_keys((), {*SETTINGS, "limits", "tools"})
    general = document.fields(("limits",), LIMITS) | _from_options(options, LIMITS)
    tools = {
        tool: document.made(ToolLimits, general | document.fields(("tools", tool), LIMITS))
        for tool in document.table(("tools",))
    }
    limits = document.made(ToolLimits, general)
    top = document.fields((), SETTINGS) | _from_options(options, SETTINGS)
    settings: GatewaySettings = document.made(GatewaySettings, top, name=name, limits=limits, tools=tools)
    return settings


@attrs.frozen
class _Given:
    """A value and where it is from: a place in the file, or an option."""

    value: Any
    where: Where | None


def _from_options(options: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, _Given]:
    given = {key: options[key] for key in known if options.get(key) is not None}
    return {known[key]: _Given(value, None) for key, value in given.items()}


@attrs.frozen
class _Document:
    """A file that was read: how it is called, its text and what that says."""

    name: str
    text: str
    values: dict[str, Any]

    def table(self, path: Where) -> dict[str, Any]:
        """A table, empty where there is none."""
        found: Any = self.values
        for number, key in enumerate(path, 1):
            found = found.get(key, {})
            if not isinstance(found, dict):
                self.refuse(path[:number], f"this has to be a table, [{'.'.join(path[:number])}]")
        return cast("dict[str, Any]", found)

    def fields(self, path: Where, known: Mapping[str, str]) -> dict[str, _Given]:
        """The known keys of a table, by fields."""
        values = self.table(path)
        if path:
            self.check_keys(path, known)
        return {field: _Given(values[key], (*path, key)) for key, field in known.items() if key in values}

    def check_keys(self, path: Where, known: Collection[str]) -> None:
        for key in self.table(path):
            if key in known:
                continue
            meant = key.replace("_", "-")
            if meant in LIMITS and meant not in known:
                why = f"{meant} belongs into [limits], or [tools.NAME] for one tool"
            elif meant in SETTINGS and meant not in known:
                why = f"{meant} belongs in front of all tables"
            elif close := difflib.get_close_matches(meant, known, n=1):
                why = f"there is no such setting; is {close[0]} meant"
            else:
                why = f"there is no such setting; there are {', '.join(sorted(known))}"
            self.refuse((*path, key), why)

    def made(self, kind: Callable[..., Any], given: dict[str, _Given], **others: Any) -> Any:
        """Settings out of what was given."""
        values: dict[str, Any] = {field: _none_at_zero(field, each.value) for field, each in given.items()}
        ceiling: Any = values.get("ceiling")
        number = isinstance(ceiling, int | float) and ceiling is not True
        if number and "timeout" not in values and 0 < ceiling < DEFAULT_TIMEOUT:
            values["timeout"] = ceiling  # who sets the most alone is not to be told about a default
        try:
            return kind(**values, **others)
        except ValueError as error:
            field, _, why = str(error).partition(": ")
            where = given[field].where
            if where is None:
                raise Complaint("USAGE", f"--{_KEYS[field]}: {why}.", status=USAGE) from None
            self.refuse(where, why)

    def refuse(self, where: Where, why: str) -> NoReturn:
        line = self._line(where)
        place = self.name if line is None else f"{self.name}, line {line}"
        raise _invalid(f"{place}: {'.'.join(where)}: {why}.")

    def _line(self, where: Where) -> int | None:
        """The line in which a key is there for the first time. tomllib does not say, so it is read line after line."""
        lines = self.text.splitlines(keepends=True)
        for number in range(1, len(lines) + 1):
            try:
                found: Any = tomllib.loads("".join(lines[:number]))
                for key in where:
                    found = found[key]
            except (tomllib.TOMLDecodeError, KeyError, TypeError):
                continue
            return number
        return None


def _read(file: Path) -> _Document:
    try:
        with file.open("rb") as opened:
            content = opened.read(_LARGEST + 1)
    except OSError as error:
        raise _invalid(f"{file} cannot be read: {error.strerror or error}.") from None
    if len(content) > _LARGEST:
        raise _invalid(f"{file} has more than {_LARGEST} bytes.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _invalid(f"{file}, line {line}: this is not UTF-8.") from None
    try:
        return _Document(str(file), text, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        what, _, place = str(error).partition(" (at ")
        raise _invalid(f"{file}, {place.rstrip(')')}: {what}.") from None
    except (RecursionError, ValueError) as error:  # the second is a number of thousands of digits
        raise _invalid(f"{file}: {error}.") from None


def _invalid(message: str) -> Complaint:
    return Complaint("CONFIG_INVALID", message, status=USAGE)


def _none_at_zero(field: str, value: Any) -> Any:
    """Zero seconds of what there need not be stand for none."""
    return None if field in _NONE_AT_ZERO and type(value) in {int, float} and value == 0 else value
