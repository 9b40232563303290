"""What a server tells by itself, to clients of both eras: streams, subscriptions and what a restart does to them."""

from typing import Any

import pytest
from mcp_types import methods

from tests.gateway.fakes import (
    ENVELOPE,
    STREAM,
    VERSIONS,
    FakeClient,
    FakeRequest,
    FakeWire,
    client_hello,
    connected,
    plain,
    raw,
    upstream_hello,
)
from ztrio_mcp.gateway.crossing import cross
from ztrio_mcp.gateway.eras import Translator
from ztrio_mcp.gateway.listening import Listening
from ztrio_mcp.gateway.translated import TranslatedWire
from ztrio_mcp.gateway.upstream import Connection

LISTEN = "subscriptions/listen"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
UPDATED = "notifications/resources/updated"
TOOLS = "notifications/tools/list_changed"
ABLE = {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "logging": {}}
ALL = {"toolsListChanged": True, "promptsListChanged": True, "resourceSubscriptions": ["a://b"]}


class Between:
    """A client, a server, and what is between them."""

    def __init__(self, client: str, server: str) -> None:
        self.client = FakeClient()
        self.hello = client_hello(client)
        self.server = server
        self.listening = Listening(self.client)  # type: ignore[arg-type]
        self.wire = FakeWire()
        self.crossing: TranslatedWire | None = None
        self.connection = self.start()

    def start(self, first: int = 1) -> Connection:
        """The server starts, for the first time or again."""
        self.wire = FakeWire()
        self.wire.next_id = first
        said = upstream_hello(self.server, ABLE)
        translator = Translator(self.hello, said)
        self.crossing = cross(self.wire, translator, said)
        if self.crossing is not None:
            self.crossing.deliver = self.listening.notification
            self.crossing.begin()
        self.connection = connected(self.crossing or self.wire, translator.seen("s"), self.hello)
        self.listening.ready(self.connection)
        return self.connection

    def restart(self) -> None:
        self.wire.end()
        self.listening.lost()
        self.start(100)

    def tells(self, method: str, params: Any = None) -> None:
        """The server tells something."""
        told = None if params is None else raw(params)
        pairs = [(method, told)] if self.crossing is None else self.crossing.incoming(method, told)
        for said, about in pairs:
            self.listening.notification(said, about)

    def heard(self) -> list[tuple[str, Any]]:
        """What the client was told since the last time, each of it as the SDK's model of its era wants it."""
        told, self.client.told = self.client.told, []
        for method, params in told:
            row = methods.SERVER_NOTIFICATIONS[method, VERSIONS[self.hello.era]]
            row.model_validate({"jsonrpc": "2.0", "method": method} | ({} if params is None else {"params": params}))
        return told

    def asks(self, method: str, params: Any = None) -> FakeRequest:
        """The client asks something that is not a stream."""
        request = FakeRequest(method, params)
        self.connection.peer.request(
            method,
            request.params,
            on_response=lambda got: (
                request.answer(got.result) if got.result is not None else request.fail(got.error or b"")
            ),
            on_ended=lambda _exchange, _ending: request.refuse(0, "ended"),
        )
        return request

    def listens(self, wanted: Any, number: int | str = "mine") -> FakeRequest:
        """The client opens a stream."""
        params = {"notifications": wanted, "_meta": plain(self.hello.params)["_meta"]}
        methods.validate_client_request(LISTEN, VERSIONS["modern"], params)
        request = FakeRequest(LISTEN, params, id=number)
        self.listening.request(request)  # type: ignore[arg-type]
        return request


def on(number: int | str, **params: Any) -> dict[str, Any]:
    """Parameters of what comes on a stream."""
    return {**params, "_meta": {STREAM: number}}


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_in_one_era_everything_passes_as_it_is(era: str) -> None:
    """What is no part of a stream reaches the client untouched, also where a text only speaks of streams."""
    between = Between(era, era)
    between.tells("notifications/message", {"level": "info", "data": STREAM})
    assert [("notifications/message", {"level": "info", "data": STREAM})] == between.heard()


@pytest.mark.case("R47")
def test_progress_of_nobody_is_dropped() -> None:
    """A token of the connection that belongs to no request is not shown: the client may have given the same one."""
    between = Between("legacy", "legacy")
    between.tells("notifications/progress", {"progressToken": 3, "progress": 1})
    assert [] == between.heard()


@pytest.mark.case("R23")
def test_a_stream_has_the_clients_id_here_and_the_connections_there() -> None:
    """Acknowledgement, changes and the end of a stream come under the id that the client knows."""
    between = Between("modern", "modern")
    request = between.listens(ALL)
    number = between.wire.of(LISTEN)[0].exchange.id
    assert plain(request.params) == between.wire.of(LISTEN)[0].params
    between.tells(ACKNOWLEDGED, on(number, notifications=ALL))
    between.tells(TOOLS, on(number))
    between.tells(TOOLS, on(number + 50))
    assert [(ACKNOWLEDGED, on("mine", notifications=ALL)), (TOOLS, on("mine"))] == between.heard()
    between.wire.answer(LISTEN, {"resultType": "complete", **on(number)})
    methods.validate_server_result(LISTEN, VERSIONS["modern"], request.result)
    assert "mine" == request.result["_meta"][STREAM]


