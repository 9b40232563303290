"""Signatures of every kind, for the tests of schemas and arguments."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Optional
from uuid import UUID

import pydantic
from pydantic import Field
from typing_extensions import TypedDict

import ztrio
from ztrio.schema import Schema, describe


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
    c: list[int] = Field(default_factory=list, max_length=2),  # noqa: B008 - it describes the default
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
    made: Annotated[Path, ztrio.Output(existing="refuse")] = Field(  # noqa: B008 - it describes the default
        default_factory=lambda: Path("made.txt")
    ),
) -> None: ...
def text_and_flag(text: str, flag: bool = False) -> None: ...
def odd_default(value: int = 3, marker: Any = object()) -> None: ...  # noqa: B008


def schema_of(function: Callable[..., Any]) -> Schema:
    """The schema of a function."""
    return Schema(function, describe(function))
