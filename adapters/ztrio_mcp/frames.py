"""The filter between the wire and the MCP SDK: what each line is, and what it deserves.

The SDK looks requests up by an id in which `"7"` and `7` are the same, lets a second request with an id in flight
overwrite the first, and gives no answer to lines that are no message. So every request gets an internal id, unique for
the life of the connection, before the SDK sees it, and its own id back, with its type and value, on the way out; the
same goes for progress tokens and for the ids in cancel notifications. Lines that are no request the SDK could serve
are answered or counted here and never reach it, and calls that need nothing of it (`ztrio_mcp.eras`) pass it by.

An error about a line whose id cannot be trusted has the id null (JSON-RPC 2.0, section 5). That includes an id that is
in flight already: an error under that id would end the *first* request in the client's eyes while it still runs.

The filter does no I/O. A cancel notification records the call's cause here, when it is read, so the cause stands
before anything is cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, Final

import attrs
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from ztrio.audit import AuditEvent
from ztrio.calls import Cause
from ztrio_mcp import jsonrpc
from ztrio_mcp.eras import Era
from ztrio_mcp.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, RequestId

__all__ = ["MAX_IN_FLIGHT", "Call", "Forward", "FrameFilter", "FrameStatistics", "InFlight", "Refusal"]

MAX_IN_FLIGHT: Final = 4096
"""Requests that may be in flight on one connection; well above the calls a supervisor admits."""

# Characters that are kept of what a client chooses and the audit shows.
_REASON_LIMIT: Final = 500
_ID_LIMIT: Final = 200


@attrs.define
class InFlight:
    """A request that has not been answered yet.

    Args:
        key: The internal id; also stands for the progress token.
        id: The client's id.
        method: The method asked for.
        token: The client's progress token, if it wants progress.
        cause: Why the request is being stopped.
    """

    key: int
    id: RequestId
    method: str
    token: RequestId | None
    cause: Cause = attrs.field(factory=Cause)
    # Set once, when the call has committed: what the audit is told if the answer cannot be delivered.
    committed: AuditEvent | None = None
    # Stops the call; None for what the SDK runs, which it stops itself.
    stop: Callable[[], object] | None = None

    @property
    def audit_id(self) -> RequestId:
        """The client's id as the audit shows it: text is bounded and such that UTF-8 can carry it."""
        return _clean(self.id, _ID_LIMIT) if isinstance(self.id, str) else self.id


@attrs.frozen
class Forward:
    """A message for the SDK.

    Args:
        message: The message, under its internal id.
        request: The request's entry, None for a notification.
    """

    message: JSONRPCRequest | JSONRPCNotification
    request: InFlight | None = None


@attrs.frozen
class Call:
    """A tool call that is served beside the SDK.

    Args:
        request: The request's entry.
        version: The protocol version to answer in.
        params: Its parameters, of the form that this version says.
    """

    request: InFlight
    version: str
    params: dict[str, Any]


@attrs.frozen
class Refusal:
    """A line that is answered at once.

    Args:
        reply: The JSON-RPC error message.
    """

    reply: dict[str, Any]


@attrs.frozen
class FrameStatistics:
    """Counts of one connection.

    Args:
        lines: Lines read.
        forwarded: Messages served, by the SDK or beside it.
        blank: Blank lines, skipped.
        not_json: Lines that are no JSON or no UTF-8, answered.
        batches: Batches, answered.
        invalid: JSON that is no request MCP knows, answered.
        duplicates: Requests under an id in flight, answered.
        oversized: Lines over the frame limit, discarded and answered.
        unmatched: Responses to nothing, cancels of nothing and unusable notifications, skipped.
        dropped: Messages of the SDK for requests no longer in flight, not sent.
        in_flight: Requests not answered yet.
    """

    lines: int = 0
    forwarded: int = 0
    blank: int = 0
    not_json: int = 0
    batches: int = 0
    invalid: int = 0
    duplicates: int = 0
    oversized: int = 0
    unmatched: int = 0
    dropped: int = 0
    in_flight: int = 0


