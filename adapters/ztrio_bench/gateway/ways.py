"""What can stand between a client and a server, and how each is started.

    direct              nothing
    wrap                `ztrio wrap`, with its journal in a file
    fastmcp             FastMCP's proxy, with one session
    mcp-proxy           mcp-proxy as its users run it. It has no mode with stdio on both sides, so there are two of it,
                        one with the server behind it and one in front, and its default transport, SSE, in between
    mcp-proxy-core      what mcp-proxy proxies with, put between two pipes by a script of a few lines: no command of it
                        does that, but it is what a proxy costs that is made as the SDK suggests

Peers get what is quickest for them: one session that stays, no log, the transport that takes less.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import attrs

from ztrio_bench import drivers
from ztrio_bench.gateway.client import Client, Failed, open_client
from ztrio_bench.process import stop_leftovers
from ztrio_bench.subjects import Subject

__all__ = ["DIRECT", "WAYS", "WRAP", "Way", "open_way"]

_START: Final = 60.0  # seconds for what listens to listen
_HERE: Final = "127.0.0.1"

Words = Sequence[str]


@attrs.frozen(kw_only=True)
class Way:
    """One way from the client to a server.

    Args:
        name: Its key, also on the command line.
        title: Its name in print.
        text: What it is.
        package: What is installed for it, as a subject; None where ztrio's own environment has it.
        command: (its interpreter, the server's command, a free port) → the command that the client speaks to.
        beside: The same for what has to run beside that; it listens on the port.
    """

    name: str
    title: str
    text: str
    package: Subject | None = None
    command: Callable[[str, Words, int], Words]
    beside: Callable[[str, Words, int], Words] | None = None


def _package(requirement: str) -> Subject:
    name = requirement.partition("=")[0]
    return Subject(name=f"{name}-pinned", text="", driver="", requirement=requirement, cases=())


def _script(name: str) -> str:
    return str(Path(drivers.__file__).with_name(name))


_MCP_PROXY: Final = _package("mcp-proxy==0.13.0")

WAYS: Final = {
    way.name: way
    for way in (
        Way(name="direct", title="direct", text="nothing in between", command=lambda _python, server, _port: server),
        Way(
            name="wrap",
            title="ztrio wrap",
            text="the gateway, with its journal in a file",
            command=lambda python, server, _port: [python, "-m", "ztrio_cli", "wrap", "--name", "b", "--", *server],
        ),
        Way(
            name="fastmcp",
            title="FastMCP's proxy",
            text="FastMCPProxy on stdio with one session to the server (StatefulProxyClient)",
            package=_package("fastmcp==4.2.3"),
            command=lambda python, server, _port: [python, _script("fastmcp_proxy.py"), *server],
        ),
        Way(
            name="mcp-proxy",
            title="mcp-proxy",
            text="as its users run it: two of it, with SSE between them, since it has no mode with stdio on both sides",
            package=_MCP_PROXY,
            command=lambda python, _server, port: [
                *(python, "-m", "mcp_proxy", "--log-level", "ERROR", f"http://{_HERE}:{port}/sse"),
            ],
            beside=lambda python, server, port: [
                *(python, "-m", "mcp_proxy", "--log-level", "ERROR", "--pass-environment", "--port", str(port)),
                *("--", *server),
            ],
        ),
        Way(
            name="mcp-proxy-core",
            title="mcp-proxy's core",
            text="its create_proxy_server between two stdio sides, which no command of it offers",
            package=_MCP_PROXY,
            command=lambda python, server, _port: [python, _script("mcp_proxy_stdio.py"), *server],
        ),
    )
}
DIRECT: Final = WAYS["direct"]
WRAP: Final = WAYS["wrap"]


@contextmanager
def open_way(
    way: Way, server: Words, *, folder: Path, python: str | None = None, options: Words = ()
) -> Iterator[Client]:
    """A client at the near end of a way; on leaving, all of the way is ended.

    Args:
        way: The way.
        server: The command of the server at its far end.
        folder: An empty folder of its own: for its state, its log, and to know its processes by.
        python: The interpreter that has the way's package; this one when there is none.
        options: Further options of `ztrio wrap`.

    Raises:
        Failed: it does not start.
    """
    port = _free_port() if way.beside else 0
    words = list(way.command(python or sys.executable, server, port))
    if options:
        end = words.index("--")
        words[end:end] = options
    environment = {**os.environ, "ZTRIO_BENCH_FOLDER": str(folder), "XDG_STATE_HOME": str(folder / "state")}
    with ExitStack() as stack:
        stack.callback(stop_leftovers, folder)
        if way.beside is not None:
            with (folder / "beside.log").open("ab") as log:
                beside = subprocess.Popen(
                    way.beside(python or sys.executable, server, port),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=folder,
                    env=environment,
                    start_new_session=True,
                )
            stack.callback(_end, beside)
            _await_listener(port, beside)
        yield stack.enter_context(open_client(words, folder=folder, environment=environment))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HERE, 0))
        port: int = probe.getsockname()[1]
        return port


def _await_listener(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection((_HERE, port), 1.0).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise Failed("what has to run beside it does not listen")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # it has nothing to lose; its server ends with its input, or with the folder's leftovers
    process.wait()
