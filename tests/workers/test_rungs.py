"""What the containment ladder promises, each rung forced, as whoever runs the tests and as an ordinary user."""

import json
import os
import resource
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.kit.nobody import NOBODY, as_nobody
from tests.workers.support import fork_server
from tests.workers.walk_of_rungs import ATTACKS, attack, begin, kill_all, named, request, settings, walk
from ztrio.errors import InvalidArguments, UnsupportedPlatform, WorkerFailed
from ztrio.workers import cgroups
from ztrio.workers.ladder import COMPLETE, RUNGS
from ztrio.workers.selection import open_backend
from ztrio.workers.zygote import Refused, open_zygote_backend, survey

WALK = Path(__file__).with_name("walk_of_rungs.py")
FORKED = [("zygote", rung) for rung in RUNGS]
WAYS = [*FORKED, ("spawn", "group")]


def check(found: dict[str, Any], backend: str, rung: str) -> None:
    """Nothing survives on a complete rung; on the other nothing hangs, and it is said that something may survive."""
    assert (found["report"]["backend"], found["report"]["rung"]) == (backend, rung)
    for name in ATTACKS:
        seen = found[name]
        assert seen["proof"] is not None, name
        assert seen["began"] == {"succeed": "Result", "leader_exits_first": "WORKER_DIED"}.get(name, "running"), name
        assert seen["seconds"] < 15, name
        assert (seen["proof"]["rung"], seen["proof"]["complete"]) == (rung, rung in COMPLETE)
        if rung in COMPLETE:
            assert seen["left"] == 0, name
            assert seen["proof"]["containment"] == "full"
        else:
            assert seen["proof"]["containment"] == "partial"
    assert ("namespace" in found["setsid"]["proof"]) == (rung == "pidns")
    assert ("cgroup" in found["setsid"]["proof"]) == (rung == "cgroup")
    assert found["leader_exits_first"]["proof"]["status"] == 7
    assert found["setsid"]["proof"]["status"] == -9
    assert found["bomb"]["before"] > 1
    assert found["deaf"]["left"] == 0  # it stays in the group, so even that rung sees it


def offered(rung: str, trials: dict[str, str]) -> None:
    """Skip a rung that this machine does not offer, by the reason that ztrio itself gives."""
    if trials[rung]:
        pytest.skip(f"{rung}: {trials[rung]}")


@pytest.fixture(scope="module")
def trials() -> dict[str, str]:
    """Rung → why this machine does not offer it, or empty."""
    return {trial.name: trial.reason for trial in trio.run(survey)}


@pytest.mark.case("R02")
@pytest.mark.parametrize(("backend", "rung"), WAYS)
def test_nothing_escapes(tmp_path: Path, backend: str, rung: str, trials: dict[str, str]) -> None:
    """A new session, double forks, fork bombs, held pipes, a leader that exits first, deafness: all of it ends."""
    offered(rung, trials)
    check(trio.run(walk, tmp_path, backend, rung), backend, rung)


@pytest.mark.parametrize(("backend", "rung"), WAYS)
def test_nothing_escapes_an_ordinary_user(backend: str, rung: str) -> None:
    """The same without privileges; a rung that takes some is refused with its reason."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        place = Path(folder)
        place.chmod(0o755)
        (place / "workspace").mkdir()
        if os.geteuid() == 0:
            os.chown(place / "workspace", NOBODY, NOBODY)
        command, environment = as_nobody([str(WALK), str(place / "workspace"), backend, rung])
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    if done.returncode and f"no way to contain a worker works here ({rung}: " in done.stderr:
        if rung == "cgroup":
            return  # nobody delegated one to this user, and it is said
        pytest.skip(done.stderr.strip().rpartition("\n")[2])
    assert done.returncode == 0, done.stderr
    check(json.loads(done.stdout), backend, rung)


async def test_a_guard_that_is_killed_proves_nothing(tmp_path: Path, trials: dict[str, str]) -> None:
    """On `job-init`, when a tool kills its guard, what it leaves is re-parented to the fork server, which ends it."""
    offered("job-init", trials)
    async with open_zygote_backend(settings(tmp_path, "job-init")) as backend:
        worker = await backend.acquire()
        name = "zkillsguard"
        try:
            await begin(worker, request(tmp_path, "kill_parent", name=name))
            other = await backend.acquire()
            with trio.fail_after(10):
                await worker._leader.exited.wait()
            assert not worker._hear_verdict()
            proof = await worker.terminate(grace=0, bound=10)
            assert (proof is not None, named(name)) == (True, [])
            # A neighbour's tree is nobody's orphan.
            assert await begin(other, request(tmp_path, "setsid", name=name)) == "running"
            assert len(named(name)) == 2
            await other.terminate(grace=0, bound=10)
            assert named(name) == []
        finally:
            kill_all(name)


def test_what_cannot_be_had_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cgroup that cannot be made leaves a reason; in a forced choice it is the error."""
    monkeypatch.setattr(cgroups, "find", lambda: None)
    found = {trial.name: trial.reason for trial in trio.run(survey)}
    assert found["cgroup"] == "no cgroup (version 2) is mounted"

    async def forced() -> None:
        async with open_zygote_backend(settings(tmp_path, "cgroup")):
            raise AssertionError

    with pytest.raises(Refused, match=r"no way to contain a worker works here .cgroup: no cgroup"):
        trio.run(forced)


