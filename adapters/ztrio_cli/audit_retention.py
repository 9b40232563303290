"""`--keep-audit 30d,1GB` in words of the store."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ztrio_cli.console import USAGE, Complaint

if TYPE_CHECKING:
    from ztrio_sql import Retention

__all__ = ["parse_retention"]

_SECONDS: Final = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_BYTES: Final = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_PART: Final = re.compile(r"(\d{1,12})\s*([A-Za-z]+)")


def parse_retention(words: str) -> Retention:
    """How much of the audit log is kept.

    Args:
        words: An age (`30d`), a size (`1GB`), both (`30d,1GB`: whatever is beyond either goes) or `forever`.

    Raises:
        Complaint: USAGE, it is nothing of that, or says one thing twice.
    """
    from ztrio_sql import Retention

    if words.strip().lower() == "forever":
        return Retention(size=None)
    age: float | None = None
    size: int | None = None
    for part in words.split(","):
        match = _PART.fullmatch(part.strip())
        number, unit = (0, "") if match is None else (int(match[1]), match[2])
        if number and unit.lower() in _SECONDS and age is None:
            age = number * _SECONDS[unit.lower()]
        elif number and unit.upper() in _BYTES and size is None:
            size = number * _BYTES[unit.upper()]
        else:
            raise Complaint(
                "USAGE",
                f"--keep-audit {words}: give an age (30d; h, d or w), a size (1GB; KB to GB, KiB to GiB), both with "
                "a comma between them, or forever.",
                status=USAGE,
            )
    return Retention(age=age, size=size)
