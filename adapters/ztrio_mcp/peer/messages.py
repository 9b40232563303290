"""What is said about messages: exchanges, responses, the end of a connection, and who is told.

An exchange is no task and holds no event: whoever waits brings callbacks, and may stop waiting while it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import attrs
import msgspec

__all__ = [
    "Ending",
    "Exchange",
    "Handler",
    "Id",
    "Outgoing",
    "PeerClosed",
    "PeerQueueFull",
    "PeerStatistics",
    "Reason",
    "Response",
]

Id = int | str
"""The id of a message, with its JSON type: `7` and `"7"` are two."""

Reason = Literal["eof", "write_stalled", "broken", "cancelled"]


class PeerClosed(Exception):
    """The connection has ended. Nothing of the message was written, and nothing will be."""


class PeerQueueFull(Exception):
    """Too many frames wait for the other side to read. Nothing of the message was written, and nothing will be."""


@attrs.frozen
class Ending:
    """How a connection ended.

    Args:
        reason: `eof`: the other side closed its end. `write_stalled`: it took no byte for too long. `broken`: reading
            or writing failed. `cancelled`: `run` was cancelled, or a callback failed.
        detail: A few words for people.
    """

    reason: Reason
    detail: str = ""


class Response(msgspec.Struct, frozen=True, gc=False):
    """A response: exactly one of a result and an error, except when it is malformed.

    Args:
        id: The exchange's.
        result: As it came.
        error: As it came.
        malformed: What is wrong with it; empty for one that is well formed. Then there is neither result nor error.
    """

    id: int
    result: msgspec.Raw | None = None
    error: msgspec.Raw | None = None
    malformed: str = ""


@attrs.define(eq=False, kw_only=True)
class Exchange:
    """A request of ours, until it is answered, forgotten, withdrawn, dropped by its claim, or the connection ends.

    Args:
        id: Its id, which is also its progress token.
        method: What is asked.
        on_response: Told the response, once; must not wait.
        on_ended: Told once that the connection ended without a response; must not wait.
        on_progress: Told the parameters of each progress notification that has the token; must not wait.
    """

    id: int
    method: str
    on_response: Callable[[Response], object]
    on_ended: Callable[[Exchange, Ending], object] | None = None
    on_progress: Callable[[msgspec.Raw], object] | None = None
    # Set just before the first byte is written, once the claim holds; never taken back. Whatever is not sent when the
    # exchange is over will never be.
    sent: bool = False


@attrs.define(eq=False)
class Outgoing:
    """A frame to be written. Nobody changes it; it is not frozen because that would double what making one costs.

    Args:
        data: The whole line.
        claim: Asked just before the first byte whether it is to be written at all; must not wait. None for always.
        exchange: The exchange that it begins, if it is a request.
    """

    data: bytes
    claim: Callable[[], bool] | None = None
    exchange: Exchange | None = None


@attrs.frozen(kw_only=True)
class PeerStatistics:
    """A snapshot of a peer.

    Args:
        received: Messages read so far.
        written: Frames written so far, whole ones.
        queued: Frames that wait to be written, with the one that is half written.
        in_flight: Exchanges that are open, with those whose frame is queued.
        skipped: Why → lines so far that were no message.
        unknown: Responses so far under an id that was never sent, or has another JSON type.
        stale: Responses so far under an id that was sent, but is answered already or forgotten.
    """

    received: int
    written: int
    queued: int
    in_flight: int
    skipped: Mapping[str, int]
    unknown: int
    stale: int


class Handler(Protocol):
    """Takes what the other side sends by itself, in the order in which it came.

    Called by the reader, so nothing here may wait. What it raises ends the connection.
    """

    def request(self, id: Id, method: str, params: msgspec.Raw | None, /) -> object:  # noqa: A002 - the protocol's word
        """A request came, which has not been looked at any further; ids may repeat."""

    def notification(self, method: str, params: msgspec.Raw | None, /) -> object:
        """A notification came that is not the progress of an exchange."""

    def skipped(self, why: str, sample: bytes, /) -> object:
        """A line came that is no message.

        Never called for what looks like a response, so answering with an error makes no two sides answer each other.

        Args:
            why: `blank`, `not_utf8`, `not_json`, `batch`, `not_object`, `invalid_id`, `not_message` or `oversized`.
            sample: The line's first bytes, at most 256.
        """
