"""From a function's signature to JSON Schema, validation and typed arguments.

Two stages, because pydantic costs a tenth of a second to import: `describe` looks at the signature when a tool is
registered and finds what no type library is needed for; `Schema` builds validators when they are first used.

Arguments are validated twice on purpose. The server validates what a caller sent, so that a bad call never reaches
the queue; what travels to the worker stays JSON-like, and the worker builds the typed objects (`Path`, models) anew.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, get_args, get_origin

import attrs

from ztrio.errors import InvalidArguments, ToolboxError, ToolError
from ztrio.plain import NotPlain, plain
from ztrio.policies import Input, Output

if TYPE_CHECKING:
    import pydantic

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
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise ToolboxError(f"cannot resolve the annotations: {error}") from error
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
        for policy in _metadata(parameter.annotation):
            if isinstance(policy, Output):
                outputs[name] = policy
            elif isinstance(policy, Input):
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
    if any(policy in (Output, Input) for policy in _metadata(parameter.annotation)):
        raise ToolboxError(f"parameter {name!r}: write Output() or Input(), with parentheses")


def _metadata(annotation: Any) -> tuple[Any, ...]:
    """The metadata of `Annotated[T, ...]`, also inside a union with None."""
    if get_origin(annotation) is Annotated:
        return get_args(annotation)[1:]
    members = (member for member in get_args(annotation) if get_origin(member) is Annotated)
    return tuple(item for member in members for item in _metadata(member))


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
        import pydantic  # noqa: PLC0415 - see the module

        self._parameters = parameters
        # Defaults that come from `x: int = Field(5)`, which the function itself would not understand.
        self._field_defaults: dict[str, Any] = {}
        try:
            self._arguments = self._arguments_adapter()
            self.input_schema = self._describe_input()
            self._returns = self._returns_adapter()
            self.output_schema = self._describe_output()
        except pydantic.errors.PydanticUserError as error:
            code = function.__code__
            raise ToolboxError(f"{code.co_filename}:{code.co_firstlineno}: no JSON Schema: {error.message}") from error

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Check a caller's arguments (without `session`) and return them JSON-like.

        Raises:
            InvalidArguments: names every argument that is wrong, never its value.
        """
        import pydantic  # noqa: PLC0415 - see the module

        try:
            values: dict[str, Any] = plain(dict(arguments))
            self._arguments.validate_python(values)
        except NotPlain as error:
            raise InvalidArguments(f"{error}. Nothing ran.") from error
        except pydantic.ValidationError as error:
            problems = [
                {"argument": ".".join(map(str, item["loc"])) or "arguments", "problem": item["msg"]}
                for item in error.errors(include_url=False, include_context=False, include_input=False)
            ]
            listed = "; ".join(f"{item['argument']}: {item['problem']}" for item in problems)
            raise InvalidArguments(f"{listed}. Nothing ran; correct the arguments.", problems=problems) from None
        return values

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The typed keyword arguments for the function, from what `validate` returned."""
        bound: dict[str, Any] = self._arguments.validate_python(dict(arguments))
        return {**self._field_defaults, **bound}

    def path_arguments(self, arguments: Mapping[str, Any]) -> dict[str, str]:
        """The `Output` and `Input` parameters that have a path in this call, defaults included."""
        paths = {}
        for name in (*self._parameters.outputs, *self._parameters.inputs):
            default = self._field_defaults.get(name, self._parameters.defaults.get(name))
            value = arguments.get(name, default)
            if value is not None:
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
                value = self._returns.dump_python(self._returns.validate_python(value), mode="json")
            return plain(_builtins(value))
        except NotPlain as error:
            raise ToolError(f"The result does not fit at {error}. Nothing was published.") from error
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
            required = default is inspect.Parameter.empty
            if isinstance(default, FieldInfo):
                required = default.is_required()
                if not required:
                    self._field_defaults[name] = default.get_default(call_default_factory=True, validated_data={})
                annotation = Annotated[annotation, _without_default(default)]  # noqa: PLW2901
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
            default = self._field_defaults.get(name, self._parameters.defaults.get(name, inspect.Parameter.empty))
            if default is not inspect.Parameter.empty and name not in schema.get("required", ()):
                _add_default(value, default)
            if "description" not in value and (hint := self._path_hint(name)):
                value["description"] = hint
        properties[SESSION_PARAMETER] = dict(_SESSION_SCHEMA)
        schema["additionalProperties"] = False
        return schema

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
        pass  # a default that is no JSON value stays the function's own affair


def _builtins(value: Any) -> Any:
    """Dataclasses, attrs classes, structs and models as dicts; everything else as it is."""
    import msgspec  # noqa: PLC0415 - keep next to its only use

    def convert(item: Any) -> Any:
        dump = getattr(item, "model_dump", None)
        if dump is None:
            raise NotPlain(f"$: a {type(item).__qualname__} is not JSON-like")
        return dump(mode="json")

    if value is None or isinstance(value, str | int | float | bool):
        return value
    return msgspec.to_builtins(value, enc_hook=convert)
