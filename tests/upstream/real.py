"""Servers that are real processes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from ztrio.testing.leaks import processes
from ztrio.upstream import Command, ServerProcess


@asynccontextmanager
async def started(
    *argv: str, cwd: str | None = None, env: Mapping[str, str] | None = None
) -> AsyncIterator[ServerProcess]:
    process = await ServerProcess.start(Command(argv, cwd=cwd, env=env), 7)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.run, 2.0)
            with trio.fail_after(20):
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


async def written(file: Path) -> int:
    """The number that a process writes into a file."""
    while not file.exists() or not file.read_text().endswith("\n"):
        await trio.sleep(0.005)
    return int(file.read_text())


def alive(pid: int) -> bool:
    """Whether there is such a process, which has not ended."""
    found = processes().get(pid)
    return found is not None and found.state not in "ZX"
