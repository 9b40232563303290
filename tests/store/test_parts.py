"""The parts of the durable store by themselves, where the whole seldom comes by."""

import os
import sqlite3
import struct
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.store.faults import Faults, fails, opened, until, works_again
from tests.store.rows import commit_of, end, event, job_row, log
from ztrio.errors import StoreRefused, StoreUnavailable
from ztrio_sql import Retention, StoreReader, open_store
from ztrio_sql.batches import Batches, CommitRaised
from ztrio_sql.files import make_private
from ztrio_sql.operations import InsertJob, Nothing, Touch
from ztrio_sql.reserve import DiskReserve
from ztrio_sql.schema import database_at, make
from ztrio_sql.transaction import Transaction
from ztrio_sql.wal import header_in_wal


def test_the_reserve_is_kept_and_spent_once(tmp_path: Path) -> None:
    """The space is held until it is needed, then it is free, and it can be held again."""
    reserve = DiskReserve(tmp_path / "reserve")
    assert not reserve.spend()
    for _ in range(2):
        assert reserve.keep()
        assert reserve.keep()
        assert 256 * 1024 == (tmp_path / "reserve").stat().st_size
        assert (tmp_path / "reserve").stat().st_blocks * 512 >= 256 * 1024
        assert reserve.spend()
        assert [] == os.listdir(tmp_path)


def test_a_reserve_that_cannot_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room, or without a place for it, there is none, and nothing is raised."""
    assert not DiskReserve(tmp_path / "missing" / "reserve").keep()
    monkeypatch.setattr(os, "posix_fallocate", _full)
    reserve = DiskReserve(tmp_path / "reserve")
    assert not reserve.keep()
    assert not reserve.spend()


def _full(*_: Any) -> None:
    raise OSError(28, "No space left on device")


async def test_the_reserve_is_spent_on_settling(tmp_path: Path, faults: Faults) -> None:
    """The disk is full when it has to be found out whether a commit happened: the reserve makes room for that."""
    async with opened(tmp_path, faults) as store:
        await end(store, 1)
        await store.insert_job(job_row(2))
        faults.code = sqlite3.SQLITE_FULL
        faults.commit = ["before", "before"]
        assert "Nothing was changed" in (await fails(lambda: store.finish(commit_of(2)))).message
        assert not (tmp_path / "state.db-reserve").exists()
        await store.abort("job_2")
        faults.commit = ["before", "before", "before"]
        assert "cannot tell" in (await fails(lambda: store.insert_job(job_row(3)))).message  # there is none any more
        await works_again(store)


async def test_the_reserve_is_kept_again(tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once there is room again, some of it is held for the next time."""
    monkeypatch.setattr("ztrio_sql.writer._FIRST_LOOK", 0.05)
    async with opened(tmp_path, faults) as store:
        await end(store, 1)
        faults.code = sqlite3.SQLITE_FULL
        faults.commit = ["before", "before"]
        await fails(lambda: store.insert_job(job_row(2)))
        await until((tmp_path / "state.db-reserve").exists)


