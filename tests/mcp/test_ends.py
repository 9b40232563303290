"""How serving ends: end of input, broken output, a request to end, a cancellation, a failure. On pipes."""

from __future__ import annotations

import os
from typing import Any

import pytest
import trio

import ztrio
from ztrio_mcp import serve_stdio
from ztrio_mcp.server import McpServer

from .conftest import Served, Serving


async def heavy_call(served: Served) -> tuple[int, int]:
    """Start a call that never ends; the pids of its worker and of the worker's child."""
    await served.client.call("heavy", "heavy", {"out": "x"}, meta={"progressToken": "heavy"})
    told = await served.client.take(lambda frame: frame.get("method") == "notifications/progress")
    worker, child = map(int, told["params"]["message"].split())
    return worker, child


def gone(pid: int) -> bool:
    """Whether no process has this id, a zombie that init has yet to reap counting as none."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def terminal(served: Served) -> dict[str, Any]:
    """The terminal event of the heavy call."""
    events = [event for event in await served.supervisor.events() if event.get("request_id") == "heavy"]
    assert ["allow", "start", "cancel", "worker_terminated", "rollback"] == [event["event"] for event in events]
    return events[-1]


@pytest.mark.case("R08")
async def test_the_end_of_input_rolls_calls_back_and_answers_them(serving: Serving) -> None:
    """At the end of input a call in flight is rolled back because its client is gone, and still gets its answer."""
    async with serving() as served:
        pids = await heavy_call(served)
        await served.client.close_input()
        assert 0 == await served.wait_end(within=7)
        answer = (await served.client.reply("heavy"))["result"]
        assert ("SHUTTING_DOWN", "rolled_back") == (
            answer["structuredContent"]["error"]["code"],
            answer["_meta"]["ztrio/outcome"],
        )
        assert "client_gone" == (await terminal(served))["cause"]
        assert [True, True] == [gone(pid) for pid in pids]


async def test_a_broken_write_ends_the_session(serving: Serving) -> None:
    """The first write that fails ends everything: calls roll back because the client is gone."""
    async with serving() as served:
        await heavy_call(served)
        await served.client.close_output()
        await served.client.request(1, "ping")
        assert 0 == await served.wait_end(within=7)
        assert "client_gone" == (await terminal(served))["cause"]


async def test_a_commit_whose_answer_cannot_be_delivered_is_in_the_audit(serving: Serving) -> None:
    """A call that committed for a client that stopped reading stays committed, and the audit says so."""
    async with serving() as served:
        await served.client.close_output()
        await served.client.call(1, "put", {"text": "x", "out": "a.txt"})
        await served.wait_end(within=7)
        assert "x" == (served.supervisor.workspace / "a.txt").read_text()
        assert ["allow", "start", "commit", "commit_unanswered"] == await served.event_names(1)


async def test_a_request_to_end_has_its_own_status(serving: Serving) -> None:
    """Asked to end, the server rolls back with that cause, answers, and returns that status; the first word stands."""
    async with serving() as served:
        await heavy_call(served)
        assert served.ending.request("shutdown", 143)
        assert not served.ending.request("client_gone", 0)
        assert 143 == await served.wait_end(within=7)
        assert "rolled_back" == (await served.client.reply("heavy"))["result"]["_meta"]["ztrio/outcome"]
        assert "shutdown" == (await terminal(served))["cause"]


@pytest.mark.case("R57")
async def test_cancelling_the_server_rolls_calls_back(serving: Serving) -> None:
    """A cancellation from outside is one more way to end: calls roll back with their cause, and nothing is left."""
    async with serving() as served:
        await heavy_call(served)
        with trio.fail_after(20):
            await served.stop()
        assert "shutdown" == (await terminal(served))["cause"]


async def test_a_failure_of_the_sdk_ends_the_server_with_that_failure(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the SDK fails with leaves `serve_stdio` as it is, after calls were wound down."""

    async def broken(*_: Any) -> None:
        await trio.lowlevel.checkpoint()
        raise LookupError("broken")

    monkeypatch.setattr(McpServer, "run", broken)
    with pytest.RaisesGroup(pytest.RaisesExc(LookupError, match="broken"), flatten_subgroups=True):
        async with serving(handshake=False) as served:
            await served.wait_end()


@pytest.mark.case("R57")
async def test_many_servers_end_in_any_order(box: ztrio.Toolbox, tmp_path: Any) -> None:
    """Three servers started from three tasks and ended first to last from a fourth leave nothing and raise nothing."""
    inputs: list[int] = []
    statuses: list[int] = []

    async def one(number: int, *, task_status: trio.TaskStatus[None]) -> None:
        workspace = tmp_path / str(number)
        workspace.mkdir()
        server_in, client_out = os.pipe()
        client_in, server_out = os.pipe()
        inputs.append(client_out)
        async with ztrio.open_supervisor(box, workspace=workspace) as supervisor:
            task_status.started()
            statuses.append(await serve_stdio(supervisor, fds=(server_in, server_out)))
        os.close(client_in)

    async with trio.open_nursery() as nursery:
        for number in range(3):
            await nursery.start(one, number)
        for client_out in inputs:
            os.close(client_out)
    assert [0, 0, 0] == statuses
