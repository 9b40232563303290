"""The command line as a whole: help, version, errors, pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command, Started
from ztrio_cli import main as main_module

COMMANDS = ("serve", "call", "audit", "doctor", "demo")


def test_help_names_every_command_and_teaches_by_example(cli: Command) -> None:
    """`ztrio --help` lists the commands and shows how to begin; `ztrio` alone says the same."""
    shown = cli("--help")
    assert shown.status == 0
    assert all(f"ztrio {command}" in shown.out for command in COMMANDS)
    assert cli() == shown


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_json_and_an_example(cli: Command, command: str) -> None:
    """Each command documents `--json` and shows a line to copy."""
    shown = cli(command, "--help")
    assert (shown.status, "--json" in shown.out) == (0, True)
    assert f"ztrio {command}" in shown.out or '"command": "ztrio"' in shown.out


def test_version(cli: Command) -> None:
    """`--version` prints one line."""
    shown = cli("--version")
    assert (shown.status, shown.out.count("\n"), shown.out.startswith("ztrio ")) == (0, 1, True)


def test_help_imports_nothing_heavy() -> None:
    """The command line is declared without trio, rich tables, the MCP SDK or ztrio itself."""
    code = (
        "import sys; from ztrio_cli.main import main; main(['--help']); "
        "heavy = ('trio', 'mcp', 'ztrio', 'pydantic', 'structlog', 'sqlalchemy', 'alembic'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_wrong_command_line_is_one_line_with_a_code(cli: Command) -> None:
    """Usage errors exit with 2 and say what is wrong in one line, without a box."""
    ran = cli("call")
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith("error: USAGE: Missing argument")


def test_a_wrong_command_line_is_json_where_json_was_asked_for(cli: Command) -> None:
    """With `--json` a usage error is an object on stdout."""
    ran = cli("audit", "--frobnicate", "--json")
    assert (ran.status, json.loads(ran.out)["error"]["code"], ran.err) == (2, "USAGE", "")


def test_no_such_workspace(cli: Command, tools: Path, tmp_path: Path) -> None:
    """A workspace that is not there is a usage error that says so."""
    ran = cli("call", tools, "echo", "--workspace", tmp_path / "nowhere")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert ran.err.startswith("error: USAGE: --workspace")


def test_a_broken_toolbox_is_one_line_naming_the_place(cli: Command, workspace: Path) -> None:
    """A tools file that cannot be loaded is an error with file and line, not a traceback."""
    broken = workspace / "broken_tools.py"
    broken.write_text("import ztrio\n\nraise ValueError('no')\n")
    ran = cli("call", broken, "x", "-w", workspace)
    assert (ran.status, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert ran.err.startswith(f"error: TOOLBOX_INVALID: {broken}:3: ValueError: no")


def test_the_operating_system_says_no(cli: Command, workspace: Path) -> None:
    """An OSError is one line with a code: here the audit is a folder."""
    (workspace / ".ztrio" / "audit.jsonl").mkdir(parents=True)
    ran = cli("audit", "-w", workspace)
    assert (ran.status, ran.err.count("\n"), ran.err[:16]) == (1, 1, "error: OS_ERROR:")


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is neither the user's mistake nor a call's failure is not disguised as one."""

    def defect(**_: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr("ztrio_cli.app.app", defect)
    with pytest.raises(ZeroDivisionError):
        main_module.main(["demo"])


def test_interrupted_without_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C where nothing is in flight ends with 130 and no traceback."""

    def interrupted(**_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("ztrio_cli.app.app", interrupted)
    assert main_module.main(["audit"]) == 130


def test_a_reader_that_leaves_is_no_error(started: Started, workspace: Path) -> None:
    """`ztrio audit | head` ends quietly when head has enough."""
    folder = workspace / ".ztrio"
    folder.mkdir()
    event = json.dumps({"seq": 1, "event": "allow", "tool": "x" * 500})
    (folder / "audit.jsonl").write_text(f"{event}\n" * 2000)
    reading, writing = os.pipe()
    with started("audit", "-w", workspace, "--json", stdout=writing) as process:
        os.close(writing)
        os.read(reading, 100)
        os.close(reading)
        _, errors = process.communicate(timeout=30)
    # Typer ends a broken pipe with 1, our own last flush with 141, the signal's number where it is not ignored.
    assert (process.returncode in (1, 141, -signal.SIGPIPE), errors) == (True, "")
