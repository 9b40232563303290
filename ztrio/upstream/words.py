"""What is said about a server under supervision: what to start, how long things may take, how it ended."""

from __future__ import annotations

import errno
import math
import os
import signal
from collections.abc import Mapping
from typing import Any, Final, Self

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

    def encoded(self) -> bytes:
        """What the init above it is told: how many arguments, how many bytes, the arguments, the environment.

        To the byte, as the system has them, and not as text: neither need be valid in any encoding.

        Raises:
            OSError: no program can be started with these.
        """
        environment = os.environ if self.env is None else self.env
        words = [*self.argv, *(f"{name}={value}" for name, value in environment.items())]
        names_are_good = all(name and "=" not in name for name in environment)
        if not self.argv or not names_are_good or any("\0" in word for word in words):
            raise OSError(errno.EINVAL, "these cannot be arguments and an environment", *self.argv[:1])
        data = b"".join(os.fsencode(word) + b"\0" for word in words)
        return b"%d %d\n%s" % (len(self.argv), len(data), data)


@attrs.frozen(kw_only=True)
class Timing:
    """How long things may take, in seconds.

    Args:
        start_timeout: From its start to its being ready. Unbounded by itself, because a server is not slow while nobody
            has said the first word to it; whoever serves it may bound its own handshake, and raise `TooSlowError`.
        eof_grace: From the end of its stdin to SIGTERM.
        term_grace: From SIGTERM to SIGKILL.
        kill_bound: From SIGKILL to giving up on the proof of its death.
        drain: For what is still in its stdout when it has ended.
    """

    start_timeout: float = math.inf
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
        proof: How that is known: `rung` of the containment ladder, `pid` of the program, `seconds` from the word to
            kill to the proof (None where no word was needed, or no proof came).
        expected: Whether we ended it.
    """

    epoch: int
    status: int | None
    how: str
    stderr_tail: str
    proven: bool
    proof: dict[str, Any] = attrs.field(factory=dict)
    expected: bool = False

    @classmethod
    def unstarted(cls, epoch: int, error: OSError) -> Self:
        """The end of what never began."""
        what = "" if error.filename is None else f": {os.fsdecode(error.filename)}"
        return cls(
            epoch=epoch,
            status=None,
            how=f"could not be started: {error.strerror or error}{what}",
            stderr_tail="",
            proven=True,  # of nothing
            proof={"rung": "none"},
        )


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
