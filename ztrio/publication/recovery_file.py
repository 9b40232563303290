"""`recovery.json`: what a call was about to do to which files, for whoever finds its job directory later.

It is rewritten whole and atomically at each phase, with mode 0600, and not synced: after a power cut the job row of a
durable store decides, and without one nothing of the call is meant to survive. Facts once written stay.

With a durable store it is a mirror for people; recovery takes from it only whose the directory is. For a store that
forgets it is all there is, and good enough: what a process wrote is there after it was killed.
"""

from __future__ import annotations

import datetime as dt
import os
import stat
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ztrio.publication.exchange import FileOps
from ztrio.publication.journal import Journal, JournalDamaged, decode_journal

__all__ = ["PHASES", "RECOVERY_FILE", "RecoveryFile", "RecoveryNote", "read_recovery_file"]

RECOVERY_FILE: Final = "recovery.json"

PHASES: Final = ("preparing", "worker_running", "publishing_outputs", "committing_state", "committed")
"""In their order; a call that ends early stays at the phase it had reached."""

_FORMAT: Final = 2
_MAX_BYTES: Final = 8 << 20


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


class RecoveryNote(msgspec.Struct, frozen=True, kw_only=True):
    """What a `recovery.json` says about whose it is and how far the call was.

    Args:
        phase: One of `PHASES`.
        job_id: The call's id.
        store_id: The store that has the call's row; None where nobody said.
        durable: Whether that store survives its process.
        tool: Name of the tool.
        session: The caller's name for the session.
        principal: Id of who called.
        worker_pid: Process id of the worker on the host.
        worker_started_at: Start time of that process, seconds since the epoch.
        journal: What the call was about to do.
    """

    phase: str
    job_id: str
    store_id: str | None = None
    durable: bool = False
    tool: str | None = None
    session: str | None = None
    principal: str | None = None
    worker_pid: int | None = None
    worker_started_at: float | None = None
    journal: Journal | None = None


def read_recovery_file(dir_fd: int) -> RecoveryNote | None:
    """What the `recovery.json` of a job directory says.

    Returns:
        None if there is none yet, or nothing is in it: it was not synced when the power went.

    Raises:
        JournalDamaged: it is something else.
        OSError: it cannot be read.
    """
    try:
        fd = os.open(RECOVERY_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise JournalDamaged(f"{RECOVERY_FILE} is no file")
        data = file.read(_MAX_BYTES + 1)
    if not data.strip(b"\0"):
        return None
    journal = decode_journal(data, text=True)
    try:
        note = msgspec.json.decode(data, type=RecoveryNote)
    except (msgspec.DecodeError, ValueError) as error:
        raise JournalDamaged(f"{RECOVERY_FILE} does not decode: {error}") from error
    if note.phase not in PHASES:
        raise JournalDamaged(f"{RECOVERY_FILE} names the phase {note.phase!r}")
    return msgspec.structs.replace(note, journal=journal)
