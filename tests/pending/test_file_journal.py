"""The journal in a file: what was noted is there, wherever the file was cut; what is no journal stays as it is."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pending.box import call_id
from ztrio.activity import JournalRow
from ztrio.errors import StoreRefused, StoreUnavailable
from ztrio.tracking.journal import FileJournal
from ztrio.tracking.journal_format import HEADER, drop_line, put_line, replay

SOME = Path("sent.journal")
TEXT = st.text(st.characters(exclude_categories=()), max_size=5)
WIRE_IDS = st.lists(st.integers() | TEXT, max_size=2).map(tuple)


def noted(number: int, **facts: Any) -> JournalRow:
    """A row."""
    row = JournalRow(
        call_id=call_id(number),
        seq=number,
        server="files",
        transport="stdio",
        epoch=1,
        principal="ann",
        gate_scope="ann",
        tool="put",
        gate_tier="write",
        admission_tier="write",
        wire_ids=(number,),
        sent_at=1.5,
        expires_at=601.5,
    )
    return attrs.evolve(row, **facts)


ROWS = st.builds(
    noted,
    st.integers(1, 4),
    seq=st.integers(1, 6) | st.just(10**30),
    tool=TEXT,
    wire_ids=WIRE_IDS,
    expires_at=st.none() | st.floats(0, 1e10),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), ROWS),
        st.tuples(st.just("put"), st.lists(ROWS, max_size=3)),
        st.tuples(st.just("drop"), st.lists(st.integers(1, 4).map(call_id), max_size=3)),
        st.tuples(st.just("again"), st.none()),
    ),
    max_size=8,
)


def left_in(path: Path) -> list[JournalRow]:
    """What the next process finds."""
    with FileJournal(path) as journal:
        return journal.left()


def ordered(rows: dict[str, JournalRow]) -> list[JournalRow]:
    """Rows as they are found."""
    return sorted(rows.values(), key=lambda row: (row.seq, row.call_id))


def play(path: Path, steps: list[tuple[str, Any]]) -> list[list[JournalRow]]:
    """Let everything happen; what is to be found after each line that was written."""
    rows: dict[str, JournalRow] = {}
    found: list[list[JournalRow]] = [[], []]
    journal = FileJournal(path)
    journal.open()
    for what, detail in steps:
        if what == "again":
            journal.close()
            journal.open()
        elif what == "drop":
            journal.drop(detail)
            known = [each for each in detail if each in rows]
            for each in set(known):
                del rows[each]
            if known:
                found.append(ordered(rows))
        else:
            new = [detail] if what == "append" else detail
            if what == "append" and detail.call_id in rows and rows[detail.call_id].seq > detail.seq:
                new = []
            (journal.append if what == "append" else journal.put)(detail)
            for each in new:
                rows[each.call_id] = each
                found.append(ordered(rows))
        assert ordered(rows) == journal.left()
    journal.close()
    return found


@pytest.mark.req("P60")
@given(steps=STEPS, data=st.data())
@settings(max_examples=200, deadline=None)
def test_cut_anywhere(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Any]], data: st.DataObject
) -> None:
    """A file that ends at any byte, or in zeros, has the rows that were written whole and not dropped, and goes on."""
    path = tmp_path_factory.mktemp("cut") / SOME
    found = play(path, steps)
    whole = path.read_bytes()
    assert len(found) - 1 == whole.count(b"\n")
    cut = whole[: data.draw(st.integers(0, len(whole)), label="cut")]
    expected = found[cut.count(b"\n")]
    path.write_bytes(cut + bytes(data.draw(st.sampled_from([0, 1, 5000]), label="zeros")))
    with FileJournal(path) as journal:
        assert expected == journal.left()
        journal.append(noted(9, seq=10**31))
    assert [*expected, noted(9, seq=10**31)] == left_in(path)


@pytest.mark.req("P60", "P12")
@pytest.mark.case("R41")
def test_a_line_says_what_the_row_says_and_no_more(tmp_path: Path) -> None:
    """Ids keep their types and all their digits, and nothing of what a call was asked to do is there."""
    path = tmp_path / SOME
    wire_ids = (7, "7", 2**31, 2**53 + 1, 2**63, 10**30, -1, "\ud800\n")
    row = noted(1, wire_ids=wire_ids, tool='"put\n\u2028\0', expires_at=None)
    with FileJournal(path) as journal:
        journal.append(row)
    (found,) = left_in(path)
    assert (row, [type(each) for each in wire_ids]) == (found, [type(each) for each in found.wire_ids])
    first, line, end = path.read_bytes().split(b"\n")
    assert ({"format": "ztrio journal of sent calls", "version": 1}, b"") == (json.loads(first), end)
    assert {field.name for field in attrs.fields(JournalRow)} == set(json.loads(line[1:]))


@pytest.mark.req("P60")
def test_a_row_gives_way_to_a_newer_one(tmp_path: Path) -> None:
    """Of rows of one call the newest counts, whatever comes in whatever order, unless it is put as it is."""
    with FileJournal(tmp_path / SOME) as journal:
        for seq in (3, 5, 4):
            journal.append(noted(1, seq=seq))
        assert [5] == [row.seq for row in journal.left()]
        journal.put([noted(1, seq=2), noted(2)])
        assert [(call_id(1), 2), (call_id(2), 2)] == [(row.call_id, row.seq) for row in journal.left()]
        assert (noted(2), None) == (journal.get(call_id(2)), journal.get(call_id(9)))
        size = journal.statistics().size
        journal.drop([call_id(9)])
        journal.put([])
        assert (size, 2) == (journal.statistics().size, journal.statistics().rows), "nothing is written about nothing"


def test_the_file_is_private(tmp_path: Path) -> None:
    """It is made for its owner alone, and taken from others who could read one of ours."""
    path = tmp_path / SOME
    assert [] == left_in(path)
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    path.chmod(0o644)
    assert [] == left_in(path)
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)


A, B = put_line(noted(1)), put_line(noted(2))
NEWER = HEADER.replace(b'"version":1', b'"version":2')


@pytest.mark.parametrize(
    ("code", "content"),
    [
        ("STORE_FOREIGN", b"Dear diary\n"),
        ("STORE_FOREIGN", b"SQLite format 3\0"),
        ("STORE_FOREIGN", HEADER.replace(b"sent", b"other")),
        ("STORE_FOREIGN", b"{}\n"),
        ("STORE_FOREIGN", b'{"format":"ztrio journal of sent calls","version":"1"}\n'),
        ("STORE_FOREIGN", A),
        ("STORE_FOREIGN", b"[" * 100_000),
        ("STORE_FOREIGN", HEADER[:-2] + b" }"),
        ("STORE_FOREIGN", NEWER[:-1]),
        ("STORE_NEWER", NEWER),
        ("STORE_NEWER", NEWER + b"%\xff\0"),
        ("STORE_DAMAGED", HEADER + A[:-9] + B),
        ("STORE_DAMAGED", HEADER + A + bytes(100) + B),
        ("STORE_DAMAGED", HEADER + A + b"\n" + B),
        ("STORE_DAMAGED", HEADER + A + HEADER),
        ("STORE_DAMAGED", HEADER + b"+{}\n"),
        ("STORE_DAMAGED", HEADER + b"+\xff\n"),
        ("STORE_DAMAGED", HEADER + b'+"\\ud800"\n'),
        ("STORE_DAMAGED", HEADER + A + b"-" + b"[" * 100_000 + b"\n"),
        ("STORE_DAMAGED", HEADER + A.replace(b'"seq":1', b'"seq":"1"')),
        ("STORE_DAMAGED", HEADER + A + b"-[7]\n"),
        ("STORE_DAMAGED", HEADER + A + drop_line([call_id(1)])[:20] + b"\n" + B[:4]),
    ],
)
@pytest.mark.req("P60")
def test_what_is_no_journal_stays_as_it_is(tmp_path: Path, code: str, content: bytes) -> None:
    """What is foreign, newer or damaged is refused by its code, with its name, and not a bit of it is changed."""
    path = tmp_path / SOME
    path.write_bytes(content)
    path.chmod(0o640)
    before = path.stat()
    with pytest.raises(StoreRefused) as caught:
        left_in(path)
    assert (code, str(path)) == (caught.value.code, caught.value.details["path"])
    after = path.stat()
    assert (content, before.st_mode, before.st_mtime_ns) == (path.read_bytes(), after.st_mode, after.st_mtime_ns)
    assert [path] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("make", "refused"),
    [
        (os.mkfifo, StoreRefused),
        (os.mkdir, StoreUnavailable),
        (lambda path: path.symlink_to("elsewhere"), StoreUnavailable),
    ],
)
def test_what_is_no_file_is_refused(tmp_path: Path, make: Callable[[Path], None], refused: type[Exception]) -> None:
    """A pipe, a directory and a link to somewhere else are left alone, at once."""
    make(tmp_path / SOME)
    with pytest.raises(refused):
        left_in(tmp_path / SOME)
    assert [tmp_path / SOME] == list(tmp_path.iterdir())
    with pytest.raises(StoreUnavailable, match="nowhere"):
        left_in(tmp_path / "nowhere" / SOME)


@given(noise=st.binary(max_size=40), at=st.integers(0, 10_000))
@settings(max_examples=200)
def test_noise_is_refused_or_means_what_it_says(noise: bytes, at: int) -> None:
    """Whatever bytes are written over a journal, reading it either refuses or answers; it never fails otherwise."""
    whole = HEADER + A + B + drop_line([call_id(1)])
    at %= len(whole)
    data = whole[:at] + noise + whole[at + len(noise) :]
    try:
        rows, end = replay(data, SOME)
    except StoreRefused as error:
        assert error.code in error.codes
    else:
        assert end <= len(data)
        assert set(rows) == {row.call_id for row, _ in rows.values()}
