"""`ztrio recover`: what it says, what it does, and how it ends."""

from __future__ import annotations

import errno
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import trio
from rich.console import Console

from tests.cli.conftest import Command
from tests.kit.trees import listing, snapshot
from tests.publication.crashes import JOB
from tests.publication.left import leave
from ztrio.errors import StoreUnavailable
from ztrio.locks import ProcessLock
from ztrio.policies import Output
from ztrio.restart import workspace_lock
from ztrio.store import JobRow
from ztrio_cli import recover as recover_module
from ztrio_sql import open_store

OUT = {"out": ("out", Output())}


def crash(workspace: Path, *, theirs: bool = False) -> None:
    """A call that was killed while it published; somebody replaced its target since."""
    (workspace / "out").write_text("old")
    leave(workspace.resolve(), None, outputs=OUT, work={"out": "new"})
    if theirs:
        (workspace / "out").unlink()
        (workspace / "out").write_text("theirs")


def test_nothing_was_left(cli: Command, workspace: Path) -> None:
    """Where nothing was left that is said, with exit status 0."""
    ran = cli("recover", "-w", workspace)
    assert (0, f"Nothing was left in {workspace}.\n", "") == (ran.status, ran.out, ran.err)
    assert (
        '{"dry_run": true, "findings": [], "locked": []}\n'
        == cli("recover", "-w", workspace, "--dry-run", "--json").out
    )


def test_what_would_be_done_and_what_was_done(cli: Command, workspace: Path) -> None:
    """A dry run tells found, deed and reason and changes nothing; the run then does exactly that."""
    crash(workspace)
    before = snapshot(workspace)
    planned = cli("recover", "-w", workspace, "--dry-run")
    after = snapshot(workspace)
    del before["."], after["."]
    assert before == after
    done = cli("recover", "-w", workspace)
    assert "old" == (workspace / "out").read_text()
    text = f"""{JOB}  build, session s
  found: its outputs were being published
  out: put the old one back, because the new one stands there and the call did not commit
  .ztrio-job-{JOB}: remove, because nothing in it is needed any more
  outcome: rolled_back

1 of 1 """
    assert (0, text + "would be put right.\n", "") == (planned.status, planned.out, planned.err)
    assert (0, text + "put right.\n", "") == (done.status, done.out, done.err)
    assert [".ztrio", "out"] == listing(workspace)


def test_what_a_person_has_to_look_at(cli: Command, workspace: Path) -> None:
    """Exit status 1, what is the matter and what to do; accepted, it ends, and the exit status is 0 again."""
    crash(workspace, theirs=True)
    ran = cli("recover", "-w", workspace)
    assert 1 == ran.status
    assert "out: leave as it is, because somebody replaced what had been published" in ran.out
    assert "! out: somebody replaced what had been published; what stood there before lies in the job" in ran.out
    assert f"ztrio recover --accept {JOB}" in ran.out
    assert "0 of 1 put right. 1 for you to look at; targets that stay locked: 1.\n" == ran.out.splitlines(True)[-1]
    accepted = cli("recover", "-w", workspace, "--accept", JOB)
    assert (0, "theirs") == (accepted.status, (workspace / "out").read_text())
    assert [".ztrio", "out"] == listing(workspace)


def test_json(cli: Command, workspace: Path) -> None:
    """With --json the same as one object, with absolute paths."""
    crash(workspace)
    [finding] = json.loads(cli("recover", "-w", workspace, "--json").out)["findings"]
    assert (JOB, "build", "s", "rolled_back", None) == tuple(
        finding[key] for key in ("job_id", "tool", "session", "outcome", "problem")
    )
    assert ("exchange back", str(workspace / "out")) == (finding["actions"][0]["what"], finding["actions"][0]["path"])


@pytest.mark.parametrize("given", [True, False])
def test_the_workspaces_own_store_and_a_named_one(cli: Command, workspace: Path, given: bool) -> None:
    """The store in the workspace's own folder is used if there is one, another one if it is named."""
    file = workspace.parent / "other.db" if given else workspace / ".ztrio" / "state.db"

    async def interrupted() -> None:
        async with open_store(file) as store:
            await store.insert_job(
                JobRow(
                    job_id=JOB,
                    principal="local",
                    tool="build",
                    session="s",
                    capability="write",
                    phase="worker_running",
                    outcome=None,
                    targets={},
                    created_at="2026-01-01T00:00:00+00:00",
                )
            )

    trio.run(interrupted)
    options = ["--state", file] if given else []
    ran = cli("recover", "-w", workspace, *options)
    assert (0, True) == (ran.status, f"{JOB}  build, session s\n  found: its tool was running\n" in ran.out)
    assert f"Nothing was left in {workspace}.\n" == cli("recover", "-w", workspace, *options).out
    assert f"Nothing was left in {workspace}.\n" == cli("recover", "-w", workspace, "--state", "memory").out


def test_the_command_line_is_wrong(cli: Command, workspace: Path) -> None:
    """A workspace, a store or a call that is not there: exit status 2, one line."""
    for words in (
        ["-w", workspace / "missing"],
        ["-w", workspace, "--state", workspace / "missing.db"],
        ["-w", workspace, "--accept", "job_missing"],
    ):
        ran = cli("recover", *words)
        assert (2, "", 1, "error: USAGE:") == (ran.status, ran.out, ran.err.count("\n"), ran.err[:13])


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_a_server_at_work_is_named(cli: Command, workspace: Path, options: list[str]) -> None:
    """While a server works in the workspace nothing there is a leftover: refused with its process id."""
    with workspace_lock(workspace):
        ran = cli("recover", "-w", workspace, *options)
    assert (1, "error: WORKSPACE_BUSY:", True) == (ran.status, ran.err[:22], "This process itself" in ran.err)
    assert os.path.lexists(workspace / ".ztrio" / "workspace.lock")


def test_a_table_for_people(cli: Command, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the deeds are a table of file, deed and reason; one of a plan says that it is one."""
    crash(workspace)
    shown = io.StringIO()

    def terminal(**_: Any) -> Console:
        return Console(file=shown, force_terminal=True, width=160, color_system=None)

    monkeypatch.setattr(recover_module, "console", terminal)
    cli("recover", "-w", workspace, "--dry-run")
    assert ["file", "to do", "why"] == [word.strip() for word in shown.getvalue().splitlines()[0].split("  ") if word]
    assert "put the old one back" in shown.getvalue()
    cli("recover", "-w", workspace)
    assert " done " in shown.getvalue()


def test_a_workspace_that_cannot_be_written(cli: Command, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the lock cannot be made for want of permission, that is said, and nothing is tried."""

    def refuse(self: ProcessLock) -> None:
        raise StoreUnavailable("no") from PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(ProcessLock, "acquire", refuse)
    ran = cli("recover", "-w", workspace)
    assert (1, "error: WORKSPACE_READ_ONLY:") == (ran.status, ran.err[:27])
