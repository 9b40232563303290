"""The audit log: whoever changes it is found out, what is old goes, and what is left can still be verified."""

import hashlib
import json
import sqlite3
import tracemalloc
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.store.contract_keys import keyed
from tests.store.rows import Clock, end, event, job_row, log
from ztrio.audit import AuditEvent
from ztrio.errors import Outcome
from ztrio.store import KEY_LIFETIME, JobEnd
from ztrio_sql import Retention, SqlStore, StoreReader, Verification, open_store
from ztrio_sql.chain import canonical, decode_event, facts_of


async def fill(path: Path, count: int = 20, **options: Any) -> None:
    """Make a store with that many events."""
    async with open_store(path, **options) as store:
        for number in range(1, count + 1):
            store.record(event("allow", number, reason="é" * (number % 60), session="s"))


def tamper(path: Path, statement: str, *values: Any) -> None:
    """Change the database behind the store's back."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement, values)


def verified(path: Path) -> Verification:
    """What following the chain finds."""
    with StoreReader.open(path) as reader:
        return reader.verify()


async def test_an_untouched_log(tmp_path: Path) -> None:
    """A log as it was written is right from end to end; an empty one is right too."""
    await fill(tmp_path / "empty.db", 0)
    assert Verification(0, None, None) == verified(tmp_path / "empty.db")
    await fill(tmp_path / "state.db")
    assert Verification(20, 1, 20) == verified(tmp_path / "state.db")


def _replace(old: str, new: str) -> Callable[[Path], None]:
    return lambda path: tamper(path, "UPDATE audit SET event = replace(event, ?, ?) WHERE log_pos = 7", old, new)


def _forge(path: Path) -> None:
    """Change an event and make its own hash right again."""
    with closing(sqlite3.connect(path)) as connection, connection:
        [(before,)] = connection.execute("SELECT hash FROM audit WHERE log_pos = 6")
        [(text,)] = connection.execute("SELECT event FROM audit WHERE log_pos = 7")
        text = text.replace('"allow"', '"deny!"')
        link = hashlib.sha256(before + text.encode()).digest()
        connection.execute("UPDATE audit SET event = ?, hash = ? WHERE log_pos = 7", (text, link))


def _swap(path: Path) -> None:
    for statement in ("= -1 WHERE log_pos = 7", "= 7 WHERE log_pos = 8", "= 8 WHERE log_pos = -1"):
        tamper(path, f"UPDATE audit SET log_pos {statement}")


@pytest.mark.parametrize(
    ("change", "bad", "problem"),
    [
        (_replace('"allow"', '"deny"'), 7, "hash"),
        (_replace("}", " }"), 7, "hash"),
        (_forge, 8, "hash"),
        (_swap, 7, "hash"),
        (lambda path: tamper(path, "UPDATE audit SET event = '' WHERE log_pos = 7"), 7, "hash"),
        (lambda path: tamper(path, "UPDATE audit SET event = 'é' WHERE log_pos = 7"), 7, "cannot be read"),
        (lambda path: tamper(path, "UPDATE audit SET hash = zeroblob(32) WHERE log_pos = 7"), 7, "hash"),
        (lambda path: tamper(path, "DELETE FROM audit WHERE log_pos = 7"), 7, "event 7 is missing"),
        (lambda path: tamper(path, "DELETE FROM audit WHERE log_pos < 7"), 1, "event 1 to 6 are missing"),
        (lambda path: tamper(path, "UPDATE audit SET principal = 'bob' WHERE log_pos = 7"), 7, "columns"),
        (lambda path: tamper(path, "UPDATE audit SET principal = NULL WHERE log_pos = 7"), 7, "columns"),
        (lambda path: tamper(path, "UPDATE audit SET job_id = 'job_1' WHERE log_pos = 7"), 7, "columns"),
        (lambda path: tamper(path, "UPDATE audit SET time = '1999' WHERE log_pos = 7"), 7, "columns"),
        (lambda path: tamper(path, "UPDATE audit SET seq = 1 WHERE log_pos = 7"), 7, "columns"),
        (lambda path: tamper(path, "UPDATE audit SET total_bytes = 1 WHERE log_pos = 7"), 7, "size"),
    ],
)
async def test_the_first_bad_link_is_named(
    tmp_path: Path, change: Callable[[Path], None], bad: int, problem: str
) -> None:
    """Whatever is changed, removed, moved or forged, the first event that is wrong is named, and why."""
    path = tmp_path / "state.db"
    await fill(path)
    change(path)
    found = verified(path)
    assert (bad, bad - 1) == (found.bad, found.events)
    assert problem in (found.problem or "")
    assert found.last == (bad - 1 or None)


async def test_an_inserted_event_is_found(tmp_path: Path) -> None:
    """An event put in at the end, with a hash of somebody's own making, is wrong."""
    path = tmp_path / "state.db"
    await fill(path)
    row = "SELECT 21, seq, job_id, principal, time, event, hash, total_bytes FROM audit WHERE log_pos = 20"
    tamper(path, f"INSERT INTO audit {row}")
    assert 21 == verified(path).bad


