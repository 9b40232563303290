"""The audit as JSON lines for others: to stdout, or to a new file that only its owner can read."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

from ztrio_cli.audit_show import intact
from ztrio_cli.audit_source import Log
from ztrio_cli.console import OK, USAGE, Complaint, note

__all__ = ["export"]


def export(log: Log, output: Path | None) -> int:
    """Write every wanted event, in ASCII, one at a time; the exit status.

    Args:
        log: The audit.
        output: A new file, or None for stdout.

    Raises:
        Complaint: USAGE, the file is there already.
        OSError: it cannot be written; what was made of it is removed.
    """
    count = 0
    with ExitStack() as stack:
        out: TextIO = sys.stdout if output is None else stack.enter_context(_private(output))
        try:
            for event in intact(log.poll()):
                out.write(json.dumps(event) + "\n")
                count += 1
            out.flush()
        except BaseException:
            if output is not None:
                output.unlink(missing_ok=True)  # half an export is none
            raise
    if output is not None:
        note(f"{count} events written to {output}.")
    return OK


def _private(path: Path) -> TextIO:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise Complaint("USAGE", f"--output {path}: it is there already; name a new file.", status=USAGE) from None
    return os.fdopen(fd, "w", encoding="ascii")
