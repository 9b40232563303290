"""`ztrio doctor`: the whole on this machine, and each check with something broken."""

from __future__ import annotations

import errno
import json
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import trio

import ztrio
from tests.cli.conftest import Command
from ztrio.publication.exchange import FileOps
from ztrio.workers.ladder import ContainmentReport, RungTrial
from ztrio_cli import doctor
from ztrio_cli.demo.observe import processes

REFUSED = RungTrial("zygote", works=False, reason="loading x starts a thread")
PROOF = {"pid": 10, "rung": "group", "containment": "partial", "killed_at": 1.0, "proven_at": 1.002}


def test_everything_that_is_needed_works_here(cli: Command, tools: Path, workspace: Path) -> None:
    """On a supported machine each check is ok, and the ladder is shown with what was chosen from it."""
    ran = cli("doctor", tools, "-w", workspace, "--json")
    report = json.loads(ran.out)
    found = {check["name"]: check["status"] for check in report["checks"]}
    expected = dict.fromkeys(
        ["python", "platform", "packages", "workspace", "exchange", "state", "sandbox", "ladder", "workers"], "ok"
    )
    expected |= dict.fromkeys(["containment", "toolbox", "loading"], "ok")
    assert (ran.status, report["ok"], found) == (0, True, expected)
    facts = {check["name"]: check["facts"] for check in report["checks"]}
    assert facts["containment"]["proof"]["pid"] not in processes()
    assert (
        facts["workers"]["chosen"]["rung"]
        == facts["loading"]["chosen"]["rung"]
        == facts["containment"]["proof"]["rung"]
    )
    assert facts["toolbox"]["tools"]["forget"] == "destructive"
    assert list(workspace.iterdir()) == []