async def test_a_log_goes_on_where_it_ended(tmp_path: Path) -> None:
    """Each life of the store continues the chain of the one before."""
    path = tmp_path / "state.db"
    for _ in range(3):
        await fill(path, 5)
    assert Verification(15, 1, 15) == verified(path)


async def test_odd_text_is_verified_as_well(tmp_path: Path) -> None:
    """Lone surrogates and missing principals make no bad link."""
    path = tmp_path / "state.db"
    async with open_store(path) as store:
        store.record(event("deny", 1, principal=None))
        store.record(event("deny", 2, tool="\ud800", request_id=2**70))
        store.record(AuditEvent(event="gap", principal="\udfff", missed=3))
    assert Verification(3, 1, 3) == verified(path)


def test_canonical_bytes_are_canonical() -> None:
    """Equal events have equal bytes, with the position first, in ASCII, and come back as they were."""
    one = AuditEvent(event="commit", proof={"b": 1, "a": [1.5, None]}, outcome=Outcome.COMMITTED, targets=("é",))
    other = AuditEvent(event="commit", proof={"a": [1.5, None], "b": 1}, outcome=Outcome.COMMITTED, targets=("é",))
    text = canonical(3, facts_of(one))
    assert text == canonical(3, facts_of(other))
    expected = (
        '{"log_pos":3,"event":"commit","execution_job_id":"","monotonic":0.0,"outcome":"committed",'
        '"proof":{"a":[1.5,null],"b":1},"seq":0,"targets":["\\u00e9"],"time":""}'
    )
    assert expected == text
    assert one == decode_event(text)
    with pytest.raises(ValueError, match="JSON"):
        facts_of(AuditEvent(event="start", timeout=float("nan")))


async def test_an_export_can_be_verified_by_anybody(tmp_path: Path) -> None:
    """Whoever has the exported lines can follow the chain with SHA-256 and JSON alone."""
    path = tmp_path / "state.db"
    await fill(path, 2500)
    previous = bytes(32)
    count = 0
    with StoreReader.open(path) as reader:
        for line in reader.export():
            link = line.pop("hash")
            position = line.pop("log_pos")
            text = json.dumps(line, sort_keys=True, separators=(",", ":"))
            previous = hashlib.sha256(previous + f'{{"log_pos":{position},{text[1:]}'.encode()).digest()
            assert link == previous.hex()
            count += 1
            assert count == position
        assert 2500 == count
        assert [2499, 2500] == [line["log_pos"] for line in reader.export(after=2498)]
        assert [] == list(reader.export(principal="bob"))
        assert [2500] == [line["log_pos"] for line in reader.export(principal="ann", after=2499)]


async def test_export_and_verification_keep_memory_flat(tmp_path: Path) -> None:
    """Five times as many events need no more memory, neither to be exported nor to be verified."""
    path = tmp_path / "state.db"
    peaks = []
    for _ in range(2):
        await fill(path, 2000)
        with StoreReader.open(path) as reader:
            for _ in reader.export():
                pass  # caches fill
            tracemalloc.start()
            try:
                assert reader.verify().bad is None
                for _ in reader.export():
                    pass
                peaks.append(tracemalloc.get_traced_memory()[1])
            finally:
                tracemalloc.stop()
        await fill(path, 6000)
    assert peaks[1] < 1.3 * peaks[0]


