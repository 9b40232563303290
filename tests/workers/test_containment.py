import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.workers.support import BOUND, begin, group, is_alive, request, settings
from tests.workers.tools_for_workers import IGNORE_TERM
from ztrio.plain import decode
from ztrio.testing.leaks import processes
from ztrio.workers import containment, spawn
from ztrio.workers.backend import Proof
from ztrio.workers.containment import LeaderWatch, end_group, exit_status, live_members, started_at
from ztrio.workers.pool import PooledWorker
from ztrio.workers.spawn import open_spawn_backend
from ztrio.workers.wire import Result

TABLES = [containment._members_by_proc, containment._members_by_ps]


@asynccontextmanager
async def leader(script: str, *, use_pidfd: bool = True) -> AsyncIterator[LeaderWatch]:
    """A process in a group of its own, watched, and reaped at the end."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", script], start_new_session=True, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    watch = LeaderWatch(process.pid, use_pidfd=use_pidfd)
    async with process.stdout, trio.open_nursery() as nursery:
        await process.stdout.receive_some(1)
        nursery.start_soon(watch.run)
        try:
            yield watch
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            watch.close()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
                await process.wait()
            nursery.cancel_scope.cancel()


def assert_ends(proof: Proof | None, pid: int) -> Proof:
    """The proof is there and true."""
    assert proof is not None
    assert group(pid) == set()
    return proof


TERMINATED = (-15, 143)
"""How a worker ends by SIGTERM. PID 1 of a namespace cannot be killed by it, and exits as a shell would report that."""


@pytest.mark.case("R01")
async def test_a_pipeline_dies_as_a_whole(worker: PooledWorker, tmp_path: Path) -> None:
    """Ending a worker ends the shell it runs and both sides of the shell's pipe."""
    reports = await begin(worker, request(tmp_path, "pipeline"))
    with trio.fail_after(5):
        shell = int(reports[0][0])
        while len(members := group(processes()[shell].group)) < 4:
            await trio.sleep(0.01)
        assert_ends(await worker.terminate(grace=0, bound=BOUND), worker.pid)
        assert [pid for pid in members if is_alive(pid)] == []


async def test_descendants_die_on_success(worker: PooledWorker, tmp_path: Path) -> None:
    """What a tool leaves running when it returns is gone before its result may be published."""
    await worker.send_request(request(tmp_path, "leave_children", {"count": 3}))
    answer = await worker.receive(lambda *_: None)
    assert isinstance(answer, Result)
    children = decode(answer.value)
    assert [is_alive(pid) for pid in children] == [True] * 3
    assert_ends(await worker.terminate(grace=0, bound=BOUND), worker.pid)
    assert [is_alive(pid) for pid in children] == [False] * 3


@pytest.mark.case("R30")
@pytest.mark.parametrize("function", ["spin", "sleep_in_c", "sleep_ignoring", "die_main_thread"])
async def test_nothing_a_tool_does_keeps_it_alive(worker: PooledWorker, tmp_path: Path, function: str) -> None:
    """A tool in a busy loop, in C, or deaf to signals is ended at once."""
    await worker.send_request(request(tmp_path, function))
    await trio.sleep(0.1)
    start = time.monotonic()
    proof = assert_ends(await worker.terminate(grace=0, bound=BOUND), worker.pid)
    assert time.monotonic() - start < BOUND
    assert proof.status == -9


async def test_grace_lets_a_sync_tool_go(worker: PooledWorker, tmp_path: Path) -> None:
    """SIGTERM ends a sync tool; nothing has to escalate."""
    await begin(worker, request(tmp_path, "sleep_until_term"))
    proof = assert_ends(await worker.terminate(grace=10, bound=BOUND), worker.pid)
    assert (proof.status in TERMINATED, proof.escalated) == (True, False)


async def test_grace_lets_an_async_tool_tidy_up(worker: PooledWorker, tmp_path: Path) -> None:
    """An async tool sees SIGTERM as its cancellation, and ends by SIGTERM afterwards."""
    note = tmp_path / "note"
    await begin(worker, request(tmp_path, "tidy_up", {"path": str(note)}))
    proof = assert_ends(await worker.terminate(grace=10, bound=BOUND), worker.pid)
    assert (proof.status in TERMINATED, proof.escalated, note.read_text()) == (True, False, "tidied")


