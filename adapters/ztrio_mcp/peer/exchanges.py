"""Who gets which message: the exchanges that are open, by id, and the handler for everything else.

Responses are matched by the exact id that was sent and by nothing else. What has another one, also `"7"` for 7, is
dropped and counted (P28, R40). A response that cannot be read ends its exchange's wait as a malformed one where its id
is certain; otherwise it is a line like any other that is no message: skipped, and the connection lives (R31).

Counts keep no ids: a response under an id that was sent once and is not open is stale, be it a second one or one that
nobody waits for any more. To tell those apart would need a memory of all that was forgotten.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ztrio_mcp.peer.envelope import ABSENT, NULL, VERSION, Envelope, answered_by, decode, is_utf8
from ztrio_mcp.peer.messages import Ending, Exchange, Handler, Id, Response
from ztrio_mcp.peer.splitter import SAMPLE, Line, Oversized

__all__ = ["Exchanges"]

_PROGRESS: Final = "notifications/progress"
_UNREADABLE: Final = {
    "oversized": "it is longer than {limit} bytes",
    "not_utf8": "it is not UTF-8",
    "not_json": "it is not JSON",
}


class _Progress(msgspec.Struct, rename="camel"):
    progress_token: int | str


_progress: Final = msgspec.json.Decoder(_Progress)


class Exchanges:
    """The exchanges of one connection.

    Args:
        handler: Takes what belongs to none of them.
        line_limit: The longest line that is read, for saying so.

    Attributes:
        open: Id → exchange: queued, or sent and neither answered nor forgotten.
        next_id: The least id that no request has had.
        received: Messages so far.
        unknown: Responses so far under an id that was never sent, or has another JSON type.
        stale: Responses so far under an id that was sent, but is not open.
        skipped: Why → lines so far that were no message.
    """

    def __init__(self, handler: Handler, *, line_limit: int) -> None:
        self.open: dict[int, Exchange] = {}
        self.next_id = 1
        self.received = 0
        self.unknown = 0
        self.stale = 0
        self.skipped: dict[str, int] = {}
        self._handler = handler
        self._line_limit = line_limit

    def close(self, exchange: Exchange) -> None:
        """The exchange is over, if it was not before."""
        self.open.pop(exchange.id, None)

    def end(self, ending: Ending) -> None:
        """The connection has ended; tell each exchange that is open."""
        while self.open:  # one at a time: who is told of one may forget another
            exchange = self.open.pop(next(iter(self.open)))
            if exchange.on_ended is not None:
                exchange.on_ended(exchange, ending)

    def take(self, line: Line) -> None:
        """Give the message of a line to whom it is for."""
        if isinstance(line, Oversized):
            self._skip("oversized", line)
            return
        if not (line.isascii() or is_utf8(line)):
            self._skip("not_utf8", line)
            return
        message = decode(line)
        if isinstance(message, str):
            self._skip(message, line)
        elif message.method is None:
            self._response(message, line)
        elif message.jsonrpc != VERSION:  # such as a log in JSON, with the method of a request over HTTP
            self._skip("not_message", line)
        elif message.id is None:
            self._skip("invalid_id", line)
        else:
            self.received += 1
            params = None if message.params is ABSENT or message.params == NULL else message.params
            if message.id is msgspec.UNSET:
                self._notification(message.method, params)
            else:
                self._handler.request(message.id, message.method, params)

    def _notification(self, method: str, params: msgspec.Raw | None) -> None:
        if method == _PROGRESS and params is not None:
            exchange = self._of_token(params)
            if exchange is not None and exchange.on_progress is not None:
                exchange.on_progress(params)
                return
        self._handler.notification(method, params)

    def _of_token(self, params: msgspec.Raw) -> Exchange | None:
        try:
            return self._sent(_progress.decode(params).progress_token)
        except msgspec.DecodeError:
            return None

    def _response(self, message: Envelope, line: bytes | bytearray) -> None:
        result, error = message.result, message.error
        exchange = self._sent(message.id)
        if exchange is None:
            if result is ABSENT and error is ABSENT:
                self._skip("not_message", line)
                return
            self.received += 1
            if self._was_sent(message.id):
                self.stale += 1
            else:
                self.unknown += 1
            return
        self.received += 1
        del self.open[exchange.id]
        # Some write the one that there is not as null.
        if error is ABSENT or (error == NULL and result is not ABSENT):
            if result is ABSENT:
                response = Response(exchange.id, malformed="it has neither a result nor an error")
            else:
                response = Response(exchange.id, result)
        elif result is ABSENT or result == NULL:
            response = Response(exchange.id, None, error)
        else:
            response = Response(exchange.id, malformed="it has both a result and an error")
        exchange.on_response(response)

    def _sent(self, id: Id | msgspec.UnsetType | None) -> Exchange | None:  # noqa: A002 - the protocol's word
        """The exchange that is open under this id, unless its request still waits to be written."""
        exchange = self.open.get(id) if isinstance(id, int) else None
        return exchange if exchange is not None and exchange.sent else None

    def _was_sent(self, id: Id | msgspec.UnsetType | None) -> bool:  # noqa: A002 - the protocol's word
        return isinstance(id, int) and 0 < id < self.next_id and id not in self.open

    def _skip(self, why: str, line: Line) -> None:
        self.skipped[why] = self.skipped.get(why, 0) + 1
        exchange = self._sent(answered_by(line)) if why in _UNREADABLE else None
        if exchange is not None:
            self.close(exchange)
            exchange.on_response(Response(exchange.id, malformed=_UNREADABLE[why].format(limit=self._line_limit)))
        self._handler.skipped(why, line.head if isinstance(line, Oversized) else bytes(line[:SAMPLE]))
