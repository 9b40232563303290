"""Processes that are killed at every step of publication, and recovery that is killed at every step of its own."""

import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import attrs
import pytest

from tests.kit.trees import Snapshot, listing, snapshot
from tests.publication.crashes import (
    JOB,
    NOBODY,
    TERMINAL,
    FileStore,
    Mounted,
    SteppedOps,
    Switch,
    call,
    in_process,
    restart,
)
from ztrio.policies import Output
from ztrio.publication.staging import Publisher
from ztrio.publication.targets import resolve_output

REPLACE_DIR = Output(kind="dir", existing="replace")
OUTPUTS = {
    "a": ("a.txt", Output()),
    "d": ("d", REPLACE_DIR),
    "n": ("new.txt", Output()),
    "m": ("newdir", Output(kind="dir")),
    "p": ("p/b.txt", Output()),  # on another mount, so with a job directory of its own
}
WORK: dict[str, str | dict[str, str]] = {"a": "new", "d": {"y": "new"}, "n": "new", "m": {"x": "new"}, "p": "new"}
NEW = {"a.txt": "new", "d/y": "new", "new.txt": "new", "newdir/x": "new", "p/b.txt": "new"}
KILLED = -signal.SIGKILL


@attrs.define
class Place:
    """A workspace of an ordinary user with targets of every sort, and the store beside it."""

    root: Path
    before: dict[str, Snapshot] = attrs.field(factory=dict)

    @property
    def workspace(self) -> Path:
        return self.root / "ws"

    @property
    def store(self) -> Path:
        return self.root / "store"

    def populate(self) -> None:
        """Begin anew."""
        self.clear()
        (self.workspace / "d").mkdir(parents=True)
        (self.workspace / "a.txt").write_text("old")
        (self.workspace / "a.txt").chmod(0o640)
        (self.workspace / "d" / "x").write_text("old")
        (self.workspace / "p").mkdir()
        (self.workspace / "p" / "b.txt").write_text("old")
        (self.workspace / "d").chmod(0o555)
        if os.geteuid() == 0:
            for path in (self.root, *self.root.rglob("*")):
                os.chown(path, NOBODY, NOBODY)
        self.before = self.look()

    def clear(self) -> None:
        """Remove everything, also as a user whom a directory does not let write in it."""
        for folder, _, _ in os.walk(self.root):
            Path(folder).chmod(0o755)
        for path in self.root.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def look(self) -> dict[str, Snapshot]:
        return {path: snapshot(self.workspace / path) for path, _ in OUTPUTS.values()}

    def made(self) -> dict[str, str]:
        files = (path for path in self.workspace.rglob("*") if path.is_file())
        return {str(path.relative_to(self.workspace)): path.read_text() for path in files}

    def outcome(self) -> str | None:
        row = FileStore(self.store).row(JOB)
        assert row is not None
        return None if row.outcome is None else str(row.outcome)

    def check(self) -> None:
        """All old or all new, as the row says; told once; and nothing is left of the call."""
        outcome = self.outcome()
        assert outcome in ("committed", "rolled_back", "not_started")
        if outcome == "committed":
            assert NEW == self.made()
        else:
            assert self.before == self.look()
        assert 1 == sum(name in TERMINAL for _, name, _ in FileStore(self.store).read().events)
        places = (self.workspace, self.workspace / "p")
        assert [] == [name for place in places for name in listing(place) if name.startswith(".")]


@pytest.fixture
def place() -> Iterator[Place]:
    """A place where an ordinary user can get at it."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ztrio-test-") as root:
        found = Place(Path(root).resolve())
        yield found
        found.clear()


def crash(place: Place, nth: int, *, commit: bool = True) -> bool:
    """Begin anew, and kill the call at its `nth` step; whether it got there."""
    place.populate()
    status = in_process(partial(call, place.workspace, place.store, OUTPUTS, WORK, nth=nth, commit=commit))
    assert status in (0, KILLED)
    return status == KILLED


def recover(place: Place, nth: int = 0) -> bool:
    """Recover in a process of its own, killed at its `nth` step; whether it got there."""
    mounted = Mounted(place.workspace / "p")
    status = in_process(partial(restart, place.workspace, place.store, nth=nth, real=mounted))
    assert status in (0, KILLED)
    return status == KILLED


@pytest.mark.case("R53")
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
def test_killed_at_every_step_of_a_call(place: Place, commit: bool) -> None:
    """Wherever a call is killed, the next start finds all targets old or all new, as the row says, and nothing else."""
    outcomes = set()
    for nth in itertools.count(1):
        if not crash(place, nth, commit=commit):
            break
        assert not recover(place)
        place.check()
        outcomes.add(place.outcome())
        assert not recover(place)
        place.check()
    assert nth > 60
    assert ({"rolled_back", "committed"} if commit else {"rolled_back"}) == outcomes - {"not_started"}


def prepare(workspace: Path, store: Path, nth: int) -> None:
    """Only prepare a call, killed at the `nth` step, before the store has heard of it."""
    switch = Switch(nth)
    switch.armed = False
    targets = [resolve_output(workspace, name, raw, policy) for name, (raw, policy) in OUTPUTS.items()]
    publisher = Publisher(workspace, ops=SteppedOps(switch, Mounted(workspace / "p")))
    publisher.sign(FileStore(store).store_id, durable=True)
    switch.watch_interpreter()
    switch.armed = True
    publisher.prepare(JOB, targets, label={"tool": "build"}).close()


def test_killed_while_it_is_prepared_and_not_stored_yet(place: Place) -> None:
    """Rows are written without waiting: what is left of a call that has none is found and removed all the same."""
    for nth in itertools.count(1):
        place.populate()
        status = in_process(partial(prepare, place.workspace, place.store, nth))
        assert not recover(place)
        assert place.before == place.look()
        places = (place.workspace, place.workspace / "p")
        assert [] == [name for folder in places for name in listing(folder) if name.startswith(".")], nth
        if status == 0:
            break
        assert status == KILLED
    assert nth > 30


def test_recovery_killed_one_step_further_each_time(place: Place) -> None:
    """Recovery may be killed again and again, each time a step further: the one that is not ends as any other."""
    for nth in itertools.count(1, 4):
        if not crash(place, nth):
            break
        for step in itertools.count(1):
            if not recover(place, step):
                break
        place.check()
    assert nth > 60


@pytest.mark.parametrize("committed", [False, True])
def test_recovery_killed_at_every_step_of_its_own(place: Place, committed: bool) -> None:
    """From the moment at which everything stands published: recovery killed at any step is taken up by the next."""

    def begin() -> None:
        place.populate()
        work = partial(call, place.workspace, place.store, OUTPUTS, WORK, nth=published)
        assert KILLED == in_process(work)

    published = next(nth for nth in itertools.count(40) if _state(place, nth) == committed)
    for step in itertools.count(1):
        begin()
        assert NEW.items() <= place.made().items()
        killed = recover(place, step)
        assert not recover(place)
        place.check()
        assert ("committed" if committed else "rolled_back") == place.outcome()
        if not killed:
            break
    assert step > (10 if committed else 40)


def _state(place: Place, nth: int) -> bool | None:
    """Whether a call killed at its `nth` step had committed; None if it had not published everything."""
    assert crash(place, nth)
    if not NEW.items() <= place.made().items():
        return None
    return place.outcome() == "committed"
