"""Arguments: what is refused, what travels, and what the function receives."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import jsonschema
import pytest
from pydantic import AfterValidator, BeforeValidator, Field

import ztrio
from tests.core.signatures import (
    Colour,
    Dog,
    Point,
    Size,
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
    optional,
    paths,
    plain_dataclass,
    schema_of,
    tagged,
    text_and_flag,
    typed_dict,
)
from ztrio.errors import InvalidArguments, ToolError


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
