"""One line to one message: the envelope is decoded, `params`, `result` and `error` stay the bytes that they are.

A line is decoded once, by msgspec. Only one that it refuses is looked at again, to find out what it is: a byte-order
mark, a banner, a batch, or a message with the escape of a lone surrogate, which msgspec refuses and JSON allows.
JavaScript's strings hold such things. They are put aside for the decoding and back into what comes out, so that the
values keep their bytes; to decode them with the standard library and encode them again would change numbers.

msgspec does not look at the encoding of what it leaves raw, so that is done here: a client may end over one wrong byte
(R34).
"""

from __future__ import annotations

import codecs
import re
from typing import Final

import msgspec

from ztrio_mcp.jsonrpc import BOM
from ztrio_mcp.peer.splitter import Oversized

__all__ = ["ABSENT", "NULL", "VERSION", "Envelope", "answered_by", "decode", "is_utf8"]

ABSENT: Final = msgspec.Raw(b"")
NULL: Final = msgspec.Raw(b"null")
VERSION: Final = msgspec.Raw(b'"2.0"')

_PIECE: Final = 64 * 1024  # bytes that are checked at a time, so that no line is held twice for it


class Envelope(msgspec.Struct, gc=False):
    """A message.

    Args:
        id: Its id; None for null, and for a response under what can be no id.
        method: The method of a request or notification.
        params: Raw, or `ABSENT`.
        result: Raw, or `ABSENT`.
        error: Raw, or `ABSENT`.
        jsonrpc: `VERSION` for a message as it should be.
    """

    id: int | str | msgspec.UnsetType | None = msgspec.UNSET
    method: str | None = None
    params: msgspec.Raw = ABSENT
    result: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT
    jsonrpc: msgspec.Raw = ABSENT


_decode: Final = msgspec.json.Decoder(Envelope).decode
_decode_raw: Final = msgspec.json.Decoder(msgspec.Raw).decode
_decode_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_id: Final = msgspec.json.Decoder(int | str | None).decode


def decode(line: bytes | bytearray) -> Envelope | str:
    """Decode one line of UTF-8, without its newline; a leading BOM and a trailing carriage return are ignored.

    Returns:
        The message, or why it is none: see `Handler.skipped`.
    """
    try:
        return _decode(line)
    except (msgspec.DecodeError, RecursionError):
        return _second_look(line)


def is_utf8(line: bytes | bytearray) -> bool:
    """Whether the line is UTF-8."""
    if line.isascii():
        return True
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(line)
    try:
        for at in range(0, len(line), _PIECE):
            decoder.decode(view[at : at + _PIECE])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


# ---- a line that msgspec refuses

# Every escape in a JSON text from left to right, so that `\\ud800` is a backslash and five letters; those of lone
# surrogates have a group.
_ESCAPES: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u([dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_PERHAPS_LONE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


def _second_look(line: bytes | bytearray) -> Envelope | str:
    body = bytes(line).removeprefix(BOM).strip(b" \t\r")
    if not body:
        return "blank"
    mark = b""
    if _PERHAPS_LONE.search(body):
        mark = _unused(body)
        body = _ESCAPES.sub(lambda found: found[0] if found[1] is None else mark + found[1], body)
    try:
        envelope: Envelope | str = _decode(body)
    except (msgspec.DecodeError, RecursionError):
        envelope = _what_it_is(body)
    return _restored(envelope, mark) if mark and isinstance(envelope, Envelope) else envelope


def _what_it_is(body: bytes) -> Envelope | str:
    try:
        _decode_raw(body)
    except (msgspec.DecodeError, RecursionError):
        return "not_json"
    if not body.startswith(b"{"):
        return "batch" if body.startswith(b"[") else "not_object"
    fields = _decode_fields(body)
    if "result" in fields or "error" in fields:
        return Envelope(id=None, result=fields.get("result", ABSENT), error=fields.get("error", ABSENT))
    try:
        _decode_id(fields.get("id", NULL))
    except msgspec.DecodeError:
        return "invalid_id"
    return "not_message"


def _unused(body: bytes) -> bytes:
    """Text that does not occur in `body`, that means nothing in JSON and cannot overlap with what surrounds it."""
    number = 0
    while (mark := b"<%d>" % number) in body:
        number += 1
    return mark


def _restored(envelope: Envelope, mark: bytes) -> Envelope:
    """The message with the escapes that were put aside."""

    def restore_text(text: str) -> str:
        pattern = re.escape(mark.decode()) + "([0-9a-fA-F]{4})"
        return re.sub(pattern, lambda found: chr(int(found[1], 16)), text)

    def restore(raw: msgspec.Raw) -> msgspec.Raw:
        value = bytes(raw)
        return msgspec.Raw(value.replace(mark, rb"\u")) if mark in value else raw

    if isinstance(envelope.id, str):
        envelope.id = restore_text(envelope.id)
    if envelope.method is not None:
        envelope.method = restore_text(envelope.method)
    envelope.params = restore(envelope.params)
    envelope.result = restore(envelope.result)
    envelope.error = restore(envelope.error)
    return envelope


# ---- which request a line answers that cannot be read

_JSONRPC: Final = rb'"jsonrpc"\s*:\s*"2\.0"\s*'
_ID: Final = rb'"id"\s*:\s*([1-9][0-9]{0,18})\s*'
_FIRST: Final = rb"\s*\{\s*(?:" + _JSONRPC + rb",\s*)?"
_VALUE: Final = rb'"(?:result|error)"\s*:'
_ID_FIRST: Final = re.compile(_FIRST + _ID + rb",\s*(?:" + _JSONRPC + rb",\s*)?" + _VALUE)
_VALUE_FIRST: Final = re.compile(_FIRST + _VALUE)
_ID_LAST: Final = re.compile(rb",\s*" + _ID + rb"(?:,\s*" + _JSONRPC + rb")?\}\s*\Z")


def answered_by(line: bytes | bytearray | Oversized) -> int | None:
    """The id of the request that an unreadable line is a response to, if that is certain enough to end its wait.

    Only where keys can be seen to be the outermost ones, in the orders in which responses are written: an `"id"` found
    anywhere may be part of what a tool returned. A line that is no JSON may have lost its end, and a half one may be
    followed by the whole response, so it needs its id in front and a brace at the end.
    """
    if isinstance(line, Oversized):
        head, tail = line.head.removeprefix(BOM), line.tail
        found = _ID_FIRST.match(head)
        if found is None and _VALUE_FIRST.match(head):
            found = _ID_LAST.search(tail)
    else:
        head, tail = bytes(line[:512]).removeprefix(BOM), bytes(line[-64:])
        found = _ID_FIRST.match(head) if tail.rstrip().endswith(b"}") else None
    return None if found is None else int(found[1])
