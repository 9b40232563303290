"""The init above a server when something goes wrong with it, or with whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

import ztrio.upstream.process as module
from tests.upstream.real import alive, started, written
from ztrio.testing.leaks import processes
from ztrio.upstream import Command, ServerProcess

GATEWAY = """
import sys, trio
from ztrio.upstream import Command, ServerProcess

async def main():
    process = await ServerProcess.start(Command(("sh", "-c", sys.argv[1])), 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(process.run, 1.0)
        await process.started.wait()
        print(process.pid, flush=True)
        await trio.sleep_forever()

trio.run(main)
"""
SERVERS = {
    "obedient": "cat > /dev/null",
    "stubborn": "trap '' TERM HUP INT QUIT; while :; do sleep 300; done",
    "wrapper": "(trap '' TERM; sleep 300; sleep 300) & exit 0",
    "daemon": "setsid sh -c 'trap \"\" TERM; sleep 300; sleep 300' & exec sleep 300",
}


def below(pid: int) -> list[int]:
    """The descendants of a process."""
    found, every = [pid], processes()
    for parent in found:
        found += [info.pid for info in every.values() if info.parent == parent]
    return found[1:]


@pytest.mark.case("R11")
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("stuck", [False, True])
async def test_nothing_outlives_a_gateway_that_is_killed(server: str, stuck: bool) -> None:
    """SIGKILL of the gateway ends the init and everything below it, also when the gateway had long heard nobody."""
    gateway = subprocess.Popen([sys.executable, "-c", GATEWAY, SERVERS[server]], stdout=subprocess.PIPE)  # noqa: ASYNC220
    try:
        assert gateway.stdout is not None
        await trio.lowlevel.wait_readable(gateway.stdout)
        pid = int(gateway.stdout.readline())
        if stuck:  # what its init says is then unread when it ends, which breaks the socket instead of ending it
            gateway.send_signal(signal.SIGSTOP)
            if server != "wrapper":
                os.kill(pid, signal.SIGKILL)
        with trio.fail_after(5):
            while len(left := below(gateway.pid)) < 2 - stuck:
                await trio.sleep(0.01)
        if stuck:
            await trio.sleep(0.05)
        gateway.kill()
        before = trio.current_time()
        with trio.fail_after(5):
            while any(map(alive, left)):
                await trio.sleep(0.002)
        assert trio.current_time() - before < 1.0
    finally:
        gateway.kill()
        gateway.communicate()


async def test_a_warden_that_is_killed_is_no_proof() -> None:
    """When the init itself is killed, the program goes with it, and nobody says that the tree is proven dead."""
    async with started("sleep", "300") as process:
        process._warden.kill()
        await process.dead.wait()
        with trio.fail_after(2):
            while alive(process.pid):
                await trio.sleep(0.01)
    death = process.death(expected=False)
    assert (False, "ended, nobody knows how") == (death.proven, death.how)


async def test_signals_of_others_do_not_reach_it(tmp_path: Path) -> None:
    """What ends a gateway ends neither the init nor the server: the gateway says when."""
    file = tmp_path / "pid"
    async with started("sh", "-c", f"echo $$ > {file}; cat") as process:
        await written(file)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            process._warden.send_signal(number)
        await trio.sleep(0.05)
        os.write(process.stdin, b"alive")
        await trio.lowlevel.wait_readable(process.stdout)
        assert b"alive" == os.read(process.stdout, 100)
        process.close_stdin()
        await process.dead.wait()
    assert "exited with status 0" == process.death(expected=True).how


async def test_a_server_that_is_cancelled_while_it_starts() -> None:
    """Wherever its start is cancelled, nothing runs afterwards, and that is known."""
    for turns in range(8):
        process = await ServerProcess.start(Command(("sleep", "300")), 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.run, 5.0)
            for _ in range(turns):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        process.close()
        assert process.death(expected=True).proven


async def test_an_init_that_does_not_answer_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An init that is stuck is given up after the bound, killed, and reaped; its death is no proof."""
    monkeypatch.setattr(module, "_REAP", 0.05)
    process = await ServerProcess.start(Command(("sleep", "300")), 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(process.run, 0.05)
        await process.started.wait()
        process._warden.send_signal(signal.SIGSTOP)
        nursery.cancel_scope.cancel()
    process.close()
    assert not process.death(expected=True).proven
    assert -signal.SIGKILL == process._warden.returncode
    with trio.fail_after(2):
        while alive(process.pid):
            await trio.sleep(0.01)


@pytest.fixture
def without_subreapers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An init on a system that has none of what Linux has."""
    script = tmp_path / "warden.py"
    script.write_text(
        f"import sys; sys.platform = 'other'; sys.path.insert(0, {str(Path(module.__file__).parent)!r})\n"
        "import warden; warden.main()\n"
    )
    monkeypatch.setattr(module, "_WARDEN", str(script))


@pytest.mark.usefixtures("without_subreapers")
@pytest.mark.parametrize("how", ["kill", "term", "cancel"])
async def test_a_process_group_where_there_is_nothing_better(tmp_path: Path, how: str) -> None:
    """Without subreapers a wrapper's server is still served and ended, by its group, and nobody calls that proven."""
    file = tmp_path / "pid"
    trap = "" if how == "term" else "trap '' TERM; "
    async with started("sh", "-c", f"({trap}sleep 300) & echo $! > {file}; exit 0") as process:
        pid = await written(file)
        await process.wait()
        await trio.sleep(0.1)
        assert not process.dead.is_set()
        if how != "cancel":
            process.kill() if how == "kill" else process.terminate()
            await process.dead.wait()
    assert not alive(pid)
    death = process.death(expected=True)
    assert ("group", False, "exited with status 0") == (death.proof["rung"], death.proven, death.how)
