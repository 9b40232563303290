"""What every test gets: a temporary place of its own, and the proof that it left nothing behind."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ztrio.testing.leaks import LeakProbe

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A run that a shell put in the background ignores Ctrl-C, and so would every process of these tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def temporary_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory for temporary files of this run and of every process it starts, so that leftovers can be told."""
    base = tmp_path_factory.getbasetemp()  # before the change, it looks at the same setting
    place = base / "tmp"
    place.mkdir(exist_ok=True)
    before = os.environ.get("TMPDIR"), tempfile.tempdir
    os.environ["TMPDIR"] = tempfile.tempdir = str(place)
    yield place
    tempfile.tempdir = before[1]
    if before[0] is None:
        del os.environ["TMPDIR"]
    else:
        os.environ["TMPDIR"] = before[0]


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest, temporary_directory: Path) -> Iterator[LeakProbe]:
    """Fail the test that leaves a process, zombie, descriptor, temporary file or job directory behind.

    A plain fixture: an async one would make every test a trio test. Requesting it by name gives the probe.
    """
    own = [request.getfixturevalue("tmp_path")] if "tmp_path" in request.fixturenames else []
    probe = LeakProbe(
        roots=[*own, temporary_directory],
        temporary=[temporary_directory],
        job_directories=request.node.get_closest_marker("leaves") is None,
    )
    yield probe
    probe.assert_clean()
