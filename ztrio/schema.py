"""From a function's signature to JSON Schema, validation and typed arguments.

Two stages, because pydantic costs a tenth of a second to import: `describe` looks at the signature when a tool is
registered and finds what no type library is needed for; `Schema` builds validators when they are first used.

Arguments are validated twice on purpose. The server validates what a caller sent, so that a bad call never reaches
the queue; what travels to the worker stays JSON-like, and the worker builds the typed objects (`Path`, models) anew.
"""

from __future__ import annotations

import inspect
import math
import os
import types
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, Union, get_args, get_origin

import attrs

from ztrio.errors import InvalidArguments, ToolboxError, ToolError
from ztrio.plain import NotPlain, plain
from ztrio.policies import Input, Output

if TYPE_CHECKING:
    import pydantic
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

__all__ = ["SESSION_PARAMETER", "Parameters", "Schema", "describe"]

SESSION_PARAMETER = "session"
"""Every tool has this argument; a parameter of the same name is refused."""

_SESSION_SCHEMA = {
    "type": "string",
    "default": "default",
    "description": "Name or handle of the session whose state the call uses.",
}


@attrs.frozen
class Parameters:
    """What a signature says without the help of a type library.

    Args:
        annotations: Parameter name → annotation, for those a caller passes.
        defaults: Parameter name → default, for those that have one.
        outputs: Parameter name → its `Output` policy.
        inputs: Parameter name → its `Input` policy.
        context: Name of the parameter that receives the `ToolContext`, or None.
        returns: The return annotation, or `inspect.Signature.empty`.
    """

    annotations: Mapping[str, Any]
    defaults: Mapping[str, Any]
    outputs: Mapping[str, Output]
    inputs: Mapping[str, Input]
    context: str | None
    returns: Any


def describe(function: Callable[..., Any]) -> Parameters:
    """Read a tool's signature.

    Raises:
        ToolboxError: the signature cannot be called with named JSON arguments; the message says why.
    """
    from ztrio.tools import ToolContext  # noqa: PLC0415 - tools imports this module

    try:
        signature = inspect.signature(function, eval_str=True)
    except Exception as error:  # annotations are the user's code
        raise ToolboxError(f"cannot resolve the annotations: {type(error).__name__}: {error}") from error
    annotations: dict[str, Any] = {}
    outputs: dict[str, Output] = {}
    inputs: dict[str, Input] = {}
    context: str | None = None
    for name, parameter in signature.parameters.items():
        if parameter.annotation is ToolContext:
            if context is not None:
                raise ToolboxError("there are two ToolContext parameters")
            context = name
            continue
        _check_parameter(name, parameter)
        annotations[name] = parameter.annotation
        for policy in _path_policies(name, parameter.annotation):
            if isinstance(policy, Output):
                outputs[name] = policy
            else:
                inputs[name] = policy
    if both := outputs.keys() & inputs.keys():
        raise ToolboxError(f"parameter {min(both)!r} is both Output and Input")
    defaults = {
        name: parameter.default
        for name, parameter in signature.parameters.items()
        if name in annotations and parameter.default is not parameter.empty
    }
    return Parameters(annotations, defaults, outputs, inputs, context, signature.return_annotation)


def _check_parameter(name: str, parameter: inspect.Parameter) -> None:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise ToolboxError(f"parameter {name!r} cannot be passed by name")
    if name == SESSION_PARAMETER:
        raise ToolboxError("the parameter name 'session' is taken: every tool has it, see ToolContext.session")
    if parameter.annotation is parameter.empty:
        raise ToolboxError(f"parameter {name!r} has no annotation")


def _path_policies(name: str, annotation: Any) -> list[Output | Input]:
    """The policies of a parameter that is one path, `Annotated[Path, Output()]`, or None where the type allows it."""
    everywhere = list(_metadata(annotation))
    if any(item in (Output, Input) for item in everywhere):
        raise ToolboxError(f"parameter {name!r}: write Output() or Input(), with parentheses")
    policies = [item for item in everywhere if isinstance(item, Output | Input)]
    if policies and not all(
        isinstance(member, type) and issubclass(member, str | os.PathLike) for member in _members(annotation)
    ):
        raise ToolboxError(f"parameter {name!r}: Output() and Input() go with one Path or str, or None instead of it")
    return policies


def _metadata(annotation: Any) -> Iterator[Any]:
    """Everything that any `Annotated[T, ...]` within the annotation carries."""
    if get_origin(annotation) is Annotated:
        yield from annotation.__metadata__
        yield from _metadata(annotation.__origin__)
    else:
        for member in get_args(annotation):
            yield from _metadata(member)


def _members(annotation: Any) -> Iterator[Any]:
    """The types of a union but None, without what `Annotated` adds to them."""
    if get_origin(annotation) is Annotated:
        yield from _members(annotation.__origin__)
    elif get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _members(member)
    elif annotation is not None and annotation is not types.NoneType:
        yield annotation


