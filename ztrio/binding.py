"""What a worker needs of a tool's types: arguments for its function, and JSON-like data from what it returned.

`schema` does both with pydantic. But what a fork server has loaded, each of its forks pays for: pydantic is 7 MB and 90
mappings, which is half a millisecond of each call and a third of a worker's memory. Most tools take and return JSON
types and paths, where pydantic has nothing to do but to look. So here values of such types are looked at; only where
pydantic would change one in another way, or refuse it, is it imported and asked. What comes out is the same either way.

A tool with any other type has its validators made beforehand, as pydantic is needed then anyway.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from ztrio.plain import NotPlain, plain
from ztrio.policies import Input, Output
from ztrio.schema import Parameters, Schema

__all__ = ["Binding"]

_AS_THEY_ARE: Final = (str, int, float, bool, types.NoneType)


class _Unlike(Exception):
    """A value that pydantic would change, or refuse."""


class Binding:
    """How one tool is called.

    Args:
        function: The tool's function.
        parameters: What `describe` found.
        simple: Whether its types need no type library; found out when omitted.

    Raises:
        ToolboxError: pydantic cannot make a schema for a type.
    """

    def __init__(self, function: Callable[..., Any], parameters: Parameters, *, simple: bool | None = None) -> None:
        self._function = function
        self._parameters = parameters
        self.simple = _are_simple(parameters) if simple is None else simple
        # Made when it is first needed, which for a simple tool is hardly ever.
        self._made: Schema | None = None if self.simple else Schema(function, parameters)

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The typed keyword arguments for the function; see `Schema.bind`."""
        if self.simple:
            try:
                return {name: _typed(self._parameters.annotations[name], value) for name, value in arguments.items()}
            except _Unlike:
                pass
        return self._schema.bind(arguments)

    def result(self, value: Any) -> Any:
        """What the function returned as JSON-like data; see `Schema.result`.

        Raises:
            ToolError: it does not match its annotation, or does not fit.
        """
        if self.simple:
            try:
                return plain(_json(self._parameters.returns, value))
            except (_Unlike, NotPlain, RecursionError):
                pass
        return self._schema.result(value)

    @property
    def _schema(self) -> Schema:
        if self._made is None:
            self._made = Schema(self._function, self._parameters)
        return self._made


def _are_simple(parameters: Parameters) -> bool:
    if parameters.returns is inspect.Signature.empty or parameters.returns is Any:
        return False  # it may be anything
    return all(map(_is_simple, (*parameters.annotations.values(), parameters.returns))) and all(
        default is None or isinstance(default, str | int | float | bool | list | dict | PurePath)
        for default in parameters.defaults.values()  # not pydantic's Field
    )


def _is_simple(annotation: Any) -> bool:
    origin, members = get_origin(annotation), get_args(annotation)
    if origin is None:
        return annotation is Any or annotation is None or annotation in (*_AS_THEY_ARE, Path, dict, list)
    if origin is Annotated:
        return _is_simple(members[0]) and all(isinstance(item, Output | Input) for item in members[1:])
    if origin is Literal:
        return all(type(member) in (str, int, bool) for member in members)
    if origin is dict:
        return members[0] is str and _is_simple(members[1])
    return origin in (list, Union, types.UnionType) and all(map(_is_simple, members))


def _typed(annotation: Any, value: Any) -> Any:
    """An argument, JSON-like and validated, as its annotation has it.

    Raises:
        _Unlike: it is not plain to see how.
    """
    if annotation is Path:
        return Path(_exactly(str, value))
    return _matched(annotation, value, _typed, lambda anything: anything)


def _json(annotation: Any, value: Any) -> Any:
    """A result of this annotation, JSON-like.

    Raises:
        _Unlike: it is not plain to see how.
    """
    if annotation is Path:
        if not isinstance(value, PurePath):
            raise _Unlike
        return str(value)
    return _matched(annotation, value, _json, _anything)


def _matched(annotation: Any, value: Any, inner: Callable[[Any, Any], Any], anything: Callable[[Any], Any]) -> Any:
    origin, members = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return anything(value)
    if annotation is float and type(value) is int:
        return _as_float(value)
    if origin is None:
        kind = types.NoneType if annotation is None else annotation
        return anything(_exactly(kind, value))
    if origin is Annotated:
        return inner(members[0], value)
    if origin is list:
        return [inner(members[0], item) for item in _exactly(list, value)]
    if origin is dict:
        return {_exactly(str, key): inner(members[1], item) for key, item in _exactly(dict, value).items()}
    if origin is Literal:
        if not any(type(member) is type(value) and member == value for member in members):
            raise _Unlike
        return value
    return _of_union(members, value, inner)


def _of_union(members: tuple[Any, ...], value: Any, inner: Callable[[Any, Any], Any]) -> Any:
    others = [member for member in members if member is not types.NoneType]
    if value is None and len(others) < len(members):
        return None
    if len(others) == 1:
        return inner(others[0], value)
    # pydantic takes the member that a value is an instance of, before it converts anything.
    if type(value) not in _AS_THEY_ARE or type(value) not in others:
        raise _Unlike
    return value


def _exactly(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise _Unlike
    return value


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise _Unlike from None


def _anything(value: Any) -> Any:
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is dict:
        return {_exactly(str, key): _anything(item) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [_anything(item) for item in value]
    if isinstance(value, PurePath):
        return str(value)
    raise _Unlike