async def test_newest_events_that_are_missing(tmp_path: Path) -> None:
    """That the newest events are gone is seen by the calls that ended there; without any, by a head noted before."""
    path = tmp_path / "state.db"
    await fill(path)
    async with open_store(path) as store:
        await end(store, 21)
    before = verified(path)
    tamper(path, "DELETE FROM audit WHERE log_pos > 19")
    found = verified(path)
    assert (19, 19, 20) == (found.events, found.last, found.bad)
    assert "event 20 is missing: a call ended at 21" == found.problem
    tamper(path, "DELETE FROM jobs")
    found = verified(path)
    assert found.bad is None
    assert found.head != before.head
    with StoreReader.open(path) as reader:
        assert [found.head.hex()] == [line["hash"] for line in reader.export(after=18)]


async def test_an_export_can_be_cut(tmp_path: Path) -> None:
    """By call, by name and by principal, forwards and backwards, more than is read at once."""
    path = tmp_path / "state.db"
    async with open_store(path) as store:
        for number in range(1, 901):
            odd = {"arguments": {"event": "deny"}} if number % 3 else {"reason": '"event":"deny"'}
            store.record(event("deny" if number % 10 == 0 else "allow", number % 4, principal=f"p{number % 2}", **odd))
    with StoreReader.open(path) as reader:
        cases: list[tuple[dict[str, Any], Iterable[int]]] = [
            ({}, range(1, 901)),
            ({"event": "deny"}, range(10, 901, 10)),
            ({"event": "DENY"}, ()),
            ({"event": '"%'}, ()),
            ({"job_id": "job_3"}, range(3, 901, 4)),
            ({"principal": "p1", "job_id": "job_3", "event": "deny"}, ()),
            ({"principal": "p0", "job_id": "job_2", "event": "deny"}, range(10, 901, 20)),
        ]
        for wanted, expected in cases:
            positions = [found["log_pos"] for found in reader.export(**wanted)]
            assert list(expected) == positions
            assert positions[::-1] == [found["log_pos"] for found in reader.newest(**wanted)]
        assert list(reader.newest())[::-1] == list(reader.export())
        assert 900 == reader.last_position()


# ---- retention


async def test_what_was_said_last_holds(tmp_path: Path) -> None:
    """How much is kept is written down: whoever opens the store next without saying keeps as much."""
    path = tmp_path / "state.db"
    await fill(path, 100)
    with StoreReader.open(path) as reader:
        assert Retention() == reader.retention()
    said = Retention(age=1e9, events=10, size=10**6)
    await fill(path, 0, retention=said)
    async with open_store(path) as store:
        assert list(range(91, 101)) == await kept(store)
    await fill(path, 0, retention=Retention(size=None))
    async with open_store(path) as store:
        store.record(event("allow", 1))
        assert list(range(91, 102)) == await kept(store)
    with StoreReader.open(path) as reader:
        assert Retention(size=None) == reader.retention()


async def kept(store: SqlStore) -> list[int]:
    """Positions of the events that are left, the chain of which is right."""
    await store.retain()
    verification = await store.verify()
    assert verification.bad is None
    return [position for position, _ in await store.events(principal=None, after=0, limit=100_000)]


async def test_by_count(tmp_path: Path) -> None:
    """The newest events stay; what is left can be verified, also after it was opened again and has grown."""
    path = tmp_path / "state.db"
    await fill(path, 3000)
    async with open_store(path, retention=Retention(events=10, size=None)) as store:
        assert list(range(2991, 3001)) == await kept(store)
        store.record(event("allow", 1))
        assert list(range(2992, 3002)) == await kept(store)
    found = verified(path)
    assert (10, 2992, 3001, None) == (found.events, found.first, found.last, found.bad)
    tamper(path, "DELETE FROM audit WHERE log_pos = 2992")
    assert 2992 == verified(path).bad
    async with open_store(path, retention=Retention(events=0, size=None)) as store:
        assert [] == await kept(store)
        store.record(event("allow", 2))
        assert [3002] == [position for position, _ in await store.events(principal=None, after=0, limit=9)]
        assert (await store.verify()).bad is None