@pytest.mark.case("R23")
def test_a_stream_that_the_client_leaves_ends_at_the_server() -> None:
    """A cancel of the client's is told to the server once, under the connection's id."""
    between = Between("modern", "modern")
    between.listens(ALL).cancel("enough")
    number = between.wire.of(LISTEN)[0].exchange.id
    assert [("notifications/cancelled", {"requestId": number, "reason": "enough"})] == between.wire.told
    between.tells(TOOLS, on(number))
    assert [] == between.heard()


def test_a_stream_that_the_server_cancels_is_over() -> None:
    """The client gets the end of its stream, under its own id."""
    between = Between("modern", "modern")
    request = between.listens(ALL)
    number = between.wire.of(LISTEN)[0].exchange.id
    assert not between.listening.ended(raw({"requestId": number + 1}))
    assert between.listening.ended(raw({"requestId": number}))
    methods.validate_server_result(LISTEN, VERSIONS["modern"], request.result)


@pytest.mark.parametrize("server", ["legacy", "modern"])
def test_a_stream_outlives_the_servers_process(server: str) -> None:
    """A stream is opened again with the next process, is acknowledged once, and everything in it counts as changed."""
    between = Between("modern", server)
    wanted = {"toolsListChanged": True, "resourceSubscriptions": ["a://b"]}
    request = between.listens(wanted)
    for _ in range(2):
        if server == "modern":
            between.tells(ACKNOWLEDGED, on(between.wire.of(LISTEN)[0].exchange.id, notifications=wanted))
        else:
            between.wire.answer("resources/subscribe")
            between.wire.answer("ping")
        if not between.wire.closed and between.wire.next_id < 100:
            assert [(ACKNOWLEDGED, on("mine", notifications=wanted))] == between.heard()
            between.restart()
    assert [(TOOLS, on("mine")), (UPDATED, on("mine", uri="a://b"))] == between.heard()
    assert request.in_flight


def test_a_legacy_client_learns_that_lists_may_be_others() -> None:
    """After a restart the lists of the server count as changed; at the first start nothing does."""
    between = Between("legacy", "legacy")
    assert [] == between.heard()
    between.restart()
    assert [(TOOLS, None)] == between.heard()


def test_a_legacy_client_hears_a_modern_server() -> None:
    """One stream of ours brings the changes, without a trace of the stream; logs pass as they are."""
    between = Between("legacy", "modern")
    [stream] = between.wire.of(LISTEN)
    methods.validate_client_request(LISTEN, VERSIONS["modern"], stream.params)
    assert {"toolsListChanged": True} == stream.params["notifications"]
    number = stream.exchange.id
    between.tells(ACKNOWLEDGED, on(number, notifications={"toolsListChanged": True}))
    between.tells(TOOLS, on(number))
    between.tells(UPDATED, {"uri": "a://b", "_meta": {STREAM: number, "x": 1}})
    between.tells("notifications/message", {"level": "info", "data": 1})
    assert [
        (TOOLS, None),
        (UPDATED, {"uri": "a://b", "_meta": {"x": 1}}),
        ("notifications/message", {"level": "info", "data": 1}),
    ] == between.heard()


def test_a_legacy_client_subscribes_at_a_modern_server() -> None:
    """A subscription is answered when it is acknowledged; the new stream is opened before the old one is let go."""
    between = Between("legacy", "modern")
    request = between.asks("resources/subscribe", {"uri": "a://b"})
    old, new = between.wire.of(LISTEN)
    assert ["a://b"] == new.params["notifications"]["resourceSubscriptions"]
    assert [("notifications/cancelled", {"requestId": old.exchange.id})] == between.wire.told
    assert request.in_flight
    between.tells(ACKNOWLEDGED, on(old.exchange.id, notifications=old.params["notifications"]))
    assert request.in_flight, "that was the old one"
    between.tells(ACKNOWLEDGED, on(new.exchange.id, notifications=new.params["notifications"]))
    assert {} == request.result
    assert {} == between.asks("resources/unsubscribe", {"uri": "a://b"}).result
    assert "resourceSubscriptions" not in between.wire.of(LISTEN)[-1].params["notifications"]


def test_two_subscriptions_at_once_are_both_answered() -> None:
    """The second replaces the stream of the first before that is acknowledged, and carries both."""
    between = Between("legacy", "modern")
    first, second = (between.asks("resources/subscribe", {"uri": uri}) for uri in ("a://1", "a://2"))
    stream = between.wire.of(LISTEN)[-1]
    assert ["a://1", "a://2"] == stream.params["notifications"]["resourceSubscriptions"]
    between.tells(ACKNOWLEDGED, on(stream.exchange.id, notifications={"resourceSubscriptions": ["a://2"]}))
    assert ({}, None) == (second.result, first.result)
    assert "a://1" in first.error["message"]


