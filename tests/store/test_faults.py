"""What fails underneath: nothing is half-done, nothing is lost, everybody is told, and it ends by itself."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.store.faults import Faults, fails, opened, until, works_again
from tests.store.rows import commit_of, end, event, job_row, log, present, write
from ztrio.errors import Outcome, StoreUnavailable
from ztrio.store import AlreadyEnded, JobEnd, StoreConflict
from ztrio_sql import SqlStore, StoreReader, open_store
from ztrio_sql.sqlite import trouble_of


async def sound(store: SqlStore, expected: list[int]) -> None:
    """Assert that the log has these events, once each, in this order, and that its chain holds."""
    assert expected == [each.seq for each in await log(store)]
    verification = await store.verify()
    assert (len(expected), None) == (verification.events, verification.bad)


async def test_a_commit_that_raised_and_did_not_happen(tmp_path: Path, faults: Faults) -> None:
    """The call is told, `abort` succeeds, and it is rolled back; a new life of the store agrees."""
    async with opened(tmp_path, faults) as store:
        await store.insert_job(job_row(1))
        faults.commit = ["before"]
        error = await fails(lambda: store.finish(commit_of(1)))
        assert "disk I/O error" in error.message
        await store.abort("job_1")
        row = await store.job("job_1")
        assert (row.phase, row.outcome) == ("aborted", None)
        assert await store.session("ann", "default") is None
        await store.finish(JobEnd(job_id="job_1", outcome=Outcome.ROLLED_BACK, event=event("rollback", 2)))
        assert 1 < len(faults.connections)
    async with open_store(tmp_path / "state.db") as store:
        await sound(store, [2])
        assert await store.session("ann", "default") is None


async def test_a_commit_that_raised_and_did_happen(tmp_path: Path, faults: Faults) -> None:
    """A new connection finds it there, something is synced after it, and the call is told that it is committed."""
    async with opened(tmp_path, faults) as store:
        await store.insert_job(job_row(1))
        store.record(event("allow", 9))
        faults.commit = ["after"]
        await store.finish(commit_of(1))
        assert 1 == (await present(store)).version
        with pytest.raises(AlreadyEnded):
            await store.abort("job_1")
        assert store.statistics().trouble is None
        await sound(store, [9, 1])


@pytest.mark.parametrize("happened", ["before", "after"])
@pytest.mark.parametrize("then", ["connect", "settle"])
async def test_as_long_as_nobody_can_tell(tmp_path: Path, faults: Faults, happened: Any, then: str) -> None:
    """While neither is known, the call and its abort are errors, and so is everything else; then all is settled."""
    reports: list[str | None] = []
    async with opened(tmp_path, faults) as store:
        store.watch(reports.append)
        await store.insert_job(job_row(1))
        store.record(event("allow", 7))
        store.insert_job_nowait(job_row(2))
        faults.commit = [happened]
        if then == "settle":
            faults.commit += ["before"] * 1000
        faults.connect = 1000 if then == "connect" else 0
        error = await fails(lambda: store.finish(commit_of(1)))
        assert "cannot tell" in error.message
        for _ in range(3):
            assert "cannot tell" in (await fails(lambda: store.abort("job_1"))).message
        await fails(lambda: store.insert_job(job_row(3)))
        with pytest.raises(StoreUnavailable, match="kept"):
            store.record(event("allow", 8))
        told: list[str | None] = []
        store.watch(told.append)  # whoever comes late hears it as well
        assert 1 == len(told)
        store.watch(reports.append)
        assert await store.session("bob", "default") is None  # reads go on
        faults.commit, faults.connect = [], 0
        await works_again(store)
        if happened == "after":
            with pytest.raises(AlreadyEnded) as caught:
                await store.abort("job_1")
            assert Outcome.COMMITTED == caught.value.outcome
            assert 1 == (await present(store)).version
            await sound(store, [7, 1, 8])
        else:
            await store.abort("job_1")
            assert await store.session("ann", "default") is None
            await sound(store, [7, 8])
        assert job_row(2) == await store.job("job_2")
        assert await store.job("job_3") is None
    assert [True, True, False] == [why is not None for why in reports]
    assert "disk I/O error" in (reports[0] or "")


async def test_what_was_settled_stays_settled(tmp_path: Path, faults: Faults) -> None:
    """An aborted call stays aborted, whatever fails later."""
    async with opened(tmp_path, faults) as store:
        for number in (1, 2):
            await store.insert_job(job_row(number))
        faults.commit = ["before"]
        await fails(lambda: store.finish(commit_of(1)))
        await store.abort("job_1")
        faults.commit = ["before", "before"]
        await fails(lambda: store.finish(commit_of(2)))
        await works_again(store)
        await store.abort("job_2")
        with pytest.raises(StoreConflict):
            await store.finish(commit_of(1))


async def test_abort_without_doubt_needs_no_room(tmp_path: Path, faults: Faults) -> None:
    """A transaction that failed before its COMMIT was issued cannot happen: the call goes back on the fullest disk."""
    async with opened(tmp_path, faults) as store:
        await end(store, 1, session=write({"n": 1}))
        row = await present(store)
        await store.insert_job(job_row(2))
        faults.set("max_page_count = 1")
        big = JobEnd(
            job_id="job_2",
            outcome=Outcome.COMMITTED,
            event=event("commit", 2),
            session=write({"n": "x" * 500_000}, incarnation=row.incarnation, version=1),
        )
        error = await fails(lambda: store.finish(big))
        assert "the disk is full" in error.message
        assert "SQLITE_FULL" in error.message
        await store.abort("job_2")
        with pytest.raises(AlreadyEnded):
            await store.abort("job_1")
        assert row == await present(store)
        faults.set("max_page_count = 1000000")
        await works_again(store)
        aborted = await store.job("job_2")
        assert aborted is not None
        assert "aborted" == aborted.phase


async def test_nothing_is_lost_on_a_full_disk(tmp_path: Path, faults: Faults) -> None:
    """What was recorded meanwhile is kept and written in order as soon as there is room; the watcher hears of both."""
    reports: list[str | None] = []
    async with opened(tmp_path, faults) as store:
        store.watch(reports.append)
        await end(store, 1)
        faults.set("max_page_count = 1")
        large = [event("allow", number, reason="x" * 5000) for number in range(2, 40)]
        for each in large[:30]:
            try:
                store.record(each)
            except StoreUnavailable as error:
                assert "kept" in error.message
        await until(lambda: reports != [])
        for each in large[30:]:
            with pytest.raises(StoreUnavailable, match="the disk is full"):
                store.record(each)
        await fails(lambda: store.insert_job(job_row(50)))
        assert [1] == [each.seq for each in await log(store)]
        faults.set("max_page_count = 1000000")
        await works_again(store)
        await sound(store, list(range(1, 40)))
        await end(store, 40)
    assert [True, False] == [why is not None for why in reports]


async def test_memory_is_bounded_while_the_store_fails(
    tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the bound events are lost and counted; a `gap` event says so when the store works again."""
    monkeypatch.setattr("ztrio_sql.store._MAX_WAITING", 20)
    async with opened(tmp_path, faults) as store:
        await end(store, 100)
        faults.set("query_only = ON")
        await fails(lambda: store.insert_job(job_row(99)))
        for number in range(1, 31):
            with pytest.raises(StoreUnavailable, match="kept" if number <= 20 else "wait for the store"):
                store.record(event("allow", number))
        with pytest.raises(StoreUnavailable, match="wait for the store"):
            store.insert_job_nowait(job_row(1))
        assert 20 == store.statistics().waiting
        faults.set("query_only = OFF")
        await works_again(store)
        store.record(event("allow", 31))
        found = await log(store)
        assert [100, *range(1, 21), 0, 31] == [each.seq for each in found]
        assert ("gap", 10) == (found[21].event, found[21].missed)
        assert (await store.verify()).bad is None


