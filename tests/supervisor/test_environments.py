"""Where the core runs: under plain trio without asyncio, in guest mode, and not where it cannot keep its word."""

import json
import queue
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import outcome
import pytest
import trio

import ztrio
from tests.supervisor.tools_for_calls import toolbox

ROOT = Path(ztrio.__file__).parent.parent

TOOLS = """
import sys
from pathlib import Path
from typing import Annotated
import ztrio

toolbox = ztrio.Toolbox("plain")

@toolbox.tool(capability="write")
async def export(ctx: ztrio.ToolContext, out: Annotated[Path, ztrio.Output()]) -> list[str]:
    "Write a file; say which event loops were imported."
    ctx.session["count"] = 1
    out.write_text("done")
    return sorted({"asyncio", "anyio", "mcp"} & set(sys.modules))

@toolbox.tool(capability="write")
def hang() -> None:
    "Never end."
    while True:
        pass

@toolbox.tool(capability="read")
def look() -> list[str]:
    "The same, in the server process."
    return sorted({"asyncio", "anyio", "mcp"} & set(sys.modules))
"""

WITHOUT_ASYNCIO = """
import json, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"asyncio", "anyio", "mcp"}:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
sys.path[:0] = json.loads(sys.argv[2])
import trio, ztrio

async def main():
    toolbox = ztrio.load_toolbox(sys.argv[1])
    async with ztrio.open_supervisor(toolbox, workspace=".", audit_file="audit.jsonl") as supervisor:
        found = [(await supervisor.call("export", {"out": "out"})).value, (await supervisor.call("look")).value]
        try:
            await supervisor.call("hang", timeout=0.3)
        except ztrio.ToolTimeout as error:
            found.append(error.code)
        supervisor.describe_tools()
    print(json.dumps(found))

trio.run(main)
"""

# What is not there on Windows, of what the product uses.
ON_WINDOWS = """
import sys, trio
import os, signal, ctypes, sysconfig
sysconfig.get_paths()  # remembers what it found on the real platform
FLAGS = ("O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_PATH")
for name in (*FLAGS, "killpg", "setsid", "geteuid", "listxattr"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGKILL", "SIGCHLD", "SIGHUP", "SIGPIPE"):
    delattr(signal, name)
for name in ("resource", "fcntl", "pwd", "grp", "termios"):
    sys.modules[name] = None
def no_libc(name, *args, **kwargs):
    raise TypeError("bad argument type for built-in operation")
ctypes.CDLL = no_libc
sys.platform = "win32"

import ztrio

async def main():
    async with ztrio.open_supervisor(ztrio.Toolbox("x"), workspace="."):
        raise AssertionError("it opened")

try:
    trio.run(main)
except ztrio.UnsupportedPlatform as error:
    print(error.code)
"""


@pytest.mark.case("R61")
def test_plain_trio_without_asyncio(tmp_path: Path) -> None:
    """With the import of asyncio, anyio and mcp blocked everything works, in the server process and in workers."""
    (tmp_path / "plain_tools.py").write_text(TOOLS)
    done = subprocess.run(
        [sys.executable, "-I", "-W", "error", "-c", WITHOUT_ASYNCIO, "plain_tools.py", json.dumps([str(ROOT)])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ("", 0) == (done.stderr, done.returncode)
    assert [[], [], "TOOL_TIMEOUT"] == json.loads(done.stdout)


def run_as_guest(main: Callable[[], Any]) -> Any:
    """Run a trio program inside a host loop of ours."""
    todo: queue.Queue[Callable[[], object]] = queue.Queue()
    results: list[outcome.Outcome[Any]] = []
    trio.lowlevel.start_guest_run(
        main,
        run_sync_soon_threadsafe=todo.put,
        done_callback=results.append,
        host_uses_signal_set_wakeup_fd=False,
    )
    while not results:
        todo.get(timeout=30)()
    return results[0].unwrap()


@pytest.mark.case("R61")
def test_guest_mode(tmp_path: Path) -> None:
    """Inside another loop: a commit, a timeout, a cancellation and a read end as they do under `trio.run`."""
    marks = tmp_path / "marks"

    async def main() -> list[str]:
        # Without the sandbox, because the tools leave marks outside their staging.
        async with ztrio.open_supervisor(toolbox, workspace=tmp_path, sandbox="off") as supervisor:
            await supervisor.call("export", {"out": "out"})
            await supervisor.call("look")
            with pytest.raises(ztrio.ToolTimeout):
                await supervisor.call("block", {"marks": str(marks)}, timeout=0.3)
            marks.unlink(missing_ok=True)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(supervisor.call, "burn", {"marks": str(marks)})
                while not marks.exists():
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
            return [event["event"] for event in await supervisor.events()]

    assert [
        *["allow", "start", "commit"],
        *["allow", "completed"],
        *["allow", "start", "timeout", "worker_terminated", "rollback"],
        *["allow", "start", "cancel", "worker_terminated", "rollback"],
    ] == run_as_guest(main)
    assert "new" == (tmp_path / "out").read_text()


@pytest.mark.case("R15")
def test_import_on_an_unsupported_platform(tmp_path: Path) -> None:
    """Where POSIX is missing the package can still be imported, and opening says plainly what is the matter."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{ON_WINDOWS}"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ("UNSUPPORTED_PLATFORM\n", "") == (done.stdout, done.stderr)
