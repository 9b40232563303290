"""Registration: what a tool may be, and that a broken one is named with its line."""

import functools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest

import ztrio
from ztrio.errors import ToolboxError
from ztrio.tools import Capability, Toolbox, ToolContext


def plain(value: int) -> int:
    """Return the value.

    Indented text keeps its shape:
        like this.
    """
    return value


async def waits(value: int) -> int:
    """Async tools are fine."""
    return value


def makes(out: Annotated[Path, ztrio.Output()]) -> None:
    """Makes a file."""


def generates() -> Iterator[int]:
    """A generator."""
    yield 1


async def generates_async() -> AsyncIterator[int]:
    """An async generator."""
    yield 1


def stars(*values: int) -> None:
    """Takes any number."""


def keywords(**values: int) -> None:
    """Takes any keyword."""


def positional(value: int, /) -> None:
    """Takes its argument by position only."""


def bare(value) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Has no annotation."""


def takes_session(session: str) -> None:
    """Takes a name that every tool has."""


def session_open() -> None:
    """Is called like one of ztrio's own tools."""


def two_contexts(first: ToolContext, second: ToolContext) -> None:
    """Wants its context twice."""


def unresolvable(value: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821
    """Names a type that is not there."""


def bad_policy(out: 'Annotated[Path, ztrio.Output(kind="link")]') -> None:
    """Has a misspelt policy, evaluated late."""


def no_parentheses(out: Annotated[Path, ztrio.Output]) -> None:
    """Forgot the parentheses."""


def input_without_parentheses(out: Annotated[Path, ztrio.Input] | None) -> None:
    """Forgot them for an input."""


def both_ways(path: Annotated[Path, ztrio.Output(), ztrio.Input()]) -> None:
    """Wants to read and make."""


def many_outputs(outs: list[Annotated[Path, ztrio.Output()]]) -> None:
    """Wants a list of outputs."""


def number_output(out: Annotated[int, ztrio.Output()]) -> None:
    """Wants a number as output."""


def half_output(out: Annotated[Path, ztrio.Output()] | int) -> None:
    """Wants a path or a number."""


class Holder:
    def method(self) -> None:
        """A method."""

    def __call__(self) -> None:
        """A callable object."""


def line_of(function: Any) -> str:
    """File and line as registration errors give them."""
    return f"{__file__}:{function.__code__.co_firstlineno}"


@pytest.mark.parametrize(
    ("function", "options", "reason"),
    [
        (generates, {}, "a tool cannot be a generator"),
        (generates_async, {}, "a tool cannot be a generator"),
        (stars, {}, "parameter 'values' cannot be passed by name"),
        (keywords, {}, "parameter 'values' cannot be passed by name"),
        (positional, {}, "parameter 'value' cannot be passed by name"),
        (bare, {}, "parameter 'value' has no annotation"),
        (takes_session, {}, "the parameter name 'session' is taken"),
        (session_open, {}, "the name 'session_open' is taken by ztrio's own tool"),
        (plain, {"name": "session_destroy"}, "the name 'session_destroy' is taken by ztrio's own tool"),
        (two_contexts, {}, "there are two ToolContext parameters"),
        (unresolvable, {}, "cannot resolve the annotations: NameError: name 'Nowhere' is not defined"),
        (bad_policy, {}, "cannot resolve the annotations: ValueError: (\"'kind' must be in"),
        (no_parentheses, {}, "parameter 'out': write Output() or Input(), with parentheses"),
        (input_without_parentheses, {}, "parameter 'out': write Output() or Input(), with parentheses"),
        (both_ways, {}, "parameter 'path' is both Output and Input"),
        (many_outputs, {}, "parameter 'outs': Output() and Input() go with one Path or str"),
        (number_output, {}, "parameter 'out': Output() and Input() go with one Path or str"),
        (half_output, {}, "parameter 'out': Output() and Input() go with one Path or str"),
        (Holder.method, {}, "Holder.method is not at the top level of its module"),
        (lambda: None, {}, "<lambda> is not at the top level of its module"),
        (plain, {"capability": "writes"}, "capability must be read, write or destructive, not 'writes'"),
        (plain, {"capability": None}, "capability must be read, write or destructive, not None"),
        (plain, {"name": "a b"}, "the name 'a b' must be 1 to 128 of"),
        (plain, {"name": "é"}, "the name 'é' must be 1 to 128 of"),
        (plain, {"name": "a" * 129}, f"the name '{'a' * 129}' must be 1 to 128 of"),
        (plain, {"timeout": 0}, "timeout must be more than 0 seconds, not 0"),
        (plain, {"timeout": -1.5}, "timeout must be more than 0 seconds, not -1.5"),
        (plain, {"timeout": float("inf")}, "timeout must be a finite number of seconds, not inf"),
        (plain, {"timeout": float("nan")}, "timeout must be a finite number of seconds, not nan"),
        (plain, {"timeout": True}, "timeout must be a finite number of seconds, not True"),
        (plain, {"timeout": "5"}, "timeout must be a finite number of seconds, not '5'"),
        (plain, {"queue_timeout": 0}, "queue_timeout must be more than 0 seconds, not 0"),
        (plain, {"grace": -1}, "grace must be at least 0 seconds, not -1"),
        (plain, {"max_timeout": 0}, "max_timeout must be more than 0 seconds, not 0"),
        (plain, {"timeout": 5, "max_timeout": 4}, "max_timeout is smaller than timeout"),
        (plain, {"env": "HOME"}, "env must be a list of variable names, not 'HOME'"),
        (plain, {"env": None}, "env must be a list of variable names, not None"),
        (plain, {"env": ["A=B"]}, "env must be a list of variable names"),
        (plain, {"env": [""]}, "env must be a list of variable names"),
        (plain, {"effects": "mail"}, "effects must be transactional or external, not 'mail'"),
        (makes, {"capability": "read"}, "a read tool cannot have Output parameters"),
        (plain, {"capability": "read", "effects": "external"}, "a read tool cannot have external effects"),
    ],
)
def test_what_cannot_be_a_tool_is_named_with_its_line(
    function: Callable[..., Any], options: dict[str, Any], reason: str
) -> None:
    """A registration that cannot work fails at once with file, line and reason, and leaves the toolbox as it was."""
    toolbox = Toolbox("box")
    with pytest.raises(ToolboxError) as caught:
        toolbox.tool(**{"capability": "write", **options})(function)
    expected = f"TOOLBOX_INVALID: {line_of(function)}: {reason}"
    assert expected == str(caught.value)[: len(expected)]
    assert [] == list(toolbox)


def test_nested_functions_are_refused() -> None:
    """A worker cannot import a function that exists only while another runs."""

    def inner() -> None: ...

    with pytest.raises(ToolboxError, match=r"<locals>\.inner is not at the top level of its module") as caught:
        Toolbox("box").tool(capability="write")(inner)
    assert caught.value.message.startswith(line_of(inner))


@pytest.mark.parametrize(
    ("thing", "kind"),
    [
        (Holder(), "Holder"),
        (Holder().method, "method"),
        (functools.partial(plain, 1), "partial"),
        (len, "builtin"),
        (Holder, "type"),
    ],
)
def test_only_plain_functions_are_tools(thing: Any, kind: str) -> None:
    """Objects that can merely be called are refused by what they are."""
    with pytest.raises(ToolboxError, match=rf"a tool must be a plain function, not a {kind}"):
        Toolbox("box").tool(capability="write", name="thing")(thing)


def test_a_name_is_taken_once() -> None:
    """The second tool of a name is refused, and the first one stays."""
    toolbox = Toolbox("box")
    toolbox.tool(capability="write")(plain)
    with pytest.raises(ToolboxError, match="a tool named 'plain' is already registered") as caught:
        toolbox.tool(capability="read", name="plain")(waits)
    assert caught.value.message.startswith(line_of(waits))
    assert [plain] == [tool.function for tool in toolbox]


def test_the_cause_of_a_refusal_is_kept() -> None:
    """The exception behind a refusal is its cause, for whoever wants the traceback."""
    with pytest.raises(ToolboxError) as caught:
        Toolbox("box").tool(capability="write")(unresolvable)
    assert isinstance(caught.value.__cause__, NameError)


def test_registering_returns_the_function_itself() -> None:
    """A tool can still be called, imported and tested like the function it is."""
    toolbox = Toolbox("box")
    assert plain is toolbox.tool(capability="write")(plain)
    assert waits is toolbox.tool(capability=Capability.READ, name="waiting")(waits)
    assert 3 == plain(3)


def test_defaults_of_a_tool() -> None:
    """What is not said: name and description of the function, 30 s, 60 s in the queue, killed at once."""
    toolbox = Toolbox("box")
    toolbox.tool(capability="write")(plain)
    tool = toolbox.get("plain")
    assert tool is not None
    assert "Return the value.\n\nIndented text keeps its shape:\n    like this." == tool.description
    assert (30.0, 60.0, 30.0, 0.0) == (tool.timeout, tool.queue_timeout, tool.max_timeout, tool.grace)
    assert ((), "transactional", False, None) == (tool.env, tool.effects, tool.isolate, tool.title)
    assert (False, True) == (tool.is_async, tool.in_worker)


def test_options_of_a_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said is kept, and declared variables are looked up when a worker needs them."""
    toolbox = Toolbox("box")
    toolbox.tool(
        capability="read",
        name="x.y-z_1",
        title="X",
        description="  Said.",
        timeout=2,
        queue_timeout=3,
        max_timeout=5,
        grace=1,
        env=["ZTRIO_TEST_A", "ZTRIO_TEST_B"],
        isolate=True,
    )(waits)
    tool = toolbox.get("x.y-z_1")
    assert tool is not None
    assert ("X", "Said.", 2.0, 3.0, 5.0, 1.0) == (
        tool.title,
        tool.description,
        tool.timeout,
        tool.queue_timeout,
        tool.max_timeout,
        tool.grace,
    )
    assert (True, True) == (tool.is_async, tool.in_worker)
    monkeypatch.setenv("ZTRIO_TEST_A", "a")
    monkeypatch.delenv("ZTRIO_TEST_B", raising=False)
    assert {"ZTRIO_TEST_A": "a"} == tool.environment()
    monkeypatch.setenv("ZTRIO_TEST_B", "b")
    assert {"ZTRIO_TEST_A": "a", "ZTRIO_TEST_B": "b"} == tool.environment()
    assert "ZTRIO_TEST_A" in os.environ


def test_external_effects_go_with_writes() -> None:
    """A write may say that it changes what cannot be rolled back."""
    toolbox = Toolbox("box")
    toolbox.tool(capability="destructive", effects="external")(plain)
    assert ["external"] == [tool.effects for tool in toolbox]


def test_a_toolbox_is_a_collection_in_order() -> None:
    """Tools come in the order of their registration and are found by name."""
    toolbox = Toolbox("box")
    assert "<Toolbox 'box': no tools>" == repr(toolbox)
    toolbox.tool(capability="read")(waits)
    toolbox.tool(capability="write")(plain)
    assert (2, ["waits", "plain"]) == (len(toolbox), [tool.name for tool in toolbox])
    assert "<Toolbox 'box': waits, plain>" == repr(toolbox)
    assert toolbox.get("makes") is None


def test_reads_run_in_the_server_unless_isolated() -> None:
    """Only a read without `isolate` stays out of worker processes."""
    toolbox = Toolbox("box")
    for capability in Capability:
        toolbox.tool(capability=capability, name=capability)(plain)
        toolbox.tool(capability=capability, name=f"{capability}.isolated", isolate=True)(plain)
    assert ["read"] == [tool.name for tool in toolbox if not tool.in_worker]


def test_a_context_reports_progress() -> None:
    """`ctx.progress` hands over number, total and message as given."""
    reports: list[tuple[float, float | None, str | None]] = []
    ctx = ToolContext(
        job_id="job_x",
        tool="plain",
        session={"n": 1},
        session_name="default",
        principal="ann",
        workspace=Path("/ws"),
        tmp=None,
        request_id="7",
        report=lambda *report: reports.append(report),
    )
    ctx.progress(1)
    ctx.progress(0.5, 1.0, "half way")
    assert [(1, None, None), (0.5, 1.0, "half way")] == reports
    assert ("job_x", "plain", {"n": 1}, "default", "ann", Path("/ws"), None, "7") == (
        ctx.job_id,
        ctx.tool,
        ctx.session,
        ctx.session_name,
        ctx.principal,
        ctx.workspace,
        ctx.tmp,
        ctx.request_id,
    )


def test_a_schema_is_made_once_and_names_the_line() -> None:
    """A tool's schema is built on first use and kept; a type without one is named with its line."""
    toolbox = Toolbox("box")
    toolbox.tool(capability="write")(plain)
    toolbox.tool(capability="write")(unknown_type)
    good, bad = toolbox
    assert good.schema is good.schema
    with pytest.raises(ToolboxError) as caught:
        bad.schema  # noqa: B018
    assert caught.value.message.startswith(f"{line_of(unknown_type)}: no JSON Schema for parameter 'value': ")


def unknown_type(value: Holder) -> None:
    """Takes what JSON knows nothing of."""
