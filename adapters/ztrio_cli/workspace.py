"""Where a workspace's files of ztrio are, for every command that has `--workspace`."""

from __future__ import annotations

from pathlib import Path

from ztrio_cli.console import USAGE, Complaint

__all__ = ["audit_file", "checked_workspace", "written_lines"]


def checked_workspace(folder: Path) -> Path:
    """The workspace, absolute.

    Raises:
        Complaint: USAGE, there is no such folder.
    """
    if not folder.is_dir():
        raise Complaint("USAGE", f"--workspace {folder}: there is no such folder; make it first.", status=USAGE)
    return folder.resolve()


def audit_file(workspace: Path) -> Path:
    """The file of JSON lines that the audit of a workspace is in where no store keeps it."""
    return workspace / ".ztrio" / "audit.jsonl"


def written_lines(workspace: Path, named: Path | None, *, stored: bool) -> Path | None:
    """The file of JSON lines to be written, or None: a store has the audit already, so only if it was asked for.

    Args:
        workspace: The workspace.
        named: What `--audit-file` said, or None.
        stored: Whether there is a store.
    """
    return named if stored or named is not None else audit_file(workspace)
