"""A client of one era and a real server of the other, with the gateway between them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from mcp_types.methods import validate_server_result

from tests.gateway.box import Box, code_of, gateway, pending_of
from tests.kit.raw_client import MODERN_META

LEGACY, MODERN = "2025-11-25", "2026-07-28"


async def modern(box: Box, method: str, **params: Any) -> dict[str, Any]:
    """A request of a modern client; its result, checked against the SDK's model."""
    result = (await box.ask(method, {**params, "_meta": MODERN_META}))["result"]
    validate_server_result(method, MODERN, result)
    assert isinstance(result, dict)
    return result


def sent(box: Box, method: str) -> list[Mapping[str, Any]]:
    """The `_meta` of the frames of a method that the server got."""
    return [(frame.get("params") or {}).get("_meta", {}) for frame in box.received(method)]


async def test_a_legacy_client_of_a_modern_server(tmp_path: Path) -> None:
    """It shakes hands, lists and calls as with a server of its own era, and the server sees a client of its own."""
    async with gateway(tmp_path, "modern", capabilities={"elicitation": {}}, timeout=0.5) as box:
        hello = box.client.frames[0]["result"]
        validate_server_result("initialize", LEGACY, hello)
        assert (LEGACY, "fake") == (hello["protocolVersion"], hello["serverInfo"]["name"])
        tools = (await box.ask("tools/list"))["result"]
        validate_server_result("tools/list", LEGACY, tools)
        assert {"tools", "nextCursor"} == tools.keys()
        found = await box.call("look", {"n": 10**30})
        validate_server_result("tools/call", LEGACY, found)
        assert {"n": 10**30} == found["echo"]
        assert "resultType" not in found
        assert [MODERN] == [meta["io.modelcontextprotocol/protocolVersion"] for meta in sent(box, "tools/call")]
        assert [{}] == [meta["io.modelcontextprotocol/clientCapabilities"] for meta in sent(box, "tools/call")]
        assert [] == box.received("notifications/initialized")
        assert "unresolved" == pending_of(await box.call("silent"))["state"]


async def test_what_a_legacy_client_cannot_be_told_is_refused_in_words(tmp_path: Path) -> None:
    """A call that wants input ends as an error that a model can read, and says that it is not done."""
    async with gateway(tmp_path, "modern") as box:
        found = await box.call("odd", {"kind": "input"})
        assert "CROSS_ERA" == code_of(found)
        assert "not done" in found["content"][0]["text"]
        assert [] == await box.pending()


async def test_a_modern_client_of_a_legacy_server(tmp_path: Path) -> None:
    """It discovers, lists and calls as with a server of its own era, and the server sees no envelope."""
    async with gateway(tmp_path, hello=False, timeout=0.5) as box:
        said = await modern(box, "server/discover")
        assert "fake" == said["_meta"]["io.modelcontextprotocol/serverInfo"]["name"]
        await modern(box, "tools/list")
        found = await modern(box, "tools/call", name="look", arguments={"n": 10**30})
        assert ({"n": 10**30}, "complete") == (found["echo"], found["resultType"])
        assert {} == box.received("initialize")[0]["params"]["capabilities"]
        assert not [key for meta in sent(box, "tools/call") for key in meta if key.startswith("io.modelcontext")]
        answer = await box.ask("logging/setLevel", {"level": "info", "_meta": MODERN_META})
        assert -32601 == answer["error"]["code"]


async def test_a_client_that_gives_up_asking_in_its_own_era(tmp_path: Path) -> None:
    """The first request decides the era; `initialize` after it is told so, in a way that an SDK understands."""
    async with gateway(tmp_path, "modern", hello=False) as box:
        await box.ask("server/discover", {"_meta": MODERN_META})
        error = (await box.ask("initialize", {"protocolVersion": LEGACY, "capabilities": {}}))["error"]
        assert (-32022, [MODERN]) == (error["code"], error["data"]["supported"])


@pytest.mark.parametrize("options", [(), ("modern",)])
async def test_a_batch_of_a_modern_client(tmp_path: Path, options: tuple[str, ...]) -> None:
    """The calls of a batch reach a server of either era in its own form."""
    async with gateway(tmp_path, *options, hello=False) as box:
        await box.ask("server/discover", {"_meta": MODERN_META})
        found = await modern(box, "tools/call", name="ztrio_batch", arguments={"calls": [{"tool": "look"}]})
        assert [True] == [each["ok"] for each in found["structuredContent"]["results"]]
        enveloped = ["io.modelcontextprotocol/protocolVersion" in meta for meta in sent(box, "tools/call")]
        assert [bool(options)] == enveloped
