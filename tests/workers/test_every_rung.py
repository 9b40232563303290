"""A call from its worker's start to its proof on every rung, with the processes of ztrio's own being measured.

Launcher, fork server and guards get a clean environment like workers, so coverage does not reach them by itself. Here,
and only here, they inherit what it needs; what tools see of their environment is tested elsewhere.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.workers.support import BOUND, Reports, begin, request, settings, tools
from ztrio.errors import WorkerFailed
from ztrio.plain import decode
from ztrio.workers import programs
from ztrio.workers.backend import Proof
from ztrio.workers.wire import Result
from ztrio.workers.zygote import Refused, ZygoteBackend, open_zygote_backend, survey

RUNGS = ["pidns", "cgroup", "job-init", "group"]


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let our processes inherit what coverage needs."""
    clean = programs._environment
    wanted = {name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")}
    monkeypatch.setattr(programs, "_environment", lambda: {**clean(), **wanted})


async def call(backend: ZygoteBackend, place: Path, function: str, *, init: bool = False, **arguments: Any) -> Proof:
    """The proof of one call that succeeds."""
    worker = await backend.acquire()
    await worker.send_request(request(place, function, arguments, init=init))
    answer = await worker.receive(Reports())
    assert isinstance(answer, Result), answer
    decode(answer.value)
    proof = await worker.terminate(grace=0, bound=BOUND)
    assert proof is not None
    return proof


@pytest.mark.parametrize("rung", RUNGS)
async def test_calls_and_kills_on_each_rung(tmp_path: Path, rung: str) -> None:
    """Each rung runs calls, with and without an init, ends what they leave, and proves it in its own name."""
    async with open_zygote_backend(settings(tmp_path, containment=rung)) as backend:
        for init in (False, True):
            proof = await call(backend, tmp_path, "add", a=1, init=init)
            assert (rung, rung != "group") == (proof.rung, proof.complete)
        await call(backend, tmp_path, "leave_children", count=3)
        worker = await backend.acquire()
        await begin(worker, request(tmp_path, "sleep_ignoring"))
        assert await worker.terminate(grace=0.05, bound=BOUND) is not None
        assert 0 == backend.statistics().unproven


@pytest.mark.parametrize("rung", ["pidns", "job-init"])
@pytest.mark.parametrize("init", [False, True], ids=["plain", "init"])
async def test_a_tool_that_is_asked_to_end(tmp_path: Path, rung: str, init: bool) -> None:
    """SIGTERM reaches the tool through whatever is above it, and ends it within the grace."""
    async with open_zygote_backend(settings(tmp_path, containment=rung)) as backend:
        worker = await backend.acquire()
        await begin(worker, request(tmp_path, "sleep_until_term", init=init))
        with trio.fail_after(BOUND):
            proof = await worker.terminate(grace=60, bound=BOUND)
        assert proof is not None
        assert not proof.escalated


async def test_loading_that_fails(tmp_path: Path) -> None:
    """A toolbox that cannot be loaded gives no worker, one that starts a thread is refused; no process is left."""
    broken = tools(tmp_path / "broken.py", "raise ValueError('no')")
    async with open_zygote_backend(settings(tmp_path, **broken)) as backend:
        with pytest.raises(WorkerFailed, match="ValueError: no"):
            await backend.acquire()
    eager = tools(
        tmp_path / "eager.py",
        "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    )
    with pytest.raises(Refused, match="eager"):
        async with open_zygote_backend(settings(tmp_path, **eager)):
            raise AssertionError("it opened")


async def test_every_rung_is_tried() -> None:
    """The survey tries each rung by doing it, and gives a reason for each that does not work."""
    tried = {trial.name: (trial.works, trial.reason) for trial in await survey()}
    assert RUNGS == list(tried)
    assert all(works or reason for works, reason in tried.values())
