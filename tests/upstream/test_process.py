"""One run of a foreign server: what reaches it, what it leaves behind, and the proof that it is dead."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from ztrio.upstream import STDERR_KEPT, Command, ServerProcess


@asynccontextmanager
async def started(
    *argv: str, cwd: str | None = None, env: dict[str, str] | None = None
) -> AsyncIterator[ServerProcess]:
    process = await ServerProcess.start(Command(argv, cwd=cwd, env=env), 7)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.run)
            with trio.fail_after(10):
                await process.started.wait()
                yield process
            nursery.cancel_scope.cancel()
    finally:
        process.close()


async def output(process: ServerProcess) -> bytes:
    found = b""
    while True:
        await trio.lowlevel.wait_readable(process.stdout)
        chunk = os.read(process.stdout, 65536)
        if not chunk:
            return found
        found += chunk


ENVIRONMENT = {"ONLY": "this", "PATH": os.environ["PATH"]}
PYTHON = (sys.executable, "-I", "-c")


async def test_it_gets_the_environment_and_the_directory(tmp_path: Path) -> None:
    """Environment and directory are what was said, to the letter, and signals are as a shell would leave them."""
    program = (
        "import os, signal, json; print(json.dumps([os.getcwd(), sorted(os.environ), os.getsid(0) == os.getpid(), "
        "str(signal.getsignal(signal.SIGTERM)), sorted(signal.pthread_sigmask(0, ())), os.listdir('/proc/self/fd')]))"
    )
    async with started(
        *PYTHON, program, cwd=str(tmp_path), env={"ONLY": "this", "PATH": os.environ["PATH"]}
    ) as process:
        import json

        cwd, names, leads, term, mask, fds = json.loads(await output(process))
    assert str(tmp_path) == cwd
    assert {"ONLY", "PATH"} == set(names) - {"LC_CTYPE"}, "which Python sets itself in a C locale"
    assert leads
    assert "Handlers.SIG_DFL" in term or "0" == term
    assert [] == mask
    assert {"0", "1", "2"} == set(fds) - {"3"}, "3 is the directory being listed"


@pytest.mark.parametrize(
    ("program", "status", "how"), [("exit 3", 3, "exited with status 3"), ("kill -9 $$", -9, "was ended by SIGKILL")]
)
async def test_how_it_ended_is_known(program: str, status: int, how: str) -> None:
    """Status and last words of the program are in its death, and the proof says which rung it is of."""
    async with started("sh", "-c", f"echo last >&2; {program}") as process:
        await process.dead.wait()
        await trio.sleep(0.05)
    death = process.death(expected=False)
    assert (7, status, how, True, "job-init") == (
        death.epoch,
        death.status,
        death.how,
        death.proven,
        death.proof["rung"],
    )
    assert "last\n" == death.stderr_tail
    assert not process.alive


@pytest.mark.case("R02", "R03")
async def test_what_it_started_is_killed_with_it(tmp_path: Path) -> None:
    """A daemon in a session of its own, whose starter has exited, is part of the tree and of the proof."""
    pid = tmp_path / "pid"
    async with started(
        "sh", "-c", f"setsid sh -c 'trap \"\" TERM; echo $$ > {pid}; sleep 300' & exec sleep 300"
    ) as process:
        with trio.fail_after(5):
            while not pid.exists() or not pid.read_text().strip():
                await trio.sleep(0.01)
        process.terminate()
        await process.exited.wait()
        assert not process.dead.is_set(), "its daemon ignores the signal"
        process.kill()
        await process.dead.wait()
        assert not Path(f"/proc/{pid.read_text().strip()}").exists()
    assert process.death(expected=True).proven


@pytest.mark.case("R32")
async def test_stderr_is_drained_and_bounded() -> None:
    """A flood without a newline neither blocks the server nor grows here."""
    async with started(*PYTHON, "import os; os.write(2, b'x' * 2**21); os.write(2, b'end')") as process:
        await process.dead.wait()
        await trio.sleep(0.05)
    assert STDERR_KEPT == len(process.stderr_tail())
    assert process.stderr_tail().endswith("end")


@pytest.mark.case("R59")
@pytest.mark.parametrize("argv", [("no-such-program",), ("/etc/passwd",)])
async def test_what_cannot_be_started_says_why(argv: tuple[str, ...]) -> None:
    """A program that is missing, or none, is a failure with its reason and not a death of a server."""
    async with started(*argv) as process:
        assert process.failure is not None
    assert process.death(expected=False).how.startswith("could not be started: ")


async def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    """Where not even the init can be started, the caller learns so at once."""
    with pytest.raises(OSError, match="No such file"):
        await ServerProcess.start(Command(("true",), cwd=str(tmp_path / "missing")), 1)


async def test_a_warden_that_is_killed_is_no_proof() -> None:
    """When the init itself is killed, the program goes with it, and nobody says that the tree is proven dead."""
    async with started("sleep", "300") as process:
        process._warden.kill()
        await process.dead.wait()
        with trio.fail_after(2):
            while Path(f"/proc/{process.pid}").exists():
                await trio.sleep(0.01)
    assert not process.death(expected=False).proven
