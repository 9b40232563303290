"""A backend and a worker for each test; what they leave behind is found by the fixture of all tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from tests.workers.support import settings
from ztrio.workers.process import WorkerProcess
from ztrio.workers.spawn import SpawnBackend, open_spawn_backend


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[SpawnBackend]:
    """A backend that keeps nothing ready."""
    async with open_spawn_backend(settings(tmp_path)) as opened:
        yield opened


@pytest.fixture
async def worker(backend: SpawnBackend) -> WorkerProcess:
    """A ready worker; the backend ends it if the test does not."""
    with trio.fail_after(20):
        return await backend.acquire()
