"""The journal in a file against a disk that is full, fails or is slow, and against the death of its process."""

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.pending.box import call_id
from tests.pending.test_file_journal import SOME, left_in, noted
from ztrio.activity import JournalRow
from ztrio.tracking.journal import FileJournal

ROOT = Path(__file__).parents[2]
LARGE = 4000


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a file of some rows count as large."""
    monkeypatch.setattr("ztrio.tracking.journal._LARGE", LARGE)


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file of this process may become larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def failing(monkeypatch: pytest.MonkeyPatch, name: str, error: int) -> Callable[[], None]:
    """Have a function of `os` fail until what is returned is called."""
    works = getattr(os, name)

    def fail(*_args: Any) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, name, fail)
    return lambda: monkeypatch.setattr(os, name, works)


def filled(journal: FileJournal, *, live: int = 3) -> list[JournalRow]:
    """A file that is large and says little."""
    kept = [noted(number) for number in range(1, live + 1)]
    journal.put(kept)
    while journal.statistics().size <= LARGE:
        journal.append(noted(999))
        journal.drop([call_id(999)])
    return kept


# ---- there is no room


@pytest.mark.req("P60")
@pytest.mark.parametrize("room", [0, 1, 100])
def test_a_row_for_which_there_is_no_room(tmp_path: Path, room: int) -> None:
    """It is refused by an error, nothing of it is left in the file, and when there is room again all goes on."""
    path = tmp_path / SOME
    with FileJournal(path) as journal:
        journal.append(noted(1))
        with room_for(path.stat().st_size + room):
            with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
                journal.append(noted(2))
            with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
                journal.put([noted(1, seq=5), noted(3)])
        shutil.copyfile(path, tmp_path / "copy")
        assert [noted(1)] == journal.left() == left_in(tmp_path / "copy")
        journal.append(noted(4))
        with room_for(path.stat().st_size + room), pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            journal.drop([call_id(1), call_id(4)] * 3)
        assert [noted(1), noted(4)] == journal.left()
    assert [noted(1), noted(4)] == left_in(path)


@pytest.mark.req("P60")
def test_what_cannot_be_taken_away_is_not_written_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While half a line cannot be cut off nothing is written; a crash then leaves a file that can be read."""
    path = tmp_path / SOME
    with FileJournal(path) as journal:
        journal.append(noted(1))
        mend = failing(monkeypatch, "ftruncate", errno.EIO)
        with room_for(path.stat().st_size + 50), pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            journal.append(noted(2))
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            journal.append(noted(3))
        mend()
        shutil.copyfile(path, tmp_path / "copy")
        assert [noted(1)] == left_in(tmp_path / "copy")
        assert path.stat().st_size == journal.statistics().size + 50
        journal.append(noted(4))
    assert [noted(1), noted(4)] == left_in(path)


# ---- written anew


@pytest.mark.req("P60")
@pytest.mark.usefixtures("small")
async def test_a_crash_at_any_step_of_a_rewrite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever the process dies, what was noted by then is left and nothing else, also of what came meanwhile."""
    place = tmp_path / "instance"
    place.mkdir()
    journal = FileJournal(place / SOME)
    journal.open()
    kept = filled(journal)
    crashes: list[tuple[Path, list[JournalRow]]] = []

    def before(name: str) -> None:
        works = getattr(os, name)

        def step(*args: Any, **options: Any) -> Any:
            monkeypatch.undo()  # copying takes the same steps
            copy = tmp_path / f"{len(crashes)}-{name}"
            crashes.append((shutil.copytree(place, copy), journal.left()))
            if name == "fsync" and journal.get(call_id(7)) is None:
                trio.from_thread.run_sync(journal.append, noted(7))
                trio.from_thread.run_sync(journal.drop, [call_id(1)])
            result = works(*args, **options)
            watch()
            return result

        monkeypatch.setattr(os, name, step)

    def watch() -> None:
        monkeypatch.setattr("ztrio.tracking.journal._LARGE", LARGE)
        for name in ("open", "write", "fsync", "rename", "close", "unlink", "ftruncate"):
            before(name)

    watch()
    await journal.tidy()
    monkeypatch.undo()
    journal.append(noted(8))
    assert (place / SOME).stat().st_size == journal.statistics().size
    journal.close()
    names = [copy.name.partition("-")[2] for copy, _ in crashes]
    assert ["open", "write", "fsync", "write", "rename", "close", "open", "fsync", "close"] == names
    expected = [*kept[1:], noted(7), noted(8)]
    for copy, known in [*crashes, (place, expected)]:
        assert known == left_in(copy / SOME), copy.name
        assert [copy / SOME] == list(copy.iterdir())
    assert 5 + 2 == (place / SOME).read_bytes().count(b"\n"), "the rows as they were, and what came since"


@pytest.mark.req("P60")
@pytest.mark.usefixtures("small")
async def test_the_file_is_bounded(tmp_path: Path) -> None:
    """However many calls come and go, the file stays small; what is open is never thrown away to keep it so."""
    with FileJournal(tmp_path / SOME) as journal:
        kept = [noted(number) for number in range(1, 6)]
        journal.put(kept)
        for _ in range(100):
            journal.append(noted(99))
            journal.drop([call_id(99)])
            await journal.tidy()
            assert journal.statistics().size <= 2 * LARGE
        assert journal.statistics().rewrites > 3
        assert 0o600 == (tmp_path / SOME).stat().st_mode & 0o777
        more = [noted(number) for number in range(6, 60)]
        journal.put(more)
        before = journal.statistics().rewrites
        await journal.tidy()
        assert before == journal.statistics().rewrites, "nothing would be gained"
    assert [*kept, *more] == left_in(tmp_path / SOME)


@pytest.mark.parametrize("step", ["open", "write", "fsync", "rename"])
@pytest.mark.usefixtures("small")
async def test_a_rewrite_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The file stays as it is and is written to as before; it is tried again when there is more to be gained."""
    with FileJournal(tmp_path / SOME) as journal:
        kept = filled(journal)
        mend = failing(monkeypatch, step, errno.ENOSPC)
        await journal.tidy()
        mend()
        await journal.tidy()
        assert (0, 1) == (journal.statistics().rewrites, journal.statistics().failed)
        assert [tmp_path / SOME] == list(tmp_path.iterdir())
        assert kept == journal.left() == left_in(tmp_path / SOME)
        while not journal.statistics().rewrites:
            journal.append(noted(9))
            await journal.tidy()
        assert journal.statistics().failed == 1
    assert [*kept, noted(9)] == left_in(tmp_path / SOME)


