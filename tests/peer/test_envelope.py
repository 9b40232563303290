"""One line to one message."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztrio_mcp.peer.envelope import ABSENT, Envelope, answered_by, decode, is_utf8
from ztrio_mcp.peer.splitter import Oversized

BOM = b"\xef\xbb\xbf"


def message(line: bytes) -> Envelope:
    found = decode(line)
    assert isinstance(found, Envelope), found
    return found


VALUES = [
    b'{ "n": 1000000000000000000000000000000, "f": 1.50, "e": 1e400, "z": -0.0 }',
    '{"é":"😀","\u2028":[]}'.encode(),
    rb'{"lone":"\ud800","low":"\uDC00","pair":"\ud83d\ude00","twice":"\ud800\ud800","not":"\\ud800","q":"\"\u00e9"}',
    rb'{"<0>":"<1>\udfff<0>d800","\ud800":{"\udbff":"\ud83dx"}}',
    b"[" + b"9" * 5000 + b"]",
    b"null",
    rb'"\ud800"',
]


@pytest.mark.case("R41")
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("key", [b"params", b"result", b"error"])
@pytest.mark.parametrize("frame", [b"%b", BOM + b"%b", b" %b\r"])
def test_values_keep_their_bytes(value: bytes, key: bytes, frame: bytes) -> None:
    """Large integers, floats as they were written, lone surrogates and any white space come out as they went in."""
    found = message(frame % (b'{"jsonrpc":"2.0","unknown":"\\ud800","id":5,"%b":%b}' % (key, value)))
    assert 5 == found.id
    assert value == bytes(getattr(found, key.decode()))


strings = st.text(alphabet=st.characters() | st.sampled_from('<0>\\"\ud800\udc00\udfffdu'))


@pytest.mark.case("R34", "R41")
@given(strings, st.booleans())
def test_any_text_keeps_its_bytes_and_names_their_value(text: str, ascii_only: bool) -> None:
    """A text with lone surrogates is what it was, byte for byte in values and character for character in names."""
    try:
        value = json.dumps(text, ensure_ascii=ascii_only).encode()
    except UnicodeEncodeError:
        value = json.dumps(text).encode()
    found = message(b'{"id":%b,"method":%b,"params":{"a":[%b]}}' % (value, value, value))
    assert b'{"a":[%b]}' % value == bytes(found.params)
    assert [json.loads(value)] * 2 == [found.id, found.method]


@pytest.mark.case("R40", "R41")
@pytest.mark.parametrize("number", [0, -1, 1, 2**31, 2**53 + 1, 2**63, 10**30, "", "1", "é", "\ud800"])
def test_ids_keep_their_type_and_value(number: int | str) -> None:
    """An id is what was sent: a string stays a string, and no integer is rounded."""
    found = message(b'{"jsonrpc":"2.0","id":%b,"method":"m"}' % json.dumps(number).encode())
    assert (type(number), number) == (type(found.id), found.id)


@pytest.mark.case("R31", "R34", "R40")
@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"", "blank"),
        (b" \t\r", "blank"),
        (BOM, "blank"),
        (b"Listening on stdio", "not_json"),
        (b'{"jsonrpc":"2.0","id":1,"res', "not_json"),
        (b'{"id":1,"result":NaN}', "not_json"),
        (b'{"id":1,"method":"m"} {}', "not_json"),
        (b'{"method":"m","params":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not_json"),
        (rb'{"method":"m","params":"\ud8"}', "not_json"),
        (rb'{"method":"m","params":"\ud800\x"}', "not_json"),
        (b"[]", "batch"),
        (b'[{"jsonrpc":"2.0","id":1,"method":"m"}]', "batch"),
        (b"null", "not_object"),
        (b"123", "not_object"),
        (b'"text"', "not_object"),
        (rb'"\ud800"', "not_object"),
        (b'{"id":true,"method":"m"}', "invalid_id"),
        (b'{"id":1.0,"method":"m"}', "invalid_id"),
        (b'{"id":[],"method":"m"}', "invalid_id"),
        (b'{"id":' + b"9" * 5000 + b',"method":"m"}', "invalid_id"),
        (b'{"id":1,"method":5}', "not_message"),
        (b'{"method":5}', "not_message"),
    ],
)
def test_what_is_no_message_is_told_apart(line: bytes, why: str) -> None:
    """Each kind of line that is no message has its word."""
    assert why == decode(line)


@pytest.mark.parametrize("number", [b"true", b"1.5", b"{}", b'"\\ud800"', b"null"])
def test_what_looks_like_a_response_is_never_called_anything_else(number: bytes) -> None:
    """A result under what can be no id is a response that belongs to nobody, so no error is sent for it."""
    found = message(b'{"id":%b,"result":{"a":"\\ud800"}}' % number)
    assert (True, None) == (found.id in {None, "\ud800"}, found.method)
    assert rb'{"a":"\ud800"}' == bytes(found.result)
    assert ABSENT is message(b'{"id":%b,"error":{}}' % number).result


def test_the_last_of_two_equal_keys_counts() -> None:
    """Like JSON's own readers do it."""
    assert 2 == message(b'{"id":1,"id":2,"method":"m"}').id


