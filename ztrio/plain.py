"""JSON-like values, exactly: what may be an argument, a result or session state, and its one canonical encoding.

Allowed are dict (with str keys), list, str, int of up to 4,300 digits, finite float, bool and None; session state may
also hold bytes and datetime. MessagePack alone would not do: it has no integer beyond 64 bits and folds every time zone
into UTC, so both travel as extension types. Nothing is ever unpickled.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from typing import Any, Final

import msgspec

__all__ = ["NotPlain", "decode", "digest", "encode", "plain"]

_BIG_INT: Final = 1
_DATETIME: Final = 2
_MAX_DEPTH: Final = 200  # far below the interpreter's recursion limit, far above anything a tool returns

_MAX_DIGITS: Final = 4300  # Python's own limit between int and text (sys.int_info.default_max_str_digits)
_INT_LIMIT: Final = 10**_MAX_DIGITS

_I64_MIN: Final = -(2**63)
_U64_MAX: Final = 2**64 - 1

# The value itself: `str(member)` of an Enum that is also a str would give its name.
_EXACT: Final[tuple[tuple[type, Callable[[Any], Any]], ...]] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
)


class NotPlain(ValueError):
    """A value does not fit; the message names the place, for example `$.rows[3].price`."""


def plain(value: Any, *, rich: bool = False) -> Any:
    """Copy `value` into plain containers, refusing what is not JSON-like.

    Args:
        value: The value; tuples become lists, `os.PathLike` becomes str.
        rich: Also allow bytes and datetime (session state).

    Raises:
        NotPlain: names the path of the first part that does not fit.
    """
    return _walk(value, "$", 0, rich)


def _walk(value: Any, path: str, depth: int, rich: bool) -> Any:
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        if not -_INT_LIMIT < value < _INT_LIMIT:
            raise NotPlain(f"{path}: an integer of more than {_MAX_DIGITS} digits cannot be written as JSON")
        return value
    if kind is str:
        return _text(value, path)
    if kind is float:
        if not math.isfinite(value):
            raise NotPlain(f"{path}: {value!r} is not a finite number")
        return value
    if depth == _MAX_DEPTH:
        raise NotPlain(f"{path}: nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, dict):
        return {_key(key, path): _walk(item, f"{path}.{key}", depth + 1, rich) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_walk(item, f"{path}[{index}]", depth + 1, rich) for index, item in enumerate(value)]
    if rich and isinstance(value, bytes | dt.datetime):
        return value
    for base, exact in _EXACT:  # subclasses: StrEnum, IntEnum, numpy.float64
        if isinstance(value, base):
            return _walk(exact(value), path, depth, rich)
    fspath = getattr(kind, "__fspath__", None)
    if fspath is not None:
        return _walk(fspath(value), path, depth + 1, rich)
    raise NotPlain(f"{path}: a {kind.__qualname__} is not JSON-like")


def _key(key: Any, path: str) -> str:
    if not isinstance(key, str):
        raise NotPlain(f"{path}: the key {key!r} is not a string")
    return _text(str.__str__(key), path)


def _text(text: str, path: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise NotPlain(f"{path}: text with a lone surrogate cannot be written as UTF-8") from None
    return text


def _wire(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _wire(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_wire(item) for item in value]
    if type(value) is int and not _I64_MIN <= value <= _U64_MAX:
        return msgspec.msgpack.Ext(_BIG_INT, f"{value:x}".encode())
    if isinstance(value, dt.datetime):
        return msgspec.msgpack.Ext(_DATETIME, value.isoformat().encode())
    return value


def _unwire(code: int, data: memoryview) -> Any:
    text = str(data, "ascii")
    if code == _BIG_INT:
        return int(text, 16)
    if code == _DATETIME:
        return dt.datetime.fromisoformat(text)
    raise NotPlain(f"unknown extension type {code}")


_encoder = msgspec.msgpack.Encoder()
_sorted_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(ext_hook=_unwire)


def encode(value: Any) -> bytes:
    """Encode what `plain` returned; equal values in equal key order give equal bytes."""
    return _encoder.encode(_wire(value))


def digest(value: Any) -> str:
    """SHA-256 of what `plain` returned, the same whatever the order of keys, as `sha256:<hex>`."""
    import hashlib  # noqa: PLC0415 - brings libcrypto, which workers would carry and do not need

    return "sha256:" + hashlib.sha256(_sorted_encoder.encode(_wire(value))).hexdigest()


def decode(data: bytes) -> Any:
    """Decode what `encode` wrote. The bytes may come from anywhere, MessagePack that is not plain is refused too.

    Raises:
        NotPlain: the bytes are not such an encoding.
    """
    try:
        return plain(_decoder.decode(data), rich=True)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise NotPlain(f"not an encoded value: {error}") from error
