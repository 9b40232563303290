"""Where a workspace's sessions, calls and audit log are kept: `--state FILE`, `memory`, or the workspace's own file.

The database is imported when it is opened and not before: no command that does not need it shall pay for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ztrio.restart import workspace_lock
from ztrio.store import Store
from ztrio_cli.console import USAGE, Complaint

if TYPE_CHECKING:
    from ztrio_sql import Retention

__all__ = ["MEMORY", "kept_state", "opened_store", "state_file"]

MEMORY: Final = "memory"
"""What `--state` is where nothing is to be kept."""


def state_file(workspace: Path, state: str | None) -> Path | None:
    """The store's file, which may not exist yet; None where everything is kept in memory.

    Args:
        workspace: The workspace.
        state: What `--state` said, or None.
    """
    if state == MEMORY:
        return None
    return workspace / ".ztrio" / "state.db" if state is None else Path(state)


def kept_state(workspace: Path, state: str | None) -> Path | None:
    """The store's file for looking at it; None where nothing was kept.

    Raises:
        Complaint: USAGE, the named file does not exist.
    """
    file = state_file(workspace, state)
    if file is None or file.is_file():
        return file
    if state is not None:
        raise Complaint("USAGE", f"--state {state}: there is no such file.", status=USAGE)
    return None


@asynccontextmanager
async def opened_store(
    workspace: Path, file: Path | None, retention: Retention | None = None
) -> AsyncIterator[Store | None]:
    """The store of a workspace, made if need be; None for one in memory.

    Args:
        workspace: The workspace.
        file: The store's file, or None.
        retention: How much of the audit log is kept; as much as was said last when omitted.

    Raises:
        AlreadyInUse: WORKSPACE_BUSY, another process works there; STORE_BUSY, one works elsewhere with this store.
        StoreRefused: the file is none that this version can use.
        StoreUnavailable: it cannot be made or opened.
    """
    if file is None:
        yield None
        return
    with workspace_lock(workspace):
        pass  # whoever works in the workspace has its store, too; that one is to be named, and not the store
    from ztrio_sql import open_store

    async with open_store(file, retention=retention) as store:
        yield store