@pytest.mark.case("R34")
@pytest.mark.parametrize("size", [0, 1, 64 * 1024 - 1, 64 * 1024, 200_000])
def test_utf8_is_checked_wherever_the_bytes_are(size: int) -> None:
    """Wrong bytes and characters that are cut off are found, at the edge of what is checked at a time too."""
    good = b"x" * size + "é😀".encode()
    assert is_utf8(b"x" * size)
    assert is_utf8(good)
    assert is_utf8(bytearray(good))
    assert not is_utf8(good[:-1])
    assert not is_utf8(good + b"\xff" + good)
    assert not is_utf8(b"x" * size + b"\xed\xa0\x80")  # a surrogate


FRONT = [
    b'{"jsonrpc":"2.0","id":7,"result":{"x":',
    b'{"id":7,"jsonrpc":"2.0","error":{"x":',
    b' { "jsonrpc" : "2.0" , "id" : 7 , "result" : {"x":',
    BOM + b'{"id":7,"result":[',
]
BACK = [b'},"jsonrpc":"2.0","id":7}', b'},"id":7,"jsonrpc":"2.0"}', b'}, "id" : 7 }\r']
NOBODY = [
    b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"result":',
    b'{"jsonrpc":"2.0","method":"m","params":{"id":7,"result":',
    b'{"jsonrpc":"2.0","id":"7","result":{',
    b'{"jsonrpc":"2.0","id":0,"result":{',
    b'{"jsonrpc":"2.0","id":7.0,"result":{',
    b'{"x":{"id":7,"result":',
    b'[{"id":7,"result":',
    b"plain text",
]


@pytest.mark.case("R33")
@pytest.mark.parametrize("head", FRONT)
def test_the_request_is_known_by_an_id_in_front(head: bytes) -> None:
    """The id of a response that cannot be read is found where it opens the line."""
    assert 7 == answered_by(Oversized(head, b"xxx", 1000))
    assert 7 == answered_by(head + b"NaN}}")
    assert 7 == answered_by(bytearray(head + b"NaN}} \r"))


@pytest.mark.case("R31")
@pytest.mark.parametrize("head", FRONT)
def test_half_a_line_answers_nothing(head: bytes) -> None:
    """A line that has lost its end may be followed by the whole response, so it ends nobody's wait."""
    assert None is answered_by(head)
    assert None is answered_by(head + b"[}, 1")


@pytest.mark.case("R33")
@pytest.mark.parametrize("tail", BACK)
def test_the_request_is_known_by_an_id_at_the_end(tail: bytes) -> None:
    """The id of a response that is too long is found where it closes the line, and only for what begins as one."""
    assert 7 == answered_by(Oversized(b'{"result":{"content":[', tail, 1000))
    assert 7 == answered_by(Oversized(b'{"jsonrpc":"2.0","error":{"content":[', tail, 1000))
    assert None is answered_by(Oversized(b'{"method":"m","params":{"content":[', tail, 1000))
    assert None is answered_by(Oversized(b'{"result":{"content":[', tail + b"}", 1000))
    assert None is answered_by(b'{"result":{"content":[' + tail)


@pytest.mark.parametrize("head", NOBODY)
def test_an_id_that_may_be_anything_else_answers_nothing(head: bytes) -> None:
    """An id within a request, within a value, or of another type, ends nobody's wait."""
    assert None is answered_by(Oversized(head, b'"}', 1000))
    assert None is answered_by(head + b"}")


def test_an_envelope_keeps_raw_what_was_not_there() -> None:
    """What is missing is told from what is null."""
    found = message(b'{"id":1,"result":null}')
    assert (ABSENT, msgspec.Raw(b"null")) == (found.error, found.result)
    assert found.params is ABSENT