@pytest.mark.parametrize("how", ["refused", "cancelled", "ended"])
def test_a_subscription_that_cannot_be_had_is_an_error(how: str) -> None:
    """Whatever becomes of the stream, whoever waits for it is answered, and the server is not asked for ever."""
    between = Between("legacy", "modern")
    request = between.asks("resources/subscribe", {"uri": "a://b"})
    before = len(between.wire.sent)
    if how == "refused":
        between.wire.answer(LISTEN, error={"code": -32601, "message": "no"})
    elif how == "cancelled":
        between.tells("notifications/cancelled", {"requestId": between.wire.of(LISTEN)[-1].exchange.id})
    else:
        between.wire.end()
    assert request.error is not None
    assert before == len(between.wire.sent)


def test_a_modern_client_listens_to_a_legacy_server() -> None:
    """Each stream gets what it asked for and no more; the server is subscribed to once for both."""
    between = Between("modern", "legacy")
    between.listens(ALL, 1)
    between.listens({"resourceSubscriptions": ["a://b"]}, 2)
    assert 1 == len(between.wire.of("resources/subscribe"))
    assert [] == between.heard(), "not before the server has answered"
    between.wire.answer("resources/subscribe")
    for index in (0, 1):
        between.wire.answer("ping", index=index)
    honoured = {"toolsListChanged": True, "resourceSubscriptions": ["a://b"]}
    acknowledged = [(ACKNOWLEDGED, on(1, notifications=honoured))]
    acknowledged += [(ACKNOWLEDGED, on(2, notifications={"resourceSubscriptions": ["a://b"]}))]
    assert acknowledged == between.heard()
    between.tells(TOOLS)
    between.tells(UPDATED, {"uri": "a://b"})
    between.tells(UPDATED, {"uri": "a://c"})
    between.tells("notifications/message", {"level": "info", "data": 1})
    assert [(TOOLS, on(1)), (UPDATED, on(1, uri="a://b")), (UPDATED, on(2, uri="a://b"))] == between.heard()


def test_a_resource_is_left_with_the_last_stream_that_wants_it() -> None:
    """The server is told that nobody listens any more, and not that something was cancelled that it never saw."""
    between = Between("modern", "legacy")
    streams = [between.listens({"resourceSubscriptions": ["a://b"]}, number) for number in (1, 2)]
    streams[0].cancel()
    assert [] == between.wire.of("resources/unsubscribe")
    streams[1].cancel()
    assert [{"uri": "a://b"}] == [each.params for each in between.wire.of("resources/unsubscribe")]
    assert [] == between.wire.told
    between.wire.answer("ping")
    assert [] == between.heard()


def test_a_level_is_said_with_each_request() -> None:
    """What a legacy client sets once, a modern server hears in each envelope from then on."""
    between = Between("legacy", "modern")
    assert {} == between.asks("logging/setLevel", {"level": "error"}).result
    between.asks("prompts/list")
    assert "error" == between.wire.of("prompts/list")[0].params["_meta"][ENVELOPE + "logLevel"]


@pytest.mark.parametrize(
    ("client", "method", "params", "code"),
    [
        ("legacy", "server/discover", None, -32601),
        ("legacy", "resources/subscribe", {}, -32602),
        ("legacy", "logging/setLevel", [1], -32602),
        ("legacy", "tasks/get", {"taskId": "1"}, -32603),
        ("modern", "resources/subscribe", {"uri": "a://b"}, -32601),
        ("modern", "logging/setLevel", {"level": "info"}, -32601),
        ("modern", "initialize", {}, -32601),
        ("modern", "tasks/get", {"taskId": "1"}, -32603),
    ],
)
def test_what_the_other_era_does_not_have_is_refused(client: str, method: str, params: Any, code: int) -> None:
    """A request that cannot be said to the server gets an error at once, and nothing is sent."""
    between = Between(client, "modern" if client == "legacy" else "legacy")
    before = len(between.wire.sent)
    assert code == between.asks(method, params).error["code"]
    assert before == len(between.wire.sent)


@pytest.mark.parametrize(
    ("client", "ping", "there"), [("legacy", "ping", "server/discover"), ("modern", "server/discover", "ping")]
)
def test_a_sign_of_life_is_asked_for_in_the_servers_era(client: str, ping: str, there: str) -> None:
    """Health is asked after in the client's era, and answered by whatever the server has for that."""
    between = Between(client, "modern" if client == "legacy" else "legacy")
    request = between.asks(ping)
    between.wire.answer(there, error={"code": -32000, "message": "busy"})
    methods.validate_server_result(ping, VERSIONS[client], request.result)


@pytest.mark.parametrize("method", ["notifications/initialized", "notifications/roots/list_changed"])
def test_what_a_modern_server_has_no_word_for_is_not_told(method: str) -> None:
    """Notifications of the client's that the server's era does not have stay here."""
    between = Between("legacy", "modern")
    between.connection.peer.notify(method, None)
    between.connection.peer.notify("notifications/cancelled", raw({"requestId": 3}), front=True)
    assert [("notifications/cancelled", {"requestId": 3})] == between.wire.told
