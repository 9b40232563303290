"""The contract suite is no test file; its assertions shall still explain themselves. And faults on demand."""

from collections.abc import Iterator

import pytest

for name in (
    "contract",
    "contract_ends",
    "contract_keys",
    "contract_log",
    "contract_pending",
    "contract_sessions",
    "faults",
    "rows",
):
    pytest.register_assert_rewrite(f"tests.store.{name}")

from tests.store.faults import Faults  # noqa: E402 - only now


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """Faults on demand; the store tries again soon."""
    monkeypatch.setattr("ztrio_sql.writer._RETRY", 0.02)
    faults = Faults()
    yield faults
    if faults.gate is not None:
        faults.gate.set()
