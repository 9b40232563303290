"""Results: what the output schema promises is what a call gives."""

import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import attrs
import jsonschema
import msgspec
import pydantic
import pytest
from pydantic import Field
from typing_extensions import TypedDict

from ztrio.errors import ToolError
from ztrio.schema import Schema, describe


class Colour(enum.Enum):
    RED = "red"


class OldColour(str, enum.Enum):  # noqa: UP042 - the older spelling, whose str() is the member's name
    RED = "red"


class Point(pydantic.BaseModel):
    x: int
    label: str | None = None


class Node(pydantic.BaseModel):
    children: list["Node"] = []


class Numbers(pydantic.RootModel[list[int]]):
    pass


@dataclasses.dataclass
class Size:
    width: float


class Row(TypedDict):
    cells: list[int]


@attrs.define
class Box:
    side: int


class Struct(msgspec.Struct):
    name: str


def returning(annotation: Any) -> Schema:
    """The schema of a function that returns this."""

    def function() -> None: ...

    function.__annotations__["return"] = annotation
    return Schema(function, describe(function))


def unannotated() -> Schema:
    """The schema of a function that does not say."""

    def function(): ...  # type: ignore[no-untyped-def]  # noqa: ANN202

    return Schema(function, describe(function))


def structured(value: Any) -> dict[str, Any]:
    """The structured content of a result: a dict as it is, None as empty, else under `result`."""
    if value is None:
        return {}
    return value if isinstance(value, dict) else {"result": value}


@pytest.mark.parametrize(
    ("annotation", "returned", "expected"),
    [
        (int, 3, 3),
        (int, 10**30, 10**30),
        (float, 2, 2.0),
        (str, "é", "é"),
        (bool, True, True),
        (bytes, b"x", "x"),
        (Path, Path("a/b"), "a/b"),
        (decimal.Decimal, decimal.Decimal("1.50"), "1.50"),
        (dt.datetime, dt.datetime(2024, 1, 2, tzinfo=dt.UTC), "2024-01-02T00:00:00Z"),
        (dt.timedelta, dt.timedelta(minutes=1), "PT1M"),
        (Colour, Colour.RED, "red"),
        (OldColour, OldColour.RED, "red"),
        (Literal["a", "b"], "a", "a"),
        (Annotated[int, Field(ge=0)], 1, 1),
        (list[int], [1, 2], [1, 2]),
        (tuple[int, str], (1, "a"), [1, "a"]),
        (set[int], {1}, [1]),
        (list[Point], [Point(x=1)], [{"x": 1, "label": None}]),
        (Numbers, Numbers([1]), [1]),
        (dict, {"a": [1, Path("p")]}, {"a": [1, "p"]}),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (dict[int, Point], {1: Point(x=2)}, {"1": {"x": 2, "label": None}}),
        (Point, Point(x=1), {"x": 1, "label": None}),
        (Point, {"x": 1}, {"x": 1, "label": None}),
        (Size, Size(0.5), {"width": 0.5}),
        (Row, {"cells": [1]}, {"cells": [1]}),
    ],
)
def test_results_keep_what_the_schema_promises(annotation: Any, returned: Any, expected: Any) -> None:
    """For each annotation with an output schema, the structured result is valid under it."""
    schema = returning(annotation)
    value = schema.result(returned)
    assert (expected, type(expected)) == (value, type(value))
    assert schema.output_schema is not None
    assert "object" == schema.output_schema["type"]
    jsonschema.Draft202012Validator.check_schema(schema.output_schema)
    jsonschema.validate(structured(value), schema.output_schema)
    assert json.loads(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("annotation", "returned", "expected"),
    [
        (None, None, None),
        (Any, {"a": 1}, {"a": 1}),
        (object, [1], [1]),
        (int | None, None, None),
        (int | None, 3, 3),
        (Optional[Point], Point(x=1), {"x": 1, "label": None}),  # noqa: UP045 - the older spelling
        (int | str, "a", "a"),
        (dict[str, int] | None, {"a": 1}, {"a": 1}),
        (Literal["a", 1], 1, 1),
        (Node, Node(children=[Node()]), {"children": [{"children": []}]}),
    ],
)
def test_nothing_is_promised_where_the_form_differs(annotation: Any, returned: Any, expected: Any) -> None:
    """A result whose structured form depends on the call has no output schema, and arrives all the same."""
    schema = returning(annotation)
    assert schema.output_schema is None
    assert expected == schema.result(returned)


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (None, None),
        (10**30, 10**30),
        ("text", "text"),
        (OldColour.RED, "red"),
        (Path("a/b"), "a/b"),
        ({"paths": [Path("a")], OldColour.RED: OldColour.RED}, {"paths": ["a"], "red": "red"}),
        ({Path("a"): 1}, {"a": 1}),
        ({"point": Point(x=1)}, {"point": {"x": 1, "label": None}}),
        ([Size(1.5), Box(2), Struct("s")], [{"width": 1.5}, {"side": 2}, {"name": "s"}]),
        ((1, {2}, frozenset({3})), [1, [2], [3]]),
        (b"\xff", "/w=="),
        (dt.datetime(2024, 1, 2, tzinfo=dt.UTC), "2024-01-02T00:00:00Z"),
    ],
)
def test_results_without_annotation(returned: Any, expected: Any) -> None:
    """Where nothing is said, models, dataclasses, attrs classes, paths and enums become what they hold."""
    schema = unannotated()
    assert schema.output_schema is None
    assert expected == schema.result(returned)


