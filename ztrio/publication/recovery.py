"""`recovery.json`: what a call was about to do to which files, for whoever finds its job directory later.

It is rewritten whole and atomically at each phase, with mode 0600, and not synced: after a power cut the job row of a
durable store decides, and without one nothing of the call is meant to survive. Facts once written stay.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ztrio.publication.exchange import FileOps

__all__ = ["PHASES", "RECOVERY_FILE", "RecoveryFile"]

RECOVERY_FILE: Final = "recovery.json"

PHASES: Final = ("preparing", "worker_running", "publishing_outputs", "committing_state", "committed")
"""In their order; a call that ends early stays at the phase it had reached."""

_FORMAT: Final = 1


class RecoveryFile:
    """Writes one call's `recovery.json`.

    Args:
        ops: The operations.
        dir_fd: The job directory; borrowed, not closed.
        facts: What is known from the start.
    """

    def __init__(self, ops: FileOps, dir_fd: int, facts: Mapping[str, Any]) -> None:
        self._ops = ops
        self._dir_fd = dir_fd
        # Grows only: a fact may be overwritten by a newer one of its name, never removed.
        self._facts: dict[str, Any] = {"format": _FORMAT, "supervisor_pid": os.getpid(), **facts}
        # One entry per phase reached, in order, with its wall-clock time.
        self._phases: dict[str, str] = {}

    def write(self, phase: str, facts: Mapping[str, Any]) -> None:
        """Note that `phase` is reached.

        Args:
            phase: One of `PHASES`.
            facts: JSON-like facts to add.

        Raises:
            ValueError: there is no such phase.
            OSError: it cannot be written; what was there before still is.
        """
        if phase not in PHASES:
            raise ValueError(f"{phase!r} is not one of {', '.join(PHASES)}")
        self._facts.update(facts)
        self._phases[phase] = dt.datetime.now(dt.UTC).isoformat()
        record = {"phase": phase, "phases": self._phases, **self._facts}
        text = msgspec.json.format(msgspec.json.encode(record), indent=2)
        self._ops.write_file(self._dir_fd, RECOVERY_FILE, text + b"\n")
