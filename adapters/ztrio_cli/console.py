"""What every command prints, and where: results to stdout, everything else to stderr, errors in one line with a code.

The exit status is one of a few, the same for every command: `OK`, `FAILED`, `USAGE`, or 128 + the number of the
signal that interrupted (130 for Ctrl-C), as shells have it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console

    from ztrio.errors import ZtrioError

__all__ = [
    "FAILED",
    "INTERRUPTED",
    "OK",
    "USAGE",
    "Complaint",
    "console",
    "discard_stdout",
    "note",
    "one_line",
    "open_missing_streams",
    "report",
    "write_json",
    "write_line",
]

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141


class Complaint(Exception):
    """A command cannot do what it was asked, for a reason that is not a call's.

    Args:
        code: Stable identifier: `USAGE`, `AUDIT_NOT_FOUND`, …
        message: What is wrong and what to do.
        status: Exit status of the command.
    """

    def __init__(self, code: str, message: str, *, status: int = FAILED) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status

    def as_dict(self) -> dict[str, Any]:
        """The complaint as the JSON object of an error."""
        return {"code": self.code, "message": self.message}


def write_line(text: str = "") -> None:
    """Print one line to stdout."""
    sys.stdout.write(text + "\n")


def write_json(value: Any) -> None:
    """Print one JSON document on one line to stdout and hand it over at once: the reader may be a pipe."""
    write_line(json.dumps(value, ensure_ascii=False))
    sys.stdout.flush()


def note(text: str) -> None:
    """Print one line to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """A rich console. Highlighting and markup are off: what is shown is often the user's own data."""
    from rich.console import Console

    return Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def one_line(text: str) -> str:
    """`text` with every run of white space as one blank: an error is one line, whatever its message holds."""
    return " ".join(text.split())


def report(error: ZtrioError | Complaint, *, as_json: bool) -> None:
    """Show an error: `error: CODE: message` on stderr, or `{"error": {…}}` on stdout."""
    if as_json:
        write_json({"error": error.as_dict()})
    else:
        note(f"error: {error.code}: {one_line(error.message)}")


def open_missing_streams() -> None:
    """Point those of stdin, stdout and stderr that were closed at nothing.

    Otherwise the next file that is opened gets the number, and what is printed goes into it.
    """
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, fd)
            if nothing != fd:
                os.close(nothing)
            stream = os.fdopen(fd, mode, encoding="utf-8", closefd=False)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def discard_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not complain about a reader that left."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)
