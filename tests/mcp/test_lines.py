"""Lines out of a byte stream."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from ztrio_mcp.lines import Lines

LIMIT = 8


class Chunks(trio.abc.ReceiveStream):
    """Gives these chunks, one per read."""

    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks = [chunk for chunk in chunks if chunk]

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        return self.chunks.pop(0) if self.chunks else b""

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def split(chunks: list[bytes]) -> list[bytes | None]:
    """What comes out when these chunks arrive."""

    async def main() -> list[bytes | None]:
        return [item async for item in Lines(Chunks(chunks), LIMIT)]

    return trio.run(main)


def expected_lines(data: bytes) -> list[bytes | None]:
    """The same, computed from all bytes at once."""
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [line if len(line) <= LIMIT else None for line in lines]


@pytest.mark.case("R33")
@given(st.lists(st.sampled_from([b"a", b"bcd", b"\n", b"\r\n", b"12345678", b"123456789", b"x" * 50, b"\xc3"])))
def test_lines_do_not_depend_on_how_the_bytes_arrive(chunks: list[bytes]) -> None:
    """However the bytes are cut, each line comes once, and one over the limit comes as None and nothing of its rest."""
    data = b"".join(chunks)
    assert expected_lines(data) == split(chunks)
    assert expected_lines(data) == split([data])
    assert expected_lines(data) == split([data[index : index + 1] for index in range(len(data))])


@pytest.mark.case("R35")
def test_the_last_line_may_end_with_the_input() -> None:
    """A final line without a newline counts."""
    assert [b"one", b"two"] == split([b"one\ntw", b"o"])


@pytest.mark.case("R33")
async def test_an_endless_line_is_not_kept() -> None:
    """Output without a newline is thrown away as it comes, and the next line is fine."""
    lines = Lines(Chunks([b"x" * 5] * 10_000 + [b"\nnext\n"]), LIMIT)
    largest = 0
    results = []
    async for item in lines:
        results.append(item)
        largest = max(largest, len(lines._buffer))
    assert [None, b"next"] == results
    assert largest <= LIMIT + 5
