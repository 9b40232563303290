"""The audit as a file: private, whole lines, nothing lost when the disk is full."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from ztrio.audit import AuditBus, AuditEvent
from ztrio.audit_file import AuditFile
from ztrio.errors import Outcome, StoreUnavailable


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The events of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


async def written(path: Path, *events: AuditEvent) -> list[AuditEvent]:
    """Publish the events to a file, from opening to closing; the events as they were stamped."""
    bus, file = AuditBus(), AuditFile(path)
    file.open()
    async with trio.open_nursery() as nursery, bus.subscribe(durable=True) as subscription:
        nursery.start_soon(file.write_all, bus, subscription)
        stamped = [bus.publish(event) for event in events]
        bus.close()
    return stamped


async def test_every_event_is_a_line(tmp_path: Path) -> None:
    """Each event is one line of JSON, exactly: big integers, other scripts, quotes and newlines."""
    path = tmp_path / "audit.jsonl"
    stamped = await written(
        path,
        AuditEvent(event="allow", request_id=2**63 + 1, session="é漢𝄞", arguments={"n": 10**30, "t": 'a\n"b"\u2028'}),
        AuditEvent(event="commit", outcome=Outcome.COMMITTED, targets=("/ws/a",), proof={"pids": [1]}),
    )
    assert [event.as_dict() for event in stamped] == lines_of_bytes(path)
    assert "é漢𝄞".encode() in path.read_bytes()
    assert path.read_bytes().endswith(b"}\n")


def lines_of_bytes(path: Path) -> list[dict[str, Any]]:
    """The events of a file, split at newlines and nothing else."""
    *lines, last = path.read_bytes().split(b"\n")
    assert b"" == last
    return [json.loads(line) for line in lines]


@pytest.mark.case("R34")
async def test_text_that_is_no_utf8_does_not_end_the_audit(tmp_path: Path) -> None:
    """A lone surrogate, as an id or a tool's name may hold, is written as its JSON escape."""
    path = tmp_path / "audit.jsonl"
    await written(path, AuditEvent(event="deny", tool="\ud800", request_id="é\udfff"), AuditEvent(event="allow"))
    first, second = lines_of_bytes(path)
    assert ("\ud800", "é\udfff", "allow") == (first["tool"], first["request_id"], second["event"])


async def test_the_file_is_private_and_grows(tmp_path: Path) -> None:
    """File 0600 and folder 0700 whatever the umask allows; opened again, it is appended to."""
    path = tmp_path / "state" / "audit.jsonl"
    before = os.umask(0)
    try:
        await written(path, AuditEvent(event="allow"))
    finally:
        os.umask(before)
    assert (0o600, 0o700) == (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode))
    await written(path, AuditEvent(event="commit"))
    assert ["allow", "commit"] == [line["event"] for line in lines_of(path)]


async def test_a_torn_last_line_is_ended(tmp_path: Path) -> None:
    """What a crash left half written stays one bad line and does not spoil the next one."""
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b'{"seq": 1}\n{"seq": 2, "ev')
    await written(path, AuditEvent(event="allow"))
    assert [b'{"seq": 1}', b'{"seq": 2, "ev'] == path.read_bytes().split(b"\n")[:2]
    assert "allow" == json.loads(path.read_bytes().split(b"\n")[2])["event"]


async def test_a_whole_file_is_left_as_it_is(tmp_path: Path) -> None:
    """No blank line is added where the last line is whole, nor to an empty file."""
    for content in (b"", b'{"seq": 1}\n'):
        path = tmp_path / f"audit{len(content)}.jsonl"
        path.write_bytes(content)
        await written(path)
        assert content == path.read_bytes()


