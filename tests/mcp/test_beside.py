"""Tool calls served beside the SDK: which ones, and that a client cannot tell."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import pytest
import trio
from mcp_types import JSONRPCResponse

import ztrio
from tests.kit.raw_client import MODERN_META
from ztrio_mcp.eras import Era
from ztrio_mcp.frames import Call, Forward, FrameFilter
from ztrio_mcp.server import McpServer

from .conftest import Served, Serving

LEGACY = ("initialize", {"protocolVersion": "2025-11-25"})
VERSION = "io.modelcontextprotocol/protocolVersion"
MODERN = ("server/discover", {"resultType": "complete"})


def opened(answer: tuple[str, dict[str, Any]] | None, *tools: str) -> FrameFilter:
    """A filter of a connection on which the SDK has answered this."""
    filter_ = FrameFilter()
    filter_.tools = tools
    if answer is not None:
        method, result = answer
        decision = filter_.receive(json.dumps({"jsonrpc": "2.0", "id": 0, "method": method}).encode())
        assert isinstance(decision, Forward)
        assert decision.request is not None
        filter_.send(JSONRPCResponse(jsonrpc="2.0", id=decision.request.key, result=result))
    return filter_


def decide(filter_: FrameFilter, **params: Any) -> Any:
    """What the filter decides about a tool call with these parameters."""
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return filter_.receive(json.dumps(message).encode())


@pytest.mark.parametrize(
    ("answer", "params", "expected"),
    [
        (LEGACY, {"name": "t"}, "2025-11-25"),
        (LEGACY, {"name": "t", "arguments": {"a": 1}, "_meta": {"progressToken": 1}}, "2025-11-25"),
        (LEGACY, {"name": "t", "arguments": None, "_meta": None}, "2025-11-25"),
        (("initialize", {"protocolVersion": "2024-11-05"}), {"name": "t"}, "2024-11-05"),
        (MODERN, {"name": "t", "_meta": MODERN_META}, "2026-07-28"),
        (None, {"name": "t"}, None),
        (None, {"name": "t", "_meta": MODERN_META}, None),
        (("ping", {}), {"name": "t"}, None),
        (LEGACY, {"name": "unknown"}, None),
        (LEGACY, {"name": ["t"]}, None),
        (LEGACY, {"arguments": {}}, None),
        (LEGACY, {"name": "t", "arguments": [1]}, None),
        (LEGACY, {"name": "t", "_meta": MODERN_META}, None),
        (LEGACY, {"name": "t", "_meta": "x"}, None),
        (MODERN, {"name": "t"}, None),
        (MODERN, {"name": "t", "_meta": {}}, None),
        (
            MODERN,
            {"name": "t", "_meta": {**MODERN_META, "io.modelcontextprotocol/protocolVersion": "2025-11-25"}},
            None,
        ),
        (MODERN, {"name": "t", "_meta": {**MODERN_META, "io.modelcontextprotocol/protocolVersion": [1]}}, None),
        (MODERN, {"name": "t", "_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}, None),
        (MODERN, {"name": "t", "arguments": 1, "_meta": MODERN_META}, None),
    ],
)
def test_only_what_is_plainly_in_order_is_served_beside_the_sdk(
    answer: tuple[str, dict[str, Any]] | None, params: dict[str, Any], expected: str | None
) -> None:
    """A well-formed call of a known tool, in an era that the SDK has settled, is ours; everything else is the SDK's."""
    decision = decide(opened(answer, "t"), **params)
    assert expected == (decision.version if isinstance(decision, Call) else None)
    assert isinstance(decision, Forward if expected is None else Call)


def test_a_cancel_stops_a_call_beside_the_sdk_after_its_cause_is_recorded() -> None:
    """The call is stopped with its cause on record, once per word, and the SDK does not hear of it."""
    filter_ = opened(LEGACY, "t")
    call = decide(filter_, name="t")
    heard: list[str | None] = []
    call.request.stop = lambda: heard.append(call.request.cause.text)
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1, "reason": "too slow"}}
    assert filter_.receive(json.dumps(cancel).encode()) is None
    assert ["cancelled by client: too slow"] == heard
    assert (3, 0) == (filter_.statistics().forwarded, filter_.statistics().unmatched)


