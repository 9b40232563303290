"""What the slots of a call look like when they are written down: in the journal, and in `recovery.json` for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ztrio.publication.commit import Slot
from ztrio.publication.identity import Mark
from ztrio.publication.journal import Entry, Journal

__all__ = ["described", "journal_of"]


def journal_of(
    job_id: str, workspace: str, slots: Iterable[Slot], directories: Iterable[str], *, external: bool
) -> Journal:
    """The journal of a call as it is known now.

    Args:
        job_id: The call's id.
        workspace: Canonical path of the workspace.
        slots: Its outputs, in the order of publication.
        directories: Paths of its job directories, the workspace's first.
        external: Whether its tool has effects elsewhere.
    """
    places = tuple(_place(workspace, directory) for directory in directories)
    outputs = tuple(_entry(workspace, slot) for slot in slots)
    return Journal(job_id=job_id, workspace=workspace, external=external, outputs=outputs, places=places)


def described(journal: Journal, slots: Iterable[Slot]) -> dict[str, Any]:
    """The journal for `recovery.json`, with the paths that people look for."""
    facts: dict[str, Any] = msgspec.to_builtins(journal)
    for output, slot in zip(facts["outputs"], slots, strict=True):
        # What was displaced lies at the staging path once the target has the new one.
        output |= {"target": slot.public, "staged": slot.path}
    return facts


def _entry(workspace: str, slot: Slot) -> Entry:
    directory = slot.target.policy.kind == "dir"
    parent = slot.parent_identity
    return Entry(
        parameter=slot.target.parameter,
        path=slot.target.parts,
        parent=Mark(inode=parent.inode, born_ns=parent.born_ns, directory=True, size=0, mtime_ns=0),
        place=_place(workspace, slot.job_path),
        folder=slot.folder,
        old=None if slot.before is None else slot.before.mark(directory=directory),
        old_mode=None if slot.before_mode is None else f"{slot.before_mode:04o}",
        new=None if slot.staged is None else slot.staged.mark(directory=directory),
    )


def _place(workspace: str, directory: str) -> tuple[str, ...]:
    # Both are canonical, so plain text will do; a `Path` would cost more than everything else here.
    return tuple(directory[len(workspace.rstrip("/")) + 1 :].split("/")[:-1])
