"""JSON-RPC text, exactly: one line to one JSON value and back, without losing a digit.

Why not the SDK's own decoding: it answers a line that is no message with silence, and a JSON library that decodes
numbers into 64 bits or doubles changes what the caller said. Here integers are Python's, of any size up to the
interpreter's limit of digits, and a number that cannot be held exactly as a finite one is refused instead of becoming
`inf`. The refusal can still name the request: the line is then read a second time without what cannot be held.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

import msgspec

__all__ = [
    "BOM",
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "PARSE_ERROR",
    "RESOURCE_NOT_FOUND",
    "NotJson",
    "NumberOutOfRange",
    "RequestId",
    "decode",
    "encode",
    "encode_plain",
    "error_reply",
    "is_request_id",
]

RequestId = str | int

# JSON-RPC 2.0, section 5.1.
PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
# MCP 2025-11-25, Resources, Error Handling; later versions use INVALID_PARAMS.
RESOURCE_NOT_FOUND: Final = -32002

BOM: Final = b"\xef\xbb\xbf"


class NotJson(ValueError):
    """The line is not UTF-8 JSON text; the message says where."""


class NumberOutOfRange(ValueError):
    """The line is JSON, but a number in it cannot be held: too large for a float, or with too many digits.

    Args:
        value: The decoded line, with None for floats and for what cannot be held, good for finding the request's id.
    """

    def __init__(self, value: Any) -> None:
        super().__init__("a number in the message is out of range")
        self.value = value


class _Overflow(ValueError):
    """A float literal beyond the largest finite double."""


def _finite(literal: str) -> float:
    value = float(literal)
    if math.isinf(value):
        raise _Overflow(literal)
    return value


def _no_constant(literal: str) -> float:
    raise NotJson(f"{literal} is not JSON")


def _int_or_none(literal: str) -> int | None:
    try:
        return int(literal)
    except ValueError:  # more digits than the interpreter converts
        return None


def _none(_: str) -> None:
    return None


_decoder = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)
_reader = json.JSONDecoder(parse_float=_none, parse_int=_int_or_none, parse_constant=_no_constant)
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
# Only for text with a lone surrogate, which UTF-8 cannot carry but a `\ud800` escape can.
_ascii_encoder = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def decode(line: bytes) -> Any:
    """Decode one line, without its newline; a leading BOM and a trailing carriage return are ignored.

    Raises:
        NotJson: the line is not UTF-8 or not JSON (`NaN` and `Infinity` are not).
        NumberOutOfRange: it is JSON with a number that cannot be held.
    """
    try:
        text = line.removeprefix(BOM).decode().strip(" \t\r\n")
    except UnicodeDecodeError as error:
        raise NotJson(f"byte {error.start} is not UTF-8") from None
    try:
        return _decoder.decode(text)
    except json.JSONDecodeError as error:
        raise NotJson(f"{error.msg} at character {error.pos}") from None
    except NotJson:
        raise
    except RecursionError:
        raise NotJson("nested too deeply") from None
    except ValueError:  # ours for a float, the interpreter's own for an int of more than 4,300 digits
        raise NumberOutOfRange(_reader.decode(text)) from None


def encode(message: dict[str, Any]) -> bytes:
    """Encode one message as a line, with its newline.

    Raises:
        ValueError: it holds an int with more digits than the interpreter prints, or a float that is not finite.
    """
    try:
        return _encoder.encode(message).encode() + b"\n"
    except UnicodeEncodeError:
        return _ascii_encoder.encode(message).encode("ascii") + b"\n"


def encode_plain(message: dict[str, Any]) -> bytes:
    """`encode` for what holds finite numbers only, such as the results of tools; ten times as fast."""
    try:
        return msgspec.json.encode(message) + b"\n"
    except (OverflowError, UnicodeEncodeError):  # an integer of more than 64 bits, or a lone surrogate
        return encode(message)


def is_request_id(value: object) -> bool:
    """Whether `value` may be a request id or a progress token: a string or an integer, and `true` is not one."""
    return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))


def error_reply(request_id: RequestId | None, code: int, message: str) -> dict[str, Any]:
    """A JSON-RPC error message; a None id says that the request could not be told."""
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}
