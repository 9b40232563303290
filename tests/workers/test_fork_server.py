import os
import signal
import time
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.workers.support import BOUND, Reports, begin, fork_server, is_alive, request, settings, tools
from ztrio.errors import WorkerFailed
from ztrio.plain import decode
from ztrio.workers.forked import ForkedWorker
from ztrio.workers.wire import Result
from ztrio.workers.zygote import Refused, open_zygote_backend

RUNGS = ["pidns", "job-init", "group"]


# -- the fork server dies


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("victim", ["fork server", "launcher"])
async def test_a_fork_server_that_dies(tmp_path: Path, rung: str, victim: str) -> None:
    """Its workers die with it, daemons too, and say so; each death is proven; the next call gets a new one."""
    async with open_zygote_backend(settings(tmp_path, containment=rung)) as backend:
        workers = [await backend.acquire() for _ in range(3)]
        reports = await begin(workers[0], request(tmp_path, "pipeline"))
        await begin(workers[1], request(tmp_path, "sleep_ignoring"))
        link = backend._link
        assert link is not None
        os.kill(link.pid if victim == "launcher" else fork_server(backend), signal.SIGKILL)
        start = time.monotonic()
        with trio.fail_after(10):
            for worker in workers[:2]:
                with pytest.raises(WorkerFailed) as caught:
                    await worker.receive(Reports())
                assert caught.value.code == "WORKER_DIED"
            for worker in workers:
                proof = await worker.terminate(grace=0, bound=BOUND)
                assert proof is not None
                assert not is_alive(worker.pid)
        if rung != "group":
            assert not is_alive(int(reports[0][0]))
        assert time.monotonic() - start < 8
        with trio.fail_after(20):
            fresh = await backend.acquire()
        assert fresh.link is not link
        assert await fresh.terminate(grace=0, bound=BOUND) is not None


async def test_a_fork_server_that_keeps_dying(tmp_path: Path) -> None:
    """Whoever asks is told after a few attempts, and with what was printed."""
    text = """
        import os
        if os.path.exists({flag!r}):
            print("so far", flush=True)
            os._exit(3)
    """
    flag = tmp_path / "flag"
    options = settings(tmp_path, **tools(tmp_path / "mortal.py", text.format(flag=str(flag))))
    async with open_zygote_backend(options) as backend:
        await (await backend.acquire()).terminate(grace=0, bound=BOUND)
        flag.touch()
        os.kill(fork_server(backend), signal.SIGKILL)
        with trio.fail_after(10):
            assert backend._link is not None
            await backend._link.died.wait()
            with pytest.raises(WorkerFailed, match=r"ended while it loaded the tools.*so far"):
                await backend.acquire()
        flag.unlink()
        assert (await backend.acquire()).pid > 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("raise SystemExit(2)", "SystemExit: 2"),
        ("this is no Python", "SyntaxError"),
        ("import time; time.sleep(99)", "not ready within 1.5 s"),
    ],
)
async def test_tools_that_cannot_be_loaded(tmp_path: Path, text: str, reason: str) -> None:
    """The backend opens, whoever asks learns why, and once it is mended the next is served."""
    patience = 1.5 if "1.5 s" in reason else 30.0
    options = settings(tmp_path, start_timeout=patience, **tools(tmp_path / "broken.py", text))
    async with open_zygote_backend(options) as backend:
        with trio.fail_after(10), pytest.raises(WorkerFailed) as caught:
            await backend.acquire()
        assert caught.value.code == "WORKER_START_FAILED"
        assert reason in caught.value.message
        (tmp_path / "broken.py").write_text("")
        with trio.fail_after(20):
            assert is_alive((await backend.acquire()).pid)


async def test_sigchld_must_not_be_ignored(tmp_path: Path) -> None:
    """Where the kernel reaps children by itself the end of the launcher cannot be seen."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(Refused, match="SIGCHLD"):
            async with open_zygote_backend(settings(tmp_path)):
                raise AssertionError
    finally:
        signal.signal(signal.SIGCHLD, before)


async def test_a_launcher_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving the backend does not wait for a launcher that is stuck: it is killed."""
    monkeypatch.setattr("ztrio.workers.server._END_BOUND", 0.1)
    with trio.fail_after(20):
        async with open_zygote_backend(settings(tmp_path)) as backend:
            assert backend._link is not None
            pid = backend._link.pid
            os.kill(pid, signal.SIGSTOP)
    assert not is_alive(pid)


# -- reloading


VERSION = """
import time, ztrio  # {1}

def version() -> int:
    return {0}
"""


async def test_reload(tmp_path: Path) -> None:
    """New workers have the new code, one that runs finishes with the old; the old fork server ends with it."""
    path = tmp_path / "changing.py"
    path.write_text(VERSION.format(1, ""))
    module = (path.stem, str(path))
    options = settings(tmp_path, modules=(module,), functions=(("changing", "version"),))
    async with open_zygote_backend(options) as backend:

        async def version(worker: ForkedWorker) -> int:
            await worker.send_request(request(tmp_path, "version", module=module))
            answer = await worker.receive(Reports())
            assert isinstance(answer, Result)
            value: int = decode(answer.value)
            return value

        old = await backend.acquire()
        link = old.link
        path.write_text(VERSION.format(22, "longer, so that the bytecode is not taken for current"))
        await backend.reload(options)
        new = await backend.acquire()
        assert (await version(old), await version(new)) == (1, 22)
        assert not link.died.is_set()
        assert await old.terminate(grace=0, bound=BOUND) is not None
        with trio.fail_after(10):
            await link.ended.wait()
        assert link.saw_all_dead
        path.write_text("broken")
        with pytest.raises(WorkerFailed, match="NameError"):
            await backend.reload(options)
        assert await version(await backend.acquire()) == 22