@pytest.mark.case("R41")
@pytest.mark.parametrize("number", [2**31, 2**53 + 1, 2**63, 10**30])
@pytest.mark.parametrize("annotation", [int, dict, Any, "nothing"])
def test_integers_in_results_are_exact(annotation: Any, number: int) -> None:
    """Integers of any size arrive as they were returned, whatever the annotation."""
    schema = unannotated() if annotation == "nothing" else returning(annotation)
    returned = {"n": number} if annotation is dict else number
    assert returned == schema.result(returned)


class Measured(pydantic.BaseModel):
    value: float
    rest: Any = None


@pytest.mark.case("R41")
@pytest.mark.parametrize(
    ("make", "returned", "place"),
    [
        (lambda: returning(float), math.nan, "$"),
        (lambda: returning(dict), {"a": [0.5, math.inf]}, "$.a[1]"),
        (lambda: returning(dict[str, float]), {"a": -math.inf}, "$.a"),
        (lambda: returning(Measured), Measured(value=math.nan), "$.value"),
        (lambda: returning(Measured), Measured(value=1, rest={"deep": (1.0, math.nan)}), "$.rest.deep[1]"),
        (lambda: returning(Any), {"a": math.nan}, "$.a"),
        (unannotated, [math.inf], "$[0]"),
    ],
)
def test_infinities_in_results_are_refused(make: Callable[[], Schema], returned: Any, place: str) -> None:
    """A number that JSON lacks is an error that names its place, and never becomes null."""
    with pytest.raises(ToolError, match=r"is not a finite number\. Nothing was published") as caught:
        make().result(returned)
    assert caught.value.message.startswith(f"The result does not fit at {place}: ")


def circle() -> list[Any]:
    """A list that contains itself."""
    made: list[Any] = []
    made.append(made)
    return made


def deep() -> list[Any]:
    """A list far deeper than anything can print."""
    made: list[Any] = []
    for _ in range(20_000):
        made = [made]
    return made


@pytest.mark.parametrize(
    ("make", "returned", "message"),
    [
        (lambda: returning(int), "x", "The result does not match the tool's return annotation: "),
        (lambda: returning(Point), {"y": 1}, "The result does not match the tool's return annotation: "),
        (lambda: returning(None), object(), "The result does not fit at $: a object is not JSON-like"),
        (lambda: returning(dict), {"a": object()}, "The result does not match the tool's return annotation: "),
        (lambda: returning(dict), {"a": "\ud800"}, "The result does not fit at $.a: text with a lone surrogate"),
        (lambda: returning(list), circle(), "The result is nested too deeply or contains itself."),
        (lambda: returning(list), deep(), "The result is nested too deeply or contains itself."),
        (unannotated, circle(), "The result is nested too deeply or contains itself."),
        (unannotated, deep(), "The result is nested too deeply or contains itself."),
        (unannotated, {1: 2}, "The result does not fit at $: the key 1 is not a string"),
        (unannotated, {"a": [object()]}, "The result does not fit at "),
        (unannotated, (x for x in [1]), "The result does not fit at $: a generator is not JSON-like"),
        (unannotated, 1j, "The result does not fit at $: a complex is not JSON-like"),
    ],
)
def test_results_that_are_no_json_are_tool_errors(make: Callable[[], Schema], returned: Any, message: str) -> None:
    """What cannot be a result ends as a tool error that says what is wrong, whatever it is."""
    with pytest.raises(ToolError) as caught:
        make().result(returned)
    assert message == caught.value.message[: len(message)]
    assert caught.value.message.endswith(" Nothing was published.")
    assert caught.value.__cause__ is not None


def test_none_is_checked_too() -> None:
    """A function that says it returns nothing may not return what no one could read, but may return JSON."""
    assert 3 == returning(None).result(3)
