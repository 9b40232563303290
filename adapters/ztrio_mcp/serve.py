"""Serving one client over stdio, from the first byte to the exit status.

The order of the end matters. Calls are stopped through the supervisor, with the cause on record, and *not* by letting
the SDK see the end of input: it would cancel their handlers and answer "connection closed" where the truth is "rolled
back". Only when every request has its answer, or the bound for that ran out, the SDK is told; then the writer
finishes. Every step has its bound, and together they fit into `EXIT_BOUND`.
"""

from __future__ import annotations

import gc
import logging
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, ExitStack, nullcontext
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import trio

from ztrio.errors import ZtrioError
from ztrio.jobs import Settings
from ztrio.loading import load_toolbox
from ztrio.management.server import serve_operators
from ztrio.management.supervised import Supervised
from ztrio.opening import open_supervisor
from ztrio.store import Store
from ztrio.supervisor import Supervisor
from ztrio.tools import Toolbox
from ztrio_mcp.claimed import claimed_stdio
from ztrio_mcp.frames import Call
from ztrio_mcp.jsonrpc import INTERNAL_ERROR
from ztrio_mcp.life import FAILURE_STATUS, Ending, LiveWorkers, live
from ztrio_mcp.server import McpServer
from ztrio_mcp.stdio import FRAME_LIMIT, StdioTransport, open_transport

__all__ = ["OpenStore", "run_stdio", "serve_stdio"]

OpenStore = Callable[[], AbstractAsyncContextManager[Store | None]]

_log: Final = logging.getLogger(__name__)

_SHUTDOWN_BOUND: Final = 3.0  # seconds for calls to roll back; with what follows it fits into EXIT_BOUND
_ANSWER_BOUND: Final = 0.4  # seconds for the answers to be written; a client that reads takes milliseconds


async def serve_stdio(
    supervisor: Supervisor,
    *,
    fds: tuple[int, int] | None = None,
    ending: Ending | None = None,
    frame_limit: int = FRAME_LIMIT,
) -> int:
    """Serve one MCP client until it is gone or `ending` is asked for; then close the supervisor.

    A supervisor serves one stdio client: when the client is gone, so is the point of its calls.

    Args:
        supervisor: Runs the calls; closed at the end, with the cause of the end.
        fds: File descriptors to read from and write to, which become ours; stdin and stdout when omitted. While they
            are served, fd 0 is the null device and fd 1 is stderr.
        ending: Lets somebody else, such as a signal, end the serving.
        frame_limit: Bytes a line from the client may have.

    Returns:
        The exit status that fits the end: 0 when the client is gone, else what `ending` was asked for.

    Raises:
        Exception: whatever the MCP SDK failed with.
    """
    ending = Ending() if ending is None else ending
    with ExitStack() as stack:
        read_fd, write_fd = stack.enter_context(claimed_stdio()) if fds is None else fds
        async with open_transport(read_fd, write_fd, frame_limit=frame_limit) as transport:
            connection = _Connection(supervisor, transport, ending)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.run)
                try:
                    await ending.wait()
                finally:
                    ending.request("shutdown", FAILURE_STATUS)  # we are being cancelled from outside
            if connection.failure is not None:
                raise connection.failure
    assert ending.status is not None
    return ending.status


