"""Lines to JSON values and back, exactly."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztrio_mcp import jsonrpc

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@pytest.mark.case("R41")
@pytest.mark.parametrize("encode", [jsonrpc.encode, jsonrpc.encode_plain])
@given(message=st.dictionaries(st.text(), _values, max_size=5))
def test_what_is_encoded_decodes_to_the_same_value(
    encode: Callable[[dict[str, object]], bytes], message: dict[str, object]
) -> None:
    """Every JSON object survives the wire exactly: digits, types, signs of zero, text."""
    line = encode(message)
    assert json.dumps(message) == json.dumps(jsonrpc.decode(line))
    assert 1 == line.count(b"\n")
    assert line.endswith(b"\n")
    assert b"\r" not in line


@pytest.mark.case("R41")
@pytest.mark.parametrize("encode", [jsonrpc.encode, jsonrpc.encode_plain])
@pytest.mark.parametrize("number", [2**31, 2**53 + 1, 2**63, 10**30, -(10**30)])
def test_big_integers_keep_every_digit(encode: Callable[[dict[str, object]], bytes], number: int) -> None:
    """An integer of any size is the same integer after a round trip."""
    assert {"n": number} == jsonrpc.decode(encode({"n": number}))


@pytest.mark.case("R41")
@pytest.mark.parametrize("literal", ["1e400", "-1e400", "9" * 5000])
def test_numbers_that_cannot_be_held_are_refused_and_the_id_is_still_found(literal: str) -> None:
    """A number out of range is refused instead of becoming inf, and the id beside it can still be told."""
    with pytest.raises(jsonrpc.NumberOutOfRange) as caught:
        jsonrpc.decode(f'{{"id": 7, "params": {{"n": {literal}, "x": 1.5}}}}'.encode())
    assert caught.value.value["id"] == 7


@pytest.mark.parametrize(
    "line",
    [
        b"NaN",
        b'{"n": Infinity}',
        b'{"n": -Infinity}',
        b"{",
        b"Starting server v1...",
        b'{"a": "\xff"}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a": 1} {"b": 2}',
        b'{"a": "\xed\xa0\x80"}',
    ],
)
def test_what_is_no_json_is_refused(line: bytes) -> None:
    """Text that is not UTF-8 JSON is refused, whatever is wrong with it."""
    with pytest.raises(jsonrpc.NotJson):
        jsonrpc.decode(line)


@pytest.mark.case("R35")
def test_bom_and_carriage_return_are_ignored() -> None:
    """A leading BOM and a trailing carriage return change nothing."""
    assert {"a": 1} == jsonrpc.decode(b'\xef\xbb\xbf{"a": 1}\r')


@pytest.mark.case("R34")
def test_a_lone_surrogate_escape_survives() -> None:
    """A lone surrogate, which UTF-8 cannot carry, goes back as the escape that it came as."""
    message = jsonrpc.decode(rb'{"id": "\ud800"}')
    assert b'{"id":"\\ud800"}\n' == jsonrpc.encode(message)


def test_floats_that_are_no_json_are_not_encoded() -> None:
    """NaN never gets onto the wire."""
    with pytest.raises(ValueError, match="Out of range"):
        jsonrpc.encode({"n": math.nan})


@pytest.mark.parametrize(("value", "expected"), [("", True), (0, True), (True, False), (1.5, False), (None, False)])
def test_request_ids_are_strings_and_integers(value: object, expected: bool) -> None:
    """A string or an integer may be an id; true, 1.5 and null may not."""
    assert expected == jsonrpc.is_request_id(value)
