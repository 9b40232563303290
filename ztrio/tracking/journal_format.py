"""The lines of the journal in a file; what they mean, and what is no journal. Without a file: bytes in, bytes out.

    {"format": …, "version": 1}     the first line
    +{"call_id": …, …}              a row, in the place of any earlier one of its call
    -["pc_…", …]                    calls whose rows are gone

A last line without an end is what a process leaves that was killed while it wrote; nobody was told that it was written,
so it means nothing. Zeros at the end are what a power cut leaves between the size of a file and its content. Any other
line that cannot be read is damage, and whoever repairs it by guessing guesses about calls that may have happened.

JSON and not a binary form: it costs a microsecond more of a call, and an operator can read what a damaged file says.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import msgspec

from ztrio.activity import JournalRow
from ztrio.errors import StoreRefused

__all__ = ["HEADER", "drop_line", "foreign", "put_line", "replay"]

_FORMAT: Final = "ztrio journal of sent calls"
_VERSION: Final = 1

HEADER: Final = msgspec.json.encode({"format": _FORMAT, "version": _VERSION}) + b"\n"
"""The first line."""


class _Header(msgspec.Struct):
    format: str
    version: int


def put_line(row: JournalRow) -> bytes:
    """The line that says that a row is open."""
    return b"+%b\n" % _encode(row)


def drop_line(call_ids: Sequence[str]) -> bytes:
    """The line that says that rows are gone."""
    return b"-%b\n" % _encode(call_ids)


def replay(data: bytes, path: Path) -> tuple[dict[str, tuple[JournalRow, bytes]], int]:
    """What the content of a file says.

    Args:
        data: All of it.
        path: The file, for the message of a refusal.

    Returns:
        Call → its row and the line of that; and how many bytes from the beginning are whole lines. No bytes at all,
        when the process was killed before it had written the first line.

    Raises:
        StoreRefused: it is no journal, one of a newer version, or damaged.
    """
    data = data.rstrip(b"\0")
    if len(data) < len(HEADER) and HEADER.startswith(data):
        return {}, 0
    head, *lines = data.split(b"\n")
    _check(head, path, complete=bool(lines))
    rows: dict[str, tuple[JournalRow, bytes]] = {}
    for number, line in enumerate(lines[:-1], start=2):
        kind, body = line[:1], line[1:]
        try:
            if kind == b"+":
                row = _decode(body, JournalRow)
                rows[row.call_id] = (row, line + b"\n")
            elif kind == b"-":
                for call_id in _decode(body, list[str]):
                    rows.pop(call_id, None)
            else:
                raise ValueError("neither a row nor a removal")
        except (ValueError, RecursionError) as error:
            raise StoreRefused(
                f"The journal {path} is damaged in line {number}: {error}. It was left as it is. It says which calls "
                "were under way: look what became of them, then move it away.",
                code="STORE_DAMAGED",
                path=str(path),
                line=number,
            ) from error
    return rows, len(data) - len(lines[-1])


def foreign(path: Path, why: str) -> StoreRefused:
    """The refusal of what is no journal."""
    return StoreRefused(
        f"{path} is no journal of ztrio's: {why}. It was left as it is; move it away.",
        code="STORE_FOREIGN",
        path=str(path),
    )


def _check(head: bytes, path: Path, *, complete: bool) -> None:
    try:
        header = msgspec.json.decode(head, type=_Header)
    except (ValueError, RecursionError):
        header = None
    if header is None or header.format != _FORMAT or not complete:
        raise foreign(path, "it does not begin like one")
    if header.version > _VERSION:
        raise StoreRefused(
            f"The journal {path} was written by a newer ztrio (version {header.version}, this one knows {_VERSION}). "
            "It was left as it is; use that version.",
            code="STORE_NEWER",
            path=str(path),
            format=header.version,
        )


def _encode(value: Any) -> bytes:
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:  # a lone surrogate, as the name of a tool may have
        return json.dumps(attrs.asdict(value) if attrs.has(type(value)) else value).encode()


def _decode(data: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError:
        return msgspec.convert(json.loads(data), kind)


_ENCODER: Final = msgspec.json.Encoder()
