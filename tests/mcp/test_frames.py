"""The filter in front of the SDK: what each line is, and what it deserves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import ErrorData, JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from ztrio_mcp import frames
from ztrio_mcp.frames import Forward, FrameFilter, FrameStatistics, InFlight, Refusal


def line(**message: Any) -> bytes:
    """A message as it comes over the wire."""
    return json.dumps({"jsonrpc": "2.0", **message}).encode()


def forward(filter_: FrameFilter, **message: Any) -> Forward:
    """Receive a message that must be forwarded."""
    decision = filter_.receive(line(**message))
    assert isinstance(decision, Forward)
    return decision


def request(filter_: FrameFilter, **message: Any) -> InFlight:
    """Receive a request; its entry."""
    entry = forward(filter_, **message).request
    assert entry is not None
    return entry


def refusal(filter_: FrameFilter, data: bytes) -> tuple[Any, int]:
    """Receive a line that must be refused; id and code of the reply."""
    decision = filter_.receive(data)
    assert isinstance(decision, Refusal)
    return decision.reply["id"], decision.reply["error"]["code"]


def answer(filter_: FrameFilter, key: int, result: dict[str, Any]) -> dict[str, Any] | None:
    """Answer a request as the SDK does; what goes out."""
    sent = filter_.send(JSONRPCResponse(jsonrpc="2.0", id=key, result=result))
    return None if sent is None else sent[0]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"Starting up...", (None, -32700)),
        (b"\xff\xfe", (None, -32700)),
        (b'{"jsonrpc": "2.0", "id": 1, "met', (None, -32700)),
        (b'{"jsonrpc": "2.0", "id": NaN, "method": "ping"}', (None, -32700)),
        (b"null", (None, -32600)),
        (b"123", (None, -32600)),
        (b'"ping"', (None, -32600)),
        (b"[]", (None, -32600)),
        (b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]', (None, -32600)),
        (b"{}", (None, -32600)),
        (line(id=1), (1, -32600)),
        (line(id=1, method=5), (1, -32600)),
        (b'{"id": 1, "method": "ping"}', (1, -32600)),
        (b'{"jsonrpc": "1.0", "id": "x", "method": "ping"}', ("x", -32600)),
        (b'{"jsonrpc": "1.0", "id": true, "method": "ping"}', (None, -32600)),
        (line(id=True, method="ping"), (None, -32600)),
        (line(id=1.5, method="ping"), (None, -32600)),
        (line(id=None, method="ping"), (None, -32600)),
        (line(id={}, method="ping"), (None, -32600)),
        (line(id=1, method="ping", params=[1]), (1, -32602)),
        (line(id=1, method="ping", params="x"), (1, -32602)),
        (line(id=1, method="ping", params={"_meta": {"progressToken": True}}), (1, -32602)),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"n": 1e400}}', (1, -32602)),
        (b'{"jsonrpc": "2.0", "id": 1e400, "method": "ping"}', (None, -32602)),
    ],
)
@pytest.mark.case("R31")
def test_each_bad_line_gets_the_error_it_deserves(data: bytes, expected: tuple[Any, int]) -> None:
    """A line that is no usable request is answered with id and code as JSON-RPC has them, and the next one works."""
    filter_ = FrameFilter()
    assert expected == refusal(filter_, data)
    assert 1 == request(filter_, id=1, method="ping").id


@pytest.mark.parametrize(
    "data",
    [
        line(id=1, result={}),
        line(id=1, error={"code": 1, "message": "x"}),
        line(method="notifications/initialized", params=[1]),
        line(method="notifications/cancelled"),
        line(method="notifications/cancelled", params={"requestId": 99}),
        line(method="notifications/cancelled", params={"requestId": True}),
        b'{"jsonrpc": "2.0", "method": "x", "params": {"n": 1e400}}',
    ],
)
def test_what_wants_no_answer_is_skipped_and_counted(data: bytes) -> None:
    """Responses to nothing, cancels of nothing and unusable notifications are skipped and counted."""
    filter_ = FrameFilter()
    assert filter_.receive(data) is None
    assert FrameStatistics(lines=1, unmatched=1) == filter_.statistics()


@pytest.mark.parametrize("data", [b"", b"  ", b"\r", b"\xef\xbb\xbf"])
def test_blank_lines_are_skipped_and_counted(data: bytes) -> None:
    """A blank line is no message."""
    filter_ = FrameFilter()
    assert filter_.receive(data) is None
    assert FrameStatistics(lines=1, blank=1) == filter_.statistics()


@pytest.mark.case("R40")
def test_string_and_integer_ids_are_different_requests() -> None:
    """`"7"` and `7` in flight at once are two requests, and each answer goes out under its own id and type."""
    filter_ = FrameFilter()
    text, number = request(filter_, id="7", method="ping"), request(filter_, id=7, method="ping")
    assert text.key != number.key
    assert {"jsonrpc": "2.0", "id": 7, "result": {"n": 7}} == answer(filter_, number.key, {"n": 7})
    assert {"jsonrpc": "2.0", "id": "7", "result": {"s": "7"}} == answer(filter_, text.key, {"s": "7"})


_ids = st.text(max_size=3) | st.integers(-3, 3) | st.integers() | st.sampled_from([2**31, 2**53 + 1, 2**63, 10**30])


@pytest.mark.case("R40")
@pytest.mark.case("R41")
@given(st.lists(_ids, max_size=12, unique_by=lambda value: (type(value), value)), st.randoms())
def test_every_id_comes_back_with_its_type_and_value(ids: list[str | int], order: Any) -> None:
    """Whatever ids are in flight at once, and in whatever order they are answered, each comes back as it was."""
    filter_ = FrameFilter()
    entries = [(given_id, request(filter_, id=given_id, method="ping").key) for given_id in ids]
    order.shuffle(entries)
    for given_id, key in entries:
        body = answer(filter_, key, {})
        assert body is not None
        assert (type(given_id), given_id) == (type(body["id"]), body["id"])
    assert 0 == filter_.statistics().in_flight


def test_an_id_in_flight_twice_is_refused_without_touching_the_first() -> None:
    """A second request under an id in flight is an error with id null; the first is answered; then the id is free."""
    filter_ = FrameFilter()
    first = request(filter_, id=5, method="ping")
    assert (None, -32600) == refusal(filter_, line(id=5, method="ping"))
    assert (None, -32602) == refusal(filter_, b'{"jsonrpc": "2.0", "id": 5, "method": "x", "params": {"n": 1e999}}')
    assert {"jsonrpc": "2.0", "id": 5, "result": {}} == answer(filter_, first.key, {})
    assert 5 == request(filter_, id=5, method="ping").id


def test_equal_progress_tokens_stay_apart() -> None:
    """Two calls with tokens `1` and `"1"` get their own progress, under their own token, until they are answered."""
    filter_ = FrameFilter()
    meta = {"_meta": {"progressToken": "1", "other": True}}
    first = forward(filter_, id=1, method="tools/call", params=meta)
    second = request(filter_, id=2, method="tools/call", params={"_meta": {"progressToken": 1}})
    assert first.request is not None
    assert isinstance(first.message, JSONRPCRequest)
    assert {"_meta": {"progressToken": first.request.key, "other": True}} == first.message.params

    def progress(key: int) -> Any:
        params = {"progressToken": key, "progress": 1}
        sent = filter_.send(JSONRPCNotification(jsonrpc="2.0", method="notifications/progress", params=params))
        return None if sent is None else sent[0]["params"]

    assert {"progressToken": "1", "progress": 1} == progress(first.request.key)
    assert {"progressToken": 1, "progress": 1} == progress(second.key)
    answer(filter_, second.key, {})
    assert progress(second.key) is None
    assert 1 == filter_.statistics().dropped


def test_a_cancel_records_its_cause_and_names_the_request_as_the_sdk_knows_it() -> None:
    """The cause stands when the notification is read; a later cancel does not change it."""
    filter_ = FrameFilter()
    entry = request(filter_, id="7", method="tools/call")
    other = request(filter_, id=7, method="tools/call")
    decision = forward(filter_, method="notifications/cancelled", params={"requestId": "7", "reason": "too slow"})
    assert {"requestId": entry.key, "reason": "too slow"} == decision.message.params
    forward(filter_, method="notifications/cancelled", params={"requestId": "7", "reason": "changed my mind"})
    forward(filter_, method="notifications/cancelled", params={"requestId": 7, "reason": 5})
    assert ("cancelled by client: too slow", "cancelled by client") == (entry.cause.text, other.cause.text)


def test_initialize_cannot_be_cancelled() -> None:
    """MCP does not let a client cancel its handshake."""
    filter_ = FrameFilter()
    request(filter_, id=1, method="initialize")
    assert filter_.receive(line(method="notifications/cancelled", params={"requestId": 1})) is None


@pytest.mark.case("R22")
def test_nothing_is_sent_for_a_request_that_settled_without_an_answer() -> None:
    """Once a request has settled, no answer to it goes out."""
    filter_ = FrameFilter()
    entry = request(filter_, id=1, method="tools/call")
    assert entry is filter_.settle(entry.key)
    assert answer(filter_, entry.key, {}) is None
    assert filter_.settle(entry.key) is None
    assert filter_.settle("1") is None


def test_errors_and_other_messages_of_the_sdk_go_out_unchanged() -> None:
    """An error goes out under the client's id; a message that belongs to no request goes out as it is."""
    filter_ = FrameFilter()
    entry = request(filter_, id="a", method="x")
    error = JSONRPCError(
        jsonrpc="2.0", id=entry.key, error=ErrorData(code=-32601, message="Method not found", data="x")
    )
    sent = filter_.send(error)
    assert sent is not None
    expected = {"jsonrpc": "2.0", "id": "a", "error": {"code": -32601, "message": "Method not found", "data": "x"}}
    assert expected == sent[0]
    changed = filter_.send(JSONRPCNotification(jsonrpc="2.0", method="notifications/tools/list_changed"))
    assert ({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}, None) == changed


def test_requests_in_flight_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends without end is refused, under the id that it used."""
    monkeypatch.setattr(frames, "MAX_IN_FLIGHT", 2)
    filter_ = FrameFilter()
    for number in range(2):
        request(filter_, id=number, method="ping")
    assert (2, -32600) == refusal(filter_, line(id=2, method="ping"))
    assert {0, 1} == {entry.id for entry in filter_.in_flight()}


def test_long_ids_are_not_repeated_in_full() -> None:
    """An error names a long id by its beginning."""
    filter_ = FrameFilter()
    long = "x" * 10_000
    request(filter_, id=long, method="ping")
    decision = filter_.receive(line(id=long, method="ping"))
    assert isinstance(decision, Refusal)
    assert len(decision.reply["error"]["message"]) < 200
