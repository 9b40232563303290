"""Faults at every operation, and rolling back."""

import errno
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.trees import Snapshot, fill, listing, snapshot
from tests.publication.conftest import Stage
from ztrio.errors import OutputConflict, OutputRefused
from ztrio.policies import Output
from ztrio.publication.staging import Publisher, Staging
from ztrio.publication.targets import resolve_output
from ztrio.testing.faults import FaultyOps

REPLACE_DIR = Output(kind="dir", existing="replace")
OPERATIONS = (
    "open_directory",
    "list_directory",
    "stat",
    "digest",
    "exchange",
    "move_new",
    "set_mode",
    "carry_metadata",
    "write_file",
)
FAULTS = (
    OSError(errno.EXDEV, "Invalid cross-device link"),
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EIO, "Input/output error"),
    MemoryError(),
    KeyboardInterrupt(),
)
OUTPUTS = {
    "a": ("a.txt", Output()),
    "d": ("d", REPLACE_DIR),
    "n": ("new.txt", Output()),
    "m": ("newdir", Output(kind="dir")),
    "c": ("c.txt", Output(existing="copy_in")),
}
WORK: dict[str, str | dict[str, str]] = {
    "a": "new",
    "d": {"y/z": "new"},
    "n": "new",
    "m": {"x": "new"},
    "c": "old and new",
}


def populate(workspace: Path) -> dict[str, Snapshot]:
    """Targets of every sort, the directory without write permission for its owner."""
    (workspace / "a.txt").write_text("old")
    (workspace / "a.txt").chmod(0o640)
    (workspace / "d" / "sub").mkdir(parents=True)
    (workspace / "d" / "sub" / "x").write_text("old")
    (workspace / "d").chmod(0o555)
    (workspace / "c.txt").write_text("old")
    return look(workspace)


def look(workspace: Path) -> dict[str, Snapshot]:
    """All targets as they are now."""
    return {name: snapshot(workspace / path) for name, (path, _) in OUTPUTS.items()}


