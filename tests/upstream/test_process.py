"""One run of a foreign server: what reaches it, what it leaves behind, and the proof that it is dead."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.upstream.real import alive, output, started, written
from ztrio.testing.leaks import resident_bytes
from ztrio.upstream import STDERR_KEPT, Command, ServerProcess

PYTHON = (sys.executable, "-I", "-S", "-c")
PATH = os.environ["PATH"]


async def test_it_starts_as_if_nobody_stood_between(tmp_path: Path) -> None:
    """Directory, session, signals and descriptors of a server are as a shell would leave them, whatever ours are."""
    program = (
        "import os, signal, json; print(json.dumps([os.getcwd(), os.getsid(0) == os.getpid(), "
        "[n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN], "
        "sorted(signal.pthread_sigmask(0, ())), os.listdir('/proc/self/fd')]))"
    )
    # In a process of its own: what is blocked here would also be in threads that start other processes later.
    started_by = (
        "import signal, sys, trio\nfrom tests.upstream.real import output, started\n"
        "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM})\n"
        "async def main():\n"
        "    async with started(*sys.argv[2:], cwd=sys.argv[1]) as process:\n"
        "        print((await output(process)).decode())\n"
        "trio.run(main)"
    )
    done = await trio.run_process(
        [sys.executable, "-c", started_by, str(tmp_path), *PYTHON, program], capture_stdout=True
    )
    cwd, leads, ignored, blocked, fds = json.loads(done.stdout)
    assert str(tmp_path) == cwd
    assert leads
    assert {signal.SIGPIPE, signal.SIGXFSZ} == set(ignored), "what Python ignores itself"
    assert [] == blocked
    assert {"0", "1", "2"} == set(fds) - {"3"}, "3 is the directory being listed"


async def test_arguments_and_environment_reach_it_to_the_byte() -> None:
    """Also when they are long and valid in no encoding; where none is given, it is ours."""
    odd = os.fsdecode(b"\xff\xfe=\n ")
    command = (*PYTHON, "import os, sys; os.write(1, repr([sys.argv[1:], os.environb]).encode())", odd, "")
    async with started(*command, env={"PATH": PATH, "ODD": odd, "LONG": "x" * 100_000}) as process:
        text = (await output(process)).decode()
    assert f"[[{odd!r}, '']," in text
    assert rf"b'ODD': {os.fsencode(odd)!r}" in text
    assert f"b'LONG': b'{'x' * 100_000}'" in text
    assert "ZTRIO" not in text
    assert "HOME" not in text
    async with started("printenv", "PATH") as process:
        assert f"{PATH}\n".encode() == await output(process)


@pytest.mark.parametrize(
    ("program", "status", "how"),
    [
        ("exit 3", 3, "exited with status 3"),
        ("kill -9 $$", -9, "was ended by SIGKILL"),
        ("kill -40 $$", -40, "was ended by signal 40"),
    ],
)
async def test_how_it_ended_is_known(program: str, status: int, how: str) -> None:
    """Status and last words of the program are in its death, and the proof says which rung it is of."""
    async with started("sh", "-c", f"echo last >&2; {program}") as process:
        assert process.pid
        await process.wait()
        assert not process.alive
        await process.dead.wait()
    death = process.death(expected=False)
    assert (7, status, how, True, False) == (death.epoch, death.status, death.how, death.proven, death.expected)
    assert {"rung": "job-init", "pid": process.pid, "seconds": None} == death.proof
    assert "last\n" == death.stderr_tail


@pytest.mark.case("R02")
async def test_it_lives_as_long_as_anybody_of_it(tmp_path: Path) -> None:
    """When the program that was started exits, what it started runs on, with the pipes, and is ended with the tree."""
    file = tmp_path / "pid"
    async with started("sh", "-c", f"(read line; echo got $line; sleep 300) & echo $! > {file}; exit 0") as process:
        await process.wait()
        assert not process.alive
        assert not process.dead.is_set()
    pid = await written(file)
    assert not alive(pid)
    death = process.death(expected=True)
    assert ("exited with status 0", True) == (death.how, death.proven)


@pytest.mark.case("R02", "R03")
async def test_what_it_started_is_killed_with_it(tmp_path: Path) -> None:
    """A daemon in a session of its own that ignores SIGTERM is part of the tree and of the proof."""
    file = tmp_path / "pid"
    program = f"setsid sh -c 'trap \"\" TERM; echo $$ > {file}; sleep 300; sleep 300' & exec sleep 300"
    async with started("sh", "-c", program) as process:
        pid = await written(file)
        process.terminate()
        await process.wait()
        await trio.sleep(0.05)
        assert not process.dead.is_set(), "its daemon ignores the signal"
        process.terminate()  # nobody is left in the group of the program that was started
        await trio.sleep(0.05)
        assert alive(pid)
        process.kill()
        await process.dead.wait()
        assert not alive(pid)
    death = process.death(expected=True)
    assert (-15, "was ended by SIGTERM", True) == (death.status, death.how, death.proven)
    assert 0 < death.proof["seconds"] < 1


async def test_daemons_are_asked_to_end_as_well(tmp_path: Path) -> None:
    """SIGTERM also reaches what has left the program's group and has lost its parent."""
    file = tmp_path / "pid"
    program = f"setsid sh -c 'trap \"exit 0\" TERM; echo $$ > {file}; while :; do sleep 0.01; done' & exit 0"
    async with started("sh", "-c", program) as process:
        await written(file)
        await process.wait()
        process.terminate()
        await process.dead.wait()
    assert process.death(expected=True).proven


