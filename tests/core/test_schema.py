"""Signatures: what clients are told, what is refused, and what the function receives."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Optional
from uuid import UUID

import jsonschema
import pydantic
import pytest
from pydantic import AfterValidator, BeforeValidator, Field
from typing_extensions import TypedDict

import ztrio
from ztrio.errors import InvalidArguments, ToolboxError, ToolError
from ztrio.schema import Parameters, Schema, describe


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(pydantic.BaseModel):
    x: int
    y: int = 0


@dataclasses.dataclass
class Size:
    width: int
    height: int = 1


class Row(TypedDict):
    name: str
    cells: list[int]


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]


def nothing(ctx: ztrio.ToolContext) -> None: ...
def optional(a: int, b: Optional[str] = None, c: float | None = None) -> None: ...  # noqa: UP045 - the older spelling
def keyword_only(*, a: int, b: int = 2) -> None: ...
def fields(
    a: Annotated[int, Field(description="How many.", ge=1, le=9)],
    b: int = Field(5, description="How much.", gt=0),
    c: list[int] = Field(default_factory=list, max_length=2),
    d: str = Field(description="Which.", pattern="^[a-z]+$"),
    e: Annotated[int, Field(default=7, description="How often.")] = Field(),
) -> None: ...
def carried(a: Annotated[int, Field(default=7, lt=9)], b: Annotated[int, Field(ge=0)] = 3) -> None: ...
def literal(a: Literal["x", "y"], b: Literal[1, 2] = 1) -> None: ...
def choice(colour: Colour, other: Colour = Colour.RED) -> None: ...
def model(point: Point, others: list[Point] | None = None) -> None: ...
def plain_dataclass(size: Size) -> None: ...
def typed_dict(row: Row) -> None: ...
def nested(grid: list[list[int]], table: dict[str, list[Point]]) -> None: ...
def anything(value: Any) -> None: ...
def tagged(pet: Annotated[Cat | Dog, Field(discriminator="kind")]) -> None: ...
def moments(at: dt.datetime, amount: decimal.Decimal, ref: UUID, wait: dt.timedelta) -> None: ...
def paths(
    ctx: ztrio.ToolContext,
    source: Annotated[Path, ztrio.Input()],
    out: Annotated[Path, ztrio.Output()],
    folder: Annotated[Path, ztrio.Output(kind="dir")] | None = None,
    log: Annotated[str, ztrio.Output(existing="copy_in"), Field(description="Where to log.")] = "log.txt",
    extra: Annotated[Path | None, ztrio.Input(kind="file")] = None,
    made: Annotated[Path, ztrio.Output(existing="refuse")] = Field(default_factory=lambda: Path("made.txt")),
) -> None: ...
def text_and_flag(text: str, flag: bool = False) -> None: ...
def odd_default(value: int = 3, marker: Any = object()) -> None: ...  # noqa: B008


def schema_of(function: Callable[..., Any]) -> Schema:
    """The schema of a function."""
    return Schema(function, describe(function))


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


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"source": "a", "out": "b"}, {"out": "b", "log": "log.txt", "made": "made.txt", "source": "a"}),
        (
            {"source": "a", "out": "b", "folder": "f", "log": "l", "extra": "e", "made": "m"},
            {"out": "b", "folder": "f", "log": "l", "made": "m", "source": "a", "extra": "e"},
        ),
        (
            {"source": "a", "out": "b", "folder": None, "extra": None},
            {"out": "b", "log": "log.txt", "made": "made.txt", "source": "a"},
        ),
    ],
)
def test_path_arguments_of_a_call(arguments: dict[str, Any], expected: dict[str, str]) -> None:
    """A call's paths include the defaults, of every spelling, and leave out those that are None."""
    schema = schema_of(paths)
    assert expected == schema.path_arguments(schema.validate(arguments))


def default_in_annotation(out: Annotated[Path, ztrio.Output(), Field(default=Path("x.txt"))]) -> None: ...


