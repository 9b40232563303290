"""`ztrio audit verify`: whether the log is as it was written.

Every event carries the hash of the one before it, so nobody can change, move or remove one in the middle unnoticed.
What was removed because it was too old is no gap: its last hash is kept. The newest events have none after them: who
wants to know that they are all there notes the head now and then, elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ztrio_cli.console import FAILED, OK, Complaint, write_json, write_line
from ztrio_cli.state import kept_state
from ztrio_sql import StoreReader, Verification

__all__ = ["verify"]


def verify(workspace: Path, state: str | None, *, as_json: bool) -> int:
    """Follow the hash chain of a workspace's log and say what was found; the exit status.

    Args:
        workspace: The workspace.
        state: What `--state` said, or None.
        as_json: One JSON object instead of words.

    Returns:
        0 when every link is good, 1 when one is not.

    Raises:
        Complaint: AUDIT_NOT_FOUND, there is no store; AUDIT_BROKEN, a link is bad; USAGE, no such store.
    """
    file = kept_state(workspace, state)
    if file is None:
        raise Complaint(
            "AUDIT_NOT_FOUND",
            f"There is no store in {workspace} whose log could be verified; a file of JSON lines has no hash chain. "
            "Perhaps --workspace or --state names another place.",
        )
    with StoreReader.open(file) as reader:
        found, store_id = reader.verify(), reader.store_id
    if as_json:
        write_json(_as_dict(found) | {"store": str(file), "store_id": store_id})
    elif found.problem is not None:
        raise Complaint("AUDIT_BROKEN", f"{file}: {found.problem}. {_before(found)}")
    else:
        write_line(f"The chain holds: {_before(found)}")
        write_line(f"head: {found.last or 0}:{found.head.hex()}")
    return FAILED if found.bad is not None else OK


def _before(found: Verification) -> str:
    if not found.events:
        return "No event is before it." if found.bad is not None else "there is no event yet."
    return f"{found.events} events, {found.first} to {found.last}, are as they were written."


def _as_dict(found: Verification) -> dict[str, Any]:
    return {
        "ok": found.bad is None,
        "events": found.events,
        "first": found.first,
        "last": found.last,
        "head": found.head.hex(),
        "bad": found.bad,
        "problem": found.problem,
    }
