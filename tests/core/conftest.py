"""The contract suite is no test file of its own; its assertions shall still explain themselves."""

import pytest

pytest.register_assert_rewrite("tests.core.store_contract")