class Workplace:
    """One workspace used for many faults, without the cost of a test for each."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        self.before = populate(workspace)
        self._ids = itertools.count()

    def prepare(self, ops: FaultyOps) -> Staging:
        targets = [resolve_output(self.workspace, name, raw, policy) for name, (raw, policy) in OUTPUTS.items()]
        return Publisher(self.workspace, ops=ops).prepare(f"w{next(self._ids)}", targets, label={})

    def filled(self, ops: FaultyOps) -> Staging:
        """A staging in which the tool has done its work; no fault before that."""
        ops.armed = False
        staging = self.prepare(ops)
        fill(staging, WORK)
        return staging

    def assert_untouched(self) -> None:
        assert self.before == look(self.workspace)
        assert ["a.txt", "c.txt", "d"] == listing(self.workspace)


@pytest.fixture
def workplace(workspace: Path) -> Iterator[Workplace]:
    place = Workplace(workspace)
    yield place
    place.assert_untouched()


def descriptors() -> int:
    """How many descriptors are open."""
    return len(listing(Path("/proc/self/fd")))


def faults(operation: str, nth: int) -> Sequence[BaseException]:
    """Every class of exception where files move, elsewhere one after the other as `nth` goes on."""
    if operation in ("exchange", "move_new", "carry_metadata"):
        return FAULTS
    return [FAULTS[nth % len(FAULTS)]]


def raised(*steps: Callable[[], object]) -> BaseException | None:
    """What the steps raise, if anything."""
    try:
        for step in steps:
            step()
    except BaseException as error:
        return error
    return None


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_fault_in_prepare_leaves_nothing(workplace: Workplace, operation: str, after: bool) -> None:
    """Whatever fails while staging is made, before or after taking effect: no directory, no descriptor, no change."""
    for nth in itertools.count(1):
        for fault in faults(operation, nth):
            ops = FaultyOps(operation, fault, nth=nth, after=after)
            open_before = descriptors()
            stagings: list[Staging] = []
            error = raised(lambda: stagings.append(workplace.prepare(ops)))  # noqa: B023 - called at once
            for staging in stagings:  # a target that seems to be on another mount just gets its slot elsewhere
                staging.discard()
            if isinstance(fault, OSError) and isinstance(error, OutputRefused):
                assert error.code == "OUTPUT_NOT_WRITABLE"
            else:
                assert error in (None, fault)
            assert open_before == descriptors()
            workplace.assert_untouched()
        if not ops.fired:
            break


@pytest.mark.case("R50")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_fault_in_publication_puts_every_target_back(workplace: Workplace, operation: str, after: bool) -> None:
    """An exception of any class at any operation of inspection or publication: every target is bit-identical again."""
    struck = 0
    for nth in itertools.count(1):
        for fault in faults(operation, nth):
            ops = FaultyOps(operation, fault, nth=nth, after=after)
            staging = workplace.filled(ops)
            ops.armed = True
            error = raised(staging.inspect, staging.publish)
            ops.armed = False
            struck += ops.fired
            assert error in (None, fault) or (isinstance(fault, OSError) and isinstance(error, OutputConflict))
            assert (error is not None) == ops.fired or operation == "digest"
            assert () == staging.roll_back()
            assert () == staging.roll_back()
            assert workplace.before == look(workplace.workspace)
            assert () == staging.discard()
            workplace.assert_untouched()
        if not ops.fired:
            break
    assert struck > 0


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("operation", ["stat", "exchange", "move_new", "set_mode", "list_directory", "open_directory"])
def test_a_fault_in_the_rollback_is_mended_by_repeating_it(workplace: Workplace, operation: str, after: bool) -> None:
    """A rollback that fails puts back everything else, deletes no backup, and does the rest when it is repeated."""
    for nth in itertools.count(1):
        for fault in faults(operation, nth):
            ops = FaultyOps(operation, fault, nth=nth, after=after)
            staging = workplace.filled(ops)
            staging.inspect()
            staging.publish()
            ops.armed = True
            error = raised(staging.roll_back)
            ops.armed = False
            assert error is (fault if ops.fired else None)
            if isinstance(error, Exception):
                wrong = sum(workplace.before[name] != found for name, found in look(workplace.workspace).items())
                assert wrong <= 1
            assert () == staging.roll_back()
            assert () == staging.discard()
            workplace.assert_untouched()
        if not ops.fired:
            break


def test_a_rollback_that_failed_keeps_its_backups(workspace: Path, stage: Stage) -> None:
    """A rollback that could not be completed leaves the old content in the job directory."""
    (workspace / "a").write_text("old")
    ops = FaultyOps("exchange", OSError(errno.EIO, "Input/output error"), nth=3)
    staging = stage({"out": ("a", Output())}, ops=ops)
    fill(staging, {"out": "new"})
    staging.inspect()
    staging.publish()
    with pytest.raises(OSError, match="Input/output"):
        staging.roll_back()
    assert "old" == Path(staging.paths["out"]).read_text()
    assert () == staging.roll_back()
    assert "old" == (workspace / "a").read_text()
    assert () == staging.discard()


@pytest.mark.case("R50")
def test_cross_device_at_the_second_of_three_files(workspace: Path, stage: Stage) -> None:
    """EXDEV while the second of three files is published: all three are the old ones again."""
    for name in "abc":
        (workspace / name).write_text(f"old {name}")
    before = {name: snapshot(workspace / name) for name in "abc"}
    ops = FaultyOps("exchange", OSError(errno.EXDEV, "Invalid cross-device link"), nth=3)  # a probe and `a` before
    staging = stage({name: (name, Output()) for name in "abc"}, ops=ops)
    fill(staging, dict.fromkeys("abc", "new"))
    staging.inspect()
    with pytest.raises(OSError, match="cross-device"):
        staging.publish()
    assert "new" == (workspace / "a").read_text()
    assert "old b" == (workspace / "b").read_text()
    assert () == staging.roll_back()
    assert before == {name: snapshot(workspace / name) for name in "abc"}


def publish_one(workspace: Path, stage: Stage, *, existing: bool, ops: FaultyOps | None = None) -> Staging:
    """Publish `a` and `b`; `b` exists before, `a` if asked."""
    if existing:
        (workspace / "a").write_text("old")
    (workspace / "b").write_text("old b")
    staging = stage({"b": ("b", Output()), "out": ("a", Output())}, ops=ops)
    fill(staging, {"out": "ours", "b": "ours"})
    staging.inspect()
    staging.publish()
    return staging


@pytest.mark.leaves("the backup is kept because somebody replaced what was published")
@pytest.mark.parametrize("existing", [True, False])
@pytest.mark.parametrize("when", ["before the rollback", "in the middle of it"])
def test_what_somebody_put_over_ours_is_kept(workspace: Path, stage: Stage, existing: bool, when: str) -> None:
    """If the target is not what we published any more, it and the backup stay and are told; the rest goes back."""
    target = workspace / "a"

    def somebody() -> None:
        (workspace / "other").write_text("theirs")
        (workspace / "other").rename(target)

    operation, nth = ("exchange", 4) if existing else ("move_new", 3)
    ops = FaultyOps(operation if when == "in the middle of it" else None, nth=nth, then=somebody)
    staging = publish_one(workspace, stage, existing=existing, ops=ops)
    if when == "before the rollback":
        somebody()
    assert (str(target),) == staging.roll_back() == staging.roll_back()
    assert "theirs" == target.read_text()
    assert "old b" == (workspace / "b").read_text()
    assert (str(staging.job_directory),) == staging.discard()
    if existing:
        assert "old" == Path(staging.paths["out"]).read_text()


@pytest.mark.leaves("the backup is kept because somebody removed what was published")
@pytest.mark.parametrize("existing", [True, False])
def test_ours_that_somebody_removed_is_not_replaced_by_the_old(workspace: Path, stage: Stage, existing: bool) -> None:
    """If somebody removed what we published, a rollback does not undo that either; the backup is kept and told."""
    staging = publish_one(workspace, stage, existing=existing)
    (workspace / "a").unlink()
    assert (str(workspace / "a"),) == staging.roll_back()
    assert not (workspace / "a").exists()
    assert [str(staging.job_directory)] == list(staging.discard())


@pytest.mark.leaves("somebody's edit of what was published is kept")
@pytest.mark.parametrize("existing", [True, False])
def test_an_edit_of_ours_is_not_thrown_away(workspace: Path, stage: Stage, existing: bool) -> None:
    """If somebody edited what we published in place, the old content comes back and their edit is kept and told."""
    staging = publish_one(workspace, stage, existing=existing)
    (workspace / "a").write_text("ours, edited by them")
    assert (staging.paths["out"],) == staging.roll_back()
    assert existing == (workspace / "a").exists()
    assert "ours, edited by them" == Path(staging.paths["out"]).read_text()
    assert (str(staging.job_directory),) == staging.discard()


def test_closing_leaves_everything_in_place(workspace: Path, stage: Stage) -> None:
    """`close` lets go of the descriptors only, for a call that is settled by somebody else later."""
    open_before = descriptors()
    staging = publish_one(workspace, stage, existing=True)
    staging.close()
    staging.close()
    assert open_before == descriptors()
    assert "old" == Path(staging.paths["out"]).read_text()
    for place in sorted(staging.job_directory.rglob("*"), reverse=True):
        place.rmdir() if place.is_dir() else place.unlink()
    staging.job_directory.rmdir()


_NAMES = st.sampled_from(["a", "b", "c", "d"])
_TREES = st.recursive(st.binary(max_size=20), lambda below: st.dictionaries(_NAMES, below, max_size=3), max_leaves=8)


def plant(place: Path, tree: object) -> None:
    """Make a tree."""
    if isinstance(tree, bytes):
        place.write_bytes(tree)
    else:
        assert isinstance(tree, dict)
        place.mkdir()
        for name, below in tree.items():
            plant(place / name, below)


def harvest(place: Path) -> object:
    """Read a tree."""
    return {below.name: harvest(below) for below in place.iterdir()} if place.is_dir() else place.read_bytes()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    outputs=st.lists(st.tuples(st.none() | _TREES, _TREES), min_size=1, max_size=4),
    fault=st.none() | st.tuples(st.sampled_from(OPERATIONS), st.integers(1, 40), st.booleans()),
)
def test_publication_is_all_or_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    outputs: list[tuple[object, object]],
    fault: tuple[str, int, bool] | None,
) -> None:
    """For any trees and any fault, either every target is the new one, or every target is bit-identical to before."""
    workspace = tmp_path_factory.mktemp("trees").resolve()
    targets = []
    for index, (old, new) in enumerate(outputs):
        kind = "file" if isinstance(new, bytes) else "dir"
        if old is not None and isinstance(old, bytes) == isinstance(new, bytes):
            plant(workspace / str(index), old)
        targets.append(
            resolve_output(workspace, str(index), str(index), Output(kind=kind, existing="replace"))  # type: ignore[arg-type]
        )
    before = snapshot(workspace)
    error = OSError(errno.EIO, "Input/output error")
    operation, nth, after = fault or (None, 1, False)
    ops = FaultyOps(operation, error, nth=nth, after=after)
    ops.armed = False
    staging = Publisher(workspace, ops=ops).prepare("h", targets, label={})
    try:
        for index, (_, new) in enumerate(outputs):
            plant(Path(staging.paths[str(index)]), new)
        ops.armed = True
        try:
            staging.inspect()
            staging.publish()
        except (OSError, OutputConflict):
            ops.armed = False
            assert () == staging.roll_back()
        else:
            for index, (_, new) in enumerate(outputs):
                assert new == harvest(workspace / str(index))
            if fault is None:
                assert () == staging.roll_back()
            else:
                return
        staging.discard()
        after_all = snapshot(workspace)
        del before["."], after_all["."]  # the workspace's own times
        assert before == after_all
    finally:
        staging.discard()
