"""Killed in the middle of commits, failed by the real system: what is there afterwards is all or nothing, and sound."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio

from tests.store.rows import event, log
from ztrio.errors import Outcome
from ztrio.plain import decode
from ztrio.store import EMPTY_STATE
from ztrio_sql import open_store

ROOT = Path(__file__).parents[2]

# Eight callers commit calls, each to its own session, and say so only when they have the answer.
LOAD = """if True:
    import sys, trio
    from tests.store.rows import event, job_row, write
    from ztrio.errors import Outcome
    from ztrio.store import JobEnd
    from ztrio_sql import open_store

    async def caller(store, base, name):
        row = await store.session("ann", name)
        version, life = (0, None) if row is None else (row.version, row.incarnation)
        while True:
            number = base + int(sys.argv[2]) * 10_000 + version
            store.insert_job_nowait(job_row(number, session=name))
            store.record(event("allow", number))
            await trio.to_thread.run_sync(store.write_intent, f"job_{number}", b"journal")
            end = JobEnd(job_id=f"job_{number}", outcome=Outcome.COMMITTED, event=event("commit", number),
                         session=write({"n": version + 1, "fill": "x" * (version % 7) * 1000}, name=name,
                                       incarnation=life, version=version))
            await store.finish(end)
            version += 1
            print(name, version, number, flush=True)
            if life is None:
                life = (await store.session("ann", name)).incarnation

    async def main():
        async with open_store(sys.argv[1]) as store, trio.open_nursery() as nursery:
            for index in range(8):
                nursery.start_soon(caller, store, (index + 1) * 1_000_000, f"s{index}")
    trio.run(main)"""


async def check(path: Path, answered: dict[str, int]) -> dict[str, int]:
    """Assert that the store is sound and has at least what was answered; the versions of its sessions."""
    async with open_store(path) as store:
        assert (await store.verify()).bad is None
        events = await log(store, limit=1_000_000)
        commits = [each.execution_job_id for each in events if each.event == "commit"]
        assert len(set(commits)) == len(commits)
        rows = {row.name: row for row in await store.sessions("ann")}
        versions = {name: row.version for name, row in rows.items()}
        for name, version in answered.items():
            assert version <= versions[name] <= version + 1
        for index in range(8):
            name = f"s{index}"
            version = versions.get(name, 0)
            assert version == decode(rows[name].state if name in rows else EMPTY_STATE).get("n", 0)
            own = [job_id for job_id in commits if job_id.startswith(f"job_{index + 1}")]
            assert list(range(version)) == [int(job_id[4:]) % 10_000 for job_id in own]
            for job_id in own[-3:]:
                row = await store.job(job_id)
                assert row is not None
                assert (Outcome.COMMITTED, "ended", b"journal") == (row.outcome, row.phase, row.journal)
        for row in await store.unfinished():  # what recovery does with calls that were on their way
            assert row.outcome is None
            assert await store.recovered(row.job_id, Outcome.ROLLED_BACK, event("recovered", 1))
        return versions


def under_load(path: Path, seconds: float, life: int) -> dict[str, int]:
    """Let a process work on the store and kill it after a while; the versions that it was told are committed."""
    command = [sys.executable, "-c", LOAD, str(path), str(life)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as load:
        assert load.stdout is not None
        first = load.stdout.readline()
        time.sleep(seconds)
        load.send_signal(signal.SIGKILL)
        lines = [first, *load.stdout.readlines()]
    told = [line.split() for line in lines if line.endswith("\n")]
    answered: dict[str, int] = {}
    for name, version, _ in told:
        answered[name] = max(int(version), answered.get(name, 0))
    return answered


async def test_killed_at_any_instant_under_load(tmp_path: Path) -> None:
    """Whatever was answered is there, nothing else but at most the transaction on its way, and the chain holds; again
    and again on the same store."""
    path = tmp_path / "state.db"
    seed = int(os.environ.get("ZTRIO_CRASH_SEED", "0")) or random.randrange(1, 2**31)
    print(f"ZTRIO_CRASH_SEED={seed}")
    dice = random.Random(seed)
    before: dict[str, int] = {}
    for life in range(int(os.environ.get("ZTRIO_CRASHES", "8"))):
        answered = await trio.to_thread.run_sync(under_load, path, dice.random() * 0.3, life)
        versions = await check(path, before | answered)
        assert sum(versions.values()) > sum(before.values())
        before = versions


# Has seccomp answer fsync and fdatasync with EIO, of one thread or of all.
BREAK = """if True:
    import ctypes, os, struct

    def break_syncs(flags):
        libc = ctypes.CDLL(None, use_errno=True)
        fsync, fdatasync, seccomp = {"x86_64": (74, 75, 317), "aarch64": (82, 83, 277)}[os.uname().machine]
        code = [(0x20, 0, 0, 0), (0x15, 1, 0, fsync), (0x15, 0, 1, fdatasync), (0x06, 0, 0, 0x00050000 | 5),
                (0x06, 0, 0, 0x7FFF0000)]
        program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in code))
        filter_ = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(program)))
        if libc.prctl(38, 1, 0, 0, 0) or libc.syscall(seccomp, 1, flags, filter_):  # PR_SET_NO_NEW_PRIVS
            print("SKIP", os.strerror(ctypes.get_errno()), flush=True)
            os._exit(0)

    ALL_THREADS = 1
