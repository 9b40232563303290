"""Pending calls over MCP: in errors, in warnings, and by the tools that manage them. A real server on pipes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import ztrio
from tests.kit.raw_client import MODERN_META, RawClient
from ztrio.pending import PENDING_CALL_SCHEMA

from .conftest import HERE, Serving

UNKNOWN = "pc_aaaaaaaaaaaaaaaa"
NAMES = ("ztrio_pending_calls", "ztrio_pending_call", "ztrio_cancel_pending_call")


@pytest.fixture(scope="module")
def mail() -> ztrio.Toolbox:
    """The tools of `pending_box.py`."""
    return ztrio.load_toolbox(str(HERE / "pending_box.py"))


class Client:
    """Calls tools of one era, and checks what every answer must be."""

    def __init__(self, client: RawClient, envelope: Mapping[str, Any]) -> None:
        self._client = client
        self._envelope = envelope
        self._ids = 0

    async def call(
        self, tool: str, arguments: Mapping[str, Any] | None = None, reconciles: Any = (), **meta: Any
    ) -> dict[str, Any]:
        """The result of a call."""
        self._ids += 1
        if reconciles != ():
            meta["ztrio/reconciles"] = reconciles
        params = {"name": tool, "arguments": arguments or {}, "_meta": {**self._envelope, **meta}}
        answer = await self._client.ask(self._ids, "tools/call", params)
        result: dict[str, Any] = answer["result"]
        for shown in (result["structuredContent"].get("pending_call"), result["_meta"].get("ztrio/pending_call")):
            if shown is not None:
                conforms(shown)
        return result

    async def lose(self) -> dict[str, Any]:
        """A call that is stopped in the middle; its result."""
        return await self.call("send", {"seconds": 60}, **{"ztrio/timeout": 0.2})


def conforms(shown: Any) -> None:
    """Assert that it is what every surface shows."""
    jsonschema.validate(shown, dict(PENDING_CALL_SCHEMA), format_checker=jsonschema.FormatChecker())


ERAS = [pytest.param({}, id="2025-11-25"), pytest.param(MODERN_META, id="2026-07-28")]


@pytest.mark.req("P54", "P56")
@pytest.mark.parametrize("envelope", ERAS)
async def test_a_lost_call(serving: Serving, mail: ztrio.Toolbox, envelope: Mapping[str, Any]) -> None:
    """The error carries the pending call and says what to do; list and lookup show the same; a read settles it."""
    async with serving(toolbox=mail, handshake=not envelope) as served:
        client = Client(served.client, envelope)
        error = await client.lose()
        shown = error["structuredContent"]["pending_call"]
        assert (True, "CALL_UNRESOLVED") == (error["isError"], error["structuredContent"]["error"]["code"])
        assert "pending_call" not in error["structuredContent"]["error"]
        assert shown == error["_meta"]["ztrio/pending_call"]
        assert ("unresolved", "external_effects", "local:mail") == (shown["state"], shown["reason"], shown["server"])
        [text] = [item["text"] for item in error["content"]]
        assert (
            "was stopped in the middle: what it does elsewhere may have happened, or not. Do not repeat it blindly. "
            "What you can do: wait until it is settled; look with sent and name the call" in text
        )

        warned = await client.call("send")
        assert [shown["call_id"]] == [each["call_id"] for each in warned["_meta"]["pending_call_warning"]["pending"]]
        listed = await client.call("ztrio_pending_calls")
        assert {"pending_calls": [shown]} == listed["structuredContent"] == json.loads(listed["content"][0]["text"])
        found = await client.call("ztrio_pending_call", {"call_id": shown["call_id"]})
        assert {"pending_call": shown} == found["structuredContent"]
        cancelled = (await client.call("ztrio_cancel_pending_call", {"call_id": shown["call_id"]}))["structuredContent"]
        assert {"call_id", "state", "cancel_sent", "cancel_error", "note"} == set(cancelled)
        assert ("unresolved", False) == (cancelled["state"], cancelled["cancel_sent"])

        await client.call("sent", reconciles=[shown["call_id"]])
        [settled] = (await client.call("ztrio_pending_calls"))["structuredContent"]["pending_calls"]
        assert ("reconciled", False, []) == (settled["state"], settled["gating"], settled["resolve"])
        assert "pending_call_warning" not in (await client.call("send"))["_meta"]


@pytest.mark.req("P34", "P54")
@pytest.mark.case("R27")
@pytest.mark.parametrize("envelope", ERAS)
async def test_a_refused_call(serving: Serving, mail: ztrio.Toolbox, envelope: Mapping[str, Any]) -> None:
    """In `enforce` a blind repeat is an error result with the call that is in the way, and never runs."""
    async with serving(toolbox=mail, handshake=not envelope, gate="enforce") as served:
        client = Client(served.client, envelope)
        lost = (await client.lose())["structuredContent"]["pending_call"]
        refused = await client.call("send")
        error = refused["structuredContent"]["error"]
        assert (True, "PENDING_CALL_UNRESOLVED", "not_started") == (refused["isError"], error["code"], error["outcome"])
        assert lost == refused["structuredContent"]["pending_call"] == refused["_meta"]["ztrio/pending_call"]
        assert lost["call_id"] in refused["content"][0]["text"]
        assert "isError" in (ok := await client.call("sent"))
        assert not ok["isError"]


@pytest.mark.req("P49", "P56")
@pytest.mark.parametrize("envelope", ERAS)
async def test_what_the_tools_refuse(serving: Serving, mail: ztrio.Toolbox, envelope: Mapping[str, Any]) -> None:
    """Unknown ids and wrong arguments are errors with a code; ids that are none are refused before anything runs."""
    async with serving(toolbox=mail, handshake=not envelope) as served:
        client = Client(served.client, envelope)
        for tool in NAMES[1:]:
            for arguments, code in (
                ({"call_id": UNKNOWN}, "PENDING_CALL_NOT_FOUND"),
                ({"call_id": "é"}, "PENDING_CALL_NOT_FOUND"),
                ({}, "INVALID_ARGUMENTS"),
                ({"call_id": 7}, "INVALID_ARGUMENTS"),
                ({"call_id": UNKNOWN, "more": "x"}, "INVALID_ARGUMENTS"),
            ):
                result = await client.call(tool, arguments)
                assert (True, code) == (result["isError"], result["structuredContent"]["error"]["code"])
        assert (await client.call("ztrio_pending_calls", {"more": "x"}))["isError"]
        for wrong in ([UNKNOWN] * 17, ["pc_1"], "pc_", 7, None, [None]):
            result = await client.call("sent", reconciles=wrong)
            assert "INVALID_ARGUMENTS" == result["structuredContent"]["error"]["code"]
        assert not (await client.call("sent", reconciles=[UNKNOWN]))["isError"]


@pytest.mark.req("P56")
async def test_the_tools_are_listed(serving: Serving, mail: ztrio.Toolbox) -> None:
    """Each says what it takes and gives; what they give conforms, also where there is nothing to show."""
    async with serving(toolbox=mail) as served:
        listed = (await served.client.ask("list", "tools/list"))["result"]["tools"]
        tools = {tool["name"]: tool for tool in listed}
        assert [True, True, False] == [tools[name]["annotations"]["readOnlyHint"] for name in NAMES]
        client = Client(served.client, {})
        shown = (await client.lose())["structuredContent"]["pending_call"]
        for name, arguments in zip(
            NAMES, ({}, {"call_id": shown["call_id"]}, {"call_id": shown["call_id"]}), strict=True
        ):
            jsonschema.Draft202012Validator.check_schema(tools[name]["outputSchema"])
            jsonschema.validate(arguments, tools[name]["inputSchema"])
            result = await client.call(name, arguments)
            jsonschema.validate(result["structuredContent"], tools[name]["outputSchema"])


def test_their_names_are_taken() -> None:
    """A toolbox cannot have a tool of such a name."""
    toolbox = ztrio.Toolbox("box")
    for name in NAMES:
        with pytest.raises(ztrio.ToolboxError, match=name):
            toolbox.tool(capability="read", name=name)(conforms)


async def test_tools_after_a_reload(serving: Serving, tmp_path: Path) -> None:
    """A client is told that its list of tools is old, finds those that were loaded anew, and can call them."""
    source = tmp_path / "fresh_tools.py"
    text = (HERE / "pending_box.py").read_text()
    source.write_text(text)
    async with serving(toolbox=ztrio.load_toolbox(str(source))) as served:
        client = Client(served.client, {})
        before = {tool["name"] for tool in (await served.client.ask("a", "tools/list"))["result"]["tools"]}
        source.write_text(text.replace("async def sent", "async def outbox"))
        await served.supervisor.reload()
        await served.client.take(lambda frame: frame.get("method") == "notifications/tools/list_changed")
        after = {tool["name"] for tool in (await served.client.ask("b", "tools/list"))["result"]["tools"]}
        assert (before - after, after - before) == ({"sent"}, {"outbox"})
        assert not (await client.call("outbox"))["isError"]


@pytest.mark.parametrize("envelope", ERAS)
async def test_who_is_told_of_a_reload(serving: Serving, tmp_path: Path, envelope: Mapping[str, Any]) -> None:
    """Told is a client that shook hands, and only of a list that is another; other clients are not to keep a list."""
    source = tmp_path / "fresh_tools.py"
    text = (HERE / "pending_box.py").read_text()
    source.write_text(text)
    params = {"_meta": envelope} if envelope else None
    toolbox = ztrio.load_toolbox(str(source))
    async with serving(toolbox=toolbox, handshake=False) as served:
        listing = ("a", "tools/list", params)
        if envelope:
            assert 0 == (await served.client.ask(*listing))["result"]["ttlMs"]
        else:
            answer = await served.client.initialize()
            assert {"listChanged": True} == answer["result"]["capabilities"]["tools"]
        await served.supervisor.reload()  # what is listed has not changed
        source.write_text(text.replace("async def sent", "async def outbox"))
        await served.supervisor.reload()
        source.write_text(text)
        await served.supervisor.reload()
        await served.client.ask(*listing)
        told = [frame for frame in served.client.frames if "method" in frame]
        message = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        assert ([] if envelope else [message] * 2) == told