def test_the_report_for_people(cli: Command, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings come as a table, and the last line says whether ztrio works; what to do stands below a failure."""
    monkeypatch.setattr(doctor, "check_workers", list)
    ran = cli("doctor", "-w", workspace)
    assert (ran.status, ran.out.splitlines()[-1]) == (0, "ztrio works here.")
    ran = cli("doctor", "-w", workspace / "nowhere")
    assert (ran.status, ran.out.splitlines()[-1]) == (1, "Not working: workspace.")
    assert "--workspace" in ran.out


def test_old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python that is too old is a failure with advice."""
    monkeypatch.setattr(sys, "version_info", (3, 10, 0))
    check = doctor.check_python()
    assert (check.status, "3.11" in check.advice) == ("fail", True)


@pytest.mark.case("R15")
def test_unsupported_platform() -> None:
    """Where process groups are missing, the doctor says plainly that the platform is not supported."""
    check = doctor.check_platform("win32")
    assert (check.status, check.finding) == ("fail", "win32 is not supported.")


@pytest.mark.parametrize("found", ["1.9.0", None])
def test_the_wrong_protocol_library(monkeypatch: pytest.MonkeyPatch, found: str | None) -> None:
    """A missing or foreign version of the MCP SDK is a failure with the command that mends it."""

    def version(package: str) -> str:
        if found is None:
            raise PackageNotFoundError(package)
        return found

    monkeypatch.setattr(doctor, "version", version)
    check = doctor.check_packages()
    assert (check.status, "pip install" in check.advice) == ("fail", True)


class NoExchange(FileOps):
    """A file system that cannot exchange."""

    def exchange(self, first_fd: int, first: str, second_fd: int, second: str) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")


class Overwrites(FileOps):
    """A file system whose 'new name' replaces an old one."""

    def move_new(self, source_fd: int, source: str, target_fd: int, target: str) -> None:
        pass


@pytest.mark.parametrize("ops", [NoExchange(), Overwrites()])
def test_no_exchange(workspace: Path, ops: FileOps) -> None:
    """A file system without atomic exchange, or with one that overwrites, is a failure; nothing is left in it."""
    check = doctor.check_exchange(workspace, ops)
    assert (check.status, "ext4" in check.advice, list(workspace.iterdir())) == ("fail", True, [])


@pytest.mark.parametrize(
    ("proof", "alive", "status"),
    [
        (None, [], "fail"),
        (PROOF, [11], "fail"),
        (PROOF, [10], "fail"),
        (PROOF, [], "warn"),
        ({**PROOF, "containment": "full"}, [], "ok"),
    ],
)
def test_containment_is_judged_from_outside(proof: dict[str, Any] | None, alive: list[int], status: str) -> None:
    """A worker or child that still runs makes the proof a failure, whatever it says."""
    check = doctor.check_containment(proof, 11, lambda pid: pid in alive)
    assert check.status == status


@pytest.mark.parametrize(
    ("error", "said"),
    [(ztrio.WorkerFailed("no room", code="WORKER_START_FAILED"), "no room"), (trio.TooSlowError(), "20 seconds")],
)
def test_no_worker(monkeypatch: pytest.MonkeyPatch, error: Exception, said: str) -> None:
    """A worker that cannot be started, or not in time, is a finding and not a crash."""

    async def fail(_: Path) -> list[doctor.Check]:
        await trio.lowlevel.checkpoint()
        raise error

    monkeypatch.setattr(doctor, "_try_workers", fail)
    (check,) = doctor.check_workers()
    assert (check.status, said in check.finding) == ("fail", True)


def test_a_slow_start_is_a_warning() -> None:
    """Workers that take long to start work, with a warning."""
    chosen = ContainmentReport(backend="spawn", rung="group", complete=False, backends=(REFUSED,))
    assert (doctor._start_check(0.2, chosen).status, doctor._start_check(5.0, chosen).status) == ("ok", "warn")
    assert "spawn, group; not zygote: loading x starts a thread" in doctor._start_check(0.2, chosen).finding


@pytest.mark.parametrize(
    ("trials", "status"),
    [
        ([RungTrial("pidns", works=False, reason="no namespaces"), RungTrial("job-init", works=True)], "ok"),
        ([RungTrial("pidns", works=False, reason="no namespaces"), RungTrial("group", works=True)], "warn"),
    ],
)
def test_the_ladder_is_judged(trials: list[RungTrial], status: str) -> None:
    """A machine without a complete rung gets a warning; what does not work is named with its reason."""
    check = doctor.judge_ladder(trials)
    assert (check.status, "pidns: no (no namespaces)" in check.finding) == (status, True)


def test_a_toolbox_that_starts_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A toolbox that cannot be forked works all the same, with a warning that names the module."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "threads_at_once.py").write_text(
        "import threading, time, ztrio\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "toolbox = ztrio.Toolbox('t')\n"
        "@toolbox.tool(capability='write')\n"
        "def nothing() -> None: ...\n"
    )
    checks = doctor.check_toolbox(str(tmp_path / "threads_at_once.py"))
    assert [check.status for check in checks] == ["ok", "warn"]
    assert "loading threads_at_once starts a thread" in checks[1].finding


def test_toolboxes(tools: Path, workspace: Path) -> None:
    """A toolbox that cannot be loaded is a failure, one without tools a warning."""
    (check,) = doctor.check_toolbox(f"{tools}:empty")
    assert check.status == "warn"
    (check,) = doctor.check_toolbox(str(workspace / "none.py"))
    assert (check.status, check.facts) == ("fail", {"code": "TOOLBOX_INVALID"})


def test_the_state_is_looked_at(cli: Command, tools: Path, workspace: Path, tmp_path: Path) -> None:
    """A store that is not there yet or can be read is fine, none is a warning, a useless one a failure."""
    assert "ok" == doctor.check_state(workspace, None).status
    assert "warn" == doctor.check_state(workspace, "memory").status
    cli("call", tools, "write", "target=a.txt", "text=x", "-w", workspace)
    check = doctor.check_state(workspace, None)
    assert ("ok", 0) == (check.status, check.facts["unfinished"])
    strange = tmp_path / "strange.db"
    strange.write_text("what somebody else has written, and a good deal of it")
    check = doctor.check_state(workspace, str(strange))
    assert ("fail", True) == (check.status, check.finding.startswith("STORE_FOREIGN: "))
    assert "what somebody else has written, and a good deal of it" == strange.read_text()


def test_sandbox() -> None:
    """Where tools can write anywhere, the doctor warns and says why."""
    check = doctor.check_sandbox("the kernel is old")
    assert (check.status, "because the kernel is old" in check.finding, bool(check.advice)) == ("warn", True, True)
    assert doctor.check_sandbox(None).status == "ok"
