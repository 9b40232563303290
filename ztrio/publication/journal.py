"""The journal: what a call is about to do to which files, so that whoever comes after a crash can finish or undo it.

It lies in the job's row as msgpack and, for people, in `recovery.json`. It says *which objects* are concerned, by
`Mark`, and never what was done already: that is seen by looking, and cannot be told by a note that was written before
or after the deed.

Paths are relative to the workspace, component by component, so that a workspace that was moved can be recovered and
none of them can lead outside. The format has a number; a newer one is refused, and so is anything that is not exactly
a journal: acting on half of one would be worse than leaving everything where it is.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ztrio.publication.identity import Mark

__all__ = ["MAX_JOURNAL", "VERSION", "Entry", "Journal", "JournalDamaged", "decode_journal", "encode_journal"]

VERSION: Final = 1
MAX_JOURNAL: Final = 1 << 20
"""Bytes of the largest journal; an output takes about 300 and its path."""

_MAX_OUTPUTS: Final = 1024
_MAX_PART: Final = 1024  # bytes of a path component; file systems allow 255


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One output of a call.

    Args:
        parameter: The tool's parameter that named it.
        path: The target, relative to the workspace.
        parent: The directory that held the target.
        place: The directory that holds the job directory in which it is staged, relative to the workspace.
        folder: Name of the slot in the job directory; the slot holds the object under the target's own name.
        old: What stood at the target, or None.
        old_mode: Its permissions as four octal digits, or None.
        new: What was made for it; None before that, and for an optional output that was not made.
    """

    parameter: str
    path: tuple[str, ...]
    parent: Mark
    place: tuple[str, ...]
    folder: str
    old: Mark | None
    old_mode: str | None
    new: Mark | None


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """What one call is about to do.

    Args:
        version: The format.
        job_id: The call's id.
        workspace: Path of the workspace, to tell one from another where a store serves several.
        outputs: Its outputs, in the order of publication.
        places: Directories that hold a job directory of the call, relative to the workspace, the workspace first.
        external: Whether its tool has effects elsewhere, which nobody can take back.
    """

    version: int = VERSION
    job_id: str
    workspace: str
    external: bool = False
    outputs: tuple[Entry, ...] = ()
    places: tuple[tuple[str, ...], ...] = ((),)


class JournalDamaged(ValueError):
    """What was found is no journal, or one of a newer ztrio. Nothing is done on the strength of it."""


class _Header(msgspec.Struct):
    version: int


def encode_journal(journal: Journal) -> bytes:
    """The journal as bytes.

    Raises:
        ValueError: it is larger than `MAX_JOURNAL`.
    """
    data = msgspec.msgpack.encode(journal)
    if len(data) > MAX_JOURNAL or len(journal.outputs) > _MAX_OUTPUTS:
        raise ValueError(f"the journal of {len(journal.outputs)} outputs is larger than its bounds")
    return data


def decode_journal(data: bytes, *, text: bool = False) -> Journal:
    """The journal from bytes.

    Args:
        data: What was stored.
        text: Whether it is JSON, as part of `recovery.json`, instead of msgpack.

    Raises:
        JournalDamaged: it is not one.
    """
    if len(data) > MAX_JOURNAL * (8 if text else 1):
        raise JournalDamaged(f"it has {len(data)} bytes, more than any journal")
    decode = msgspec.json.decode if text else msgspec.msgpack.decode
    try:
        version = decode(data, type=_Header).version
        if version != VERSION:
            raise JournalDamaged(f"it has format {version}, this ztrio knows {VERSION}")
        journal = decode(data, type=Journal)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        if isinstance(error, JournalDamaged):
            raise
        raise JournalDamaged(f"it does not decode: {error}") from error
    _check(journal)
    return journal


def _check(journal: Journal) -> None:
    if len(journal.outputs) > _MAX_OUTPUTS:
        raise JournalDamaged(f"it has {len(journal.outputs)} outputs")
    if not _is_component(journal.job_id):
        raise JournalDamaged(f"{journal.job_id!r} is no job's id")
    for place in journal.places:
        _check_path(place)
    for output in journal.outputs:
        if not output.path:
            raise JournalDamaged(f"{output.parameter} has no path")
        _check_path(output.path)
        _check_path(output.place)
        if output.place not in journal.places or not output.folder.isdecimal():
            raise JournalDamaged(f"{output.parameter} is staged where the job has no place")
        mode = output.old_mode
        if mode is not None and not (len(mode) == 4 and set(mode) <= set("01234567")):
            raise JournalDamaged(f"{output.parameter} has the mode {mode!r}")


def _check_path(parts: tuple[str, ...]) -> None:
    if not all(map(_is_component, parts)):
        raise JournalDamaged(f"{'/'.join(parts)!r} is no path inside a workspace")


def _is_component(part: str) -> bool:
    try:
        data = part.encode()
    except UnicodeEncodeError:
        return False
    return bool(data) and part not in (".", "..") and len(data) <= _MAX_PART and not {0, 0x2F} & set(data)
