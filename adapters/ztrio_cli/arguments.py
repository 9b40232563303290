"""`key=value` on a command line to a tool's arguments, guided by the tool's JSON Schema.

`key=value` is text where the schema allows text, and JSON elsewhere, so that `title=2024` stays a title and `count=3`
becomes a number. `key:=json` is JSON whatever the schema says. Nothing is validated here beyond that: the supervisor
checks every argument of every surface in the same way.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from ztrio_cli.console import USAGE, Complaint

__all__ = ["given_arguments", "parse_arguments", "parse_object"]


def given_arguments(text: str | None, pairs: Iterable[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a command line gives in both ways.

    Args:
        text: What `--arguments` said, or None; `-` for what stdin holds.
        pairs: The words.
        schema: JSON Schema of the tool's arguments.

    Raises:
        Complaint: USAGE, one of them is wrong, or a key is in both.
    """
    given = {} if text is None else parse_object(sys.stdin.read() if text == "-" else text)
    words = parse_arguments(pairs, schema)
    if twice := given.keys() & words.keys():
        raise Complaint("USAGE", f"{min(twice)} is given in --arguments and as a word.", status=USAGE)
    return {**given, **words}


def parse_object(text: str) -> dict[str, Any]:
    """Parse the JSON object of `--arguments`.

    Raises:
        Complaint: USAGE, it is no JSON object.
    """
    value = _json(text, "--arguments")
    if not isinstance(value, dict):
        raise Complaint("USAGE", '--arguments: a JSON object is needed, like \'{"site": "site"}\'.', status=USAGE)
    return value


def parse_arguments(pairs: Iterable[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Parse `key=value` and `key:=json` words.

    Args:
        pairs: The words.
        schema: JSON Schema of the tool's arguments.

    Raises:
        Complaint: USAGE, naming the word: no `=`, a key given twice, or a value that is not the JSON it must be.
    """
    properties: Mapping[str, Any] = schema.get("properties", {})
    definitions: Mapping[str, Any] = schema.get("$defs", {})
    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        explicit = key.endswith(":")
        key = key.removesuffix(":")
        if not equals or not key:
            raise Complaint("USAGE", f"{pair!r} is not key=value or key:=json.", status=USAGE)
        if key in arguments:
            raise Complaint("USAGE", f"{key} is given twice.", status=USAGE)
        kinds = _kinds(properties[key], definitions) if key in properties else {"string"}
        arguments[key] = text if "string" in kinds and not explicit else _json(text, key)
    return arguments


def _kinds(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> set[str]:
    """The JSON types that `schema` allows; text is among them where it does not say."""
    if "$ref" in schema:
        return _kinds(definitions.get(str(schema["$ref"]).rpartition("/")[2], {}), definitions)
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return {kind for member in schema[union] for kind in _kinds(member, definitions)}
    kinds = schema.get("type", "string")
    return {kinds} if isinstance(kinds, str) else set(kinds)


def _json(text: str, key: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        raise Complaint("USAGE", f"{key}: {text!r} is not JSON ({error}).", status=USAGE) from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