async def test_tidying_that_fails_is_tried_again(
    tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention that the disk keeps from happening is trouble like any other; one that is refused is none."""
    monkeypatch.setattr("ztrio_sql.writer._FIRST_LOOK", 0.05)
    monkeypatch.setattr("ztrio_sql.writer._IDLE", 0.05)
    reports: list[str | None] = []
    async with opened(tmp_path, faults) as store:
        store.watch(reports.append)
        await end(store, 1)
        faults.commit = ["before"]
        await until(lambda: len(reports) == 2)
        assert ("disk I/O error" in (reports[0] or ""), None) == (True, reports[1])
        monkeypatch.setattr("ztrio_sql.retention.Retain.apply", _broken)
        await trio.sleep(0.2)
        await end(store, 2)
        assert 2 == len(reports)


def _broken(*_: Any) -> bool:
    raise ValueError("a mistake")


def batches_at(path: Path, faults: Faults) -> Batches:
    """Batches on a new store."""
    database = database_at(path, faults.factory)
    make(database)
    return Batches(database, lambda: 0.0)


def test_settling_that_fails_in_the_middle(tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever keeps it from being settled, it stays in doubt, and the next attempt may succeed."""
    batches = batches_at(tmp_path / "state.db", faults)
    faults.commit = ["before"]
    with pytest.raises(CommitRaised):
        batches.write([InsertJob("job_1", row=job_row(1))])
    with monkeypatch.context() as patch:
        patch.setattr(Touch, "apply", _broken)
        with pytest.raises(ValueError, match="mistake"):
            batches.settle()
    assert batches.in_doubt
    assert not batches.settle()
    [answer] = batches.write([InsertJob("job_1", row=job_row(1))])  # which is refused in doubt
    answer.unwrap()
    batches.close()
    batches.close()


def test_questions_on_the_writing_connection(tmp_path: Path, faults: Faults) -> None:
    """A question that fails costs the connection and nothing else."""
    batches = batches_at(tmp_path / "state.db", faults)
    with pytest.raises(ValueError, match="mistake"):
        batches.read(_broken)
    assert 1 == batches.read(lambda connection: connection.exec_driver_sql("SELECT 1").scalar())
    batches.close()


def test_checkpoints(tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is copied into the file when enough has come together; a failure of that is nobody's business."""
    monkeypatch.setattr("ztrio_sql.batches._CHECKPOINT", 100_000)
    path = tmp_path / "state.db"
    batches = batches_at(path, faults)
    batches.checkpoint()
    size = path.stat().st_size
    for number in range(1, 30):
        batches.write([InsertJob(f"job_{number}", row=job_row(number, journal=bytes(20_000)))])
        batches.checkpoint()
    assert path.stat().st_size > size + 20 * 20_000
    assert Path(f"{path}-wal").stat().st_size < 20 * 20_000
    for error, raised in ((faults.error(), None), (ValueError("a mistake"), ValueError)):

        def fail(*_: Any, error: Exception = error, **__: Any) -> bool:
            raise error

        batches._unchecked = 10**9
        with monkeypatch.context() as patch:
            patch.setattr(batches._database, "checkpoint", fail)
            if raised is None:
                batches.checkpoint()
            else:
                with pytest.raises(raised):
                    batches.checkpoint()
        batches.write([Nothing()])
    batches.close()


def test_trouble_in_the_middle_of_the_second_pass(tmp_path: Path, faults: Faults) -> None:
    """A batch that is done again with savepoints, and then meets trouble, is not done at all."""
    batches = batches_at(tmp_path / "state.db", faults)

    class Twice(Nothing):
        """Is refused at first, then meets trouble."""

        def apply(self, transaction: Transaction) -> None:
            """Fail."""
            if not transaction.connection.in_nested_transaction():
                raise ValueError("at first")
            raise faults.error()

    with pytest.raises(sqlite3.OperationalError):
        batches.write([InsertJob("job_1", row=job_row(1)), Twice()])
    assert not batches.in_doubt
    [answer] = batches.write([InsertJob("job_1", row=job_row(1))])
    answer.unwrap()
    batches.close()


def wal_of(*frames: tuple[int, bytes, int, int], magic: int = 0x377F0682) -> bytes:
    """A log: frames of (page, salts, user version, application id); a negative page has what another page had there."""
    log_ = struct.pack(">IIII8s8x", magic, 0, 512, 0, b"saltsalt")
    for number, salts, version, owner in frames:
        page = bytearray(512)
        if number > 0:
            page[:16] = b"SQLite format 3\0"
        struct.pack_into(">i", page, 60, version)
        struct.pack_into(">i", page, 68, owner)
        log_ += struct.pack(">II8s8x", abs(number), 0, salts) + page
    return log_


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (wal_of((2, b"saltsalt", 9, 9), (1, b"saltsalt", 3, 7), (1, b"saltsalt", 2, 7)), (7, 3)),
        (wal_of((1, b"saltsalt", 3, 7), (1, b"old salt", 9, 7)), (7, 3)),
        (wal_of((1, b"saltsalt", 3, 7))[:-1], None),
        (wal_of((1, b"saltsalt", 3, 7), (-1, b"saltsalt", 0, 0)), (7, 3)),
        (wal_of((-1, b"saltsalt", 0, 0)), None),
        (wal_of((1, b"saltsalt", 3, 7), magic=0x12345678), None),
        (wal_of(), None),
        (b"", None),
    ],
)
def test_what_a_log_says_about_the_header(tmp_path: Path, content: bytes, expected: tuple[int, int] | None) -> None:
    """Of the first page's copies the newest of this round count, and the highest version of them."""
    (tmp_path / "wal").write_bytes(content)
    assert expected == header_in_wal(tmp_path / "wal")
    assert header_in_wal(tmp_path / "missing") is None


def test_what_is_somebody_elses_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permissions that we may not change are left."""

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    path = tmp_path / "state.db"
    path.touch(0o644)
    monkeypatch.setattr(Path, "chmod", refuse)
    make_private(path)
    assert path.exists()


async def test_a_store_that_cannot_be_made(tmp_path: Path, faults: Faults) -> None:
    """What fails while a store is made leaves nothing but its lock file, and the next attempt succeeds."""
    faults.commit = ["before"]
    with pytest.raises(StoreUnavailable, match="disk I/O error"):
        async with opened(tmp_path, faults):
            pytest.fail("it was opened")
    assert ["state.db.lock"] == os.listdir(tmp_path)
    async with opened(tmp_path, faults) as store:
        await end(store, 1)


async def test_a_store_that_cannot_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is too long, or a file that cannot be opened, is an error that says why."""
    with pytest.raises(StoreUnavailable):
        StoreReader.open(tmp_path / ("x" * 300))
    path = tmp_path / "state.db"
    async with open_store(path):
        pass

    def refuse(*_: Any, **__: Any) -> None:
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", refuse)
        with pytest.raises(StoreUnavailable, match="cannot be opened"):
            StoreReader.open(path)


async def test_a_large_store_is_not_looked_at_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for damage has an end, after which the store is taken as it is."""
    path = tmp_path / "state.db"
    async with open_store(path) as store:
        for number in range(1, 5001):
            store.record(event("allow", number))
    monkeypatch.setattr("ztrio_sql.sqlite._CHECK_TIME", -1.0)
    async with open_store(path) as store:
        assert 5000 == len(await log(store, limit=10_000))


async def test_what_was_whole_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage that is seen while somebody begins to write is looked at again, with what they wrote."""
    path = tmp_path / "state.db"
    async with open_store(path):
        pass
    database = database_at(path)
    real, modes, sizes = database._inspect, [], iter([0, 1])

    def inspect(mode: str, complete: bool) -> None:
        modes.append(mode)
        if len(modes) == 1:
            raise StoreRefused("torn", code="STORE_DAMAGED")
        real(mode, complete)

    monkeypatch.setattr(database, "_inspect", inspect)
    monkeypatch.setattr(database, "_wal_size", lambda: next(sizes))
    database.inspect(complete=True)
    assert ["ro&immutable=1", "ro"] == modes


async def test_nothing_is_kept(tmp_path: Path) -> None:
    """Retention of nothing keeps nothing, again and again."""
    async with open_store(tmp_path / "state.db", retention=Retention(age=0.0, events=0, size=0)) as store:
        for number in range(1, 4):
            await end(store, number)
            await store.retain()
            assert [] == await log(store)
            assert await store.job(f"job_{number}") is None