async def test_a_tree_that_forks_all_the_time_is_killed() -> None:
    """Processes that are replaced by their children faster than anybody looks are killed all the same."""
    program = "import os\nfor _ in range(3): os.fork()\nwhile True:\n if os.fork(): os._exit(0)\n os.setsid()"
    async with started(*PYTHON, program) as process:
        await trio.sleep(0.1)
        process.kill()
        await process.dead.wait()
    assert process.death(expected=True).proven


@pytest.mark.case("R32")
async def test_stderr_is_drained_and_bounded() -> None:
    """A flood without a newline neither blocks the server nor grows here, also after its end."""
    before = resident_bytes()
    program = "import os; os.write(2, b'x' * 2**25); os.write(1, b'!'); os.write(2, b'\\xff' + b'end')"
    async with started(*PYTHON, program) as process:
        assert b"!" == await output(process)
        await process.dead.wait()
    assert STDERR_KEPT == len(process.stderr_tail())
    assert process.stderr_tail().endswith("x\ufffdend")
    assert resident_bytes() - before < 2**23


async def test_stderr_may_be_closed_early() -> None:
    """A server without stderr is no reason to look at it all the time, or to stop looking at the server."""
    async with started("sh", "-c", "echo gone >&2; exec 2>&-; read line; echo got $line") as process:
        await trio.sleep(0.05)
        os.write(process.stdin, b"it\n")
        assert b"got it\n" == await output(process)
    assert "gone\n" == process.stderr_tail()


@pytest.mark.case("R59")
@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (("no-such-program",), "No such file or directory: no-such-program"),
        (("/etc/passwd",), "Permission denied: /etc/passwd"),
        (("/",), "Permission denied: /"),
    ],
)
async def test_what_cannot_be_started_says_why(argv: tuple[str, ...], why: str) -> None:
    """A program that is missing, or none, is a failure that names it and not a death of a server."""
    async with started(*argv) as process:
        assert isinstance(process.failure, OSError)
        assert 0 == process.pid
        await process.dead.wait()
    death = process.death(expected=False)
    assert (f"could not be started: {why}", None, True) == (death.how, death.status, death.proven)


@pytest.mark.parametrize(
    "command",
    [
        Command(()),
        Command(("true", "a\0b")),
        Command(("true",), env={"A": "\0"}),
        Command(("true",), env={"A=B": "c"}),
        Command(("true",), env={"": "c"}),
        Command(("true",), cwd="/no/such/directory"),
    ],
)
async def test_what_nobody_could_start(command: Command) -> None:
    """Where not even the init can be started, or told, the caller learns so at once, and nothing is left."""
    with pytest.raises(OSError, match=r"cannot be arguments|No such file"):
        await ServerProcess.start(command, 1)


async def test_writing_to_a_closed_stdin_fails() -> None:
    """Whoever still writes to a stdin that was closed is told so, also who waits to; the number stays ours."""
    async with started("sleep", "300") as process:
        with pytest.raises(BlockingIOError):
            while True:
                os.write(process.stdin, b"x" * 4096)
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await trio.lowlevel.wait_writable(process.stdin)

            nursery.start_soon(write)
            await trio.testing.wait_all_tasks_blocked(0.01)
            process.close_stdin()
        process.close_stdin()
        with pytest.raises(BrokenPipeError):
            os.write(process.stdin, b"late\n")


async def test_an_end_of_stdin_without_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are no descriptors left the stdin stays open, and the server is ended by what comes next."""

    def full() -> tuple[int, int]:
        raise OSError(24, "Too many open files")

    async with started("cat") as process:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pipe", full)
            process.close_stdin()
        assert 1 == os.write(process.stdin, b"x")


async def test_what_nobody_reads_is_thrown_away() -> None:
    """A server that writes while it is stopped is not stuck in that, however much it is."""
    async with started(*PYTHON, "import os, time; os.write(1, b'x' * 2**20); time.sleep(0.05); os._exit(0)") as process:
        await process.discard()
        await process.dead.wait()
    assert "exited with status 0" == process.death(expected=False).how


async def test_whoever_reads_beside_it_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    """Throwing away goes on when there was nothing after all, because somebody else had read it."""
    async with started("sh", "-c", "echo one; read line; echo two") as process:
        really, taken = os.read, list[bytes]()

        def read(fd: int, most: int) -> bytes:
            if fd == process.stdout and not taken:
                taken.append(really(fd, most))  # just before the one who was woken
            return really(fd, most)

        monkeypatch.setattr("os.read", read)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.discard)
            while not taken:
                await trio.sleep(0.005)
            process.close_stdin()
        await process.dead.wait()
        assert [b"one\n"] == taken


async def test_it_is_killed_once_and_asked_in_vain_afterwards() -> None:
    """Words to what is dead do nothing, and the first word to kill is the one that counts."""
    async with started("sleep", "300") as process:
        process.kill()
        process.kill()
        await process.dead.wait()
        seconds = process.death(expected=True).proof["seconds"]
        for say in (process.kill, process.terminate, process.give_up):
            say()
        await trio.sleep(0.02)
        process.terminate()
        assert seconds == process.death(expected=True).proof["seconds"]
