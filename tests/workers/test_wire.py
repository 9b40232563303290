import itertools
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztrio.workers import wire
from ztrio.workers.wire import FrameDecoder, ProtocolError, encode_frame

texts = st.text(st.characters(codec="utf-8"), max_size=20)
frames = st.one_of(
    st.builds(wire.Ready, problem=st.none() | texts),
    st.builds(wire.Started),
    st.builds(wire.Progress, progress=st.floats(allow_nan=False), total=st.none() | st.floats(0, 1), message=texts),
    st.builds(wire.Result, value=st.binary(max_size=300), session=st.none() | st.binary(max_size=300)),
    st.builds(wire.Failure, code=texts, message=texts, exception_type=st.none() | texts, traceback=texts),
    st.builds(
        wire.Boot,
        modules=st.lists(st.tuples(texts, st.none() | texts), max_size=3),
        functions=st.lists(st.tuples(texts, texts), max_size=3),
    ),
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The data in pieces, cut at the places."""
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def drain(decoder: FrameDecoder) -> list[wire.Frame]:
    """Every frame that is whole."""
    found = []
    while (frame := decoder.next_frame()) is not None:
        found.append(frame)
    return found


@given(st.lists(frames, max_size=5), st.lists(st.integers(0, 10_000), max_size=10))
def test_any_chunking_gives_the_same_frames(sent: list[wire.Frame], places: list[int]) -> None:
    """However the bytes arrive, the frames are those that were sent."""
    decoder = FrameDecoder()
    received = []
    for chunk in cut(b"".join(map(encode_frame, sent)), places):
        decoder.feed(chunk)
        received += drain(decoder)
    assert received == sent
    assert decoder.partial is False


@given(st.lists(st.binary(max_size=200), max_size=8), st.binary(max_size=50))
def test_garbage_is_a_protocol_error_or_waits(chunks: list[bytes], tail: bytes) -> None:
    """Foreign bytes raise nothing but ProtocolError."""
    decoder = FrameDecoder()
    for chunk in [*chunks, tail]:
        decoder.feed(chunk)
        try:
            drain(decoder)
        except ProtocolError:
            return


@given(st.integers(1, 7), st.binary(max_size=100))
def test_a_garbage_body_is_a_protocol_error(kind: int, body: bytes) -> None:
    """A body that is not the class its kind names raises nothing but ProtocolError."""
    decoder = FrameDecoder()
    decoder.feed(struct.pack("<IB", len(body), kind) + body)
    try:
        frame = decoder.next_frame()
    except ProtocolError:
        return
    assert frame is not None  # garbage that happens to be good


@pytest.mark.parametrize("size", [1001, 100 * 2**20, 2**32 - 1])
def test_a_frame_over_the_limit_is_refused_by_its_header(size: int) -> None:
    """Nothing is buffered for a frame that is too large."""
    decoder = FrameDecoder(limit=1000)
    decoder.feed(struct.pack("<IB", size, 6))
    with pytest.raises(ProtocolError, match="over the limit of 1000"):
        decoder.next_frame()


def test_a_frame_over_the_limit_is_not_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender finds out, not the receiver."""
    monkeypatch.setattr(wire, "MAX_FRAME", 100)
    with pytest.raises(ProtocolError, match="a Result frame of 1"):
        encode_frame(wire.Result(value=b"x" * 101))


@pytest.mark.parametrize(
    "body",
    [b"\xc1", b"\x81\xa8progress", b"\x91" * 100_000, b"\x81\xa8progress\xa1x", b"\x80trailing"],
    ids=["reserved byte", "truncated", "nested", "wrong type", "trailing"],
)
def test_broken_bodies(body: bytes) -> None:
    """Each way a body can be wrong is a ProtocolError."""
    decoder = FrameDecoder()
    decoder.feed(struct.pack("<IB", len(body), 5) + body)
    with pytest.raises(ProtocolError, match="does not decode"):
        decoder.next_frame()


def test_an_unfinished_frame_is_known_as_such() -> None:
    """The decoder tells whether it holds a part of a frame."""
    decoder = FrameDecoder()
    data = encode_frame(wire.Started())
    states: list[Any] = []
    for index in range(len(data)):
        decoder.feed(data[index : index + 1])
        states.append((decoder.partial, decoder.next_frame()))
    assert states == [(True, None)] * (len(data) - 1) + [(True, wire.Started())]
    assert decoder.partial is False