def test_a_default_inside_the_annotation_is_staged_too() -> None:
    """No spelling of a default lets an output escape from staging."""
    schema = schema_of(default_in_annotation)
    assert {"out": "x.txt"} == schema.path_arguments(schema.validate({}))
    assert {"out": Path("x.txt")} == schema.bind({})


@pytest.mark.parametrize(
    ("function", "arguments", "bound"),
    [
        (nothing, {}, {}),
        (optional, {"a": 1}, {"a": 1}),
        (optional, {"a": 1, "b": None, "c": 2}, {"a": 1, "b": None, "c": 2.0}),
        (keyword_only, {"a": 1, "b": 3}, {"a": 1, "b": 3}),
        (fields, {"a": 1, "d": "d"}, {"a": 1, "b": 5, "c": [], "d": "d", "e": 7}),
        (fields, {"a": 1, "b": 2, "c": [3], "d": "d", "e": 1}, {"a": 1, "b": 2, "c": [3], "d": "d", "e": 1}),
        (carried, {}, {"a": 7}),
        (choice, {"colour": "blue"}, {"colour": Colour.BLUE}),
        (model, {"point": {"x": 1}}, {"point": Point(x=1)}),
        (model, {"point": {"x": 1}, "others": [{"x": 2, "y": 3}]}, {"point": Point(x=1), "others": [Point(x=2, y=3)]}),
        (plain_dataclass, {"size": {"width": 2}}, {"size": Size(2)}),
        (typed_dict, {"row": {"name": "r", "cells": [1]}}, {"row": {"name": "r", "cells": [1]}}),
        (tagged, {"pet": {"kind": "dog"}}, {"pet": Dog(kind="dog")}),
        (
            moments,
            {
                "at": "2024-02-03T04:05:06+01:00",
                "amount": "1.50",
                "ref": "12345678-1234-5678-1234-567812345678",
                "wait": "PT1M",
            },
            {
                "at": dt.datetime(2024, 2, 3, 4, 5, 6, tzinfo=dt.timezone(dt.timedelta(hours=1))),
                "amount": decimal.Decimal("1.50"),
                "ref": UUID("12345678-1234-5678-1234-567812345678"),
                "wait": dt.timedelta(minutes=1),
            },
        ),
        (
            paths,
            {"source": "/w/a", "out": "/s/b"},
            {"source": Path("/w/a"), "out": Path("/s/b"), "made": Path("made.txt")},
        ),
    ],
)
def test_what_travels_is_json_and_what_arrives_is_typed(
    function: Callable[..., Any], arguments: dict[str, Any], bound: dict[str, Any]
) -> None:
    """The server passes on what the caller sent, and the worker makes the typed objects the function asked for."""
    schema = schema_of(function)
    jsonschema.validate(arguments, schema.input_schema)
    values = schema.validate(arguments)
    assert arguments == values
    assert values == json.loads(json.dumps(values))
    assert bound == schema.bind(values)


def test_each_call_gets_a_default_of_its_own() -> None:
    """A default that a factory makes is made for each call: one call's list is not the next one's."""
    schema = schema_of(fields)
    first = schema.bind({"a": 1, "d": "d"})
    first["c"].append(99)
    assert [] == schema.bind({"a": 1, "d": "d"})["c"]


@pytest.mark.case("R41")
@pytest.mark.parametrize("number", [2**31, 2**53 + 1, 2**63, 10**30, -(10**30)])
def test_integer_arguments_are_exact(number: int) -> None:
    """Integers of any size are accepted and reach the function exactly."""
    for function in (optional, anything):
        schema = schema_of(function)
        name = "a" if function is optional else "value"
        assert {name: number} == schema.validate({name: number}) == schema.bind({name: number})


SECRET = "S3CR3T"


