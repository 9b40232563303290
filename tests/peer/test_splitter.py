"""Bytes to lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztrio_mcp.peer.splitter import SAMPLE, Oversized, Splitter

LIMIT = 8
PIECES = [b"a", b"bcd", b"\n", b"\r\n", b"12345678", b"123456789", b"x" * 50, b"\xc3", b"\xa9", b"y" * 600]


def split(chunks: list[bytes]) -> list[bytes | Oversized]:
    splitter = Splitter(LIMIT)
    lines: list[bytes | Oversized] = []
    for chunk in filter(None, chunks):
        splitter.feed(chunk)
        while splitter.lines:
            line = splitter.lines.popleft()
            lines.append(line if isinstance(line, Oversized) else bytes(line))
    splitter.end()
    return [*lines, *(line if isinstance(line, Oversized) else bytes(line) for line in splitter.lines)]


@pytest.mark.case("R33")
@given(st.lists(st.sampled_from(PIECES)))
def test_lines_do_not_depend_on_how_the_bytes_arrive(chunks: list[bytes]) -> None:
    """However the bytes are cut, each line comes once and whole, and of one over the limit come its two ends."""
    data = b"".join(chunks)
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    expected = [line if len(line) <= LIMIT else Oversized(line[:SAMPLE], line[-SAMPLE:], len(line)) for line in lines]
    assert expected == split(chunks)
    assert expected == split([data])
    assert expected == split([data[at : at + 1] for at in range(len(data))])


@pytest.mark.case("R33")
def test_what_is_kept_of_an_endless_line_is_bounded() -> None:
    """Of a line without an end only the two ends are kept, and the next line is fine."""
    splitter = Splitter(LIMIT)
    for _ in range(1000):
        splitter.feed(b"x" * 1000)
    assert not splitter.lines
    splitter.feed(b"\nnext\n")
    over, following = splitter.lines
    assert Oversized(b"x" * SAMPLE, b"x" * SAMPLE, 1_000_000) == over
    assert b"next" == following


def test_an_end_in_the_middle_of_nothing_brings_no_line() -> None:
    """A stream that ends after a newline, or at once, has no last line."""
    assert [] == split([])
    assert [b"a"] == split([b"a\n"])
    assert [b"a", b"b"] == split([b"a\nb"])
