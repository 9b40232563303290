"""The journal as bytes, `recovery.json`, and how objects are known again."""

import errno
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.trees import fill
from tests.publication.conftest import Stage
from ztrio.policies import Output
from ztrio.publication import identity
from ztrio.publication.identity import Identity, Mark, Stat, look
from ztrio.publication.journal import (
    MAX_JOURNAL,
    Entry,
    Journal,
    JournalDamaged,
    decode_journal,
    encode_journal,
)
from ztrio.publication.recovery_file import read_recovery_file

_INODES = st.integers(0, 2**63)
_MARKS = st.builds(
    Mark,
    inode=_INODES,
    born_ns=st.none() | st.integers(0, 2**63),
    directory=st.booleans(),
    size=st.integers(0, 2**62),
    mtime_ns=st.integers(-(2**62), 2**62),
    digest=st.none() | st.text("0123456789abcdef", max_size=64),
)
_PARTS = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda part: part not in (".", "..")
)
_PLACES = st.lists(_PARTS, max_size=4).map(tuple)


@st.composite
def journals(draw: st.DrawFn) -> Journal:
    places = draw(st.lists(_PLACES, min_size=1, max_size=3).map(tuple))
    entries = st.builds(
        Entry,
        parameter=st.text(max_size=9),
        path=st.lists(_PARTS, min_size=1, max_size=4).map(tuple),
        parent=_MARKS,
        place=st.sampled_from(places),
        folder=st.integers(0, 99).map(str),
        old=st.none() | _MARKS,
        old_mode=st.none() | st.integers(0, 0o7777).map(lambda mode: f"{mode:04o}"),
        new=st.none() | _MARKS,
    )
    return Journal(
        job_id=draw(_PARTS),
        workspace=draw(st.text(max_size=9)),
        external=draw(st.booleans()),
        outputs=tuple(draw(st.lists(entries, max_size=4))),
        places=places,
    )


@given(journals())
def test_a_journal_comes_back_as_it_was(journal: Journal) -> None:
    """What was written is what is read, as msgpack and as JSON."""
    assert journal == decode_journal(encode_journal(journal))
    assert journal == decode_journal(msgspec.json.encode(journal), text=True)


@given(journals(), st.data())
def test_a_damaged_journal_is_refused_or_is_one(journal: Journal, data: st.DataObject) -> None:
    """Whatever happens to the bytes, either a journal comes out or `JournalDamaged`, and nothing leads outside."""
    raw = bytearray(encode_journal(journal))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw
    try:
        found = decode_journal(bytes(raw))
    except JournalDamaged:
        return
    for parts in (*found.places, *(entry.path for entry in found.outputs)):
        assert not {"", ".", ".."} & set(parts)
        assert not any("/" in part for part in parts)


MARK = Mark(inode=1, born_ns=1, directory=False, size=1, mtime_ns=1)
ENTRY = Entry(parameter="a", path=("a",), parent=MARK, place=(), folder="0", old=None, old_mode=None, new=MARK)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"path": ()}, "no path"),
        ({"path": ("..", "a")}, "inside a workspace"),
        ({"path": ("a/b",)}, "inside a workspace"),
        ({"path": ("a\0",)}, "inside a workspace"),
        ({"path": ("a" * 2000,)}, "inside a workspace"),
        ({"place": ("elsewhere",)}, "no place"),
        ({"folder": "../0"}, "no place"),
        ({"old_mode": "9999"}, "mode"),
    ],
)
def test_a_journal_that_leads_elsewhere_is_refused(entry: dict[str, object], words: str) -> None:
    """A path that is none, a slot that is none, a mode that is none: damaged, and the message says what."""
    journal = Journal(job_id="job_x", workspace="/w", outputs=(msgspec.structs.replace(ENTRY, **entry),))
    with pytest.raises(JournalDamaged, match=words):
        decode_journal(encode_journal(journal))


def test_a_journal_of_a_newer_format_is_refused_by_number() -> None:
    """A newer format is named as such, whatever else is in it."""
    with pytest.raises(JournalDamaged, match="format 2"):
        decode_journal(msgspec.msgpack.encode({"version": 2, "something": "else"}))
    for data in (b"", b"\xc1", msgspec.msgpack.encode([1]), msgspec.msgpack.encode({"version": 1})):
        with pytest.raises(JournalDamaged, match="decode"):
            decode_journal(data)


