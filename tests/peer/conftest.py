"""A peer on pipes, whose other ends the test holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.peer.wire import Recorder, Wire
from ztrio_mcp.peer import Peer

Wiring = Callable[..., Wire]


@pytest.fixture
def wiring() -> Iterator[Wiring]:
    """Makes peers; what is left of their pipes is closed at the end."""
    with ExitStack() as stack:

        def make(**options: Any) -> Wire:
            taken, stdin = os.pipe()
            stdout, given = os.pipe()
            handler = options.pop("handler", None) or Recorder()
            peer = Peer(stdin=stdin, stdout=stdout, handler=handler, label="other", **options)
            wire = Wire(peer, handler, stdin=stdin, stdout=stdout, taken=taken, given=given)
            stack.callback(wire.close)
            return wire

        yield make


@pytest.fixture
def wire(wiring: Wiring) -> Wire:
    """One peer with the limits that it has by itself."""
    return wiring()