@pytest.mark.parametrize("kind", ["link", "dangling", "directory", "file as folder"])
def test_what_cannot_be_opened_is_refused(tmp_path: Path, kind: str) -> None:
    """A link is not followed, and nothing is served where the audit cannot be written; no descriptor is left."""
    path = tmp_path / "audit.jsonl"
    elsewhere = tmp_path / "elsewhere"
    if kind == "directory":
        path.mkdir()
    elif kind == "file as folder":
        elsewhere.write_text("")
        path = elsewhere / "audit.jsonl"
    else:
        if kind == "link":
            elsewhere.write_text("theirs")
        path.symlink_to(elsewhere)
    file = AuditFile(path)
    with pytest.raises(StoreUnavailable, match=f"The audit file {path} cannot be opened: .* Nothing ran.") as caught:
        file.open()
    assert isinstance(caught.value.__cause__, OSError)
    file.close()
    expected = {"link": "theirs", "file as folder": ""}.get(kind)
    assert expected == (elsewhere.read_text() if elsewhere.exists() else None)


def test_a_file_that_cannot_even_be_mended_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the torn line cannot be ended, opening fails and leaves no descriptor."""
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b"torn")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ztrio.audit_file.os.write", full)
    file = AuditFile(path)
    with pytest.raises(StoreUnavailable, match="No space left on device"):
        file.open()
    assert b"torn" == path.read_bytes()


async def test_a_full_disk_is_an_outage_and_loses_nothing(tmp_path: Path) -> None:
    """Writing fails: new mutating calls are refused. Writing works again: everything is there, once and in order."""
    path = tmp_path / "audit.jsonl"
    bus, file = AuditBus(), AuditFile(path)
    file.open()
    good, full = os.dup(file._fd), os.open("/dev/full", os.O_WRONLY)
    try:
        os.dup2(full, file._fd)
        async with trio.open_nursery() as nursery, bus.subscribe(durable=True) as subscription:
            nursery.start_soon(file.write_all, bus, subscription)
            for _ in range(3):
                bus.publish(AuditEvent(event="allow"))
            with trio.fail_after(5):
                await bus.wait_unavailable()
            assert ["the audit file cannot be written: [Errno 28] No space left on device"] == [bus.unavailable]
            bus.publish(AuditEvent(event="rollback"))
            os.dup2(good, file._fd)
            with trio.fail_after(5):
                await bus.wait_available()
            bus.publish(AuditEvent(event="allow"))
            bus.close()
    finally:
        os.close(good)
        os.close(full)
    assert [1, 2, 3, 4, 5] == [line["seq"] for line in lines_of(path)]


async def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that takes a few bytes at a time gets them all."""
    real = os.write
    monkeypatch.setattr("ztrio.audit_file.os.write", lambda fd, data: real(fd, data[:7]))
    path = tmp_path / "audit.jsonl"
    stamped = await written(path, *(AuditEvent(event="allow") for _ in range(5)))
    assert [event.as_dict() for event in stamped] == lines_of(path)


async def test_many_events_keep_their_order(tmp_path: Path) -> None:
    """More events than one batch holds arrive completely and in order."""
    path = tmp_path / "audit.jsonl"
    await written(path, *(AuditEvent(event="allow") for _ in range(700)))
    assert list(range(1, 701)) == [line["seq"] for line in lines_of(path)]


async def test_the_events_of_a_moment_are_one_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    """Events that follow one another closely go to the disk together, a moment after the first."""
    real = os.write
    sizes: list[int] = []

    def write(fd: int, data: bytes) -> int:
        sizes.append(data.count(b"\n"))
        return real(fd, data)

    monkeypatch.setattr("ztrio.audit_file.os.write", write)
    bus, file = AuditBus(), AuditFile(tmp_path / "audit.jsonl")
    file.open()
    async with bus.subscribe(durable=True) as subscription, trio.open_nursery() as nursery:
        nursery.start_soon(file.write_all, bus, subscription)
        for _ in range(3):
            bus.publish(AuditEvent(event="allow"))
            await trio.testing.wait_all_tasks_blocked()
        assert [] == sizes
        mock_clock.jump(0.1)
        bus.publish(AuditEvent(event="commit"))
        bus.close()
    assert [4] == sizes


async def test_a_cancelled_writer_closes_its_file(tmp_path: Path) -> None:
    """However writing ends, the descriptor is closed; closing twice is harmless."""
    bus, file = AuditBus(), AuditFile(tmp_path / "audit.jsonl")
    file.open()
    async with bus.subscribe(durable=True) as subscription, trio.open_nursery() as nursery:
        nursery.start_soon(file.write_all, bus, subscription)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert -1 == file._fd
    file.close()
