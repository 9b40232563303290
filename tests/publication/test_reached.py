"""A directory from which renaming works is tried once, not for each call; so is what a mount is."""

import os
import sys
from pathlib import Path

import pytest

from ztrio.errors import OutputConflict
from ztrio.policies import Output
from ztrio.publication import identity
from ztrio.publication.exchange import FileOps
from ztrio.publication.staging import Publisher, Staging
from ztrio.publication.targets import resolve_output


def test_a_place_is_tried_once(workspace: Path) -> None:
    """Where renaming was found to work it is not tried again for each call, until a publication fails."""
    (workspace / "deep").mkdir()
    ops = CountingOps()
    publisher = Publisher(workspace, ops=ops)

    def call(name: str, *paths: str) -> Staging:
        targets = [resolve_output(workspace, path, path, Output()) for path in paths]
        return publisher.prepare(name, targets, label={})

    call("j1", "a", "b", "deep/c").discard()
    assert 2 == ops.exchanges  # of the workspace and of `deep`
    staging = call("j2", "a", "deep/c")
    assert 2 == ops.exchanges
    for path in staging.paths.values():
        Path(path).write_text("new")
    staging.inspect()
    (workspace / "a").write_text("theirs")
    with pytest.raises(OutputConflict):
        staging.publish()
    staging.roll_back()
    staging.discard()
    call("j3", "a").discard()
    assert 3 == ops.exchanges


def test_a_place_that_is_another_directory_by_now_is_tried_again(workspace: Path) -> None:
    """A directory that took the place of one that was tried is not trusted for that."""
    place = workspace / "deep"
    ops = CountingOps()
    publisher = Publisher(workspace, ops=ops)
    for name in ("j1", "j2"):
        place.mkdir()
        publisher.prepare(name, [resolve_output(workspace, "out", "deep/c", Output())], label={}).discard()
        place.rename(workspace / f"old-{name}")
    assert 2 == ops.exchanges


class CountingOps(FileOps):
    """Counts the probes of a publisher that publishes nothing."""

    exchanges = 0

    def exchange(self, first_fd: int, first: str, second_fd: int, second: str) -> None:
        """Count it, and do it."""
        self.exchanges += 1
        super().exchange(first_fd, first, second_fd, second)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has overlayfs")
def test_a_mount_is_asked_about_once(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found out about mounts does not grow without bound, and looks are the same with and without it."""
    asked: list[int] = []
    really_ask = identity._asked_whether_overlay

    def ask(fd: int) -> bool:
        asked.append(fd)
        return really_ask(fd)

    monkeypatch.setattr(identity, "_overlays", {})
    monkeypatch.setattr(identity, "_MAX_MOUNTS", 2)
    monkeypatch.setattr(identity, "_asked_whether_overlay", ask)
    (workspace / "file").touch()
    places = [os.open(path, os.O_PATH) for path in (workspace, "/dev", "/sys")]
    try:
        first = identity.look(places[0], "file")
        assert first == identity.look(places[0], "file")
        assert 1 == len(asked)
        for place in places[1:]:
            identity.look(place, "")
        assert len(identity._overlays) <= 2
        assert first == identity.look(places[0], "file")
    finally:
        for place in places:
            os.close(place)
