"""`--state` and `ztrio outcome`: what one command leaves for the next, and what another process keeps from it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command, Ran, Started
from tests.cli.test_serve import converse, frame


def write(cli: Command, tools: Path, workspace: Path, *words: str | Path) -> Ran:
    """Call `write` on `a.txt`."""
    return cli("call", tools, "write", "target=a.txt", "text=x", "-w", workspace, "--json", *words)


def error(ran: Ran) -> dict[str, Any]:
    """The error that a command printed as JSON."""
    told: dict[str, Any] = json.loads(ran.out)["error"]
    return told


def test_calls_are_kept_by_default(cli: Command, tools: Path, workspace: Path) -> None:
    """One command's call can be asked for by the next, by id and by key, and is not done twice under its key."""
    first = write(cli, tools, workspace, "--idempotency-key", "k")
    (workspace / "a.txt").write_text("edited since")
    again = write(cli, tools, workspace, "--idempotency-key", "k")
    assert (0, json.loads(first.out)) == (again.status, json.loads(again.out))
    assert "edited since" == (workspace / "a.txt").read_text()
    job_id = json.loads(first.out)["job_id"]
    for words in ((job_id,), ("--tool", "write", "--key", "k")):
        ran = cli("outcome", *words, "-w", workspace, "--json")
        told = json.loads(ran.out)
        assert (0, job_id, "committed", "k") == (ran.status, told["job_id"], told["outcome"], told["idempotency_key"])
        assert {"target": str(workspace / "a.txt")} == told["targets"]


def test_a_key_of_another_call(cli: Command, tools: Path, workspace: Path) -> None:
    """A key that stands for another call is refused with a code, and exits with 1; a bad key is a usage error."""
    write(cli, tools, workspace, "--idempotency-key", "k")
    ran = cli("call", tools, "write", "target=b.txt", "text=x", "-w", workspace, "--json", "--idempotency-key", "k")
    assert (1, "IDEMPOTENCY_CONFLICT") == (ran.status, error(ran)["code"])
    ran = write(cli, tools, workspace, "--idempotency-key", "")
    assert (2, "INVALID_ARGUMENTS") == (ran.status, error(ran)["code"])


def test_a_repetition_after_a_failure(cli: Command, tools: Path, workspace: Path) -> None:
    """For people the outcome is a few lines: what became of it, and which call it repeats."""
    words = ("-w", workspace, "--idempotency-key", "k")
    failing = ("call", tools, "write", "target=a.txt", "text=x", "--arguments", '{"fail": true}', *words, "--json")
    first = error(cli(*failing))
    second = error(cli(*failing))
    assert ("rolled_back", "rolled_back") == (first["outcome"], second["outcome"])
    ran = cli("outcome", "--tool", "write", "--key", "k", "-w", workspace)
    assert ran.out.splitlines() == [
        f"{second['job_id']}  write, session default: rolled_back",
        "  everything is as it was before",
        f"  target: {workspace / 'a.txt'}",
        "  key: k",
        f"  repeats: {first['job_id']}",
    ]


def test_memory_opts_out(cli: Command, tools: Path, workspace: Path) -> None:
    """With `--state memory` nothing is kept, and whoever asks for an outcome is told why there is none."""
    ran = write(cli, tools, workspace, "--state", "memory")
    assert 0 == ran.status
    assert not (workspace / ".ztrio" / "state.db").exists()
    ran = cli("outcome", json.loads(ran.out)["job_id"], "-w", workspace)
    assert (1, "error: STATE_NOT_FOUND: ") == (ran.status, ran.err[: len("error: STATE_NOT_FOUND: ")])


def test_a_state_of_ones_own(cli: Command, tools: Path, workspace: Path, tmp_path: Path) -> None:
    """`--state FILE` keeps calls there, and everything that looks at them takes it."""
    file = tmp_path / "elsewhere" / "calls.db"
    job_id = json.loads(write(cli, tools, workspace, "--state", file).out)["job_id"]
    assert 0 == cli("outcome", job_id, "-w", workspace, "--state", file).status
    assert 0 == cli("recover", "-w", workspace, "--state", file).status
    assert not (workspace / ".ztrio" / "state.db").exists()
    for command in (("outcome", job_id), ("recover",)):
        ran = cli(*command, "-w", workspace, "--state", tmp_path / "none.db", "--json")
        assert (2, "USAGE") == (ran.status, error(ran)["code"])


