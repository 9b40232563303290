"""What the write-ahead log of an SQLite database says about the header of its file, read as bytes.

A version that does not understand a database must not open it: on closing, SQLite copies the log into the file. So the
first page's copies in the log are looked at like this (sqlite.org/walformat.html, section 4).
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

__all__ = ["header_in_wal"]

_HEADER: Final = struct.Struct(">IIII8s8x")  # magic, version, page size, sequence, salts
_FRAME: Final = struct.Struct(">II8s8x")  # page number, size after commit, salts
_MAGIC: Final = (0x377F0682, 0x377F0683)
_FIRST_PAGE: Final = b"SQLite format 3\0"  # what the first page begins with; sqlite.org/fileformat2.html, section 1.3.1
_USER_VERSION: Final = 60  # sqlite.org/fileformat2.html, offsets in the first page
_APPLICATION_ID: Final = 68


def header_in_wal(path: Path) -> tuple[int, int] | None:
    """Application id and highest user version in a log's copies of the first page, or None if it has none.

    Also of transactions that were never committed: whoever began to migrate the database had good reason to. A frame's
    head is written before its page; what was killed in between has left what an earlier round wrote there, any page.
    """
    found: tuple[int, int] | None = None
    try:
        log = path.open("rb")
    except OSError:
        return None
    with log:
        header = log.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return None
        magic, _, page_size, _, salts = _HEADER.unpack(header)
        if magic not in _MAGIC:
            return None
        while len(frame := log.read(_FRAME.size)) == _FRAME.size:
            number, _, frame_salts = _FRAME.unpack(frame)
            if frame_salts != salts:
                break  # of an earlier round
            if number != 1:
                log.seek(page_size, os.SEEK_CUR)
                continue
            page = log.read(page_size)
            if len(page) < page_size or not page.startswith(_FIRST_PAGE):
                break
            (version,) = struct.unpack_from(">i", page, _USER_VERSION)
            (owner,) = struct.unpack_from(">i", page, _APPLICATION_ID)
            found = owner, max(version, found[1]) if found else version
    return found