async def test_where_nothing_complete_is_to_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`require` refuses to open, with the reasons; `auto` opens on the group, and its report has them too."""
    monkeypatch.setattr("ztrio.workers.selection.sys.platform", "plan9")
    with pytest.raises(UnsupportedPlatform, match=r"cannot be contained as required .require.: it needs Linux"):
        async with open_backend(settings(tmp_path, "require")):
            raise AssertionError
    with pytest.raises(UnsupportedPlatform):
        async with open_backend(settings(tmp_path, "auto"), "zygote"):
            raise AssertionError
    async with open_backend(settings(tmp_path, "auto")) as backend:
        report = backend.report
    assert (report.backend, report.rung, report.complete) == ("spawn", "group", False)
    assert [(trial.name, trial.works) for trial in report.backends] == [("zygote", False), ("spawn", True)]


@pytest.mark.parametrize(
    ("choice", "containment"), [("fork", "auto"), ("auto", "prison"), ("spawn", "require"), ("spawn", "pidns")]
)
async def test_choices_that_there_are_not(tmp_path: Path, choice: str, containment: str) -> None:
    """An unknown backend or rung, and a rung that the backend does not have, are refused with what there is."""
    with pytest.raises(InvalidArguments, match=r"choose from|use the zygote"):
        async with open_backend(settings(tmp_path, containment), choice):
            raise AssertionError


def test_cgroups_of_the_dead_are_removed(trials: dict[str, str]) -> None:
    """A supervisor that was killed leaves empty groups, which the next one removes; those in use stay."""
    offered("cgroup", trials)
    own = cgroups.find()
    assert own is not None
    dead = cgroups.make(own, "4194305-dead")
    cgroups.make(dead, "1")
    alive = cgroups.make(own, f"{os.getpid()}-alive")
    cgroups.sweep(own)
    assert (dead.exists(), alive.exists()) == (False, True)
    cgroups.remove(alive)


def test_a_kernel_without_cgroup_kill(tmp_path: Path) -> None:
    """A cgroup that cannot kill is no containment."""
    with pytest.raises(OSError, match=r"no cgroup.kill"):
        cgroups.make(tmp_path, "1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("room", [0, 2])
async def test_no_worker_to_be_had(tmp_path: Path, trials: dict[str, str], room: int) -> None:
    """A fork that fails is the call's error, with its reason, and no reason to end the fork server."""
    offered("pidns", trials)
    async with open_zygote_backend(settings(tmp_path, "pidns")) as backend:
        server = fork_server(backend)
        before = resource.prlimit(server, resource.RLIMIT_NOFILE)
        taken = {int(name) for name in os.listdir(f"/proc/{server}/fd")}
        free = sorted(set(range(100)) - taken)
        resource.prlimit(server, resource.RLIMIT_NOFILE, (free[room], before[1]))
        with pytest.raises(WorkerFailed, match=r"too many files|Too many open files") as caught, trio.fail_after(10):
            await backend.acquire()
        assert caught.value.code == "WORKER_START_FAILED"
        resource.prlimit(server, resource.RLIMIT_NOFILE, before)
        assert fork_server(backend) == server
        await (await backend.acquire()).terminate(grace=0, bound=10)


@pytest.mark.parametrize("rung", RUNGS)
async def test_neighbours(tmp_path: Path, rung: str, trials: dict[str, str]) -> None:
    """Ending one worker with its tree leaves its neighbours alone."""
    offered(rung, trials)
    async with open_zygote_backend(settings(tmp_path, rung)) as backend:
        worker = await backend.acquire()
        assert await begin(worker, request(tmp_path, "deaf", name="zneighbour")) == "running"
        await attack(backend, tmp_path, "setsid")
        assert len(named("zneighbour")) == 2
        assert await worker.terminate(grace=0, bound=10) is not None
        assert named("zneighbour") == []