@pytest.mark.parametrize(
    ("function", "arguments", "blamed"),
    [
        (optional, {}, ["a"]),
        (optional, {"a": SECRET}, ["a"]),
        (optional, {"a": 1, "b": 2, "c": SECRET}, ["b", "c"]),
        (optional, {"a": 1.5}, ["a"]),
        (optional, {"a": 1, "wrong": SECRET}, ["wrong"]),
        (nothing, {"ctx": SECRET}, ["ctx"]),
        (fields, {"a": 0, "b": 0, "c": [1, 2, 3], "d": SECRET}, ["a", "b", "c", "d"]),
        (literal, {"a": SECRET}, ["a"]),
        (choice, {"colour": SECRET}, ["colour"]),
        (model, {"point": {"y": 1}}, ["point.x"]),
        (model, {"point": {"x": 1}, "others": [{"x": 1}, {"x": SECRET}]}, ["others.1.x"]),
        (plain_dataclass, {"size": SECRET}, ["size"]),
        (typed_dict, {"row": {"name": "r", "cells": [SECRET]}}, ["row.cells.0"]),
        (nested, {"grid": [[1], [SECRET]], "table": {}}, ["grid.1.0"]),
        (tagged, {"pet": {"kind": SECRET}}, ["pet"]),
        (tagged, {"pet": SECRET}, ["pet"]),
        (moments, {"at": SECRET, "amount": SECRET, "ref": SECRET, "wait": SECRET}, ["at", "amount", "ref", "wait"]),
        (text_and_flag, {"text": 5, "flag": SECRET}, ["text", "flag"]),
    ],
)
def test_wrong_arguments_are_named_and_never_repeated(
    function: Callable[..., Any], arguments: dict[str, Any], blamed: list[str]
) -> None:
    """A refusal names every wrong argument, in words and for machines, and never shows a value."""
    with pytest.raises(InvalidArguments) as caught:
        schema_of(function).validate(arguments)
    problems = [item["argument"] for item in caught.value.details["problems"]]
    assert blamed == problems
    assert all(name in caught.value.message for name in blamed)
    assert caught.value.message.endswith("Nothing ran; correct the arguments.")
    assert SECRET not in json.dumps(caught.value.as_dict())
    assert caught.value.__cause__ is None  # the traceback does not show the values either


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"value": float("nan")}, "$.value: nan is not a finite number"),
        ({"value": [1, float("inf")]}, "$.value[1]: inf is not a finite number"),
        ({"value": {"a": "\ud800"}}, "$.value.a: text with a lone surrogate cannot be written as UTF-8"),
        ({"value": object()}, "$.value: a object is not JSON-like"),
        ({"value": {1: 2}}, "$.value: the key 1 is not a string"),
    ],
)
@pytest.mark.case("R34", "R41")
def test_arguments_that_are_no_json_are_named(arguments: dict[str, Any], message: str) -> None:
    """What JSON cannot hold is refused with its place, whatever the annotation."""
    with pytest.raises(InvalidArguments) as caught:
        schema_of(anything).validate(arguments)
    assert f"{message}. Nothing ran." == caught.value.message


def checks(value: Annotated[int, AfterValidator(lambda value: {1: 1}[value])]) -> None: ...
def judges(value: Annotated[str, BeforeValidator(lambda value: value or None)]) -> None: ...


def test_a_check_that_fails_itself_is_the_tools_fault() -> None:
    """A validator that raises something of its own ends the call as a tool error, without the value."""
    with pytest.raises(ToolError, match="own check of its arguments raised KeyError") as caught:
        schema_of(checks).validate({"value": 77})
    assert "KeyError" == caught.value.details["exception_type"]
    assert "77" not in caught.value.message
    assert {"value": 1} == schema_of(checks).bind({"value": 1})
    with pytest.raises(InvalidArguments):
        schema_of(judges).validate({"value": ""})


class Unknown:
    pass


def unknown_argument(a: int, value: Unknown) -> None: ...
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