async def test_a_store_that_can_only_be_read(tmp_path: Path, faults: Faults) -> None:
    """Writes say that it can only be read, and reads go on."""
    async with opened(tmp_path, faults) as store:
        await end(store, 1, session=write({"n": 1}))
        faults.set("query_only = ON")
        error = await fails(lambda: store.insert_job(job_row(2)))
        assert "can only be read" in error.message
        assert 1 == (await present(store)).version
        faults.set("query_only = OFF")
        await works_again(store)
        await store.insert_job(job_row(2))


async def test_a_database_that_somebody_has_locked(
    tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program holds the database: writes say so, and go on when it lets go."""
    monkeypatch.setattr("ztrio_sql.sqlite._PATIENCE", 0.05)
    async with opened(tmp_path, faults) as store:
        await end(store, 1)
        with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            error = await fails(lambda: store.insert_job(job_row(2)))
            assert "another process has it locked" in error.message
            other.execute("ROLLBACK")
        await works_again(store)
        await store.insert_job(job_row(2))


async def test_a_checkpoint_that_others_hold_up(
    tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error of the disk nothing is written until the log is in the file, even if somebody is reading it."""
    monkeypatch.setattr("ztrio_sql.sqlite._PATIENCE", 0.05)
    async with opened(tmp_path, faults) as store:
        await end(store, 1)
        with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as other:
            other.execute("BEGIN")
            other.execute("SELECT * FROM jobs").fetchall()
            await end(store, 2)
            await store.insert_job(job_row(3))
            faults.commit = ["before"]
            await fails(lambda: store.finish(commit_of(3)))
            await fails(lambda: store.abort("job_3"))
            other.execute("COMMIT")
        await works_again(store)
        await store.abort("job_3")
        await sound(store, [1, 2])


async def test_a_thread_that_waits_is_told(tmp_path: Path, faults: Faults) -> None:
    """An intent that cannot be written is an error in the thread that waits for it, at once and after closing."""
    async with opened(tmp_path, faults) as store:
        await store.insert_job(job_row(1))
        faults.set("query_only = ON")
        with pytest.raises(StoreUnavailable, match="can only be read"):
            await trio.to_thread.run_sync(store.write_intent, "job_1", b"journal")
        faults.set("query_only = OFF")
        await works_again(store)
        await trio.to_thread.run_sync(store.write_intent, "job_1", b"journal")
    with pytest.raises(StoreUnavailable, match="closed"):
        await trio.to_thread.run_sync(store.write_intent, "job_1", b"journal")


async def test_closing_tries_once_more(tmp_path: Path, faults: Faults) -> None:
    """What is kept is tried again when the store is closed, and left when that fails too; whoever waits is told."""
    for works in (False, True):
        async with opened(tmp_path, faults) as store:
            await end(store, 10 + works)
            faults.set("query_only = ON")
            await fails(lambda: store.insert_job(job_row(99)))
            with pytest.raises(StoreUnavailable):
                store.record(event("allow", 1))
            if works:
                faults.set("query_only = OFF")
        faults.setting = None
        with StoreReader.open(tmp_path / "state.db") as reader:
            assert ([10, 11, 1] if works else [10]) == [each.seq for _, each in reader.events()]


@pytest.mark.parametrize("happened", ["before", "after"])
async def test_closing_settles_what_is_in_doubt(tmp_path: Path, faults: Faults, happened: Any) -> None:
    """The store is closed while nobody can tell about a commit: it is found out, and what was kept is there once."""
    async with opened(tmp_path, faults) as store:
        await store.insert_job(job_row(1))
        await store.insert_job(job_row(2))
        store.record(event("allow", 5))
        faults.commit = [happened, "before", "before", "before"]
        await fails(lambda: store.finish(commit_of(1)))
        faults.commit = []
    async with open_store(tmp_path / "state.db") as store:
        await sound(store, [5, 1] if happened == "after" else [5])


async def test_a_disk_that_hangs_keeps_nobody(tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store closes within its bound although a COMMIT never returns."""
    monkeypatch.setattr("ztrio_sql.opening._CLOSING", 0.2)
    gate = threading.Event()
    with trio.fail_after(5):
        async with opened(tmp_path, faults) as store:
            await end(store, 1)
            faults.gate = gate
            store.record(event("allow", 2))
            await until(faults.at_gate.is_set)
    gate.set()
    faults.gate = None
    await until(lambda: store.statistics().batches == 3)
    await until(lambda: not list(tmp_path.glob("*-wal")))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(28, "No space left on device"), "full"),
        (OSError(5, "Input/output error"), "io"),
        (sqlite3.IntegrityError("UNIQUE"), None),
        (sqlite3.ProgrammingError("closed"), None),
        (sqlite3.Warning("odd"), None),
        (ValueError("mine"), None),
        (sqlite3.OperationalError("no such table"), "other"),
    ],
)
def test_what_an_exception_says_about_the_database(error: Exception, expected: str | None) -> None:
    """Trouble of the database is told from mistakes and from refused rows."""
    trouble = trouble_of(error)
    assert expected == (None if trouble is None else trouble.kind)
