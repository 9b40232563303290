"""A workspace, and stagings in it that end with the test."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from ztrio.policies import Output
from ztrio.publication.exchange import FileOps
from ztrio.publication.inspect import OutputLimits
from ztrio.publication.staging import Publisher, Staging
from ztrio.publication.targets import resolve_output

Stage = Callable[..., Staging]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """An empty workspace."""
    place = tmp_path.resolve() / "ws"
    place.mkdir()
    return place


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where a store that outlives its process has its file; it is not there yet."""
    return tmp_path / "store"


@pytest.fixture
def stage(workspace: Path) -> Iterator[Stage]:
    """Prepare a staging: `stage({"out": ("a.txt", Output())}, ops=…)`; discarded at the end of the test."""
    with ExitStack() as stack:
        count = 0

        def make(
            outputs: Mapping[str, tuple[str, Output]],
            *,
            ops: FileOps | None = None,
            limits: OutputLimits | None = None,
            place: Path = workspace,
        ) -> Staging:
            nonlocal count
            count += 1
            targets = [resolve_output(place, name, raw, policy) for name, (raw, policy) in outputs.items()]
            staging = Publisher(place, ops=ops, limits=limits).prepare(f"t{count}", targets, label={"tool": "test"})
            stack.callback(staging.discard)
            return staging

        yield make