def test_a_journal_is_bounded() -> None:
    """Too large to be one: refused before it is decoded, and refused to be written."""
    with pytest.raises(JournalDamaged, match="bytes"):
        decode_journal(bytes(MAX_JOURNAL + 1))
    many = Journal(job_id="job_x", workspace="/w", outputs=(ENTRY,) * 1025)
    with pytest.raises(ValueError, match="1025 outputs"):
        encode_journal(many)
    with pytest.raises(JournalDamaged, match="1025 outputs"):
        decode_journal(msgspec.msgpack.encode(many))
    with pytest.raises(JournalDamaged, match="no job's id"):
        decode_journal(msgspec.msgpack.encode(Journal(job_id="a/b", workspace="/w")))


def test_recovery_json_is_read_back(workspace: Path, stage: Stage) -> None:
    """What a call wrote of itself is read back: whose it is, how far it was, and its journal."""
    (workspace / "a").write_text("old")
    staging = stage({"out": ("a", Output()), "new": ("b", Output(kind="dir"))})
    fill(staging, {"out": "new", "new": {"x": "new"}})
    staging.inspect()
    staging.record("publishing_outputs", worker_pid=7, worker_started_at=1.5)
    fd = os.open(staging.job_directory, os.O_RDONLY)
    try:
        note = read_recovery_file(fd)
        assert note is not None
        assert ("publishing_outputs", "t1", None, False, 7, 1.5, "test") == (
            note.phase,
            note.job_id,
            note.store_id,
            note.durable,
            note.worker_pid,
            note.worker_started_at,
            note.tool,
        )
        assert decode_journal(staging.journal()) == note.journal
        for nothing in (b"", bytes(100)):
            (staging.job_directory / "recovery.json").write_bytes(nothing)
            assert None is read_recovery_file(fd)
        for damage in (b"{", b"[]", b'{"version": 1, "job_id": "t1", "workspace": "/", "phase": "dancing"}'):
            (staging.job_directory / "recovery.json").write_bytes(damage)
            with pytest.raises(JournalDamaged):
                read_recovery_file(fd)
        (staging.job_directory / "recovery.json").unlink()
        assert None is read_recovery_file(fd)
        os.mkfifo(staging.job_directory / "recovery.json")
        with pytest.raises(JournalDamaged, match="no file"):
            read_recovery_file(fd)
    finally:
        os.close(fd)


def stat_of(inode: int = 1, born: int | None = 1, *, size: int = 1, mtime: int = 1, directory: bool = False) -> Stat:
    return Stat(
        identity=Identity(inode, born),
        mode=0o40755 if directory else 0o100644,
        size=size,
        mtime_ns=mtime,
        uid=0,
        gid=0,
        links=1,
    )


def test_an_object_is_known_by_inode_and_birth_time() -> None:
    """The same inode number with another birth time is another object; content and times do not matter."""
    assert MARK.names(stat_of(size=9, mtime=9))
    assert not MARK.names(stat_of(born=2))
    assert not MARK.names(stat_of(inode=2))
    assert not MARK.names(stat_of(directory=True))
    assert not MARK.names(None)


def test_without_birth_times_a_file_is_known_by_size_and_time_as_well() -> None:
    """Where there is no birth time a file that was changed in place is another one, a directory is known by inode."""
    unborn = msgspec.structs.replace(MARK, born_ns=None)
    assert unborn.names(stat_of(born=None))
    assert unborn.names(stat_of(born=7))
    assert not unborn.names(stat_of(born=None, size=2))
    assert not unborn.names(stat_of(born=None, mtime=2))
    folder = msgspec.structs.replace(unborn, directory=True)
    assert folder.names(stat_of(born=None, directory=True, size=2, mtime=2))


def test_looking_without_statx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the C library has no statx the portable look tells the same, without birth times."""
    (tmp_path / "a").write_text("x")
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        exact = look(fd, "a"), look(fd, "")
        monkeypatch.setattr(identity, "_HAS_STATX", False)
        portable = look(fd, "a"), look(fd, "")
        assert None is look(fd, "b")
    finally:
        os.close(fd)
    for one, other in zip(exact, portable, strict=True):
        assert one is not None
        assert other is not None
        assert (one.identity.inode, one.mode, one.size, one.mtime_ns) == (
            other.identity.inode,
            other.mode,
            other.size,
            other.mtime_ns,
        )
    with pytest.raises(OSError, match="descriptor") as caught:
        look(fd, "")
    assert errno.EBADF == caught.value.errno
