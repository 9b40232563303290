"""The official Python client against the server process, in both eras."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.shared.exceptions import MCPError

from .conftest import HERE

ERAS = [("legacy", "2025-11-25"), ("2026-07-28", "2026-07-28"), ("auto", "2026-07-28")]


def server(workspace: Path) -> StdioServerParameters:
    """How the client starts the server."""
    return StdioServerParameters(command=sys.executable, args=[str(HERE / "mcp_box_server.py"), str(workspace)])


def text_of(contents: Any) -> Any:
    """The JSON of a resource."""
    return json.loads(contents.contents[0].text)


@pytest.mark.parametrize(("mode", "version"), ERAS)
async def test_the_main_job(tmp_path: Path, mode: Any, version: str) -> None:
    """List, call, commit, fail, report progress, read the audit: what the client validates, it accepts."""
    told: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        await trio.lowlevel.checkpoint()
        told.append((progress, total, message))

    async with Client(server(tmp_path), mode=mode) as client:
        assert version == client.protocol_version
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["put"].output_schema is not None
        done = await client.call_tool("put", {"text": "hello", "out": "a.txt"})
        assert {"out": str(tmp_path / "a.txt"), "writes": 1} == done.structured_content
        assert "hello" == (tmp_path / "a.txt").read_text()
        assert done.meta is not None
        assert "committed" == done.meta["ztrio/outcome"]
        assert {"result": 10**30} == (await client.call_tool("keep", {"value": 10**30})).structured_content
        steps = await client.call_tool("steps", {"count": 3, "pause": 0.1}, progress_callback=on_progress)
        assert {"result": 3} == steps.structured_content
        assert (3.0, 3.0, "step 3") == told[-1]
        failed = await client.call_tool("fail", {})
        assert failed.is_error
        assert failed.structured_content is not None
        assert "TOOL_ERROR" == failed.structured_content["error"]["code"]
        with pytest.raises(MCPError, match="Unknown tool"):
            await client.call_tool("nonsense", {})
        events = text_of(await client.read_resource("ztrio://audit/events"))["events"]
        assert ["allow", "start", "commit"] == [event["event"] for event in events[:3]]
        job = text_of(await client.read_resource(f"ztrio://jobs/{done.meta['ztrio/job_id']}"))
        assert "committed" == job["outcome"]


@pytest.mark.case("R22")
@pytest.mark.parametrize(("mode", "version"), ERAS)
async def test_a_client_that_stops_waiting(tmp_path: Path, mode: Any, version: str) -> None:
    """When the client's own code stops waiting, the call is rolled back, with its reason, and the session goes on."""
    async with Client(server(tmp_path), mode=mode) as client:
        async with trio.open_nursery() as nursery:

            async def on_progress(progress: float, total: float | None, message: str | None) -> None:
                await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()

            nursery.start_soon(
                partial(client.call_tool, "heavy", {"out": "x"}, progress_callback=on_progress, read_timeout_seconds=20)
            )
        with trio.fail_after(30):
            while True:
                events = text_of(await client.read_resource("ztrio://audit/events"))["events"]
                if events[-1]["event"] == "rollback":
                    break
                await trio.sleep(0.02)
        assert "cancelled by client: caller cancelled" == events[-1]["cause"]
        assert not (tmp_path / "x").exists()
        assert {"result": 1} == (await client.call_tool("keep", {"value": 1})).structured_content
