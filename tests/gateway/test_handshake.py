"""Meeting a server: in the client's own era, in the other, and with one that does neither."""

from typing import Any

import pytest
import trio
import trio.testing

from tests.gateway.fakes import ENVELOPE, FakeRequest, FakeWire, client_hello, plain, upstream_hello
from ztrio.errors import UpstreamUnavailable
from ztrio_mcp.gateway.eras import UpstreamHello
from ztrio_mcp.gateway.handshake import hello_of, meet

NO_METHOD = {"code": -32601, "message": "no such thing"}
SAID = {era: plain(upstream_hello(era).raw) for era in ("legacy", "modern")}


class Meeting:
    """`meet` under way."""

    def __init__(self, era: str) -> None:
        self.client = client_hello(era, {"roots": {}})
        self.wire = FakeWire()
        self.hello: UpstreamHello | None = None
        self.error: UpstreamUnavailable | None = None

    async def run(self) -> None:
        try:
            self.hello = await meet(self.wire, self.client, "srv")
        except UpstreamUnavailable as error:
            self.error = error

    async def does(self, *steps: tuple[str, Any]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.run)
            for method, answer in steps:
                await trio.testing.wait_all_tasks_blocked()
                if method == "wait":
                    await trio.sleep(answer)
                elif method == "end":
                    self.wire.end()
                else:
                    self.wire.answer(method, **answer)

    @property
    def asked(self) -> list[str]:
        return [each.exchange.method for each in self.wire.sent]


async def test_a_legacy_client_uses_its_own_words() -> None:
    """`initialize` carries the client's parameters byte for byte, and the server is told that it is initialized."""
    meeting = Meeting("legacy")
    await meeting.does(("initialize", {"result": SAID["legacy"]}))
    assert [meeting.client.params] == [each.data for each in meeting.wire.sent]
    assert [("notifications/initialized", None)] == meeting.wire.told
    assert meeting.hello is not None
    assert ("legacy", True) == (meeting.hello.era, meeting.hello.able("tools"))


@pytest.mark.parametrize("code", [-32601, -32600, -32602, -32022])
async def test_a_legacy_client_meets_a_modern_server(code: int) -> None:
    """A server that does not know `initialize` is asked in the later era, and is told nothing of the earlier one."""
    meeting = Meeting("legacy")
    refusal = {"error": {"code": code, "message": "no"}}
    await meeting.does(("initialize", refusal), ("server/discover", {"result": SAID["modern"]}))
    assert meeting.hello is not None
    assert "modern" == meeting.hello.era
    assert [] == meeting.wire.told
    assert {} == meeting.wire.of("server/discover")[0].params["_meta"][ENVELOPE + "clientCapabilities"]


async def test_a_modern_client_meets_a_legacy_server() -> None:
    """A server that does not know `server/discover` is initialized."""
    meeting = Meeting("modern")
    await meeting.does(("server/discover", {"error": NO_METHOD}), ("initialize", {"result": SAID["legacy"]}))
    assert meeting.hello is not None
    assert "legacy" == meeting.hello.era
    assert [("notifications/initialized", None)] == meeting.wire.told


async def test_a_server_that_is_silent_is_initialized_too(autojump_clock: trio.testing.MockClock) -> None:
    """After two seconds without a word both questions are open, and the first result decides."""
    del autojump_clock
    meeting = Meeting("modern")
    await meeting.does(("wait", 1.9), ("wait", 0.2), ("initialize", {"result": SAID["legacy"]}))
    assert ["server/discover", "initialize"] == meeting.asked
    assert meeting.hello is not None
    assert "legacy" == meeting.hello.era


@pytest.mark.case("R17")
async def test_a_slow_modern_server_is_still_met_and_initialize_is_never_cancelled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """An answer after the other question was put still counts; that other question is let go without a word."""
    del autojump_clock
    meeting = Meeting("modern")
    await meeting.does(("wait", 30), ("server/discover", {"result": SAID["modern"]}))
    assert meeting.hello is not None
    assert "modern" == meeting.hello.era
    assert [] == meeting.wire.told
    assert [each.exchange.id for each in meeting.wire.of("initialize")] == meeting.wire.forgotten


@pytest.mark.case("R17")
async def test_a_handshake_that_is_given_up_tells_the_server_nothing() -> None:
    """Whoever stops waiting for `initialize` sends no cancel for it."""
    wire = FakeWire()
    with trio.move_on_after(0) as scope:
        await meet(wire, client_hello("legacy"), "srv")
    assert scope.cancelled_caught
    assert [] == wire.told


async def test_discovery_that_names_no_modern_version_is_no_answer() -> None:
    """A server that answers `server/discover` and speaks earlier versions only is initialized."""
    meeting = Meeting("modern")
    old = {**SAID["modern"], "supportedVersions": ["2025-11-25"]}
    await meeting.does(("server/discover", {"result": old}), ("initialize", {"result": SAID["legacy"]}))
    assert meeting.hello is not None
    assert "legacy" == meeting.hello.era


async def test_a_refusal_names_the_server_and_what_it_said() -> None:
    """What is against both questions is in the error, in the order in which it was said."""
    meeting = Meeting("modern")
    await meeting.does(
        ("server/discover", {"error": NO_METHOD}), ("initialize", {"error": {"code": 1, "message": "paid"}})
    )
    assert meeting.error is not None
    assert (
        "srv has refused server/discover (no such thing) and has refused initialize (paid). Nothing was sent."
        == meeting.error.message
    )


async def test_a_refusal_of_this_client_is_no_reason_to_ask_again() -> None:
    """A server that knows `initialize` and does not want this client is not asked in the other era."""
    meeting = Meeting("legacy")
    await meeting.does(("initialize", {"error": {"code": -32000, "message": "paid"}}))
    assert ["initialize"] == meeting.asked
    assert meeting.error is not None
    assert "paid" in meeting.error.message


@pytest.mark.parametrize("result", [b"[]", b"null", b"7"])
async def test_what_is_no_result_is_a_refusal(result: bytes) -> None:
    """An answer that is no object ends in words, not in a failure of the gateway."""
    meeting = Meeting("legacy")
    await meeting.does(("initialize", {"result": result}))
    assert meeting.error is not None


async def test_a_server_that_ends_first_is_not_asked_again() -> None:
    """A connection that ends while the server is asked is an error that says so."""
    for era in ("legacy", "modern"):
        meeting = Meeting(era)
        await meeting.does(("end", None))
        assert meeting.error is not None
        assert "ended before it had answered" in meeting.error.message
        assert 1 == len(meeting.asked)


@pytest.mark.parametrize(
    ("method", "params", "era"),
    [
        ("initialize", plain(client_hello("legacy").params), "legacy"),
        ("initialize", None, "legacy"),
        ("tools/list", plain(client_hello("modern").params), "modern"),
        ("tools/list", {}, None),
        ("tools/list", {"_meta": 3}, None),
        ("initialize", {"protocolVersion": 3}, None),
    ],
)
def test_the_first_request_says_the_era(method: str, params: Any, era: str | None) -> None:
    """`initialize`, or an envelope; anything else says nothing."""
    hello = hello_of(FakeRequest(method, params))  # type: ignore[arg-type]
    assert era == (None if hello is None else hello.era)
