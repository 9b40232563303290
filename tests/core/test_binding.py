"""What needs no type library comes out as the library would have it."""

import datetime as dt
import inspect
import json
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ztrio
from ztrio.binding import Binding
from ztrio.errors import InvalidArguments, ToolError
from ztrio.plain import NotPlain
from ztrio.schema import Schema, describe

SIMPLE = [
    str,
    int,
    float,
    bool,
    dict,
    list,
    Any,
    Path,
    None,
    int | None,
    str | int,
    int | float | None,
    list[int],
    list[str | None],
    dict[str, int],
    dict[str, Any],
    dict[str, list[float]],
    list[Path],
    Path | None,
    Literal["a", 1, True],
    Annotated[Path, ztrio.Output()],
    Annotated[Path | None, ztrio.Output(required=False)],
    Annotated[Path, ztrio.Input()] | None,
]
OTHER = [tuple[int, int], set[str], dict[int, str], bytes, dt.date, Annotated[int, "small"], Literal[b"a"], list[bytes]]

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(alphabet=st.characters()),
    st.sampled_from(["a", "1", "true", "x//y/../z", "", 1, 10**400]),
)
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)
RESULTS = st.recursive(
    SCALARS
    | st.sampled_from([Path("a/../b"), b"x", dt.date(2020, 1, 1), 1j, OrderedDict(a=1), "\ud800", Path, {1: 2}]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
)


def tool_of(annotation: Any, returns: Any) -> Callable[..., Any]:
    """A function of one argument with these annotations."""

    def tool(value: Any) -> Any:
        return value

    tool.__annotations__ = {"value": annotation, "return": returns}
    return tool


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    """What comes of it, types included: a value or an error."""
    try:
        value = function(*args)
    except (ToolError, InvalidArguments, NotPlain) as error:
        return type(error), str(error)
    return repr(value)


PAIRS = {
    str(annotation): (
        Binding(tool_of(annotation, annotation), describe(tool_of(annotation, annotation))),
        Schema(tool_of(annotation, annotation), describe(tool_of(annotation, annotation))),
    )
    for annotation in SIMPLE
}


@given(name=st.sampled_from(sorted(PAIRS)), value=TREES)
def test_arguments_are_bound_as_pydantic_binds_them(name: str, value: Any) -> None:
    """An argument that the server accepts reaches the function as the type library would have made it."""
    binding, schema = PAIRS[name]
    try:
        values = schema.validate({"value": value})
    except InvalidArguments:
        return
    assert outcome(schema.bind, values) == outcome(binding.bind, values)


@given(name=st.sampled_from(sorted(set(PAIRS) - {"typing.Any"})), value=RESULTS)
def test_results_are_turned_as_pydantic_turns_them(name: str, value: Any) -> None:
    """What a function returned comes out, or is refused, as the type library would have it."""
    binding, schema = PAIRS[name]
    assert outcome(schema.result, value) == outcome(binding.result, value)


@pytest.mark.parametrize("annotation", SIMPLE, ids=str)
def test_simple_types(annotation: Any) -> None:
    """JSON types, paths, and what is made of them need no validators beforehand; as a result, `Any` may be anything."""
    assert (annotation is not Any) == PAIRS[str(annotation)][0].simple
    assert Binding(tool_of(annotation, None), describe(tool_of(annotation, None))).simple


@pytest.mark.parametrize("annotation", OTHER, ids=str)
def test_other_types(annotation: Any) -> None:
    """A type that the library must see to is prepared beforehand."""
    assert not Binding(tool_of(int, annotation), describe(tool_of(int, annotation))).simple


def test_results_without_annotation() -> None:
    """A function that does not say what it returns may return anything, so the library is there."""

    def tool(value: int):  # type: ignore[no-untyped-def] # noqa: ANN202
        return {value}

    assert not Binding(tool, describe(tool)).simple
    assert inspect.Signature.empty is describe(tool).returns


def test_a_simple_tool_is_loaded_without_pydantic(tmp_path: Path) -> None:
    """A worker of a toolbox with simple types has no pydantic in it, and gets it when a value needs it."""
    (tmp_path / "simple.py").write_text(
        "from pathlib import Path\n"
        "from typing import Annotated\n"
        "import ztrio\n"
        "toolbox = ztrio.Toolbox('simple')\n"
        "@toolbox.tool(capability='write')\n"
        "def tool(count: int, out: Annotated[Path, ztrio.Output()]) -> dict:\n"
        "    return {'out': out, 'count': count}\n"
    )
    program = (
        "import json, sys; sys.path.insert(0, sys.argv[1])\n"
        "from simple import tool\n"
        "from ztrio.workers.child import prepare\n"
        "binding = prepare(tool).binding\n"
        "results = [binding.result(tool(**binding.bind({'count': 1, 'out': 'a'}))), 'pydantic' in sys.modules]\n"
        "results += [binding.bind({'count': '2', 'out': 'a'})['count'], 'pydantic' in sys.modules]\n"
        "print(json.dumps(results))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, check=True, text=True)
    assert [{"out": "a", "count": 1}, False, 2, True] == json.loads(done.stdout)
