"""The command in this process, and in one of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from ztrio_cli.main import main

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "report_site"


@attrs.frozen
class Ran:
    """What a command left: its exit status and what it printed."""

    status: int
    out: str
    err: str


Command = Callable[..., Ran]
Started = Callable[..., AbstractContextManager["subprocess.Popen[str]"]]


@pytest.fixture(name="cli")
def command_here(capfd: pytest.CaptureFixture[str]) -> Command:
    """Run `ztrio WORDS…` in this process."""

    def run(*words: str | Path) -> Ran:
        capfd.readouterr()
        status = main([str(word) for word in words])
        captured = capfd.readouterr()
        return Ran(status, captured.out, captured.err)

    return run


@pytest.fixture(name="started")
def command_in_its_own_process() -> Started:
    """Start `ztrio WORDS…` in a process of its own, with pipes; it is killed if the test leaves it running."""

    @contextmanager
    def start(*words: str | Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, "-m", "ztrio_cli", *map(str, words)]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, text=True, bufsize=1, env=dict(os.environ), **{**pipes, **options}) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    return start


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """An empty workspace."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A workspace with the example's content."""
    folder = tmp_path / "site"
    folder.mkdir()
    for part in ("content", "incoming"):
        shutil.copytree(EXAMPLE / part, folder / part)
    return folder


@pytest.fixture
def tools() -> Path:
    """The tools file of these tests."""
    return HERE / "cli_tools.py"


@pytest.fixture
def site_tools() -> Path:
    """The example's tools file."""
    return EXAMPLE / "site_tools.py"
