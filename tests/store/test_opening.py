"""Opening a store: what is made, what is refused and left alone, and what an older one becomes."""

import hashlib
import os
import shutil
import sqlite3
import stat
import struct
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
import trio
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from tests.store.rows import end, event, log, present, write
from ztrio.errors import AlreadyInUse, StoreRefused, StoreUnavailable, ZtrioError
from ztrio_sql import StoreReader, open_store
from ztrio_sql.schema import FORMAT, bring_up_to_date, database_at, migrate
from ztrio_sql.sqlite import APPLICATION_ID
from ztrio_sql.tables import metadata

# A process that works with a store and is killed.
WORK = """if True:
    import os, signal, sys, trio
    from tests.store.rows import end
    from ztrio_sql import open_store
    async def main():
        async with open_store(sys.argv[1]) as store:
            last = int(sys.argv[2])
            for number in range(2, last) if last > 100 else ():
                await end(store, number)
            await end(store, last)
            os.kill(os.getpid(), signal.SIGKILL)
    trio.run(main)"""
ROOT = Path(__file__).parents[2]


def killed(path: Path, number: int = 1) -> None:
    """Let a process write to a store and kill it, so that its log is left beside the file."""
    done = subprocess.run([sys.executable, "-c", WORK, str(path), str(number)], cwd=ROOT, check=False)
    assert -9 == done.returncode
    assert Path(f"{path}-wal").stat().st_size > 0


async def make(path: Path) -> None:
    """Make a store with something in it."""
    async with open_store(path) as store:
        await end(store, 1, session=write({"n": 1}))


