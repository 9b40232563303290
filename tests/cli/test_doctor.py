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
from ztrio_cli import doctor
from ztrio_cli.demo.observe import processes

PROOF = {"pid": 10, "rung": "group", "containment": "partial", "killed_at": 1.0, "proven_at": 1.002}


def test_everything_that_is_needed_works_here(cli: Command, tools: Path, workspace: Path) -> None:
    """On a supported machine each check is ok, but for containment, which says that it is partial."""
    ran = cli("doctor", tools, "-w", workspace, "--json")
    report = json.loads(ran.out)
    found = {check["name"]: check["status"] for check in report["checks"]}
    expected = dict.fromkeys(["python", "platform", "packages", "workspace", "exchange", "workers", "toolbox"], "ok")
    assert (ran.status, report["ok"], found) == (0, True, {**expected, "containment": "warn"})
    facts = {check["name"]: check["facts"] for check in report["checks"]}
    assert facts["containment"]["proof"]["pid"] not in processes()
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
    assert (doctor._start_check(0.2).status, doctor._start_check(5.0).status) == ("ok", "warn")


def test_toolboxes(tools: Path, workspace: Path) -> None:
    """A toolbox that cannot be loaded is a failure, one without tools a warning."""
    assert doctor.check_toolbox(f"{tools}:empty").status == "warn"
    check = doctor.check_toolbox(str(workspace / "none.py"))
    assert (check.status, check.facts) == ("fail", {"code": "TOOLBOX_INVALID"})
