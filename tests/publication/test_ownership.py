import os
from pathlib import Path

import pytest

from ztrio.publication.exchange import FileOps
from ztrio.publication.ownership import give_back, hand_over, let_pass, make_folder

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
WORKER = (65534, 65533)
OWNER = (12345, 12346)


@pytest.fixture
def slot(tmp_path: Path) -> int:
    """A slot with a tree that belongs to somebody."""
    for name in ("site", "site/below", "site/empty"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("site/page", "site/below/page"):
        (tmp_path / name).write_text("x")
    for path in (tmp_path / "site").rglob("*"):
        os.chown(path, *OWNER)
    (tmp_path / "site").chmod(0o2750)
    os.chown(tmp_path / "site", *OWNER)
    return os.open(tmp_path, os.O_PATH)


def owners(place: Path) -> dict[str, tuple[int, int]]:
    """Whose everything is."""
    found = {}
    for path in (place, *place.rglob("*")):
        status = path.lstat()
        found[str(path.relative_to(place))] = (status.st_uid, status.st_gid)
    return found


def test_there_and_back(tmp_path: Path, slot: int) -> None:
    """Everything is the worker's until it is given back; what the worker made since, or put in its place, stays its."""
    ops, site = FileOps(), tmp_path / "site"
    try:
        given = hand_over(ops, slot, "site", WORKER, 100)
        assert {WORKER} == set(owners(site).values())
        assert 0o2750 == site.stat().st_mode & 0o7777
        (site / "new").write_text("x")
        (site / "other").write_text("x")
        (site / "other").replace(site / "page")
        (site / "link").symlink_to("/etc/passwd")
        for name in ("new", "page", "link"):
            os.chown(site / name, *WORKER, follow_symlinks=False)
        (site / "empty").rename(site / "renamed")
        give_back(ops, slot, "site", given, 100)
    finally:
        os.close(slot)
    theirs = dict.fromkeys((".", "below", "below/page", "renamed"), OWNER)
    assert {**theirs, **dict.fromkeys(("new", "page", "link"), WORKER)} == owners(site)
    assert 0o2750 == site.stat().st_mode & 0o7777
    assert (0, 0) == (Path("/etc/passwd").stat().st_uid, Path("/etc/passwd").stat().st_gid)


def test_nothing_to_give(tmp_path: Path, slot: int) -> None:
    """What is the worker's already, or is not there, is left alone."""
    ops = FileOps()
    try:
        assert {} == hand_over(ops, slot, "site", (OWNER[0], 7), 100)
        assert {} == hand_over(ops, slot, "nothing", WORKER, 100)
        give_back(ops, slot, "site", {}, 100)
        given = hand_over(ops, slot, "site", WORKER, 100)
        place = tmp_path / "site"
        for _ in range(130):
            place = place / "d"
            place.mkdir()
        give_back(ops, slot, "site", given, 100)  # too deep: it will not be published
    finally:
        os.close(slot)
    assert WORKER == owners(tmp_path / "site")["page"]


def test_the_job_directory_stays_ours(tmp_path: Path) -> None:
    """The worker's group may pass through the job directory and no more; folders in it are the worker's."""
    (tmp_path / "job").mkdir(mode=0o700)
    fd = os.open(tmp_path / "job", os.O_RDONLY)
    try:
        let_pass(fd, None)
        let_pass(fd, (0, 0))
        assert 0o700 == (tmp_path / "job").stat().st_mode & 0o777
        let_pass(fd, WORKER)
        make_folder("0", fd, WORKER)
        make_folder("1", fd, None)
    finally:
        os.close(fd)
    status = (tmp_path / "job").stat()
    assert (0, WORKER[1], 0o710) == (status.st_uid, status.st_gid, status.st_mode & 0o777)
    assert {".": (0, WORKER[1]), "0": WORKER, "1": (0, 0)} == owners(tmp_path / "job")
    assert {0o700} == {(tmp_path / "job" / name).stat().st_mode & 0o777 for name in "01"}