def content(folder: Path) -> dict[str, tuple[int, str]]:
    """Every file below a folder with its mode and the digest of its bytes."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mode, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith("-shm")  # that one has nothing of its own
    }


async def refused(path: Path, code: str) -> str:
    """Open the store in both ways, which is refused with this code and leaves every file as it is; the message."""
    before = content(path.parent)
    for opening in (_open, _look):
        with pytest.raises(ZtrioError) as caught:
            await opening(path)
        assert code == caught.value.code
        assert before == content(path.parent)
    return caught.value.message


async def _open(path: Path) -> None:
    async with open_store(path):
        pass


async def _look(path: Path) -> None:
    await trio.lowlevel.checkpoint()
    StoreReader.open(path).close()


async def test_what_is_made_is_private(tmp_path: Path) -> None:
    """The directory is 0700, and every file in it 0600, whatever the umask; closed, only the database is left."""
    mask = os.umask(0)
    try:
        path = tmp_path / "deep" / "er" / "state.db"
        async with open_store(path) as store:
            await end(store, 1)
            modes = {found.name: stat.S_IMODE(found.stat().st_mode) for found in path.parent.iterdir()}
        names = ["state.db", "state.db-reserve", "state.db-shm", "state.db-wal", "state.db.lock"]
        assert dict.fromkeys(names, 0o600) == dict(sorted(modes.items()))
        assert [0o700, 0o700] == [stat.S_IMODE(each.stat().st_mode) for each in (path.parent, path.parent.parent)]
        assert ["state.db", "state.db-reserve", "state.db.lock"] == sorted(os.listdir(path.parent))
        path.chmod(0o644)
        await _open(path)
        assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    finally:
        os.umask(mask)


async def test_what_is_stored_is_found_again(tmp_path: Path) -> None:
    """A store opened again, also under another name, has its identity, and what was written."""
    path, link = tmp_path / "state.db", tmp_path / "link.db"
    await make(path)
    link.symlink_to(path)
    async with open_store(path) as store:
        identity, row, job, events = store.store_id, await present(store), await store.job("job_1"), await log(store)
    async with open_store(link) as store:
        assert (identity, row, job, events) == (
            store.store_id,
            await present(store),
            await store.job("job_1"),
            await log(store),
        )
        with pytest.raises(AlreadyInUse):
            await _open(path)


async def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    """A file without content is nobody's, and leftovers of a store that was never completed are in nobody's way."""
    path = tmp_path / "state.db"
    path.touch()
    Path(f"{path}.new").write_bytes(b"half")
    Path(f"{path}.new-journal").write_bytes(b"half")
    await make(path)
    assert ["state.db", "state.db-reserve", "state.db.lock"] == sorted(os.listdir(tmp_path))


async def test_the_second_process_is_refused(tmp_path: Path) -> None:
    """While one process works with a store, another is told its pid, and can look at it all the same."""
    path = tmp_path / "state.db"
    async with open_store(path) as store:
        await end(store, 1)
        with pytest.raises(AlreadyInUse) as caught:
            await _open(path)
        assert ("STORE_BUSY", os.getpid()) == (caught.value.code, caught.value.details["pid"])
        code = f"""if True:
            import trio
            from ztrio_sql import StoreReader, open_store
            with StoreReader.open({str(path)!r}) as reader:
                print(reader.job("job_1").outcome)
            async def main():
                async with open_store({str(path)!r}):
                    pass
            trio.run(main)"""
        done = await trio.run_process(
            [sys.executable, "-c", code], capture_stdout=True, capture_stderr=True, check=False
        )
        assert b"committed\n" == done.stdout
        assert f"STORE_BUSY: Process {os.getpid()} uses the store".encode() in done.stderr
        await end(store, 2)


@pytest.mark.parametrize("bytes_", [b"hello\n", b"SQLite format 3\0 and then nothing", bytes(8192)])
async def test_another_file_is_refused(tmp_path: Path, bytes_: bytes) -> None:
    """A file that is no database is refused and left as it is; nothing is made beside it."""
    path = tmp_path / "notes.txt"
    path.write_bytes(bytes_)
    await refused(path, "STORE_FOREIGN")
    assert ["notes.txt"] == os.listdir(tmp_path)


@pytest.mark.parametrize("owner", [0, 4711])
@pytest.mark.parametrize("mode", ["wal", "delete"])
async def test_another_programs_database_is_refused(tmp_path: Path, owner: int, mode: str) -> None:
    """A database that we have not signed is refused and left as it is, even with tables that are named like ours."""
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"PRAGMA journal_mode = {mode}; PRAGMA application_id = {owner}; CREATE TABLE jobs(a)")
    assert str(path) in await refused(path, "STORE_FOREIGN")


async def test_a_directory_is_refused(tmp_path: Path) -> None:
    """A directory is no store."""
    (tmp_path / "state.db").mkdir()
    await refused(tmp_path / "state.db", "STORE_FOREIGN")


async def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    """A store of a format that this version does not know is refused and left as it is."""
    path = tmp_path / "state.db"
    await make(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {FORMAT + 1}")
    assert f"format {FORMAT + 1}" in await refused(path, "STORE_NEWER")


NEWER = f"""if True:
    import os, signal, sqlite3, sys
    connection = sqlite3.connect(sys.argv[1], isolation_level=None)
    for statement in ("PRAGMA wal_autocheckpoint = 0", "BEGIN", "CREATE TABLE newer(x)",
                      "PRAGMA user_version = {FORMAT + 1}", "COMMIT"):
        connection.execute(statement)
    os.kill(os.getpid(), signal.SIGKILL)"""


async def test_a_newer_store_whose_log_says_so_is_refused(tmp_path: Path) -> None:
    """A newer version migrated the store and was killed, so only the log says so: refused, and no byte is changed."""
    path = tmp_path / "state.db"
    await make(path)
    await trio.run_process([sys.executable, "-c", NEWER, str(path)], check=False)
    assert Path(f"{path}-wal").stat().st_size > 0
    for shared in tmp_path.glob("*-shm"):
        shared.unlink()
    await refused(path, "STORE_NEWER")
    assert not list(tmp_path.glob("*-shm"))


@pytest.mark.parametrize("kept", ["none", "short", "foreign", "torn"])
async def test_a_log_that_says_nothing(tmp_path: Path, kept: str) -> None:
    """What is in the log is believed as far as it is one, and the store itself is opened."""
    path = tmp_path / "state.db"
    await make(path)
    killed(path, 2)
    wal = Path(f"{path}-wal")
    whole = wal.read_bytes()
    wal.write_bytes({"none": b"", "short": whole[:20], "foreign": b"x" * 5000, "torn": whole[:-100]}[kept])
    async with open_store(path) as store:
        assert [1] == [each.seq for each in await log(store)]
        assert (await store.job("job_2") is not None) is (kept == "torn")  # its end is what was torn


async def test_a_truncated_store_is_refused(tmp_path: Path) -> None:
    """A file that has lost its end is refused and left as it is."""
    path = tmp_path / "state.db"
    await make(path)
    os.truncate(path, path.stat().st_size // 2)
    assert "damaged" in await refused(path, "STORE_DAMAGED")


@pytest.mark.parametrize("table", ["meta", "jobs", "sessions", "audit"])
async def test_a_store_with_a_broken_page_is_refused(tmp_path: Path, table: str) -> None:
    """A file with garbage in the middle of a table is refused and left as it is."""
    path = tmp_path / "state.db"
    await make(path)
    with closing(sqlite3.connect(path)) as connection:
        [(page,)] = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,))
        [(size,)] = connection.execute("PRAGMA page_size")
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(os.urandom(size))
    await refused(path, "STORE_DAMAGED")


@pytest.mark.parametrize("statement", ["DROP TABLE sessions", "DROP TABLE meta", "DELETE FROM meta"])
async def test_a_store_with_something_missing_is_refused(tmp_path: Path, statement: str) -> None:
    """A store without one of its tables, or without its identity, is damaged."""
    path = tmp_path / "state.db"
    await make(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)
    before = path.read_bytes()
    with pytest.raises(StoreRefused) as caught:
        await _open(path)
    assert "STORE_DAMAGED" == caught.value.code
    assert before == path.read_bytes()


async def test_a_log_without_its_file_is_refused(tmp_path: Path) -> None:
    """Where somebody has removed the file and left its log, no new store is made that the log would be taken for."""
    path = tmp_path / "state.db"
    killed(path)
    path.unlink()
    await refused(path, "STORE_DAMAGED")


async def test_what_a_killed_process_left_is_opened(tmp_path: Path) -> None:
    """After a kill everything that was answered is there, whether looked at or opened, once or many times."""
    path = tmp_path / "state.db"
    for number in range(1, 4):
        killed(path, number)
        with StoreReader.open(path) as reader:
            assert [number] == [each.seq for _, each in reader.job_events(f"job_{number}")]
    async with open_store(path) as store:
        assert [1, 2, 3] == [each.seq for each in await log(store)]
        assert (await store.verify()).bad is None
        await end(store, 4)


async def test_a_checkpoint_that_was_cut_short(tmp_path: Path) -> None:
    """The first page was copied from the log and counts pages that were not copied yet: the store is opened."""
    path = tmp_path / "state.db"
    await make(path)
    killed(path, 101)
    wal = Path(f"{path}-wal").read_bytes()
    (size,) = struct.unpack_from(">I", wal, 8)
    frames = range(32, len(wal), 24 + size)
    first_pages = [wal[at + 24 : at + 24 + size] for at in frames if wal[at : at + 4] == b"\0\0\0\1"]
    before = path.stat().st_size // size
    assert before < struct.unpack_from(">I", first_pages[-1], 28)[0]
    with path.open("r+b") as file:
        file.write(first_pages[-1])
    async with open_store(path) as store:
        assert 101 == len(await log(store))


async def test_a_place_that_cannot_be_used(tmp_path: Path) -> None:
    """Where no store can be made or found, the error says why, and nothing is left there."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable):
        await _open(tmp_path / "file" / "state.db")
    with pytest.raises(StoreUnavailable, match="no store"):
        await _look(tmp_path / "state.db")
    assert ["file"] == os.listdir(tmp_path)


