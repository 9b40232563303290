"""`ztrio demo`: the example served in a process of its own, the official MCP client, and an observer on the outside.

An in-process fake would prove nothing here. What the client is told is compared with the files on disk, the process
table and the audit, and one broken promise makes the command fail.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import trio
from mcp.client import Client
from mcp.shared.exceptions import MCPError

from ztrio_cli.console import FAILED, OK, USAGE, Complaint, note
from ztrio_cli.demo import scenes
from ztrio_cli.demo.client import serve, transport
from ztrio_cli.demo.crash import server_killed
from ztrio_cli.demo.report import Report, show

__all__ = ["example_folder", "play", "run", "server_command"]

TOOLS = "site_tools.py"
PARTS = ("content", "incoming")
SCENE = 60.0  # seconds until a scene is given up: a server that answers nothing breaks every promise at once


def run(*, keep: Path | None, as_json: bool) -> int:
    """Play every scene and show the report; the exit status.

    Raises:
        Complaint: USAGE, the folder to keep is not empty; EXAMPLE_NOT_FOUND.
    """
    example = example_folder()
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="ztrio-demo-") as folder:
            reports = _play_in(example, Path(folder).resolve(), talk=not as_json)
    else:
        if keep.exists() and any(keep.iterdir()):
            raise Complaint("USAGE", f"--keep {keep}: the folder is not empty; name a new one.", status=USAGE)
        keep.mkdir(parents=True, exist_ok=True)
        reports = _play_in(example, keep.resolve(), talk=not as_json)
    return OK if show(reports, None if keep is None else keep.resolve(), as_json=as_json) else FAILED


def example_folder() -> Path:
    """The example: inside the package when it was installed, beside it in a source tree.

    Raises:
        Complaint: EXAMPLE_NOT_FOUND.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "example", package.parents[1] / "examples" / "report_site"):
        if (folder / TOOLS).is_file():
            return folder
    raise Complaint("EXAMPLE_NOT_FOUND", "The example is not part of this installation; run the demo from a clone.")


def server_command(example: Path, workspace: Path) -> list[str]:
    """The command line of the server that the demo starts."""
    command = [sys.executable, "-m", "ztrio_cli", "serve", str(example / TOOLS)]
    return [*command, "--workspace", str(workspace), "--log-level", "warning"]


def _play_in(example: Path, folder: Path, *, talk: bool) -> list[Report]:
    for part in PARTS:
        shutil.copytree(example / part, folder / part)
    with tempfile.NamedTemporaryFile(prefix="ztrio-demo-", suffix=".log") as log:
        reports: list[Report] | None = None
        try:
            reports = trio.run(play, server_command(example, folder), folder, Path(log.name), talk)
        except* (MCPError, trio.TooSlowError):
            note(Path(log.name).read_text(errors="replace").rstrip())
    if reports is None:
        raise Complaint("DEMO_FAILED", "The server stopped answering its client; what it said last is above.")
    return reports


async def play(command: Sequence[str], workspace: Path, log: Path, talk: bool) -> list[Report]:
    """Play every scene.

    Args:
        command: Command line of the server.
        workspace: Its workspace, with the example's content in it.
        log: File for the server's stderr.
        talk: Say on stderr what is going on.
    """
    reports = []
    async with serve(command, workspace, log) as server, Client(transport(server)) as client:
        stage = scenes.Stage(client, server)
        for scene in (*scenes.SCENES, scenes.client_vanishes):
            if talk:
                note(f"{(scene.__doc__ or '').splitlines()[0]}")
            with trio.fail_after(SCENE):
                reports.append(Report.of(await scene(stage)))
    if talk:
        note((server_killed.__doc__ or "").splitlines()[0])
    with trio.fail_after(SCENE):
        reports.append(Report.of(await server_killed(command, workspace, log)))
    return reports
