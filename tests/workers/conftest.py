"""A backend and a worker for each test; what they leave behind is found by the fixture of all tests."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from tests.workers.support import settings
from ztrio.workers.backend import Backend
from ztrio.workers.pool import PooledWorker
from ztrio.workers.selection import open_backend

WAYS = {"spawn": "spawn group", "zygote": "zygote auto", "zygote on job-init": "zygote job-init"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for a worker in every way there is to make one."""
    if "way" in metafunc.fixturenames:
        ways = WAYS if sys.platform == "linux" else {"spawn": WAYS["spawn"]}
        metafunc.parametrize("way", list(ways.values()), ids=list(ways))


@pytest.fixture
async def backend(tmp_path: Path, way: str) -> AsyncIterator[Backend]:
    """A backend that keeps nothing ready."""
    name, containment = way.split()
    async with open_backend(settings(tmp_path, containment=containment), name) as opened:
        yield opened


@pytest.fixture
async def worker(backend: Backend) -> PooledWorker:
    """A ready worker; the backend ends it if the test does not."""
    with trio.fail_after(20):
        made: PooledWorker = await backend.acquire()  # type: ignore[assignment]
        return made