class FrameFilter:
    """Decides about each line of one connection and keeps its table of requests in flight.

    Attributes:
        tools: Names of the tools whose calls can be served beside the SDK; set by the server.
    """

    def __init__(self) -> None:
        self.tools: Container[str] = ()
        self._era = Era()
        # The last internal id given; only grows.
        self._last = 0
        # Internal id -> request; an entry leaves when its answer is encoded, or when it settles without one.
        self._requests: dict[int, InFlight] = {}
        # (type, value) of the client's id -> internal id; the same entries as `_requests`.
        self._keys: dict[tuple[type, RequestId], int] = {}
        # Field of FrameStatistics -> count; only grows.
        self._counts: dict[str, int] = {}

    def statistics(self) -> FrameStatistics:
        """A snapshot."""
        return FrameStatistics(**self._counts, in_flight=len(self._requests))

    @property
    def shaken_hands(self) -> bool:
        """Whether the client is of the era in which a server tells what nobody asked for."""
        return self._era.shaken_hands

    def get(self, key: RequestId | None) -> InFlight | None:
        """The request in flight under this internal id."""
        return self._requests.get(key) if isinstance(key, int) else None

    def in_flight(self) -> tuple[InFlight, ...]:
        """All requests in flight."""
        return tuple(self._requests.values())

    def settle(self, key: RequestId | None) -> InFlight | None:
        """Take a request out of the table: it is answered, or never will be."""
        request = self._requests.pop(key, None) if isinstance(key, int) else None
        if request is not None:
            del self._keys[type(request.id), request.id]
        return request

    def oversized(self, limit: int) -> Refusal:
        """A line that was longer than `limit` bytes and has been discarded."""
        self._count("lines")
        return self._refuse(
            "oversized", None, INVALID_REQUEST, f"the message is longer than {limit} bytes; it was discarded"
        )

    def receive(self, line: bytes) -> Forward | Call | Refusal | None:
        """Decide about one line; None when it is skipped."""
        self._count("lines")
        if not line.removeprefix(jsonrpc.BOM).strip():
            self._count("blank")
            return None
        try:
            message = jsonrpc.decode(line)
        except jsonrpc.NotJson as error:
            return self._refuse("not_json", None, PARSE_ERROR, f"not a JSON message: {error}")
        except jsonrpc.NumberOutOfRange as error:
            if isinstance(error.value, dict) and "method" in error.value and "id" not in error.value:
                self._count("unmatched")  # a notification is never answered
                return None
            return self._refuse("invalid", self._usable_id(error.value), INVALID_PARAMS, f"{error}; nothing ran")
        if isinstance(message, list):
            return self._refuse(
                "batches", None, INVALID_REQUEST, "batches are not part of MCP; send one message per line"
            )
        if not isinstance(message, dict):
            return self._refuse("invalid", None, INVALID_REQUEST, "a message is a JSON object")
        return self._message(message)

    def _message(self, message: dict[str, Any]) -> Forward | Call | Refusal | None:
        if message.get("jsonrpc") != "2.0":
            return self._refuse("invalid", self._usable_id(message), INVALID_REQUEST, '"jsonrpc" must be "2.0"')
        if "method" not in message:
            if "result" in message or "error" in message:
                self._count("unmatched")  # nothing was asked, so it answers nothing
                return None
            return self._refuse("invalid", self._usable_id(message), INVALID_REQUEST, 'there is no "method"')
        method, params = message["method"], message.get("params")
        if not isinstance(method, str):
            return self._refuse("invalid", self._usable_id(message), INVALID_REQUEST, '"method" must be a string')
        if "id" in message:
            return self._request(message["id"], method, params)
        if params is not None and not isinstance(params, dict):
            self._count("unmatched")  # a notification is never answered
            return None
        return self._notification(method, params)

    def _request(self, request_id: Any, method: str, params: Any) -> Forward | Call | Refusal:
        if not jsonrpc.is_request_id(request_id):
            return self._refuse("invalid", None, INVALID_REQUEST, '"id" must be a string or an integer')
        if (type(request_id), request_id) in self._keys:
            return self._refuse(
                "duplicates",
                None,
                INVALID_REQUEST,
                f"the id {_shown(request_id)} is in flight; the second request did not run",
            )
        if params is not None and not isinstance(params, dict):
            return self._refuse("invalid", request_id, INVALID_PARAMS, '"params" must be an object')
        if len(self._requests) >= MAX_IN_FLIGHT:
            return self._refuse(
                "invalid", request_id, INVALID_REQUEST, f"{MAX_IN_FLIGHT} requests are in flight; nothing ran"
            )
        token = None
        meta = params.get("_meta") if params else None
        if isinstance(meta, dict) and "progressToken" in meta:
            token = meta["progressToken"]
            if not jsonrpc.is_request_id(token):
                return self._refuse(
                    "invalid", request_id, INVALID_PARAMS, '"progressToken" must be a string or an integer; nothing ran'
                )
        key = self._last + 1
        if token is not None:
            meta["progressToken"] = key  # type: ignore[index] # a token comes from a dict
        request = InFlight(key, request_id, method, token)
        if method == "tools/call" and params:
            version = self._era.version(params)
            if version is not None and params["name"] in self.tools:
                self._enter(request)
                return Call(request, version, params)
        forwarded = JSONRPCRequest(jsonrpc="2.0", id=key, method=method, **_given(params))
        self._enter(request)
        return Forward(forwarded, request)

    def _enter(self, request: InFlight) -> None:
        self._last = request.key
        self._requests[request.key] = request
        self._keys[type(request.id), request.id] = request.key
        self._count("forwarded")

    def _notification(self, method: str, params: dict[str, Any] | None) -> Forward | None:
        if method == "notifications/cancelled":
            request = self._cancel(params)
            if request is None:
                self._count("unmatched")
                return None
            if request.stop is not None:
                self._count("forwarded")
                request.stop()
                return None
            params = {**(params or {}), "requestId": request.key}
        forwarded = JSONRPCNotification(jsonrpc="2.0", method=method, **_given(params))
        self._count("forwarded")
        return Forward(forwarded)

    def _cancel(self, params: dict[str, Any] | None) -> InFlight | None:
        """Record the cause; the request that is to be stopped, None when there is no such request."""
        request_id = params.get("requestId") if params else None
        if params is None or not jsonrpc.is_request_id(request_id):
            return None
        key = self._keys.get((type(request_id), request_id))  # type: ignore[arg-type] # narrowed just above
        request = self.get(key)
        if request is None or request.method == "initialize":  # MCP: initialize must not be cancelled
            return None
        reason = params.get("reason")
        told = f": {_clean(reason, _REASON_LIMIT)}" if isinstance(reason, str) and reason else ""
        request.cause.record(f"cancelled by client{told}")
        return request

    def send(self, message: JSONRPCMessage) -> tuple[dict[str, Any], InFlight | None] | None:
        """Turn a message of the SDK into what goes on the wire, under the client's own ids.

        Returns:
            The message and, where it is an answer, the request it settles; None when it must not be sent, because
            the request is no longer in flight.
        """
        match message:
            case JSONRPCResponse() | JSONRPCError():
                request = self.settle(message.id)
                if request is None:
                    self._count("dropped")
                    return None
                if isinstance(message, JSONRPCResponse):
                    self._era.answered(request.method, message.result)
                    return {"jsonrpc": "2.0", "id": request.id, "result": message.result}, request
                error = message.error.model_dump(mode="json", exclude_unset=True)
                return {"jsonrpc": "2.0", "id": request.id, "error": error}, request
            case JSONRPCNotification(method="notifications/progress", params=params):
                request = self.get((params or {}).get("progressToken"))
                if request is None or request.token is None:
                    self._count("dropped")
                    return None
                return {
                    "jsonrpc": "2.0",
                    "method": message.method,
                    "params": {**(params or {}), "progressToken": request.token},
                }, None
            case _:
                return message.model_dump(mode="json", by_alias=True, exclude_unset=True), None

    def _usable_id(self, message: Any) -> RequestId | None:
        """The id of a message that is refused, where an answer under it cannot be taken for another's."""
        request_id = message.get("id") if isinstance(message, dict) else None
        if jsonrpc.is_request_id(request_id) and (type(request_id), request_id) not in self._keys:
            return request_id
        return None

    def _refuse(self, count: str, request_id: RequestId | None, code: int, message: str) -> Refusal:
        self._count(count)
        return Refusal(jsonrpc.error_reply(request_id, code, message))

    def _count(self, name: str) -> None:
        self._counts[name] = self._counts.get(name, 0) + 1


def _given(params: dict[str, Any] | None) -> dict[str, Any]:
    return {} if params is None else {"params": params}


def _clean(text: str, limit: int) -> str:
    return text[:limit].encode("utf-8", "replace").decode()


def _shown(request_id: RequestId) -> str:
    text = repr(request_id)
    return text if len(text) <= 60 else f"{text[:60]}…"
