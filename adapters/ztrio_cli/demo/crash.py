"""The last scene of the demo: the server is killed in the middle of a commit, and the next one puts it right.

Nothing can say from outside at which instruction SIGKILL strikes. So the scene waits until the commit has begun, kills,
and looks: everything must be as before or everything as the call left it, and the audit must say which of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import trio
from mcp.client import Client
from mcp.shared.exceptions import MCPError

from ztrio_cli.demo.client import Answer, audit_events, call, serve, transport
from ztrio_cli.demo.facts import Facts
from ztrio_cli.demo.observe import Process, below, job_directories, processes, read_tree, still_alive
from ztrio_cli.demo.observer import PATIENCE

__all__ = ["server_killed"]

SESSION: Final = "crash"
_LOOK: Final = 0.001  # seconds between two looks: a commit takes a few milliseconds


async def server_killed(command: Sequence[str], workspace: Path, log: Path) -> Facts:
    """The server is killed in the middle of a commit, and the next one puts it right."""
    before = read_tree(workspace)
    seen: list[Process] = []
    async with (
        serve(command, workspace, log) as server,
        Client(transport(server)) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(_build_until_killed, client)
        await _committing(workspace)
        seen += below(server.process.pid, processes())
        server.process.kill()
        await server.process.wait()
        nursery.cancel_scope.cancel()
    began = trio.current_time()
    async with serve(command, workspace, log) as server, Client(transport(server)) as client:
        found = await _build(client, "build_history")
        seconds, after, leftovers = trio.current_time() - began, read_tree(workspace), job_directories(workspace)
        events = await _events(client)
        again = await _build(client, "build_site")
        history = await _build(client, "build_history")
        return Facts(
            scene="server killed",
            seconds=seconds,
            limit=PATIENCE,
            answers=(again,),
            events=events,
            before=before,
            after=after,
            seen=tuple(seen),
            alive=tuple(still_alive(seen)),
            leftovers=tuple(leftovers),
            extra={
                "history": {SESSION: len(history.value.get("result", ()))},
                "history_found": len(found.value.get("result", ())),
                "rebuilt": read_tree(workspace),
            },
        )


async def _build(client: Client, tool: str) -> Answer:
    """Call `build_site` under a key, always the same; or `build_history`."""
    if tool == "build_history":
        return await call(client, tool, {"session": SESSION})
    return await call(client, tool, {"site": "site", "title": SESSION, "session": SESSION}, key="the-crash")


async def _build_until_killed(client: Client) -> None:
    try:
        await _build(client, "build_site")
    except MCPError:
        pass  # the connection closed: what this scene is about


async def _committing(workspace: Path) -> None:
    """Wait until a commit has begun: the call's journal says so before the first file moves."""
    with trio.move_on_after(PATIENCE):
        while not _begun(workspace):  # noqa: ASYNC110 - nobody tells
            await trio.sleep(_LOOK)


def _begun(workspace: Path) -> bool:
    return any("publishing_outputs" in _text(path) for path in workspace.glob(".ztrio-job-*/recovery.json"))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


async def _events(client: Client) -> tuple[dict[str, Any], ...]:
    """The events of this scene's mutating calls, in the order of the log: numbers begin anew with each server."""
    events = sorted(await audit_events(client), key=lambda event: int(event["log_pos"]))
    return tuple(event for event in events if event.get("session") == SESSION and event.get("capability") == "write")
