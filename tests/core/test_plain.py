import datetime as dt
import enum
import math
import os
import pathlib
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ztrio.plain import NotPlain, decode, digest, encode, plain

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
numbers = st.integers() | st.integers(-(2**200), 2**200) | st.floats(allow_nan=False, allow_infinity=False)
zones = st.none() | st.builds(dt.timezone, st.timedeltas(dt.timedelta(hours=-23), dt.timedelta(hours=23)))
moments = st.datetimes(timezones=zones)
scalars = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=20
)
rich_values = st.recursive(
    scalars | st.binary(max_size=10) | moments,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


def nested(depth: int) -> Any:
    """A list within a list, `depth` of them."""
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def same(left: Any, right: Any) -> bool:
    """Equal, and of the same types all the way down: True is not 1 and 1 is not 1.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dt.datetime):
        return (left.replace(tzinfo=None), left.utcoffset()) == (right.replace(tzinfo=None), right.utcoffset())
    return bool(left == right)


@given(rich_values)
def test_what_was_encoded_comes_back(value: Any) -> None:
    """Every value that session state may hold survives encoding, with its types and the order of its keys."""
    assert same(value, decode(encode(plain(value, rich=True))))


@given(values)
def test_plain_copies_what_is_plain(value: Any) -> None:
    """JSON-like values are copied as they are."""
    assert same(value, plain(value))


def test_a_copy_shares_no_container() -> None:
    """Changing the copy does not change what was copied."""
    original = {"a": [1]}
    plain(original)["a"].append(2)
    assert {"a": [1]} == original


@pytest.mark.case("R41")
@pytest.mark.parametrize(
    "number", [2**31, 2**53 + 1, 2**63, 2**64 - 1, 2**64, 10**30, -(2**63), -(2**63) - 1, -(10**30)]
)
def test_integers_are_exact(number: int) -> None:
    """Integers of any size stay exactly what they are, as values, in containers and in digests."""
    assert same({"n": [number]}, decode(encode(plain({"n": [number]}))))
    assert digest(number) != digest(number + 1)
    assert digest(number) != digest(float(number))


@pytest.mark.case("R41")
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, float("1e400")])
def test_numbers_that_json_lacks_are_refused_by_place(number: float) -> None:
    """NaN and infinities are refused, naming where they are."""
    with pytest.raises(NotPlain, match=r"^\$\.rows\[1\]\.price: .* is not a finite number$"):
        plain({"rows": [0.5, {"price": number}]})


@pytest.mark.case("R34")
@given(texts, st.characters(categories=["Cs"]), texts)
def test_lone_surrogates_are_refused_by_place(before: str, surrogate: str, after: str) -> None:
    """Text that UTF-8 cannot carry is refused as value and as key, naming where it is."""
    text = before + surrogate + after
    with pytest.raises(NotPlain, match=r"^\$\.a\[0\]: .*surrogate"):
        plain({"a": [text]})
    with pytest.raises(NotPlain, match=r"^\$\.a: .*surrogate"):
        plain({"a": {text: 1}})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": {1: 2}}, "$.a: the key 1 is not a string"),
        ({"a": {None: 2}}, "$.a: the key None is not a string"),
        ([object()], "$[0]: a object is not JSON-like"),
        ([1, {2}], "$[1]: a set is not JSON-like"),
        (b"x", "$: a bytes is not JSON-like"),
        (dt.datetime(2024, 1, 2), "$: a datetime is not JSON-like"),  # noqa: DTZ001 - naive is what is meant
        (1j, "$: a complex is not JSON-like"),
        (nested(201), "$" + "[0]" * 200 + ": nested deeper than 200 levels"),
    ],
)
def test_what_does_not_fit_is_named(value: Any, message: str) -> None:
    """A refusal says where and what."""
    with pytest.raises(NotPlain) as caught:
        plain(value)
    assert message == str(caught.value)


def test_a_value_that_contains_itself_is_refused() -> None:
    """A circle ends at the depth limit."""
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(NotPlain, match="nested deeper"):
        plain(circle)


def test_the_deepest_value_travels() -> None:
    """What is just within the depth limit can be encoded and decoded."""
    assert nested(200) == decode(encode(plain(nested(200))))


class Named(str, enum.Enum):  # noqa: UP042 - the older spelling, whose str() is the member's name
    A = "a"


class Level(enum.IntEnum):
    HIGH = 2**70


class Modern(enum.StrEnum):
    B = "b"


class Loud(str):  # noqa: SLOT000
    def __str__(self) -> str:
        return "LOUD"


class Halves(float):
    pass


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Named.A, "a"),
        (Modern.B, "b"),
        (Level.HIGH, 2**70),
        (Loud("quiet"), "quiet"),
        (Halves(0.5), 0.5),
        ({Named.A: (1, 2)}, {"a": [1, 2]}),
        (pathlib.PurePosixPath("a/b"), "a/b"),
        ([pathlib.Path("x")], ["x"]),
    ],
)
def test_relatives_become_plain(value: Any, expected: Any) -> None:
    """Subclasses become what they are underneath, tuples lists, paths text."""
    assert same(expected, plain(value))
    assert same(expected, decode(encode(plain(value))))


def test_a_subclass_cannot_hide_an_infinity() -> None:
    """What is underneath is checked like everything else."""
    with pytest.raises(NotPlain, match="finite"):
        plain(Halves("inf"))


def test_a_path_of_bytes_is_not_text() -> None:
    """A path-like that gives bytes fits only where bytes do."""

    class Raw(os.PathLike[bytes]):
        def __fspath__(self) -> bytes:
            return b"\xff"

    with pytest.raises(NotPlain, match="a bytes is not JSON-like"):
        plain(Raw())
    assert b"\xff" == plain(Raw(), rich=True)


@given(st.dictionaries(texts, values, min_size=2, max_size=5), st.randoms())
def test_a_digest_does_not_depend_on_the_order_of_keys(value: dict[str, Any], random: Any) -> None:
    """Equal arguments have one digest, whatever order their keys came in, at any depth."""
    shuffled = list(value.items())
    random.shuffle(shuffled)
    assert digest(value) == digest(dict(shuffled))
    assert digest([{"outer": value}]) == digest([{"outer": dict(shuffled)}])
    assert digest(value).startswith("sha256:")


@given(values, values)
def test_different_values_have_different_digests(left: Any, right: Any) -> None:
    """A digest tells values apart, 1 from 1.0 and True included."""
    assert (digest(left) == digest(right)) is (encode_sorted(left) == encode_sorted(right))


def encode_sorted(value: Any) -> bytes:
    """The encoding with the keys of every dict in order."""
    if isinstance(value, dict):
        return b"{" + b",".join(encode(key) + encode_sorted(value[key]) for key in sorted(value)) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(encode_sorted, value)) + b"]"
    return encode(value)


@given(st.binary(max_size=60))
@example(b"\x81\x91\x01\x01")  # a map whose key is an array
@example(b"\x81\xc0\x01")  # a map whose key is nil
@example(b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00")  # NaN
@example(b"\xc7\x00\x01")  # an empty big integer
@example(b"\xc7\x01\x01\xff")  # a big integer that is no ASCII
@example(b"\xc7\x02\x02[]")  # a moment that is none
@example(b"\xc7\x00\x07")  # an extension that nobody knows
@example(b"\xa3\xed\xa0\x80")  # a surrogate in UTF-8
@example(b"\x91" * 5000)  # deep
@example(b"\xdd\xff\xff\xff\xff")  # four thousand million elements announced
def test_garbage_decodes_to_plain_or_raises_not_plain(data: bytes) -> None:
    """Bytes from anywhere give a plain value or NotPlain, and nothing else."""
    try:
        value = decode(data)
    except NotPlain as error:
        assert str(error).startswith("not an encoded value: ")
    else:
        assert same(value, plain(value, rich=True))


def test_deep_garbage_is_refused() -> None:
    """Nesting beyond what `plain` allows does not come in by decoding either."""
    with pytest.raises(NotPlain):
        decode(msgspec.msgpack.encode(nested(250)))


def test_an_integer_that_json_cannot_carry_is_refused_with_its_path() -> None:
    """What could be committed and then not be answered is refused before: more digits than Python writes."""
    largest = 10**4300 - 1
    assert [largest, -largest] == plain([largest, -largest])
    for value in (10**4300, -(10**4300)):
        with pytest.raises(NotPlain, match=r"^\$\[0\]: an integer of more than 4300 digits"):
            plain([value])
