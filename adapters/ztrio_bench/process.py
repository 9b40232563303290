"""The controller's side of a driver: start it, ask it, and end it with everything it started, whatever it does.

A driver gets a folder of its own as its current directory and in its environment. What a subject leaks is found by
that folder, also when it made its own session and its parent is gone.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Self

import trio

from ztrio_bench import drivers, workload
from ztrio_bench.drivers import zaptrace_record
from ztrio_bench.subjects import Subject

__all__ = ["Driver", "DriverFailed", "hog", "open_driver", "stop_leftovers"]

_GONE: Final = 3.0  # seconds for a driver to end by itself when its stdin has
_LONGEST: Final = 64 * 2**20  # bytes of an answer; a round of samples is far below


class DriverFailed(Exception):
    """A driver died, or did not answer in time; the text says which and what it last printed."""


class Driver:
    """A running driver. Made by `open_driver`."""

    def __init__(self, process: trio.Process, folder: Path) -> None:
        self._process = process
        self.folder = folder
        # What was received beyond the last whole line.
        self._rest = b""

    @classmethod
    async def start(cls, subject: Subject, python: str, folder: Path) -> Self:
        """Start the process; it has not said anything yet."""
        library = folder / "lib"
        library.mkdir(exist_ok=True)  # noqa: ASYNC240 - a few small files, before anything is measured
        shutil.copyfile(workload.__file__, library / "bench_tools.py")
        shutil.copyfile(zaptrace_record.__file__, library / "bench_record.py")
        own = subject.requirement is None
        environment = dict(os.environ)
        # A peer's interpreter gets nothing of ours.
        inherited = environment.get("PYTHONPATH") if own else None
        environment["PYTHONPATH"] = os.pathsep.join([str(library), *([inherited] if inherited else [])])
        environment["ZTRIO_BENCH_FOLDER"] = str(folder)
        start = Path(drivers.__file__).with_name("start.py")
        if subject.driver.endswith(".py"):
            command = [python, subject.driver]
        elif own:
            command = [python, "-m", "ztrio_bench.drivers.start", subject.driver]
        else:
            command = [python, str(start), subject.driver]
        with (folder / "driver.log").open("ab") as log:  # noqa: ASYNC230 - the same
            process: trio.Process = await trio.lowlevel.open_process(
                [*command, *subject.arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )
        return cls(process, folder)

    async def ask(self, request: dict[str, Any], *, bound: float) -> dict[str, Any]:
        """Send a request and wait for its answer, at most `bound` seconds.

        Raises:
            DriverFailed: there was none; the driver is of no use any more.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            with trio.fail_after(bound):
                await self._process.stdin.send_all(json.dumps(request | {"folder": str(self.folder)}).encode() + b"\n")
                while b"\n" not in self._rest:
                    chunk = await self._process.stdout.receive_some(1 << 20)
                    if not chunk or len(self._rest) > _LONGEST:
                        raise DriverFailed(f"its process ended{self._last_words()}")
                    self._rest += chunk
        except trio.TooSlowError:
            raise DriverFailed(f"it hung: no answer within {bound:.0f} s") from None
        except trio.BrokenResourceError:
            raise DriverFailed(f"its process ended{self._last_words()}") from None
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        try:
            lines = (self.folder / "driver.log").read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return f": {lines[-1][:300]}" if lines else ""

    async def end(self) -> None:
        """End it: by the end of its input, then by SIGKILL to its group. Ends within a few seconds."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _GONE):
            assert self._process.stdin is not None
            await self._process.stdin.aclose()
            await self._process.wait()
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _GONE):
            assert self._process.stdout is not None
            await self._process.stdout.aclose()
            await self._process.wait()


@asynccontextmanager
async def open_driver(subject: Subject, python: str) -> AsyncIterator[Driver]:
    """A driver in a new folder; on leaving, it and everything that belongs to its folder is ended and removed."""
    folder = Path(tempfile.mkdtemp(prefix="ztb-"))
    folder.chmod(0o755)  # noqa: ASYNC240 - workers may run as another user
    try:
        driver = await Driver.start(subject, python, folder)
        try:
            yield driver
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 3 * _GONE):
                await driver.end()
    finally:
        stop_leftovers(folder)
        shutil.rmtree(folder, ignore_errors=True)


def stop_leftovers(folder: Path, *, bound: float = 2.0) -> int:
    """SIGKILL every process that lives in the folder or was started for it, until there is none.

    Args:
        folder: The folder.
        bound: Seconds after which to give up.

    Returns:
        How many there were at the first look.
    """
    found = first = _living(folder)
    deadline = time.monotonic() + bound
    while found and time.monotonic() < deadline:
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it ended meanwhile
        time.sleep(0.01)
        found = _living(folder)
    return len(first)


def _living(folder: Path) -> list[int]:
    found = []
    mark = b"ZTRIO_BENCH_FOLDER=" + os.fsencode(folder) + b"\0"
    for place in Path("/proc").iterdir():
        if not place.name.isdecimal() or int(place.name) == os.getpid():
            continue
        try:
            home = (place / "cwd").readlink().is_relative_to(folder)
            if home or mark in (place / "environ").read_bytes():
                found.append(int(place.name))
        except OSError:
            continue  # ended, a zombie, or another user's
    return found


def hog(number: int) -> list[subprocess.Popen[bytes]]:
    """Start so many processes that compute until this one is gone."""
    code = f"import os\nwhile os.getppid() == {os.getpid()}:\n for _ in range(100000): pass"
    return [subprocess.Popen([sys.executable, "-I", "-S", "-c", code]) for _ in range(number)]
