"""Requests that are no calls: ids and tokens on both sides, cancels, deaths, and what a new process is told again."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from tests.gateway.fakes import (
    FakeClient,
    FakeRequest,
    FakeUpstream,
    FakeWire,
    client_hello,
    connected,
    plain,
    upstream_hello,
)
from ztrio_mcp.gateway.catalogue import Catalogue
from ztrio_mcp.gateway.passing import Passing, capabilities_shown

LIST = {"tools": [{"name": "theirs", "inputSchema": {}}]}


class Box:
    """A client, a server, and the passing between them."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.client = FakeClient()
        self.wire = FakeWire()
        self.catalogue = Catalogue({"ztrio_x": b'{"name":"ztrio_x"}'}, lambda _tools: None)
        self.upstream = FakeUpstream()
        self.passing = Passing(
            self.client,  # type: ignore[arg-type]
            self.upstream,  # type: ignore[arg-type]
            self.catalogue,
            patience=30,
            nursery=nursery,
        )
        self.start()

    def start(self) -> None:
        self.wire = FakeWire()
        hello = upstream_hello("legacy")
        self.upstream.connection = connected(self.wire, hello, client_hello("legacy"))
        self.passing.tell_again(self.upstream.connection)

    def die(self) -> None:
        self.upstream.connection = None
        self.wire.end()

    def ask(self, method: str, params: Any = None) -> FakeRequest:
        request = FakeRequest(method, params)
        self.passing.request(request)  # type: ignore[arg-type]
        return request


@asynccontextmanager
async def passing() -> AsyncIterator[Box]:
    """A box, and everything that waits in it ends with it."""
    async with trio.open_nursery() as nursery:
        yield Box(nursery)
        nursery.cancel_scope.cancel()


@pytest.mark.case("R23")
async def test_a_request_passes_with_an_id_of_the_connection() -> None:
    """Parameters and answers pass byte for byte; only the id is another on each side."""
    async with passing() as box:
        request = box.ask("prompts/get", b'{ "name": "p", "n": 1000000000000000000000000000000 }')
        assert [bytes(request.params or b"")] == [each.data for each in box.wire.sent]
        box.wire.answer("prompts/get", b'{ "messages" : [ 1.50 ] }')
        assert b'{ "messages" : [ 1.50 ] }' == request.data
        failed = box.ask("prompts/get")
        box.wire.answer("prompts/get", error={"code": -1, "message": "no", "data": [10**30]})
        assert {"code": -1, "message": "no", "data": [10**30]} == failed.error


@pytest.mark.case("R23")
async def test_a_cancel_goes_to_the_server_under_the_connections_id() -> None:
    """The client's cancel of a request reaches the server once, and nothing is answered any more."""
    async with passing() as box:
        box.ask("prompts/list")
        request = box.ask("resources/read", {"uri": "a://b"})
        request.cancel("tired")
        assert [("notifications/cancelled", {"requestId": 2, "reason": "tired"})] == box.wire.told
        assert [2] == box.wire.forgotten


@pytest.mark.case("R23")
@pytest.mark.parametrize("token", ["mine", 1, 2**53 + 1])
async def test_progress_has_the_clients_token(token: Any) -> None:
    """The server sees a token of the connection, the client its own, and none once the request is answered."""
    async with passing() as box:
        request = box.ask("resources/read", {"uri": "a://b", "_meta": {"x": 1, "progressToken": token}})
        [sent] = box.wire.sent
        assert {"x": 1, "progressToken": sent.exchange.id} == sent.params["_meta"]
        assert sent.exchange.on_progress is not None
        tell: Callable[[Any], object] = sent.exchange.on_progress
        tell(b'{"progressToken":1,"progress":3}')
        assert [("notifications/progress", {"progressToken": token, "progress": 3})] == box.client.told
        box.wire.answer("resources/read")
        tell(b'{"progressToken":1,"progress":4}')
        assert 1 == len(box.client.told)
        assert request.result == {}