async def test_by_size(tmp_path: Path) -> None:
    """The newest events that fit stay."""
    path = tmp_path / "state.db"
    await fill(path, 100)
    with StoreReader.open(path) as reader:
        sizes = [len(link.event) for link in _links(reader)]
    for size in (sum(sizes) + 1, sum(sizes[-50:]), sum(sizes[-50:]) - 1, sum(sizes[-3:]), sizes[-1] - 1, 0):
        async with open_store(path, retention=Retention(size=size)) as store:
            fitting = [index for index in range(1, 101) if sum(sizes[index - 1 :]) <= size]
            assert fitting == await kept(store)


def _links(reader: StoreReader) -> list[Any]:
    from ztrio_sql import reading

    with reader._asking() as connection:
        return list(reading.links(connection, 0))


async def test_by_age(tmp_path: Path, clock: Clock) -> None:
    """Events older than the bound go, the oldest first; one that is older by a clock that jumped back stays for now."""
    path = tmp_path / "state.db"
    times = [f"2024-01-0{day}T00:00:00.000000+00:00" for day in (1, 2, 3, 1, 4)]
    async with open_store(path, now=clock, retention=Retention(age=48 * 3600.0)) as store:
        for number, time in enumerate(times, 1):
            store.record(AuditEvent(event="allow", seq=number, time=time))
        clock.time = 1704326400.0  # 2024-01-04, midnight in UTC
        assert [2, 3, 4, 5] == await kept(store)
        clock.time += 24 * 3600
        assert [3, 4, 5] == await kept(store)
        clock.time += 24 * 3600
        assert [5] == await kept(store)
        clock.time += 1000 * 24 * 3600
        assert [] == await kept(store)


@pytest.fixture
def clock() -> Clock:
    """The store's wall clock."""
    return Clock()


async def test_calls_go_with_their_terminal_event(tmp_path: Path, clock: Clock) -> None:
    """A call is known as long as its terminal event; one that is open always is, one with a key as long as the key."""
    async with open_store(tmp_path / "state.db", now=clock, retention=Retention(events=2, size=None)) as store:
        await store.insert_job(job_row(1))
        await end(store, 2)
        await end(store, 3, Outcome.UNRESOLVED)
        await store.claim(keyed(4))
        terminal = event("commit", 4, outcome=Outcome.COMMITTED)
        await store.finish(JobEnd(job_id="job_4", outcome=Outcome.COMMITTED, event=terminal, result=b"answer"))
        for number in (5, 6):
            await end(store, number)
        assert 2 == len(await kept(store))
        assert [1, 3, 4, 5, 6] == await known(store, 6)
        clock.time += KEY_LIFETIME
        assert 2 == len(await kept(store))
        assert [1, 3, 5, 6] == await known(store, 6)
        with store._reader._asking() as connection:
            assert 0 == connection.exec_driver_sql("SELECT count(*) FROM results").scalar()


async def known(store: SqlStore, count: int) -> list[int]:
    """Which calls are known."""
    return [number for number in range(1, count + 1) if await store.job(f"job_{number}") is not None]


async def test_it_happens_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to ask: what is no longer kept goes soon after the store was opened, while others write."""
    from tests.store.faults import until

    path = tmp_path / "state.db"
    await fill(path, 5000)
    monkeypatch.setattr("ztrio_sql.writer._FIRST_LOOK", 0.0)
    async with open_store(path, retention=Retention(events=100, size=None)) as store:
        await end(store, 9)
        with StoreReader.open(path) as reader:
            await until(lambda: len(reader.events(limit=10_000)) <= 101)
        assert 101 >= len(await log(store))
        assert (await store.verify()).bad is None