@pytest.mark.case("R03")
async def test_grace_is_about_the_group(worker: PooledWorker, tmp_path: Path) -> None:
    """A child that ignores SIGTERM is killed although the leader obeyed, at the latest when the grace is over."""
    reports = await begin(worker, request(tmp_path, "leave_stubborn_child"))
    child = int(reports[0][0])
    proof = assert_ends(await worker.terminate(grace=0.3, bound=BOUND), worker.pid)
    assert proof.status in TERMINATED
    if proof.rung == "group":
        assert (proof.escalated, proof.survivors_killed) == (True, 1)
    else:
        assert not proof.escalated  # the tree ends with the worker, and the child with the tree
    assert not is_alive(child)


async def test_grace_that_runs_out(worker: PooledWorker, tmp_path: Path) -> None:
    """A leader that ignores SIGTERM is killed when its grace is over."""
    await begin(worker, request(tmp_path, "sleep_ignoring"))
    proof = assert_ends(await worker.terminate(grace=0.2, bound=BOUND), worker.pid)
    assert (proof.status, proof.escalated) == (-9, True)


@pytest.mark.parametrize("members", TABLES)
async def test_the_leader_exits_first(members: containment.Members) -> None:
    """A group whose leader is gone is still found and emptied; the leader stays unreaped until then."""
    script = "import subprocess; print(subprocess.Popen(['sleep', '300']).pid, flush=True)"
    async with leader(script) as watch:
        await watch.exited.wait()
        assert len(await members(watch.pid)) == 1
        assert exit_status(watch.pid) == 0
        end = await end_group(watch, grace=0, bound=BOUND, members=members)
        assert end is not None
        assert end.survivors_killed == 1
        assert group(watch.pid) == set()
        assert exit_status(watch.pid) == 0  # held until the very end


@pytest.mark.parametrize("members", TABLES)
async def test_without_pidfd(members: containment.Members) -> None:
    """Where the kernel has no pidfd the exit is noticed by asking."""
    async with leader(IGNORE_TERM, use_pidfd=False) as watch:
        assert exit_status(watch.pid) is None
        assert await members(watch.pid) == {watch.pid}
        end = await end_group(watch, grace=0.05, bound=BOUND, members=members)
        assert end is not None
        assert end.escalated
        assert exit_status(watch.pid) == -9


