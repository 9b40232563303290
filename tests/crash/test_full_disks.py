"""The disk is full or broken while calls run, then the server is killed; later nothing is found half done."""

import errno
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.box import ROOT, Box, seed
from tests.crash.full_disk import fill_up_and_kill
from tests.crash.test_killed_recoveries import settle

BROKEN = {
    "write_file": errno.ENOSPC,
    "sync_data": errno.EIO,
    "sync_directory": errno.EIO,
    "exchange": errno.EROFS,
    "move_new": errno.ENOSPC,
    "carry_metadata": errno.EACCES,
}


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, callers=4, dice=random.Random(seed())) as box:
        yield box


def test_a_store_that_cannot_grow(box: Box) -> None:
    """Commits fail because the database is full: calls are refused or rolled back, whatever was committed stays."""
    box.troubled = True
    server = box.start(full_after=box.dice.randint(20, 60))
    box.begin(server)
    server.wait_for("nothing", seconds=1.0)
    box.kill(server)
    assert {"STORE_UNAVAILABLE", "COMMIT_FAILED"} & {answer.get("code") for answer in box.answers}
    settle(box)


def test_files_that_cannot_be_written(box: Box) -> None:
    """From some instant on one kind of file operation fails, until the server is killed."""
    for operation, number in BROKEN.items():
        server = box.start()
        box.check()
        told = len(box.answers)
        after = box.dice.randint(2, 12)
        box.begin(server, break_files={"operation": operation, "errno": number, "after": after})
        server.wait_for("nothing", seconds=0.4)
        box.kill(server)
        codes = {answer.get("code") for answer in box.answers[told:]}
        assert {"COMMIT_FAILED", "OUTPUT_NOT_WRITABLE", "COMMIT_UNCONFIRMED"} & codes, (operation, codes)
    settle(box)


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """On a small disk of its own where one may be mounted, else with a database that cannot grow."""
    (disk := tmp_path / "disk").mkdir()
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    mounted = [*unshare, "sh", "-c", f'mount -t tmpfs -o size=24m none "{disk}" && exec "$@"', "sh"]
    can = shutil.which("unshare") is not None and subprocess.run([*mounted, "true"], check=False).returncode == 0
    if not can:
        fill_up_and_kill(disk, random.Random(seed()), really=False)
        return
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "ZTRIO_CRASH_SEED": str(seed())}
    command = [*mounted, sys.executable, "-m", "tests.crash.full_disk", str(disk)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (0, "") == (done.returncode, done.stderr), done.stdout
