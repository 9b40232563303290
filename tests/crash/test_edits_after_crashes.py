"""Somebody edits a target between the crash and the next start: nothing of theirs and nothing of ours is lost."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.box import Box, seed
from tests.crash.checker import read
from tests.crash.content import text_of
from tests.crash.test_killed_recoveries import ALL_SYNCED, crash, last_publication, left_directories, settle

# Of a caller's second publication: all is on the disk and noted in the store, nothing has moved.
NOTHING_MOVED: list[object] = ["exchange", 3]


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, callers=1, dice=random.Random(seed())) as box:
        yield box


def first_text(box: Box) -> str:
    """What the caller's first publication wrote."""
    seen = read(box.store)
    [job] = [event["execution_job_id"] for event in seen.events if event["event"] == "commit"]
    return text_of(job, 1)


def publish(box: Box) -> list[str]:
    """Publish once more; the codes of what was answered."""
    server = box.fork("serve", callers=1)
    assert server.wait_for("up") is not None
    before = len(box.answers)
    box.begin(server, script=["publish"])
    assert server.wait_for("done") is not None
    box.kill(server)
    return [answer.get("code", answer["outcome"]) for answer in box.answers[before:]]


def test_a_target_that_was_replaced(box: Box) -> None:
    """Theirs stays, ours and the backup are kept, the target is refused until the operator has looked."""
    crash(box, ALL_SYNCED)
    page = box.workspace / "c0" / "page"
    (page.parent / "draft").write_text("theirs")
    (page.parent / "draft").replace(page)
    server = box.fork("serve", callers=1)
    up = server.wait_for("up")
    assert up is not None
    assert [str(page)] == up["locked"]
    seen = read(box.store)
    row = last_publication(seen)
    assert ("unresolved", 1) == (row["outcome"], row["needs_recovery"])
    assert ["unresolved"] == [
        event["event"] for event in seen.events if event["execution_job_id"] == row["job_id"] and "outcome" in event
    ]
    [place] = left_directories(box)
    assert "theirs" == page.read_text()
    assert first_text(box) in [path.read_text() for path in place.rglob("page")]
    assert first_text(box) == (box.workspace / "c0" / "site" / "index").read_text()
    box.kill(server)
    assert ["TARGET_LOCKED"] == publish(box)
    again = box.fork("recover", accept=[row["job_id"]])
    closed = again.wait_for("closed")
    assert closed is not None
    assert [] == closed["problems"]
    again.join()
    assert ("theirs", []) == (page.read_text(), left_directories(box))
    assert ["committed"] == publish(box)
    settle(box)


def test_a_target_that_was_edited_in_place(box: Box) -> None:
    """What had been published is taken back, and the edited copy of it is kept where the report says."""
    crash(box, ALL_SYNCED)
    page = box.workspace / "c0" / "page"
    with page.open("a") as file:
        file.write("edit")
    edited = page.read_text()
    server = box.start()
    assert first_text(box) == page.read_text()
    [place] = left_directories(box)
    assert [edited] == [path.read_text() for path in place.rglob("page")]
    row = last_publication(read(box.store))
    assert ("rolled_back", 0) == (row["outcome"], row["needs_recovery"])
    box.kill(server)
    shutil.rmtree(place)
    settle(box)


def test_a_target_that_had_not_moved_yet(box: Box) -> None:
    """An edit of what was to be replaced and was not is simply theirs."""
    crash(box, NOTHING_MOVED)
    page = box.workspace / "c0" / "page"
    page.write_text("theirs")
    server = box.start()
    assert ("theirs", []) == (page.read_text(), left_directories(box))
    assert "rolled_back" == last_publication(read(box.store))["outcome"]
    box.kill(server)
    assert ["committed"] == publish(box)
    settle(box)