class Schema:
    """Validators and JSON Schemas of one tool.

    Args:
        function: The tool's function.
        parameters: What `describe` found.

    Attributes:
        input_schema: JSON Schema of the arguments, with the `session` argument.
        output_schema: JSON Schema of the structured result, or None where none can be promised.

    Raises:
        ToolboxError: pydantic cannot make a schema for a type.
    """

    def __init__(self, function: Callable[..., Any], parameters: Parameters) -> None:
        self._parameters = parameters
        # Fields whose defaults, of `x: int = Field(5)`, the function itself would not understand.
        self._fields: dict[str, FieldInfo] = {}
        try:
            self._arguments = self._arguments_adapter()
            self.input_schema = self._describe_input()
            self._returns = self._returns_adapter()
            self.output_schema = self._describe_output()
        except Exception as error:  # pydantic has several classes for it, and types may bring code of their own
            where = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
            reason = getattr(error, "message", None) or f"{type(error).__name__}: {error}"
            first_line = reason.partition("\n")[0]
            raise ToolboxError(f"{where}: no JSON Schema{self._guilty()}: {first_line}") from error

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Check a caller's arguments (without `session`) and return them JSON-like.

        Raises:
            InvalidArguments: names every argument that is wrong, never its value.
            ToolError: a validator of the tool's own raised what is neither ValueError nor AssertionError.
        """
        import pydantic  # noqa: PLC0415 - see the module

        try:
            values: dict[str, Any] = plain(dict(arguments))
            self._arguments.validate_python(values)
        except NotPlain as error:
            raise InvalidArguments(f"{error}. Nothing ran.") from error
        except pydantic.ValidationError as error:
            problems = [
                {"argument": ".".join(map(str, item["loc"])) or "arguments", "problem": _problem(item)}
                for item in error.errors(include_url=False, include_input=False)
            ]
            listed = "; ".join(f"{item['argument']}: {item['problem']}" for item in problems)
            raise InvalidArguments(f"{listed}. Nothing ran; correct the arguments.", problems=problems) from None
        except Exception as error:
            kind = type(error).__name__
            raise ToolError(
                f"The tool's own check of its arguments raised {kind}. Nothing ran; the tool needs mending.",
                exception_type=kind,
            ) from error
        return values

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The typed keyword arguments for the function, from what `validate` returned."""
        bound: dict[str, Any] = self._arguments.validate_python(dict(arguments))
        missing = {name: self._default(name) for name in self._fields if name not in bound}
        return {**missing, **bound}

    def path_arguments(self, arguments: Mapping[str, Any]) -> dict[str, str]:
        """The `Output` and `Input` parameters that have a path in this call, defaults included."""
        paths = {}
        for name in (*self._parameters.outputs, *self._parameters.inputs):
            value = arguments[name] if name in arguments else self._default(name)
            if value is not None and value is not inspect.Parameter.empty:
                paths[name] = os.fspath(value)
        return paths

    def result(self, value: Any) -> Any:
        """Turn what the function returned into JSON-like data that matches its annotation.

        Raises:
            ToolError: it does not; names the place.
        """
        import pydantic  # noqa: PLC0415 - see the module

        try:
            if self._returns is not None:
                value = self._returns.validate_python(value)
                _refuse_infinite(self._returns.dump_python(value), "$")
                value = self._returns.dump_python(value, mode="json")
            return plain(_builtins(value))
        except NotPlain as error:
            raise ToolError(f"The result does not fit at {error}. Nothing was published.") from error
        except RecursionError as error:
            raise ToolError("The result is nested too deeply or contains itself. Nothing was published.") from error
        except (pydantic.ValidationError, pydantic.errors.PydanticUserError, ValueError) as error:
            raise ToolError(
                f"The result does not match the tool's return annotation: {error}. Nothing was published."
            ) from error

    def _arguments_adapter(self) -> pydantic.TypeAdapter[Any]:
        import pydantic  # noqa: PLC0415 - see the module
        from pydantic.fields import FieldInfo  # noqa: PLC0415
        from typing_extensions import TypedDict  # noqa: PLC0415 - pydantic needs this one before 3.12

        fields: dict[str, Any] = {}
        for name, annotation in self._parameters.annotations.items():
            default = self._parameters.defaults.get(name, inspect.Parameter.empty)
            if default is inspect.Parameter.empty:  # Annotated[int, Field(default=5)] is another way to write it
                carried = getattr(annotation, "__metadata__", ())
                default = next((item for item in carried if isinstance(item, FieldInfo)), default)
            required = default is inspect.Parameter.empty
            if isinstance(default, FieldInfo):
                required = default.is_required()
                self._fields[name] = default
                annotation = Annotated[annotation, _without_default(default)]  # noqa: PLW2901
            for field in (default, *_metadata(annotation)):
                if isinstance(field, FieldInfo) and (field.alias or field.validation_alias):
                    raise ToolboxError(f"parameter {name!r} has an alias; name the parameter itself so")
            fields[name] = annotation if required else NotRequired[annotation]
        arguments = TypedDict("arguments", fields)  # type: ignore[misc]
        # A finite JSON number is all that JSON has; `forbid` finds misspelt arguments.
        arguments.__pydantic_config__ = pydantic.ConfigDict(  # type: ignore[attr-defined]
            extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=False
        )
        return pydantic.TypeAdapter(arguments)

    def _describe_input(self) -> dict[str, Any]:
        schema = self._arguments.json_schema()
        schema.pop("title", None)
        properties: dict[str, Any] = schema.setdefault("properties", {})
        for name, value in properties.items():
            value.pop("title", None)
            field = self._fields.get(name)
            if field is None or field.default_factory is None:  # what a factory makes is no constant
                _add_default(value, self._default(name))
            if "description" not in value and (hint := self._path_hint(name)):
                value["description"] = hint
        properties[SESSION_PARAMETER] = dict(_SESSION_SCHEMA)
        schema["additionalProperties"] = False
        return schema

    def _default(self, name: str) -> Any:
        """The parameter's default as one call gets it, or `inspect.Parameter.empty`."""
        field = self._fields.get(name)
        if field is None:
            return self._parameters.defaults.get(name, inspect.Parameter.empty)
        if field.is_required():
            return inspect.Parameter.empty
        return field.get_default(call_default_factory=True, validated_data={})

    def _guilty(self) -> str:
        """Which annotation has no schema, for the message."""
        import pydantic  # noqa: PLC0415 - see the module

        places = {f"parameter {name!r}": annotation for name, annotation in self._parameters.annotations.items()}
        if self._parameters.returns is not inspect.Signature.empty:
            places["the return annotation"] = self._parameters.returns
        for place, annotation in places.items():
            try:
                pydantic.TypeAdapter(annotation).json_schema()
            except Exception:  # noqa: BLE001 - the error is being reported already
                return f" for {place}"
        return ""

    def _path_hint(self, name: str) -> str | None:
        output = self._parameters.outputs.get(name)
        if output is not None:
            noun = "file" if output.kind == "file" else "directory"
            effect = {
                "replace": "an existing one is replaced",
                "refuse": "must not exist yet",
                "copy_in": "an existing one is changed",
            }[output.existing]
            return f"Path of the {noun} to make, relative to the workspace; {effect}."
        if name in self._parameters.inputs:
            return "Path that exists, relative to the workspace."
        return None

    def _returns_adapter(self) -> pydantic.TypeAdapter[Any] | None:
        import pydantic  # noqa: PLC0415 - see the module

        returns = self._parameters.returns
        if returns is inspect.Signature.empty or returns is Any or returns is None:
            return None
        return pydantic.TypeAdapter(returns)

    def _describe_output(self) -> dict[str, Any] | None:
        if self._returns is None:
            return None
        schema = self._returns.json_schema(mode="serialization")
        kind = schema.get("type")
        if kind == "object":
            return schema
        if kind in ("string", "integer", "number", "boolean", "array"):
            definitions = schema.pop("$defs", None)
            wrapped = {"type": "object", "properties": {"result": schema}, "required": ["result"]}
            return wrapped if definitions is None else {**wrapped, "$defs": definitions}
        return None  # a union may be a dict, None or else: its structured form differs from call to call