@pytest.mark.case("R26")
async def test_a_server_that_dies_answers_with_an_error_at_once() -> None:
    """Every request that the server had is answered, with a code that says why; none is repeated."""
    async with passing() as box:
        requests = [box.ask("prompts/list") for _ in range(3)]
        box.die()
        box.start()
        assert ["UPSTREAM_DIED"] * 3 == [request.error["data"]["code"] for request in requests]
        assert [] == box.wire.sent


async def test_a_server_that_is_not_ready_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    """A request waits for the next connection, as long as a start may take; then it says what is the matter."""
    del autojump_clock
    async with passing() as box:
        box.die()
        passed, left = box.ask("prompts/list"), box.ask("prompts/get")
        await trio.sleep(10)
        left.cancel()
        box.start()
        await trio.sleep(1)
        box.wire.answer("prompts/list", {"prompts": []})
        assert {"prompts": []} == passed.result
        assert [] == box.wire.of("prompts/get")
        box.die()
        late = box.ask("prompts/list")
        await trio.sleep(31)
        assert "UPSTREAM_UNAVAILABLE" == late.error["data"]["code"]


async def test_a_new_process_is_told_what_the_last_one_was_told() -> None:
    """Levels and subscriptions that were granted are told again, once each; what was left or refused is not."""
    async with passing() as box:
        for method, params, granted in (
            ("logging/setLevel", {"level": "info"}, True),
            ("logging/setLevel", {"level": "error"}, True),
            ("resources/subscribe", {"uri": "a://1"}, True),
            ("resources/subscribe", {"uri": "a://2"}, True),
            ("resources/subscribe", {"uri": "a://3"}, False),
            ("resources/unsubscribe", {"uri": "a://2"}, True),
            ("logging/setLevel", [1], True),
        ):
            box.ask(method, params)
            box.wire.answer(method, error=None if granted else {"code": -1, "message": "no"})
        box.die()
        box.start()
        again = [(each.exchange.method, each.params) for each in box.wire.sent]
        assert [("logging/setLevel", {"level": "error"}), ("resources/subscribe", {"uri": "a://1"})] == again
        box.wire.answer("resources/subscribe")
        assert [("notifications/resources/updated", {"uri": "a://1"})] == box.client.told


@pytest.mark.case("R20")
async def test_a_busy_server_does_not_lose_its_tools(autojump_clock: trio.testing.MockClock) -> None:
    """A list that does not come in five seconds is answered with the last good one, which counts as stale from then."""
    del autojump_clock
    async with passing() as box:
        async with trio.open_nursery() as nursery:
            assert box.upstream.connection is not None
            nursery.start_soon(box.catalogue.refresh, box.upstream.connection, None)
            await trio.testing.wait_all_tasks_blocked()
            box.wire.answer("tools/list", LIST)
        request = box.ask("tools/list")
        await trio.sleep(4.9)
        assert request.in_flight
        await trio.sleep(0.2)
        assert ["theirs", "ztrio_x"] == [tool["name"] for tool in request.result["tools"]]
        assert box.catalogue.stale
        box.die()
        down = box.ask("tools/list")
        assert request.data == down.data


async def test_a_list_that_comes_in_time_leaves_nothing_behind() -> None:
    """Whoever would have answered from memory is gone as soon as the server has answered, died or was let go."""
    async with passing() as box:
        for how in ("answer", "cancel", "die"):
            request = box.ask("tools/list")
            await trio.testing.wait_all_tasks_blocked()
            if how == "answer":
                box.wire.answer("tools/list", LIST)
            elif how == "cancel":
                request.cancel()
            else:
                box.die()
            await trio.testing.wait_all_tasks_blocked()
            assert {} == box.passing._lists


def test_what_the_server_is_comes_through_with_our_tools() -> None:
    """A server without tools has some behind the gateway; everything else that it says of itself stays."""
    hello = upstream_hello("legacy", {"prompts": {"x": 1}, "tools": {"y": 2}})
    shown = plain(capabilities_shown(hello))
    assert {"prompts": {"x": 1}, "tools": {"y": 2, "listChanged": True}} == shown["capabilities"]
    assert plain(hello.raw) == {**shown, "capabilities": plain(hello.raw)["capabilities"]}
    assert {"tools": {"listChanged": True}} == plain(capabilities_shown(upstream_hello("legacy", {})))["capabilities"]
