"""Loading a toolbox again while it is served."""

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import ztrio
from ztrio.errors import ToolboxError

FIRST = """
    import ztrio
    toolbox = ztrio.Toolbox("changing")

    @toolbox.tool(capability="write")
    def answer() -> int:
        return 1

    @toolbox.tool(capability="write")
    def hold(ctx: ztrio.ToolContext, flag: str) -> int:
        import os, time
        ctx.progress(1)
        while not os.path.exists(flag):
            time.sleep(0.01)
        return 1
"""
SECOND = """
    import ztrio
    toolbox = ztrio.Toolbox("changing")

    @toolbox.tool(capability="write")
    def answer(again: int = 2) -> int:
        '''With a new parameter.'''
        return 10 * again

    @toolbox.tool(capability="read")
    def look() -> str:
        return "a new tool"
"""


IN_WORKERS_ONLY = """import ztrio, sys
toolbox = ztrio.Toolbox("x")
@toolbox.tool(capability="write")
def answer() -> int:
    return 3
if "ztrio.workers.launcher" in sys.modules:
    raise LookupError("in workers only")
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The tools file."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "changing_tools.py"
    path.write_text(textwrap.dedent(FIRST))
    yield path
    sys.modules.pop("changing_tools", None)


@pytest.mark.parametrize("backend", ["zygote", "spawn"])
async def test_reload(source: Path, tmp_path: Path, backend: str) -> None:
    """New calls use the new code and schemas; one that runs ends with the old."""
    toolbox = ztrio.load_toolbox(str(source))
    flag = tmp_path / "flag"
    async with ztrio.open_supervisor(toolbox, workspace=tmp_path, backend=backend) as supervisor:  # type: ignore[arg-type]
        assert 1 == (await supervisor.call("answer")).value
        held, answers = trio.Event(), []

        async def hold() -> None:
            result = await supervisor.call(
                "hold", {"flag": str(flag)}, session="held", on_progress=lambda *_: held.set()
            )
            answers.append(result.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold)
            await held.wait()
            source.write_text(textwrap.dedent(SECOND))
            await supervisor.reload()
            assert 20 == (await supervisor.call("answer")).value
            assert 30 == (await supervisor.call("answer", {"again": 3})).value
            assert "a new tool" == (await supervisor.call("look")).value
            with pytest.raises(ztrio.InvalidArguments):
                await supervisor.call("hold", {"flag": str(flag)})
            described = {tool.name: tool for tool in supervisor.describe_tools()}
            assert "again" in described["answer"].input_schema["properties"]
            flag.touch()
        assert [1] == answers


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("import ztrio\ntoolbox = ztrio.Toolbox('x')\n1/0\n", "changing_tools.py:3", "ZeroDivisionError"),
        ("import ztrio\nthis is no Python\n", "changing_tools.py:2", "SyntaxError"),
        ("toolbox = 5\n", "changing_tools", "no toolbox 'toolbox'"),
        (
            IN_WORKERS_ONLY,
            "changing_tools.py:7",
            "in workers only",
        ),
    ],
    ids=["raises", "no Python", "no toolbox", "fails in workers"],
)
async def test_a_reload_that_fails(source: Path, tmp_path: Path, text: str, place: str, reason: str) -> None:
    """The error names file and line, and everything stays as it was."""
    toolbox = ztrio.load_toolbox(str(source))
    async with ztrio.open_supervisor(toolbox, workspace=tmp_path, backend="zygote") as supervisor:
        source.write_text(text)
        module = sys.modules["changing_tools"]
        with pytest.raises(ToolboxError) as caught:
            await supervisor.reload()
        assert place in caught.value.message
        assert reason in caught.value.message
        assert "Nothing has changed" in caught.value.message
        assert (supervisor.toolbox, sys.modules["changing_tools"]) == (toolbox, module)
        assert 1 == (await supervisor.call("answer")).value


async def test_a_toolbox_that_is_in_no_module(tmp_path: Path) -> None:
    """What was made on the fly cannot be loaded again, and that is said."""
    async with ztrio.open_supervisor(ztrio.Toolbox("nowhere"), workspace=tmp_path) as supervisor:
        with pytest.raises(ToolboxError, match="at the top of no module"):
            await supervisor.reload()
