"""Schemas: what clients are told of a signature, and which signatures have none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import jsonschema
import pytest
from pydantic import Field

import ztrio
from tests.core.signatures import (
    anything,
    carried,
    choice,
    fields,
    keyword_only,
    literal,
    model,
    moments,
    nested,
    nothing,
    odd_default,
    optional,
    paths,
    plain_dataclass,
    schema_of,
    tagged,
    typed_dict,
)
from ztrio.errors import ToolboxError
from ztrio.schema import Parameters, describe


def properties_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The argument schemas, without the session."""
    found = dict(schema_of(function).input_schema["properties"])
    del found["session"]
    return found


@pytest.mark.parametrize(
    ("function", "expected", "required"),
    [
        (nothing, {}, []),
        (
            optional,
            {
                "a": {"type": "integer"},
                "b": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
                "c": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
            },
            ["a"],
        ),
        (keyword_only, {"a": {"type": "integer"}, "b": {"type": "integer", "default": 2}}, ["a"]),
        (
            fields,
            {
                "a": {"type": "integer", "minimum": 1, "maximum": 9, "description": "How many."},
                "b": {"type": "integer", "exclusiveMinimum": 0, "default": 5, "description": "How much."},
                "c": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
                "d": {"type": "string", "pattern": "^[a-z]+$", "description": "Which."},
                "e": {"type": "integer", "description": "How often.", "default": 7},
            },
            ["a", "d"],
        ),
        (
            carried,
            {
                "a": {"type": "integer", "exclusiveMaximum": 9, "default": 7},
                "b": {"type": "integer", "minimum": 0, "default": 3},
            },
            [],
        ),
        (
            literal,
            {
                "a": {"type": "string", "enum": ["x", "y"]},
                "b": {"type": "integer", "enum": [1, 2], "default": 1},
            },
            ["a"],
        ),
        (
            odd_default,
            {"value": {"type": "integer", "default": 3}, "marker": {}},
            [],
        ),
        (
            nested,
            {
                "grid": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
                "table": {
                    "type": "object",
                    "additionalProperties": {"type": "array", "items": {"$ref": "#/$defs/Point"}},
                },
            },
            ["grid", "table"],
        ),
        (anything, {"value": {}}, ["value"]),
    ],
)
def test_signatures_become_schemas(function: Callable[..., Any], expected: dict[str, Any], required: list[str]) -> None:
    """Types, defaults, descriptions and constraints of a signature are what clients are told."""
    assert expected == properties_of(function)
    schema = schema_of(function).input_schema
    assert required == schema.get("required", [])
    assert ("object", False, "title" in schema) == (schema["type"], schema["additionalProperties"], False)


@pytest.mark.parametrize(
    "function",
    [nothing, optional, fields, literal, choice, model, plain_dataclass, typed_dict, nested, tagged, moments, paths],
)
def test_schemas_are_valid_and_have_a_session(function: Callable[..., Any]) -> None:
    """Every input schema is a valid JSON Schema, is JSON itself, and offers the session argument."""
    schema = schema_of(function).input_schema
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema == json.loads(json.dumps(schema))
    assert ("string", "default") == tuple(schema["properties"]["session"][key] for key in ("type", "default"))
    assert "session" not in schema.get("required", [])


def test_paths_explain_themselves() -> None:
    """A path argument says what it is for, unless the author did."""
    found = properties_of(paths)
    assert {
        "source": "Path that exists, relative to the workspace.",
        "out": "Path of the file to make, relative to the workspace; an existing one is replaced.",
        "folder": "Path of the directory to make, relative to the workspace; must not exist yet.",
        "log": "Where to log.",
        "extra": "Path that exists, relative to the workspace.",
        "made": "Path of the file to make, relative to the workspace; must not exist yet.",
    } == {name: value["description"] for name, value in found.items()}
    assert "ctx" not in found


def copies(log: Annotated[Path, ztrio.Output(existing="copy_in")]) -> None: ...


def test_a_copied_in_output_says_so() -> None:
    """The third way to treat an existing target has its sentence too."""
    assert properties_of(copies)["log"]["description"].endswith("; an existing one is changed.")


def test_path_policies_are_found() -> None:
    """Outputs and inputs are known by parameter, also where None is allowed on either side of the annotation."""
    found = describe(paths)
    assert {"out": "file", "folder": "dir", "log": "file", "made": "file"} == {
        name: policy.kind for name, policy in found.outputs.items()
    }
    assert {"source": "any", "extra": "file"} == {name: policy.kind for name, policy in found.inputs.items()}
    assert "ctx" == found.context
    assert describe(optional).context is None


class Unknown:
    pass


def unknown_argument(a: int, value: Unknown) -> None: ...
def unknown_alone(value: Unknown): ...  # type: ignore[no-untyped-def]  # noqa: ANN201 - that is its point
def unknown_result() -> Unknown: ...  # type: ignore[empty-body]
def callback(value: Callable[[], int]) -> None: ...
def bad_pattern(value: Annotated[str, Field(pattern="(")]) -> None: ...
def bad_default(value: str = Field("x", pattern="(")) -> None: ...
def aliased(value: int = Field(alias="other")) -> None: ...
def aliased_inside(value: Annotated[int, Field(validation_alias="other")] = 3) -> None: ...


@pytest.mark.parametrize(
    ("function", "place", "reason"),
    [
        (unknown_argument, " for parameter 'value'", "Unable to generate pydantic-core schema for"),
        (unknown_alone, " for parameter 'value'", "Unable to generate pydantic-core schema for"),
        (unknown_result, " for the return annotation", "Unable to generate pydantic-core schema for"),
        (callback, " for parameter 'value'", "Cannot generate a JsonSchema for core_schema.CallableSchema"),
        (bad_pattern, " for parameter 'value'", "SchemaError: "),
        (bad_default, "", "SchemaError: "),
        (aliased, "", "parameter 'value' has an alias; name the parameter itself so"),
        (aliased_inside, " for parameter 'value'", "parameter 'value' has an alias; name the parameter itself so"),
    ],
)
def test_types_without_schema_are_named_with_their_line(function: Callable[..., Any], place: str, reason: str) -> None:
    """A type that JSON Schema cannot say is refused in one line: file, line, parameter, reason."""
    with pytest.raises(ToolboxError) as caught:
        schema_of(function)
    expected = f"{__file__}:{function.__code__.co_firstlineno}: no JSON Schema{place}: {reason}"
    assert expected == caught.value.message[: len(expected)]
    assert "\n" not in caught.value.message
    assert caught.value.__cause__ is not None


def test_a_description_without_annotations_of_its_own() -> None:
    """`describe` is all that registration needs: names, defaults, and the return annotation, resolved."""
    assert Parameters(
        annotations={"a": int, "b": str | None, "c": float | None},
        defaults={"b": None, "c": None},
        outputs={},
        inputs={},
        context=None,
        returns=None,
    ) == describe(optional)