@pytest.mark.usefixtures("small")
async def test_a_rewrite_that_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled before it began or in the middle, one of the two files is there, and nothing else."""
    works = os.fsync
    with FileJournal(tmp_path / SOME) as journal:
        kept = filled(journal)
        with trio.CancelScope() as scope:
            scope.cancel()
            await journal.tidy()
        assert (True, 0) == (scope.cancelled_caught, journal.statistics().rewrites)

        def fsync(fd: int) -> None:
            trio.from_thread.run_sync(scope.cancel)
            works(fd)

        monkeypatch.setattr(os, "fsync", fsync)
        with trio.CancelScope() as scope:
            await journal.tidy()
        journal.append(noted(9))
    assert [*kept, noted(9)] == left_in(tmp_path / SOME)
    assert [tmp_path / SOME] == list(tmp_path.iterdir())


# ---- on the disk


@pytest.mark.req("P60")
async def test_a_sync_covers_what_was_written_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for a sync has its row on the disk then, and those who wait at the same time share one."""
    path, works = tmp_path / SOME, os.fsync
    on_disk = 0
    during: JournalRow | None = None

    def fsync(fd: int) -> None:
        nonlocal on_disk
        size = os.fstat(fd).st_size
        works(fd)
        if during is not None and during not in journal.left():
            trio.from_thread.run_sync(journal.append, during)
        on_disk = max(on_disk, size)

    monkeypatch.setattr(os, "fsync", fsync)
    with FileJournal(path) as journal:

        async def call(number: int) -> None:
            journal.append(noted(number))
            size = journal.statistics().size
            await journal.sync()
            assert size <= on_disk

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(call, number)
        syncs = journal.statistics().syncs
        assert 1 <= syncs <= 2
        with trio.testing.assert_checkpoints():
            await journal.sync()
        assert syncs == journal.statistics().syncs, "there was nothing to bring there"
        during = noted(98)
        journal.append(noted(97))
        await journal.sync()
        assert during in journal.left(), "it came while the sync was under way"
        await journal.sync()
        assert syncs + 2 == journal.statistics().syncs


@pytest.mark.req("P60")
async def test_a_sync_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel forgets what it could not write, so after a failure the file is made anew before anything counts."""
    path = tmp_path / SOME
    with FileJournal(path) as journal:
        journal.append(noted(1))
        mend = failing(monkeypatch, "fsync", errno.EIO)
        for _ in range(2):
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                await journal.sync()
        mend()
        before = path.stat().st_ino
        journal.append(noted(2))
        await journal.sync()
        assert (1, True) == (journal.statistics().rewrites, before != path.stat().st_ino)
        journal.append(noted(3))
        await journal.sync()
        assert (1, 1) == (journal.statistics().rewrites, journal.statistics().syncs)
    assert [noted(1), noted(2), noted(3)] == left_in(path)


# ---- killed

LOAD = """if True:
    import sys, trio
    from pathlib import Path
    import ztrio.tracking.journal
    from tests.pending.box import call_id
    from tests.pending.test_file_journal import noted
    ztrio.tracking.journal._LARGE = 3000

    async def main():
        with ztrio.tracking.journal.FileJournal(Path(sys.argv[1])) as journal:
            number = int(sys.argv[2])
            while True:
                number += 1
                journal.append(noted(number))
                print("noted", number, flush=True)
                if number % 3:
                    print("settling", number, flush=True)
                    journal.drop([call_id(number)])
                    print("settled", number, flush=True)
                if number % 12 == 0:
                    journal.drop([call_id(n) for n in range(number - 60, number - 40)])
                await journal.tidy()
    trio.run(main)"""


@pytest.mark.req("P60")
def test_killed_at_any_instant(tmp_path: Path) -> None:
    """Each row that was reported to be noted is left, each that was reported to be settled is not; again and again."""
    path = tmp_path / SOME
    seed = int(os.environ.get("ZTRIO_CRASH_SEED", "0")) or random.randrange(1, 2**31)
    print(f"ZTRIO_CRASH_SEED={seed}")
    dice = random.Random(seed)
    newest = 0
    for _ in range(int(os.environ.get("ZTRIO_CRASHES", "5"))):
        with subprocess.Popen(
            [sys.executable, "-c", LOAD, str(path), str(newest)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as load:
            assert load.stdout is not None
            lines = [load.stdout.readline() for _ in range(dice.randrange(1, 2000))]
            load.send_signal(signal.SIGKILL)
            lines += load.stdout.readlines()
        told: dict[str, set[int]] = {"noted": set(), "settling": set(), "settled": set()}
        for line in lines:
            if line.endswith("\n"):
                word, number = line.split()
                told[word].add(int(number))
        left = {row.seq for row in left_in(path)}
        newest = max(told["noted"])
        assert {n for n in told["noted"] - told["settling"] if n > newest - 40} <= left
        assert not told["settled"] & left
        assert max(left, default=0) <= newest + 1
        newest += 1