async def test_without_waitid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Python has no waitid the process table tells of the exit."""
    monkeypatch.delattr(os, "waitid")
    async with leader(IGNORE_TERM, use_pidfd=False) as watch:
        end = await end_group(watch, grace=0, bound=BOUND, members=containment._members_by_ps)
        assert end is not None
        assert exit_status(watch.pid) is None


def test_an_old_kernel_has_no_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel or a sandbox without pidfd is no error; a wrong pid is."""
    with pytest.raises(ProcessLookupError):
        LeaderWatch(2**22 + 1)

    def refuse(pid: int) -> int:
        raise OSError(38, "not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    watch = LeaderWatch(os.getpid())
    assert watch._pidfd == -1
    watch.close()


async def test_a_watch_that_is_closed_ends() -> None:
    """Whoever gives up on a process can stop watching it."""
    async with leader(IGNORE_TERM) as watch:
        await trio.testing.wait_all_tasks_blocked()
        watch.close()
        await trio.testing.wait_all_tasks_blocked()
        assert not watch.exited.is_set()


async def test_a_process_whose_main_thread_ended_is_alive() -> None:
    """A zombie that still has threads counts as alive."""
    script = (
        "import ctypes, os, threading, time; threading.Thread(target=time.sleep, args=(300,)).start(); "
        "print(1, flush=True); ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)"
    )
    async with leader(script) as watch:
        path = Path(f"/proc/{watch.pid}/stat")
        with trio.fail_after(5):
            while " Z " not in path.read_text():
                await trio.sleep(0.01)
        assert await containment._members_by_proc(watch.pid) == {watch.pid}
        assert not watch.exited.is_set()
        end = await end_group(watch, grace=0, bound=BOUND, members=live_members())
        assert end is not None


@pytest.mark.case("R12")
async def test_a_death_that_never_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that stays in the table is not waited for beyond the bound; leaving the backend is bounded too."""

    async def stuck(pid: int) -> frozenset[int]:
        await trio.lowlevel.checkpoint()
        return frozenset((pid,))

    monkeypatch.setattr(spawn, "_END_BOUND", 0.5)
    with trio.fail_after(20):
        async with open_spawn_backend(settings(tmp_path), members=stuck) as backend:
            worker = await backend.acquire()
            start = trio.current_time()
            assert await worker.terminate(grace=0, bound=0.2) is None
            assert trio.current_time() - start < 2
            assert backend.statistics().unproven == 1
            assert await worker.terminate(grace=0.1, bound=0.1) is None


async def test_a_proof_that_comes_later(tmp_path: Path) -> None:
    """A proof that could not be had can be asked for again."""
    hidden = True

    async def late(pid: int) -> frozenset[int]:
        if hidden:
            raise OSError("the process table cannot be read")
        return await live_members()(pid)

    async with open_spawn_backend(settings(tmp_path), members=late) as backend:
        worker = await backend.acquire()
        assert await worker.terminate(grace=0, bound=0.1) is None
        assert not is_alive(worker.pid)
        hidden = False
        proof = await worker.terminate(grace=0, bound=BOUND)
        assert proof is not None
        assert proof.survivors_killed == 0
        assert backend.statistics().unproven == 0


async def test_a_leader_that_never_exits() -> None:
    """Neither a grace period nor SIGKILL is waited for beyond its bound when the leader stays."""
    async with leader(IGNORE_TERM) as watch:
        unseen = LeaderWatch(watch.pid)
        assert await end_group(unseen, grace=0.05, bound=0.05, members=live_members()) is None
        unseen.close()


async def test_terminate_twice_at_once(worker: PooledWorker) -> None:
    """Two that end the same worker get the same proof."""
    proofs = []

    async def end() -> None:
        proofs.append(await worker.terminate(grace=0, bound=BOUND))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end)
        nursery.start_soon(end)
    assert proofs[0] is proofs[1] is not None


async def test_terminate_can_be_repeated_after_a_cancellation(worker: PooledWorker, tmp_path: Path) -> None:
    """A caller that is cancelled while it ends a worker has harmed nothing."""
    await begin(worker, request(tmp_path, "sleep_ignoring"))
    with trio.move_on_after(0.05) as scope:
        await worker.terminate(grace=60, bound=BOUND)
    assert scope.cancelled_caught
    assert_ends(await worker.terminate(grace=0, bound=BOUND), worker.pid)


async def test_members_of_many() -> None:
    """Reading a large process table leaves room for other tasks and misses nobody."""
    script = "import os, time\nfor _ in range(20): os.fork() or time.sleep(300)\nprint(1, flush=True); time.sleep(300)"
    async with leader(script) as watch:
        assert await live_members()(watch.pid) == group(watch.pid)
        assert len(group(watch.pid)) == 21


def test_start_times() -> None:
    """The start time is the kernel's, the same at each look, and now for what is gone."""
    mine = started_at(os.getpid())
    time.sleep(0.02)
    assert abs(started_at(os.getpid()) - mine) < 0.02
    assert mine < time.time() + 0.1
    assert abs(started_at(2**22 + 1) - time.time()) < 1


@pytest.mark.parametrize("use_pidfd", [True, False])
async def test_a_leader_that_somebody_else_reaped(use_pidfd: bool) -> None:
    """A program that reaps our child itself breaks nothing: the exit is noticed, its status is unknown."""
    process = await trio.lowlevel.open_process(["sleep", "300"], start_new_session=True)
    watch = LeaderWatch(process.pid, use_pidfd=use_pidfd)
    os.kill(process.pid, signal.SIGKILL)
    os.waitpid(process.pid, 0)  # noqa: ASYNC222 - it was just killed
    with trio.fail_after(5):
        await watch.run()
    assert (watch.exited.is_set(), exit_status(process.pid)) == (True, None)
    watch.close()
    await process.wait()