class _Connection:
    """The tasks of one client, and the order in which they end."""

    def __init__(self, supervisor: Supervisor, transport: StdioTransport, ending: Ending) -> None:
        self._supervisor = supervisor
        self._transport = transport
        self._ending = ending
        self._server = McpServer(supervisor, transport.frames, version=_version())
        transport.on_undelivered = self._server.undelivered
        self._sdk_ended = trio.Event()
        self._written = trio.Event()
        # What the SDK failed with, if it did.
        self.failure: Exception | None = None

    async def run(self) -> None:
        """Serve until the end is asked for, then wind down.

        Shielded: a cancellation from outside asks for the end like everything else, so that calls roll back with
        their cause and answers are written. Winding down is bounded.
        """
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                self._transport.on_call = partial(self._begin_call, nursery)
                nursery.start_soon(self._transport.read)
                nursery.start_soon(self._write)
                nursery.start_soon(self._run_sdk)
                nursery.start_soon(self._watch_client)
                nursery.start_soon(self._server.watch_tools, self._transport.tell)
                cause = await self._ending.wait()
                await self._wind_down(cause)
                nursery.cancel_scope.cancel()

    async def _wind_down(self, cause: str) -> None:
        for request in self._transport.frames.in_flight():
            request.cause.record(cause)
        await self._supervisor.aclose(cause)  # has its own bound
        with trio.move_on_after(_ANSWER_BOUND):
            await self._transport.settled()
            self._transport.end_input()
            await self._sdk_ended.wait()
            self._transport.end_output()
            await self._written.wait()

    def _begin_call(self, nursery: trio.Nursery, call: Call) -> None:
        scope = trio.CancelScope()
        call.request.stop = scope.cancel  # here and not in the task, which a cancel may overtake
        nursery.start_soon(self._call, call, scope)

    async def _call(self, call: Call, scope: trio.CancelScope) -> None:
        """Serve a call beside the SDK, with what the SDK promises about cancelled and failing requests."""
        request = call.request
        outcome: dict[str, Any] = {}
        try:
            with scope:
                outcome = {"result": await self._server.call(call, partial(self._transport.report, request))}
        except Exception as error:  # noqa: BLE001 - a failure costs its own call only, as in the SDK
            _log.exception("a call failed in the server")
            outcome = {"error": {"code": INTERNAL_ERROR, "message": f"the server failed: {type(error).__name__}"}}
        if scope.cancel_called:  # no answer then, also where the call had ended just before
            self._transport.unanswered(request.key)
        else:
            await self._transport.answer(request, outcome)

    async def _run_sdk(self) -> None:
        try:
            await self._server.run(self._transport.read_stream, self._transport.write_stream)
        except Exception as error:  # noqa: BLE001 - kept and raised when everything has wound down
            self.failure = error
        finally:
            self._sdk_ended.set()
            self._ending.request("shutdown", FAILURE_STATUS)

    async def _write(self) -> None:
        try:
            await self._transport.write()
        finally:
            self._written.set()

    async def _watch_client(self) -> None:
        await self._transport.gone.wait()
        self._ending.request("client_gone", 0)


def _version() -> str:
    try:
        return metadata.version("ztrio")
    except metadata.PackageNotFoundError:  # running from a source tree
        return ""


def run_stdio(
    toolbox: Toolbox | str,
    *,
    workspace: str | Path,
    frame_limit: int = FRAME_LIMIT,
    open_store: OpenStore = nullcontext,
    operators: bool = True,
    **options: Any,
) -> int:
    """Serve a toolbox to the MCP client on stdin and stdout until it is gone or a signal comes; for `sys.exit`.

    Args:
        toolbox: The toolbox, or how `ztrio.loading.load_toolbox` finds it. Loading it here keeps what its modules
            print at import off the wire.
        workspace: The directory that tools work in.
        frame_limit: Bytes a line from the client may have.
        open_store: Opens the store for as long as the server runs; one in memory when omitted.
        operators: Whether the user of this process can reach it through a private socket in the workspace, with
            `ztrio pending` and `ztrio reload`.
        options: Further arguments of `ztrio.open_supervisor`.

    Returns:
        The exit status: 0 when the client is gone, 128 + signal, 1 after a failure of the server itself.

    Raises:
        ZtrioError: the toolbox cannot be loaded or the supervisor cannot start; nothing was served.
    """
    options.setdefault("settings", Settings(shutdown_bound=_SHUTDOWN_BOUND))
    with claimed_stdio() as fds:
        try:
            loaded = load_toolbox(toolbox) if isinstance(toolbox, str) else toolbox
            return trio.run(_main, loaded, Path(workspace).resolve(), fds, frame_limit, open_store, operators, options)
        except ZtrioError:
            raise
        except Exception:  # noqa: BLE001 - a process reports its failure by its status
            traceback.print_exc(file=sys.stderr)
            return FAILURE_STATUS


async def _main(
    toolbox: Toolbox,
    workspace: Path,
    fds: tuple[int, int],
    frame_limit: int,
    open_store: OpenStore,
    operators: bool,
    options: dict[str, Any],
) -> int:
    async def serve(ending: Ending, workers: LiveWorkers, serving: Callable[[], object]) -> None:
        async with (
            open_store() as store,
            open_supervisor(toolbox, workspace=workspace, store=store, **options) as supervisor,
            _reachable(supervisor, workspace, operators),
        ):
            serving()
            # What is loaded by now stays for good. To look at it again in each full collection takes tens of
            # milliseconds, in which nothing is answered or stopped; many times that beside busy tools.
            gc.collect()
            gc.freeze()
            supervisor.audit.add_reducer(workers)
            await serve_stdio(supervisor, fds=fds, ending=ending, frame_limit=frame_limit)

    return await live(serve)


def _reachable(supervisor: Supervisor, workspace: Path, operators: bool) -> AbstractAsyncContextManager[object]:
    if not operators:
        return nullcontext()
    return serve_operators(
        Supervised(supervisor),
        workspace,
        trouble=lambda why: _log.warning("no operator can reach this server: %s", why),
    )
