"""JSON objects taken apart one level deep: what is not looked at keeps its bytes.

msgspec does this without copying, and refuses one thing that JSON allows: the escape of a lone surrogate, which no
UTF-8 text can carry. JavaScript's strings hold such things, so they do turn up, and a call must not be lost over one:
those objects are read by the standard library and their values written out again.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ztrio_mcp import jsonrpc

__all__ = ["Fields", "encode_fields", "fields_of", "raw"]

Fields = dict[str, msgspec.Raw]
"""Key → value, as it was written."""

_fields: Final = msgspec.json.Decoder(Fields)
_encoder: Final = msgspec.json.Encoder()


def raw(value: Any) -> msgspec.Raw:
    """A plain value as it is written."""
    return msgspec.Raw(jsonrpc.encode_plain(value)[:-1])


def fields_of(data: bytes | msgspec.Raw) -> Fields:
    """Take an object apart.

    Raises:
        msgspec.DecodeError: it is none.
    """
    try:
        return _fields.decode(data)
    except msgspec.DecodeError:
        if b"\\ud" not in bytes(data).lower():
            raise
    try:
        value = jsonrpc.decode(bytes(data))
    except ValueError as error:
        raise msgspec.DecodeError(str(error)) from None
    if not isinstance(value, dict):
        raise msgspec.DecodeError("no object")
    return {key: raw(each) for key, each in value.items()}


def encode_fields(fields: Fields) -> bytes:
    """Put an object together."""
    try:
        return _encoder.encode(fields)
    except UnicodeEncodeError:  # a key with a lone surrogate
        members = (b"%b:%b" % (bytes(raw(key)), bytes(value)) for key, value in fields.items())
        return b"{" + b",".join(members) + b"}"
