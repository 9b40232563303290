import os
import threading

import trio
from hypothesis import given
from hypothesis import strategies as st

from ztrio.workers.output import OutputPipe, OutputRing


@given(st.lists(st.binary(max_size=30)), st.integers(1, 40))
def test_the_ring_keeps_the_end_and_no_more(chunks: list[bytes], limit: int) -> None:
    """The tail is the end of the stream, whatever the chunks, and memory stays bounded."""
    ring = OutputRing(limit)
    whole = b"".join(chunks)
    for chunk in chunks:
        ring.feed(chunk)
        assert len(ring._kept) <= 2 * limit
    assert ring.seen == len(whole)
    expected = whole[-limit:]
    if len(whole) > limit:
        expected = expected.lstrip(bytes(range(0x80, 0xC0)))
    assert ring.tail() == expected.decode("utf-8", "replace")


def test_a_character_that_was_cut_is_left_out() -> None:
    """The tail begins with a whole character."""
    ring = OutputRing(4)
    ring.feed("aéé".encode())
    assert ring.tail() == "éé"
    ring.feed(b"x")
    assert ring.tail() == "éx"


async def test_the_pipe_is_drained_to_its_end() -> None:
    """A writer that is faster than any buffer is never blocked, and its last words are kept."""
    read, write = os.pipe()
    pipe = OutputPipe(read, 10)

    def flood() -> None:
        for _ in range(100):
            os.write(write, b"x" * 100_000)
        os.write(write, b"last words")
        os.close(write)

    thread = threading.Thread(target=flood)
    thread.start()
    with trio.fail_after(10):
        await pipe.drain()
    thread.join()
    assert (pipe.ring.seen, pipe.ring.tail()) == (10_000_010, "last words")
    pipe.close()
    pipe.close()


async def test_closing_ends_the_draining_though_a_writer_is_left() -> None:
    """An escaped process that holds the other end keeps nobody waiting; what it wrote is taken along."""
    read, write = os.pipe()
    pipe = OutputPipe(read, 100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pipe.drain)
        await trio.testing.wait_all_tasks_blocked()
        os.write(write, b"here")
        pipe.drain_now()
        pipe.drain_now()
        await trio.testing.wait_all_tasks_blocked()
        os.write(write, b" and there")
        pipe.close()
    assert pipe.ring.tail() == "here and there"
    await pipe.drain()
    os.close(write)
