"""What one scene of the demo knows: seen by the client, in the audit, in the process table and on disk.

None of it is taken from inside the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from ztrio_cli.demo.client import Answer
from ztrio_cli.demo.observe import Process, Tree

__all__ = ["CHART_PROGRAM", "TERMINAL", "Facts", "Promise", "sequences"]

CHART_PROGRAM: Final = "chart.py"
"""What the command line of the example's child process holds."""

TERMINAL: Final = frozenset({"deny", "queue_timeout", "commit", "rollback", "completed", "recovered", "unresolved"})
"""Events that end a call; the error of a read does too."""


@attrs.frozen
class Promise:
    """One promise, kept or broken, and on what evidence."""

    text: str
    kept: bool
    evidence: str


@attrs.frozen(kw_only=True)
class Facts:
    """Everything observed in one scene.

    Args:
        scene: Its name.
        seconds: How long what the scene is about took.
        limit: How long it may take.
        answers: The client's answers, in the order in which the calls were sent; a cancelled call has none.
        events: Audit events of the scene's mutating calls, by `seq`.
        before: The workspace's visible files before.
        after: The same after the last answer.
        sightings: What a reader that looked all the time found, each different one once.
        seen: Processes below the server while the call ran.
        alive: Those of them that were still alive right after the answer.
        half_written: Unfinished files seen in staging while the call ran.
        leftovers: Staging folders that were there after the answer.
        extra: Facts of one scene alone.
    """

    scene: str
    seconds: float
    limit: float
    answers: tuple[Answer, ...]
    events: tuple[dict[str, Any], ...]
    before: Tree
    after: Tree
    sightings: tuple[Any, ...] = ()
    seen: tuple[Process, ...] = ()
    alive: tuple[Process, ...] = ()
    half_written: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()
    extra: Mapping[str, Any] = attrs.field(factory=dict)


def sequences(events: tuple[dict[str, Any], ...]) -> dict[str, list[str]]:
    """Job id → names of its events, in order; jobs in the order in which they were allowed."""
    found: dict[str, list[str]] = {}
    for event in events:
        found.setdefault(event["execution_job_id"], []).append(event["event"])
    return found
