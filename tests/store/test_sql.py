"""The durable store keeps what every store promises."""

from pathlib import Path

import pytest

from tests.store.contract import StoreContract
from tests.store.rows import Clock, OpenStore
from ztrio_sql import open_store as open_sql


class TestSqlStore(StoreContract):
    @pytest.fixture
    def open_store(self, tmp_path: Path, clock: Clock) -> OpenStore:
        """The store in a file."""
        return lambda: open_sql(tmp_path / "state.db", now=clock)
