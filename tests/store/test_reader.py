"""Looking at a store: beside its owner, without one, and where nothing can be written."""

import os
import sys
import threading
from pathlib import Path

import pytest
import trio

from tests.store.contract_keys import keyed
from tests.store.rows import end, event, job_row, log, write
from ztrio.errors import Outcome, StoreUnavailable
from ztrio.store import JobEnd
from ztrio_sql import StoreReader, open_store


async def test_it_sees_what_its_owner_has_written(tmp_path: Path) -> None:
    """Beside a running server every question has the answer that the server would give."""
    path = tmp_path / "state.db"
    async with open_store(path) as store:
        await end(store, 1, session=write({"n": 1}))
        await store.insert_job(job_row(2))
        await store.claim(keyed(3))
        store.record(event("allow", 3, principal="bob"))
        with StoreReader.open(path) as reader:
            assert (store.store_id, store.secret) == (reader.store_id, reader.secret)
            assert await store.job("job_1") == reader.job("job_1")
            assert None is reader.job("job_9")
            assert await store.job("job_3") == reader.job_by_key("ann", "export", "k")
            assert await store.unfinished() == reader.unfinished()
            assert await store.session("ann", "default") == reader.session("ann", "default")
            assert await store.sessions("ann") == reader.sessions("ann")
            assert await log(store) == [found for _, found in reader.events()]
            assert await store.job_events("job_1") == reader.job_events("job_1")
            assert ["allow"] == [found.event for _, found in reader.events(principal="bob", after=1, limit=5)]
            await end(store, 4, Outcome.ROLLED_BACK)
            assert Outcome.ROLLED_BACK == reader.job("job_4").outcome  # type: ignore[union-attr]


async def test_it_holds_nobody_up(tmp_path: Path) -> None:
    """An export that nobody reads on does not keep the store from writing, closing or tidying up."""
    path = tmp_path / "state.db"
    async with open_store(path) as store:
        for number in range(1, 1001):
            store.record(event("allow", number))
        await store.session("ann", "flush")
        with StoreReader.open(path) as reader:
            export = reader.export()
            assert 1 == next(export)["log_pos"]
            await end(store, 1001)
    assert not list(tmp_path.glob("*-wal"))
    with StoreReader.open(path) as reader:
        assert 1001 == sum(1 for _ in reader.export())
    with pytest.raises(StoreUnavailable, match="closed"):
        reader.job("job_1")
    with StoreReader.open(path) as reader, reader._asking() as connection:
        reader.close()
        assert 1 == connection.exec_driver_sql("SELECT 1").scalar()


async def test_many_threads_may_ask(tmp_path: Path) -> None:
    """One reader serves any number of threads, as `read_session` of the store does."""
    path = tmp_path / "state.db"
    async with open_store(path) as store:
        await end(store, 1, session=write({"n": 1}))
        found: list[bool] = []
        with StoreReader.open(path) as reader:
            threads = [
                threading.Thread(
                    target=lambda: found.append(
                        store.read_session("ann", "default") == reader.session("ann", "default") is not None
                    )
                )
                for _ in range(20)
            ]
            for thread in threads:
                thread.start()
            with trio.fail_after(20):
                while len(found) < 20:
                    await trio.sleep(0.01)
            for thread in threads:
                thread.join()
        assert [True] * 20 == found


# A store in a directory that can only be read, mounted so in a namespace of its own.
READ_ONLY = """if True:
    import sys, trio
    from ztrio.errors import StoreUnavailable
    from ztrio_sql import StoreReader, open_store

    async def main():
        try:
            async with open_store(sys.argv[1]):
                print("opened")
        except StoreUnavailable as error:
            print("Read-only file system" in error.message)

    with StoreReader.open(sys.argv[1]) as reader:
        print(reader.job("job_1").outcome, reader.verify().events)
    trio.run(main)"""


@pytest.mark.skipif(sys.platform != "linux", reason="mount namespaces are Linux's")
async def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    """On a file system that can only be read a store can be looked at, and to open it is an error that says why."""
    path = tmp_path / "disk" / "state.db"
    async with open_store(path) as store:
        await end(store, 1)
    disk = path.parent
    mount = f'mount --bind "{disk}" "{disk}" && mount -o remount,ro,bind "{disk}" && exec "$@"'
    prefix = ["unshare", "-m" if os.geteuid() == 0 else "-rm", "sh", "-c", mount, "sh"]
    try:
        probe = await trio.run_process([*prefix, "true"], check=False, capture_stderr=True)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if probe.returncode:
        pytest.skip("no file system can be mounted here")
    done = await trio.run_process(
        [*prefix, sys.executable, "-c", READ_ONLY, str(path)], capture_stdout=True, capture_stderr=True, check=False
    )
    assert ("committed 1\nTrue\n", "") == (done.stdout.decode(), done.stderr.decode())


async def test_a_question_that_fails(tmp_path: Path) -> None:
    """A store that is damaged while it is open is an error that says so."""
    path = tmp_path / "state.db"
    async with open_store(path) as store:
        for number in range(1, 2001):
            store.record(event("allow", number))
    with StoreReader.open(path) as reader:
        assert 10 == len(reader.events(limit=10))
        with path.open("r+b") as file:
            size = path.stat().st_size
            file.seek(4096)
            file.write(os.urandom(size - 4096))
        with pytest.raises(StoreUnavailable, match="damaged"):
            reader.events(limit=100_000)


async def test_many_and_large_sessions_are_not_remembered(tmp_path: Path) -> None:
    """However many sessions are read and however large their states, what the store keeps of them is bounded."""
    async with open_store(tmp_path / "state.db") as store:
        for number in range(300):
            await store.insert_job(job_row(number, session=f"s{number}"))
            change = write({"text": "x" * (100_000 if number % 50 == 0 else 1)}, name=f"s{number}")
            commit = event("commit", number, outcome=Outcome.COMMITTED)
            await store.finish(JobEnd(job_id=f"job_{number}", outcome=Outcome.COMMITTED, event=commit, session=change))
            row = await trio.to_thread.run_sync(store.read_session, "ann", f"s{number}")
            assert row == await store.session("ann", f"s{number}")
        kept = store._sessions.values()
        assert len(kept) == 256
        assert max(len(row.state) for row in kept) < 100_000