async def test_migrations_make_the_tables_that_the_code_knows(tmp_path: Path) -> None:
    """The schema of a new store, made by the migrations, is the one that the queries are written for."""
    path = tmp_path / "state.db"
    await make(path)
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        assert [] == compare_metadata(MigrationContext.configure(connection), metadata)
        assert FORMAT == connection.exec_driver_sql("PRAGMA user_version").scalar()
        assert APPLICATION_ID == connection.exec_driver_sql("PRAGMA application_id").scalar()
    engine.dispose()


def make_first_format(path: Path) -> None:
    """Make a store as the first version made it, with a session in it."""
    database = database_at(path)

    def fill(connection: sa.Connection) -> None:
        migrate(connection, "0001")
        facts = "('store_id', x'73745f6f6c64'), ('secret', zeroblob(32)), ('mark', x'30')"
        connection.exec_driver_sql(f"INSERT INTO meta VALUES {facts}")
        connection.exec_driver_sql("INSERT INTO sessions VALUES ('ann', 'default', 'si_1', 3, 'then', x'80')")
        database.sign(connection, 1)

    database.create(fill)


async def test_an_older_store_is_brought_up_to_date(tmp_path: Path) -> None:
    """A store of the first format is migrated when it is opened, with all that is in it; who only looks must wait."""
    path = tmp_path / "state.db"
    make_first_format(path)
    with pytest.raises(StoreUnavailable, match="older format"):
        StoreReader.open(path)
    async with open_store(path) as store:
        assert "st_old" == store.store_id
        assert ("si_1", 3) == ((await present(store)).incarnation, (await present(store)).version)
        assert [] == list((await store.left_pending()).journal)
        assert FORMAT == database_at(path).examine()
        await end(store, 1)
    shutil.copy(path, tmp_path / "copy.db")
    assert FORMAT == database_at(tmp_path / "copy.db").examine()