def lasting(answer: dict[str, Any]) -> Any:
    """An answer without the job's id, which differs between any two calls."""
    return json.loads(re.sub("job_[a-z2-7]{16}", "job", json.dumps(answer)))


async def conversation(served: Served, *, modern: bool) -> list[Any]:
    """Every answer to a series of calls, and the progress of the last."""
    client = served.client
    meta: dict[str, Any] = MODERN_META if modern else {}
    if modern:
        await client.ask("d", "server/discover", {"_meta": meta})
    calls: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("echo", {"value": {"a": None, "é": [1.5, 10**30, "漢"]}}, {}),
        ("echo", {"value": None}, {}),
        ("keep", {"value": "x", "session": "s"}, {"ztrio/timeout": 9}),
        ("echo", {"nonsense": 1}, {}),
        ("echo", {"value": 1}, {"ztrio/timeout": "x"}),
        ("unknown", {}, {}),
        ("steps", {"count": 1}, {"progressToken": "p"}),
    ]
    answers = []
    for tool, arguments, more in calls:
        await client.call(1, tool, arguments, meta={**meta, **more} or None)
        answers.append(lasting(await client.reply(1)))
    progress = [frame for frame in client.frames if frame.get("method") == "notifications/progress"]
    return [*answers, *progress]


@pytest.mark.parametrize("modern", [False, True])
async def test_a_client_cannot_tell_who_answered(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, modern: bool
) -> None:
    """Results, errors and progress are the same, in both eras, whether calls pass through the SDK or beside it."""
    async with serving(handshake=not modern) as served:
        beside = await conversation(served, modern=modern)
    monkeypatch.setattr(Era, "version", lambda _self, _params: None)
    async with serving(handshake=not modern) as served:
        through = await conversation(served, modern=modern)
    assert 8 == len(through)
    assert through == beside


async def test_a_failure_of_the_server_costs_one_call(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """When serving a call breaks, its client gets an error, the log has the traceback, and the next call is served."""
    whole = ztrio.Supervisor.call

    async def broken(*_: Any, **__: Any) -> Any:
        await trio.lowlevel.checkpoint()
        raise RuntimeError("a bug")

    async with serving() as served:
        monkeypatch.setattr(ztrio.Supervisor, "call", broken)
        with caplog.at_level(logging.ERROR, "ztrio_mcp"):
            await served.client.call(1, "echo", {"value": 1})
            answer = await served.client.reply(1)
        assert (-32603, "the server failed: RuntimeError") == (answer["error"]["code"], answer["error"]["message"])
        assert ["a bug"] == [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
        monkeypatch.setattr(ztrio.Supervisor, "call", whole)
        await served.client.call(2, "echo", {"value": 1})
        assert {"result": 1} == (await served.client.reply(2))["result"]["structuredContent"]


@pytest.mark.case("R22")
async def test_a_cancel_after_the_commit_and_before_the_answer(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancel read when the call has committed still means no answer, and the audit says that nobody got it."""
    whole = McpServer.call
    async with serving() as served:

        async def late(server: McpServer, call: Call, report: Any) -> dict[str, Any]:
            result = await whole(server, call, report)
            assert call.request.stop is not None
            call.request.stop()
            return result

        monkeypatch.setattr(McpServer, "call", late)
        await served.client.call(1, "put", {"text": "x", "out": "a.txt"})
        async with served.supervisor.audit.subscribe() as events:
            with trio.fail_after(30):
                async for event in events:
                    if event.event == "commit_unanswered":
                        break
        await served.client.ask(2, "ping")
        assert ["allow", "start", "commit", "commit_unanswered"] == await served.event_names(1)
        assert not [frame for frame in served.client.frames if frame.get("id") == 1]
