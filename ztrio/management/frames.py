"""What an operator asks and a server answers: one JSON object a line, as UTF-8.

    → {"op": "show", "call_id": "pc_…"}
    ← {"ok": {…}}                                    or
    ← {"error": {"code": "…", "message": "…", …}}

A connection may carry any number of questions, one after the other. What is no question gets `BAD_REQUEST` and the end
of the connection: who speaks something else here is not to be guessed at.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ztrio.errors import ZtrioError

__all__ = [
    "MAX_ANSWER",
    "MAX_REQUEST",
    "BadRequest",
    "Cancel",
    "List",
    "Reconcile",
    "Release",
    "Reload",
    "Replay",
    "Request",
    "Retry",
    "Show",
    "Status",
    "Tool",
    "decode_request",
    "encode_request",
    "failure",
    "success",
]

MAX_REQUEST: Final = 2**20
"""Bytes of a question, with its newline."""
MAX_ANSWER: Final = 2**25
"""Bytes of an answer, with its newline."""


class BadRequest(Exception):
    """A line that is no question; its text says why."""


class _Request(msgspec.Struct, tag_field="op", forbid_unknown_fields=True, frozen=True):
    pass


class List(_Request, tag="list", frozen=True):
    """All pending calls that the operator may see: everybody's."""


class Show(_Request, tag="show", frozen=True):
    """One call."""

    call_id: str


class Cancel(_Request, tag="cancel", frozen=True):
    """Tell the upstream to stop; or kill its process, with every other call in it."""

    call_id: str
    kill: bool = False


class Release(_Request, tag="release", frozen=True):
    """Open a call's gate on the operator's word."""

    call_id: str
    reason: str


class Tool(_Request, tag="tool", frozen=True):
    """A tool's description, for reading its arguments off a command line."""

    name: str
    reads: bool = True


class Reconcile(_Request, tag="reconcile", frozen=True):
    """Call a tool that reads, and let its success settle a call."""

    call_id: str
    tool: str
    arguments: dict[str, Any] = {}
    session: str = "default"


class Replay(_Request, tag="replay", frozen=True):
    """Call the tool of a recorded call again. Its arguments are not on record."""

    call_id: str
    arguments: dict[str, Any] = {}
    reconciles: list[str] = []


class Status(_Request, tag="status", frozen=True):
    """What the server is, and how it does."""


class Retry(_Request, tag="retry", frozen=True):
    """Start an upstream again that was given up."""


class Reload(_Request, tag="reload", frozen=True):
    """Load the toolbox anew."""


Request = List | Show | Cancel | Release | Tool | Reconcile | Replay | Status | Retry | Reload

_decoder: Final = msgspec.json.Decoder(Request)
_encoder: Final = msgspec.json.Encoder()


def decode_request(line: bytes) -> Request:
    """The question that a line is.

    Raises:
        BadRequest: it is none.
    """
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(str(error)) from None


def encode_request(request: Request) -> bytes:
    """A question as a line."""
    return _encoder.encode(request) + b"\n"


def success(value: dict[str, Any]) -> bytes:
    """An answer as a line. A lone surrogate in it, as a caller's id may hold, becomes a question mark."""
    return _line({"ok": value})


def failure(error: ZtrioError | None = None, *, code: str = "", message: str = "") -> bytes:
    """A failure as a line: that of a call, or one of the connection itself."""
    return _line({"error": {"code": code, "message": message} if error is None else error.as_dict()})


def _line(answer: dict[str, Any]) -> bytes:
    try:
        return _encoder.encode(answer) + b"\n"
    except (UnicodeEncodeError, TypeError):
        return _encoder.encode(_plain(answer)) + b"\n"


def _plain(value: Any) -> Any:
    """What JSON can carry of a value."""
    if isinstance(value, dict):
        return {_plain(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return value if value is None or isinstance(value, bool | int | float) else str(value)
