"""What is said about a server under supervision: what to start, how long things may take, how it ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any, Final

import attrs

__all__ = ["Command", "Death", "RestartPolicy", "Timing", "how_it_ended"]


@attrs.frozen
class Command:
    """What is started.

    Args:
        argv: The program and its arguments.
        cwd: Its working directory; None for ours.
        env: Its environment, whole; None for ours.
    """

    argv: tuple[str, ...]
    cwd: str | None = None
    env: Mapping[str, str] | None = attrs.field(default=None, repr=False)


@attrs.frozen(kw_only=True)
class Timing:
    """How long things may take, in seconds.

    Args:
        eof_grace: From the end of its stdin to SIGTERM.
        term_grace: From SIGTERM to SIGKILL.
        kill_bound: From SIGKILL to giving up on the proof of its death.
        drain: For what is still in its stdout when it has ended.
    """

    eof_grace: float = 1.5
    term_grace: float = 1.5
    kill_bound: float = 1.0
    drain: float = 1.0


@attrs.frozen(kw_only=True)
class RestartPolicy:
    """When a server that ended is started again.

    Args:
        first: Seconds before the first try.
        factor: By which the next wait is longer.
        ceiling: Seconds of the longest wait.
        jitter: Part of a wait by which it may be shorter or longer, so that many do not start at once.
        intensity: Deaths within `period` after which it is given up.
        period: Seconds.
        sustained: Seconds of life after which everything counts from the beginning.
    """

    first: float = 0.1
    factor: float = 2.0
    ceiling: float = 30.0
    jitter: float = 0.2
    intensity: int = 5
    period: float = 60.0
    sustained: float = 30.0


@attrs.frozen(kw_only=True)
class Death:
    """The end of one generation of a server.

    Args:
        epoch: Number of the generation.
        status: Exit status of the program that was started, or minus the number of the signal that ended it; None
            where it is not known or never ran.
        how: The same in words, such as `exited with status 3`.
        stderr_tail: The end of what it wrote to stderr.
        proven: Whether its whole process tree is known to be dead.
        proof: How that is known: `rung`, `pid`, `seconds` from the word to the proof.
        expected: Whether we ended it.
    """

    epoch: int
    status: int | None
    how: str
    stderr_tail: str
    proven: bool
    proof: dict[str, Any] = attrs.field(factory=dict)
    expected: bool = False


_UNKNOWN: Final = "ended, nobody knows how"


def how_it_ended(status: int | None) -> tuple[int | None, str]:
    """A status of `waitpid` as exit status (or minus a signal), and in words."""
    if status is None:
        return None, _UNKNOWN
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code, f"exited with status {code}"
    try:
        return code, f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return code, f"was ended by signal {-code}"