def _problem(item: ErrorDetails) -> str:
    if item["type"] == "union_tag_invalid":  # the one message of pydantic that repeats what the caller sent
        return f"The tag must be one of {item['ctx']['expected_tags']}"
    return item["msg"]


def _refuse_infinite(value: Any, path: str) -> None:
    """JSON mode of pydantic would turn a NaN or an infinity into null, without a word."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NotPlain(f"{path}: {value!r} is not a finite number")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _refuse_infinite(item, f"{path}.{key}")
    elif isinstance(value, list | tuple | set | frozenset):
        for index, item in enumerate(value):
            _refuse_infinite(item, f"{path}[{index}]")


def _without_default(field: Any) -> Any:
    from pydantic.fields import FieldInfo  # noqa: PLC0415 - only called when pydantic is there
    from pydantic_core import PydanticUndefined  # noqa: PLC0415

    bare = FieldInfo.merge_field_infos(field)
    bare.default = PydanticUndefined
    bare.default_factory = None
    return bare


def _add_default(schema: dict[str, Any], default: Any) -> None:
    try:
        schema["default"] = plain(default)
    except NotPlain:
        pass  # there is none, or it is no JSON value and stays the function's own affair


def _builtins(value: Any) -> Any:
    """Dataclasses, attrs classes, structs and models as dicts; everything else as it is."""
    import msgspec  # noqa: PLC0415 - keep next to its only use

    def convert(item: Any) -> Any:
        dump = getattr(item, "model_dump", None)
        return plain(item) if dump is None else dump(mode="json")

    if value is None or isinstance(value, str | int | float | bool):
        return value
    return msgspec.to_builtins(value, enc_hook=convert)