"""

# A call whose COMMIT fails in fdatasync, as often as it is tried. The frames of the commit are in the log, so whoever
# opens the store after the kill may find it committed: hence the rule that without a synced transaction after it nobody
# may take anything back.
BROKEN_DISK = (
    BREAK
    + """
    import os, signal, sys, trio
    from tests.store.rows import end, event, job_row, write
    from ztrio.errors import Outcome, StoreUnavailable
    from ztrio.store import JobEnd
    from ztrio_sql import open_store

    async def main():
        async with open_store(sys.argv[1]) as store:
            await end(store, 1)
            await store.insert_job(job_row(2))
            break_syncs(ALL_THREADS)
            end_ = JobEnd(job_id="job_2", outcome=Outcome.COMMITTED, event=event("commit", 2), session=write({"n": 2}))
            for attempt in (lambda: store.finish(end_), lambda: store.abort("job_2"), lambda: store.abort("job_2")):
                try:
                    await attempt()
                except StoreUnavailable as error:
                    print(error.message, flush=True)
                else:
                    print("it did not fail", flush=True)
            print("seen:", await store.session("ann", "default"), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    trio.run(main)"""
)

# The same, but the syncs of the thread that settles it work.
SETTLED = (
    BREAK
    + """
    import os, signal, sys, threading, time
    from pathlib import Path
    from tests.store.rows import event, job_row, write
    from ztrio.errors import Outcome
    from ztrio_sql import reading
    from ztrio_sql.batches import Batches, CommitRaised
    from ztrio_sql.operations import End, InsertJob
    from ztrio_sql.schema import database_at, make
    from ztrio_sql.transaction import LogEntry

    database = database_at(sys.argv[1])
    make(database)
    batches = Batches(database, time.time)
    batches.write([InsertJob("job_2", row=job_row(2))])
    if sys.argv[2] == "watched":
        reader = database.readers().connect()  # as in a running store; else the log is read anew on opening
        print("watched by", reading.job(reader, "job_2").tool, flush=True)
        reader.rollback()
    entry = LogEntry.of(event("commit", 2))
    end = End("job_2", outcome=Outcome.COMMITTED, entry=entry, session=write({"n": "x" * 50_000}))

    def fail():
        break_syncs(0)
        try:
            batches.write([end])
        except CommitRaised as error:
            print(error.__cause__, flush=True)

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    if sys.argv[2] != "nothing":
        print(batches.settle(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)"""
)


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")
async def test_what_is_settled_stays_so(tmp_path: Path) -> None:
    """The frames of a commit that failed in its sync lie in the log, unseen. What is then said about it is what
    everybody finds after a kill."""
    outcomes = {}
    for step in ("watched", "alone", "nothing"):
        path = tmp_path / step / "state.db"
        path.parent.mkdir()
        done = await trio.run_process(
            [sys.executable, "-c", SETTLED, str(path), step], cwd=ROOT, capture_stdout=True, check=False
        )
        told = done.stdout.decode()
        if "SKIP" in told:
            pytest.skip(told)
        assert "disk I/O error" in told
        async with open_store(path) as store:
            row = await store.job("job_2")
            assert row is not None
            assert (row.outcome is None) is (await store.session("ann", "default") is None)
            assert (await store.verify()).bad is None
        said = told.splitlines()[-1]
        outcomes[step] = (said if step != "nothing" else None, row.outcome)
    assert ("False", None) == outcomes["watched"]
    assert outcomes["alone"] in {("False", None), ("True", Outcome.COMMITTED)}


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")
async def test_syncs_that_fail_for_real(tmp_path: Path) -> None:
    """While fsync fails, neither a commit nor its abort succeeds; after a kill the call is committed or not at all."""
    path = tmp_path / "state.db"
    done = await trio.run_process(
        [sys.executable, "-c", BROKEN_DISK, str(path)], cwd=ROOT, capture_stdout=True, check=False
    )
    told = done.stdout.decode().splitlines()
    if told[0].startswith("SKIP"):
        pytest.skip(told[0])
    assert ["seen: None"] == told[3:]
    assert all("disk reports an error" in line and "cannot tell" in line for line in told[:3])
    async with open_store(path) as store:
        row, session = await store.job("job_2"), await store.session("ann", "default")
        assert row is not None
        happened = row.outcome is Outcome.COMMITTED
        assert happened is (session is not None)
        assert ([1, 2] if happened else [1]) == [each.seq for each in await log(store)]
        assert (await store.verify()).bad is None
        if not happened:
            await store.abort("job_2")


# A disk of 6 MB, really full: mounted in a namespace of its own, which needs no privileges where that is allowed.
FULL_DISK = """if True:
    import os, sys, trio
    from pathlib import Path
    from tests.store.rows import end, event, job_row, log, present, write
    from ztrio.errors import Outcome, StoreUnavailable
    from ztrio.store import JobEnd
    from ztrio_sql import open_store

    disk = Path(sys.argv[1])
    problems = []

    async def refused(operation, *args):
        try:
            await operation(*args)
        except StoreUnavailable as error:
            assert "the disk is full" in error.message, error.message
        else:
            raise AssertionError("it did not fail")

    async def main():
        async with open_store(disk / "state.db") as store:
            store.watch(problems.append)
            await end(store, 1, session=write({"n": 1}))
            life = (await present(store)).incarnation
            for number in (2, 3):
                await store.insert_job(job_row(number))
            filler = disk / "filler"
            with filler.open("wb", buffering=0) as file:
                for size in (65536, 512):
                    try:
                        while True:
                            file.write(bytes(size))
                    except OSError:
                        pass
            large = JobEnd(job_id="job_2", outcome=Outcome.COMMITTED, event=event("commit", 2),
                           session=write({"n": "x" * 100_000}, incarnation=life, version=1))
            await refused(store.finish, large)
            await store.abort("job_2")          # so everything can go back, although the disk is full
            assert 1 == (await present(store)).version
            for number in range(10, 300):       # more than what was kept in reserve
                try:
                    store.record(event("allow", number, reason="y" * 2000))
                except StoreUnavailable:
                    pass
            await refused(store.insert_job, job_row(4))
            await store.abort("job_3")
            assert problems and problems[0], problems
            filler.unlink()
            with trio.fail_after(10):
                while store.statistics().trouble is not None or store.statistics().waiting:
                    await trio.sleep(0.05)
            await store.finish(JobEnd(job_id="job_2", outcome=Outcome.ROLLED_BACK, event=event("rollback", 2)))
            assert [1, *range(10, 300), 2] == [each.seq for each in await log(store)]
            assert (await store.verify()).bad is None
            assert problems[-1] is None, problems
        async with open_store(disk / "state.db") as store:
            assert Outcome.ROLLED_BACK == (await store.job("job_2")).outcome
    trio.run(main)
    print("all is well")"""


@pytest.mark.skipif(sys.platform != "linux", reason="mount namespaces are Linux's")
async def test_a_disk_that_is_full_for_real(tmp_path: Path) -> None:
    """No room for a commit, and yet it can be aborted; reads go on; when there is room again nothing is missing."""
    disk = tmp_path / "disk"
    disk.mkdir()
    script = f'mount -t tmpfs -o size=6m none "{disk}" && exec "$@"'
    prefix = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    command = [*prefix, "sh", "-c", script, "sh", sys.executable, "-c", FULL_DISK, str(disk)]
    try:
        probe = await trio.run_process([*command[: len(prefix)], "sh", "-c", script, "sh", "true"], check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if probe.returncode:
        pytest.skip("no file system can be mounted here")
    done = await trio.run_process(command, cwd=ROOT, capture_stdout=True, capture_stderr=True, check=False)
    assert ("all is well\n", "") == (done.stdout.decode(), done.stderr.decode())
