"""What passes between a client of one era and a server of the other, held against the SDK's own models."""

from typing import Any

import mcp_types
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import subscriptions
from mcp_types import methods, version

from tests.gateway.fakes import ENVELOPE, VERSIONS, client_hello, plain, raw, upstream_hello
from ztrio_mcp.gateway import eras
from ztrio_mcp.gateway.eras import CrossEra, Translator

CONTENT = {"content": [{"type": "text", "text": "x"}]}
RESULTS: dict[str, dict[str, Any]] = {
    "tools/call": CONTENT,
    "tools/list": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}], "nextCursor": "c"},
    "resources/list": {"resources": [{"name": "r", "uri": "a://b"}]},
    "resources/templates/list": {"resourceTemplates": []},
    "resources/read": {"contents": [{"uri": "a://b", "text": "t"}]},
    "prompts/list": {"prompts": []},
    "prompts/get": {"messages": []},
    "completion/complete": {"completion": {"values": []}},
}
PARAMS: dict[str, dict[str, Any]] = {
    "tools/call": {"name": "t", "arguments": {"n": 10**30}},
    "tools/list": {},
    "resources/read": {"uri": "a://b"},
    "prompts/get": {"name": "p"},
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def between(client: str, server: str, **capabilities: Any) -> Translator:
    return Translator(client_hello(client, capabilities), upstream_hello(server))


def test_the_keys_are_the_protocols() -> None:
    """The names and numbers here are those of the SDK."""
    assert mcp_types.PROTOCOL_VERSION_META_KEY == eras.PROTOCOL_VERSION
    assert mcp_types.CLIENT_INFO_META_KEY == eras.CLIENT_INFO
    assert mcp_types.CLIENT_CAPABILITIES_META_KEY == eras.CLIENT_CAPABILITIES
    assert mcp_types.LOG_LEVEL_META_KEY == eras.LOG_LEVEL
    assert mcp_types.SERVER_INFO_META_KEY == eras.SERVER_INFO
    assert subscriptions.SUBSCRIPTION_ID_META_KEY == eras.SUBSCRIPTION_ID
    assert mcp_types.UNSUPPORTED_PROTOCOL_VERSION == eras.UNSUPPORTED_VERSION
    assert version.HANDSHAKE_PROTOCOL_VERSIONS == eras.LEGACY_VERSIONS
    assert version.MODERN_PROTOCOL_VERSIONS == eras.MODERN_VERSIONS
    assert methods.CACHEABLE_METHODS == eras._CACHEABLE


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_in_one_era_nothing_is_touched(era: str) -> None:
    """Parameters and results are the very objects that came."""
    translator = between(era, era)
    data = raw(b'{ "a" : 1e5 }')
    assert translator.same
    assert data is translator.params_up("tools/call", data)
    assert data is translator.result_down("tools/call", data)
    assert translator.params_up("tools/list", None) is None


@pytest.mark.parametrize("method", RESULTS)
@pytest.mark.parametrize("client", ["legacy", "modern"])
def test_results_are_of_the_clients_era(client: str, method: str) -> None:
    """A result of the other era becomes one that the SDK's model of the client's takes, and comes back the same."""
    server = "modern" if client == "legacy" else "legacy"
    there = (
        plain(between(server, client).result_down(method, raw(RESULTS[method])))
        if server == "modern"
        else RESULTS[method]
    )
    methods.validate_server_result(method, VERSIONS[server], there)
    down = plain(between(client, server).result_down(method, raw(there)))
    methods.validate_server_result(method, VERSIONS[client], down)
    added = {"resultType", "ttlMs", "cacheScope", "_meta"} if client == "modern" else set()
    assert RESULTS[method] == {key: value for key, value in down.items() if key not in added}


@pytest.mark.parametrize("method", PARAMS)
def test_parameters_are_of_the_servers_era(method: str) -> None:
    """An envelope is put into what a legacy client sends, and taken out of what a modern one sends."""
    up = plain(between("legacy", "modern", roots={}).params_up(method, raw(PARAMS[method])))
    methods.validate_client_request(method, VERSIONS["modern"], up)
    assert {} == up["_meta"][ENVELOPE + "clientCapabilities"]
    back = plain(between("modern", "legacy").params_up(method, raw(up)))
    assert PARAMS[method] == back


def test_metadata_of_others_passes() -> None:
    """Only keys of the envelope come and go; a trace or a token of somebody else stays where it is."""
    mine = {"_meta": {"traceparent": "t", "progressToken": 3, "io.modelcontextprotocol/other": 1}}
    up = plain(between("legacy", "modern").params_up("tools/list", raw(mine)))
    assert mine["_meta"].items() <= up["_meta"].items()
    assert mine == plain(between("modern", "legacy").params_up("tools/list", raw(up)))
    theirs = {**CONTENT, "_meta": {"a/b": 1}}
    down = plain(between("modern", "legacy").result_down("tools/call", raw(theirs)))
    assert {"name": "s", "version": "2"} == down["_meta"][ENVELOPE + "serverInfo"]
    assert theirs == plain(between("legacy", "modern").result_down("tools/call", raw(down)))


@given(value=json_values)
def test_values_keep_their_bytes(value: Any) -> None:
    """Whatever is in arguments and results, its bytes are the same on both sides."""
    data = b"[ %b, 1.50, 1000000000000000000000000000000 ]" % bytes(raw(value))
    for client, server in (("legacy", "modern"), ("modern", "legacy")):
        translator = between(client, server)
        assert data in bytes(translator.params_up("tools/call", b'{"name":"t","arguments":{"v":%b}}' % data) or b"")
        assert data in bytes(translator.result_down("tools/call", b'{"content":%b}' % data))


@pytest.mark.parametrize("kind", ["input_required", "task", "x/other"])
def test_what_a_legacy_client_cannot_read_is_refused(kind: str) -> None:
    """A type of result that the legacy era does not have is no result at all, and the words say what became of it."""
    with pytest.raises(CrossEra, match="not done"):
        between("legacy", "modern").result_down("tools/call", raw({"resultType": kind}))


def test_a_task_of_a_legacy_server_is_refused() -> None:
    """A task may run although the call has ended, and the words say so."""
    with pytest.raises(CrossEra, match="may be running"):
        between("modern", "legacy").result_down("tools/call", raw({"task": {"taskId": "1"}}))


@pytest.mark.parametrize("data", [b"[]", b"null", b'"x"'])
def test_what_is_no_result_is_shown_as_it_is(data: bytes) -> None:
    """A client sees what its server says, also where that is nonsense; parameters that are none are an error."""
    assert data == between("legacy", "modern").result_down("tools/call", data)
    with pytest.raises(msgspec.DecodeError):
        between("legacy", "modern").params_up("tools/call", data)


@pytest.mark.parametrize("client", ["legacy", "modern"])
def test_a_server_introduces_itself_in_the_clients_era(client: str) -> None:
    """What a server says of itself is what a server of the client's era says, by the SDK's model."""
    server = "modern" if client == "legacy" else "legacy"
    can: dict[str, Any] = {
        "tools": {},
        "logging": {},
        "tasks": {},
        "extensions": {"a/b": {}},
        "experimental": {"x": {}},
    }
    seen = Translator(client_hello(client), upstream_hello(server, can)).seen("n")
    method = "initialize" if client == "legacy" else "server/discover"
    methods.validate_server_result(method, VERSIONS[client], plain(seen.raw))
    assert (client, "be kind") == (seen.era, plain(seen.raw)["instructions"])
    assert "experimental" in seen.capabilities
    assert ("extensions" if client == "legacy" else "tasks") not in seen.capabilities


@pytest.mark.parametrize("client", ["legacy", "modern"])
def test_a_server_of_the_other_era_is_not_told_that_its_client_can_be_asked(client: str) -> None:
    """What the client can be asked for is left out of the introduction, so nothing is begun that cannot be ended."""
    can: dict[str, Any] = {"elicitation": {}, "sampling": {}, "roots": {}, "experimental": {"x": {}}}
    other = "modern" if client == "legacy" else "legacy"
    params = plain(client_hello(client, can).params_for("modern" if other == "modern" else "legacy"))
    method = "server/discover" if other == "modern" else "initialize"
    methods.validate_client_request(method, VERSIONS[other], params)
    told = params["_meta"][ENVELOPE + "clientCapabilities"] if other == "modern" else params["capabilities"]
    assert {"experimental": {"x": {}}} == told