@pytest.mark.parametrize(
    "words", [(), ("job_x", "--key", "k", "--tool", "t"), ("--key", "k"), ("--tool", "t"), ("job_x", "--tool", "t")]
)
def test_one_way_to_name_a_call(cli: Command, workspace: Path, words: tuple[str, ...]) -> None:
    """A call is named by its id, or by tool and key."""
    ran = cli("outcome", *words, "-w", workspace)
    assert (2, "error: USAGE: ") == (ran.status, ran.err[: len("error: USAGE: ")])


@pytest.mark.parametrize(
    "words", [("job_nobodys",), ("\udce4",), ("--tool", "write", "--key", "other"), ("--tool", "\udce4", "--key", "k")]
)
def test_unknown_calls(cli: Command, tools: Path, workspace: Path, words: tuple[str, ...]) -> None:
    """An unknown call is one line with a code, also where its name is no text."""
    write(cli, tools, workspace, "--idempotency-key", "k")
    ran = cli("outcome", *words, "-w", workspace, "--json")
    assert (1, "JOB_UNKNOWN") == (ran.status, error(ran)["code"])


def test_a_file_that_is_no_store(cli: Command, started: Started, tools: Path, workspace: Path, tmp_path: Path) -> None:
    """A foreign file is refused in one line with a code, exits with 1 and is left as it is."""
    strange = tmp_path / "strange.db"
    strange.write_text("what somebody else has written, and a good deal of it")
    ran = write(cli, tools, workspace, "--state", strange)
    assert (1, "STORE_FOREIGN") == (ran.status, error(ran)["code"])
    with started("serve", tools, "-w", workspace, "--state", strange) as process:
        out, err = process.communicate(timeout=30)
    assert (1, "", True) == (process.returncode, out, err.splitlines()[-1].startswith("error: STORE_FOREIGN: "))
    assert "what somebody else has written, and a good deal of it" == strange.read_text()


def test_beside_a_server(cli: Command, started: Started, tools: Path, workspace: Path, tmp_path: Path) -> None:
    """A call where a server runs names its pid; its calls can be looked at; its store is taken elsewhere, too."""
    call = frame("tools/call", 1, name="write", arguments={"target": "a.txt", "text": "x"})
    with started("serve", tools, "-w", workspace, stdin=subprocess.PIPE) as process:
        job_id = converse(process, call)[1]["result"]["_meta"]["ztrio/job_id"]
        ran = write(cli, tools, workspace)
        assert (1, "WORKSPACE_BUSY", process.pid) == (ran.status, error(ran)["code"], error(ran)["pid"])
        assert str(process.pid) in error(ran)["message"]
        assert "committed" == json.loads(cli("outcome", job_id, "-w", workspace, "--json").out)["outcome"]
        other = tmp_path / "other"
        other.mkdir()
        ran = write(cli, tools, other, "--state", workspace / ".ztrio" / "state.db")
        assert (1, "STORE_BUSY", process.pid) == (ran.status, error(ran)["code"], error(ran)["pid"])
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)
    assert 0 == write(cli, tools, workspace).status


def test_a_killed_server_is_asked_about_afterwards(
    cli: Command, started: Started, tools: Path, workspace: Path
) -> None:
    """A server that is killed in the middle of a call leaves it undecided; the next command decides it and says so."""
    hang = frame(
        "tools/call",
        1,
        name="hang",
        arguments={"target": "a.txt"},
        _meta={"progressToken": 1, "ztrio/idempotency_key": "k"},
    )
    with started("serve", tools, "-w", workspace, stdin=subprocess.PIPE) as process:
        converse(process)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(hang)
        process.stdin.flush()
        process.stdout.readline()  # the tool runs
        os.kill(process.pid, signal.SIGKILL)
        process.wait(30)
    named = ("--tool", "hang", "--key", "k", "-w", workspace, "--json")
    assert "running" == json.loads(cli("outcome", *named).out)["outcome"]
    assert 0 == write(cli, tools, workspace).status
    assert "rolled_back" == json.loads(cli("outcome", *named).out)["outcome"]


def test_the_database_is_loaded_where_it_is_needed(tools: Path, workspace: Path) -> None:
    """Neither `import ztrio` nor a call in memory loads the database, and only making a store loads its migrations."""
    code = (
        "import sys, ztrio, ztrio.supervisor; from ztrio_cli.main import main; main(sys.argv[1:]); "
        "print([name for name in ('sqlalchemy', 'alembic') if name in sys.modules])"
    )
    loaded = []
    for state in (("--state", "memory"), (), ()):
        command = [sys.executable, "-c", code, "call", str(tools), "echo", "-w", str(workspace), *state]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        loaded.append(done.stdout.splitlines()[-1])
    assert ["[]", "['sqlalchemy', 'alembic']", "['sqlalchemy']"] == loaded
