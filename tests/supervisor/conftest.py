"""Faults on demand in a durable store."""

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("tests.store.faults")

from tests.store.faults import Faults  # noqa: E402 - only now


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """Faults of the database on demand; everybody who waits for the end of one looks again soon."""
    monkeypatch.setattr("ztrio_sql.writer._RETRY", 0.02)
    monkeypatch.setattr("ztrio.ending._RETRY", 0.02)
    faults = Faults()
    yield faults
    if faults.gate is not None:
        faults.gate.set()