async def test_a_migration_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration that fails leaves the store as it was, and the next try may succeed."""
    path = tmp_path / "state.db"
    make_first_format(path)

    def broken(connection: sa.Connection) -> None:
        migrate(connection)
        connection.exec_driver_sql("INSERT INTO nowhere VALUES (1)")

    with monkeypatch.context() as patch:
        patch.setattr("ztrio_sql.schema.migrate", broken)
        with pytest.raises(StoreUnavailable):
            await _open(path)
    with closing(sqlite3.connect(path)) as connection:
        assert [] == connection.execute("SELECT name FROM sqlite_schema WHERE name = 'activity'").fetchall()
        assert [(1,)] == connection.execute("PRAGMA user_version").fetchall()
    bring_up_to_date(database_at(path))
    assert FORMAT == database_at(path).examine()


async def test_the_bodys_exception_leaves_as_it_is(tmp_path: Path) -> None:
    """Whoever works with a store gets their own exception, not a group of it; the store is closed."""
    path = tmp_path / "state.db"
    for error in (KeyError("mine"), StoreUnavailable("mine"), SystemExit(3)):
        with pytest.raises(type(error)) as caught:
            async with open_store(path) as store:
                store.record(event("allow", 1))
                raise error
        assert error is caught.value
        with pytest.raises(StoreUnavailable, match="closed"):
            store.record(event("allow", 2))
        with pytest.raises(StoreUnavailable, match="closed"):
            await end(store, 3)
    with StoreReader.open(path) as reader:
        assert 3 == len(reader.events())


async def test_cancellation_loses_nothing(tmp_path: Path) -> None:
    """The program around the store is cancelled: what was handed over is written."""
    with trio.CancelScope() as scope:
        async with open_store(tmp_path / "state.db") as store:
            for number in range(1, 100):
                store.record(event("allow", number))
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    with StoreReader.open(tmp_path / "state.db") as reader:
        assert 99 == len(reader.events())
