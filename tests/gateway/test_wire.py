"""What the gateway takes out of a call, puts in, and adds to its answer."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztrio.errors import InvalidArguments
from ztrio.pending import LateOutcome
from ztrio_mcp.gateway.wire import decode_call, late_outcome_of, shape_of, with_meta

CALL = "pc_aaaaaaaaaaaaaaaa"
OURS = {"ztrio/call_id": CALL}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def raw(text: str | bytes) -> msgspec.Raw:
    return msgspec.Raw(text.encode() if isinstance(text, str) else text)


def test_arguments_keep_their_bytes() -> None:
    """What the caller wrote reaches the server byte for byte, and keys that nobody here knows go along."""
    arguments = '{ "n": 1000000000000000000000000000000, "f": 1.50, "é": [ ] }'
    params = raw(f'{{"name":"t","arguments":{arguments},"task":{{"ttl":1}},"_meta":{{"a/b":1e5}}}}')
    sent = decode_call(params).encoded(CALL, token=None)
    assert arguments.encode() in sent
    assert b'"task":{"ttl":1}' in sent
    assert b'"a/b":1e5' in sent


def test_keys_of_ours_do_not_reach_the_server() -> None:
    """`ztrio/…` and the caller's progress token stay here; the call's id, and a token of this connection, go out."""
    meta = {"ztrio/timeout": 5, "ztrio/reconciles": [CALL], "ztrio/scope": "zg_x", "progressToken": "p", "x": 1}
    call = decode_call(msgspec.json.encode({"name": "t", "arguments": {}, "_meta": meta}))
    assert ("p", 5.0, (CALL,), "zg_x") == (call.progress_token, call.timeout, call.reconciles, call.scope)
    sent = json.loads(call.encoded(CALL, token=7))
    assert {"x": 1, "ztrio/call_id": CALL, "progressToken": 7} == sent["_meta"]
    assert "progressToken" not in json.loads(call.encoded(CALL, token=None))["_meta"]


@pytest.mark.parametrize(
    "params",
    [
        None,
        "[]",
        "{}",
        '{"name":1}',
        '{"name":"t","arguments":[1]}',
        '{"name":"t","arguments":"x"}',
        '{"name":"t","_meta":[]}',
        '{"name":"t","_meta":{"progressToken":true}}',
        '{"name":"t","_meta":{"progressToken":1.5}}',
        '{"name":"t","_meta":{"ztrio/timeout":0}}',
        '{"name":"t","_meta":{"ztrio/timeout":"5"}}',
        '{"name":"t","_meta":{"ztrio/timeout":true}}',
        '{"name":"t","_meta":{"ztrio/reconciles":["x"]}}',
        '{"name":"t","_meta":{"ztrio/reconciles":"pc_aaaaaaaaaaaaaaaa"}}',
        '{"name":"t","_meta":{"ztrio/scope":1}}',
    ],
)
def test_what_is_no_call_is_refused(params: str | None) -> None:
    """Parameters that make no call are refused, and the refusal says that nothing was sent."""
    with pytest.raises(InvalidArguments, match=r"Nothing (was sent|ran)"):
        decode_call(None if params is None else raw(params))


@pytest.mark.case("R41")
def test_a_number_that_nobody_can_hold_is_refused() -> None:
    """`1e400` would become infinity on its way; a long string of digits or an exponent inside a text would not."""
    with pytest.raises(InvalidArguments, match="out of range"):
        decode_call(raw('{"name":"t","arguments":{"n":1e400}}'))
    for fine in ('"1e400"', str(10**30), str(2**63), "1e-400", '"' + "9" * 400 + '"'):
        assert fine.encode() in decode_call(raw(f'{{"name":"t","arguments":{{"n":{fine}}}}}')).encoded(CALL, token=1)


def test_no_arguments_are_fine() -> None:
    """A call may leave its arguments and its `_meta` out, or say null."""
    for params in ('{"name":"t"}', '{"name":"t","arguments":null,"_meta":null}'):
        assert "t" == json.loads(decode_call(raw(params)).encoded(CALL, token=None))["name"]


@given(
    result=st.dictionaries(st.text().filter(lambda key: key != "_meta"), json_values, max_size=4),
    meta=st.none() | st.dictionaries(st.text(), json_values, max_size=3),
)
def test_a_result_is_what_it_was_beside_our_keys(result: dict[str, object], meta: dict[str, object] | None) -> None:
    """Whatever a result holds, only `_meta` gains our keys, and a key that the server gave stays the server's."""
    given_result = result if meta is None else {**result, "_meta": meta}
    text = json.dumps(given_result)
    found = json.loads(with_meta(text.encode(), OURS))
    assert {**OURS, **(meta or {})} == found.pop("_meta")
    assert result == found


def test_a_meta_that_is_no_object_is_left_alone() -> None:
    """A result of a server that breaks the protocol is shown as it is."""
    for odd in (b'{"_meta":[1],"content":[]}', b'{"_meta":null}'):
        assert json.loads(odd) == json.loads(with_meta(odd, OURS))


@pytest.mark.req("P24")
@pytest.mark.parametrize(
    ("result", "error", "expected"),
    [
        ('{"content":[]}', None, LateOutcome.SUCCESS),
        ('{"content":[],"isError":true}', None, LateOutcome.TOOL_ERROR),
        ('{"resultType":"input_required","requestState":"s"}', None, LateOutcome.INPUT_REQUIRED),
        ('{"task":{"taskId":"1"}}', None, LateOutcome.TASK_ACCEPTED),
        ('{"resultType":"task"}', None, LateOutcome.TASK_ACCEPTED),
        (None, '{"code":1,"message":"m"}', LateOutcome.JSONRPC_ERROR),
        ("[]", None, LateOutcome.MALFORMED),
        (None, None, LateOutcome.MALFORMED),
    ],
)
def test_late_outcomes(result: str | None, error: str | None, expected: LateOutcome) -> None:
    """Each kind of late response has its word."""
    assert expected is late_outcome_of(None if result is None else raw(result), None if error is None else raw(error))


def test_a_lone_surrogate_does_not_hide_what_a_result_is() -> None:
    """An escape that no UTF-8 text can carry passes, and what stands beside it is read."""
    result = b'{"content":[{"type":"text","text":"\\ud800"}],"isError":true,"_meta":{"k":"\\udfff"}}'
    assert LateOutcome.TOOL_ERROR is late_outcome_of(raw(result), None)
    found = json.loads(with_meta(result, OURS))
    assert {**OURS, "k": "\udfff"} == found["_meta"]
    assert "\ud800" == found["content"][0]["text"]


def test_a_shape_is_read_past_what_is_not_known() -> None:
    """Fields of other versions do not hide what a result means."""
    shape = shape_of(b'{"new":{"deep":[1]},"isError":false,"resultType":"complete"}')
    assert shape is not None
    assert not shape.wants_input
    assert shape_of(b'{"isError":"yes"}') is None
