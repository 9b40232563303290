"""The tests of the tests: whatever is taken out of the library, a row, a cap or a guard, some test notices.

`ZTRIO_MUTATION=1` takes out each of them, one at a time, in about twenty minutes; without it some of each kind go.
"""

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.pending.mutants import mutants
from tests.pending.pairs import happens_as_the_table_says
from ztrio.pending import Event, State, reconcile, states
from ztrio.pending.states import TABLE, Effect, Rule

ROOT = Path(__file__).parent.parent.parent
ALL = os.environ.get("ZTRIO_MUTATION", "") == "1"
SOME = (
    "row:unresolved:late_response",
    "cap:gating",
    "guard:access:0",
    "guard:reconcile:0",
)
# What the tests under a mutant are: everything of the core that is quick. The histories take their time, and the
# documentation is made from the same table.
NOT = "not any_history and not ten_thousand and not loads_without and not two_triples and not documentation"
# Where the mutants of a module are noticed first, which saves most of the time.
FIRST = {
    "row": "table",
    "cap": "bounds",
    "constant": "call",
    "access": "access",
    "reconcile": "reconcile",
    "gate": "ways_out",
    "settings": "gate",
    "principals": "principals",
    "registry": "call",
    "settling": "cancel",
    "folding": "folding",
    "bounds": "room",
    "tiers": "tiers",
}
# Left out, these change nothing that anybody could see.
EQUIVALENT: dict[str, str] = {}


def run(mutant: str) -> int:
    """The exit status of the tests of the core under a mutant: 1 when a test failed, 0 when none did."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.pending.mutants", "-p", "no:cacheprovider", "-x", "-q"]
    command += ["-o", "timeout=30"]  # a test that never ends has noticed, too
    command += ["-k", NOT, "--ignore-glob=*test_shell_*", "--ignore-glob=*test_mutations*"]
    kind, _, rest = mutant.partition(":")
    likely = FIRST.get(rest.partition(":")[0] if kind == "guard" else kind)
    command += [f"tests/pending/test_{likely}.py"] if likely is not None else []
    command.append("tests/pending")
    environment = {
        **os.environ,
        "ZTRIO_MUTANT": mutant,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    environment.pop("COVERAGE_PROCESS_START", None)
    environment.pop("COVERAGE_PROCESS_CONFIG", None)
    with tempfile.TemporaryDirectory() as place:
        environment["TMPDIR"] = place
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, timeout=300, check=False
        ).returncode


@pytest.mark.req("P1", "P13", "P49")
@pytest.mark.timeout(3600 if ALL else 120)
def test_whatever_is_taken_out_is_noticed() -> None:
    """With nothing taken out all tests pass; without any one row, cap or guard some test fails."""
    what = {name: text for name, text in mutants() if ALL or name in SOME}
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(("nothing", *what), pool.map(run, ("nothing", *what)), strict=True))
    assert 0 == found.pop("nothing")
    survivors = [f"{name} ({status}): {what[name]}" for name, status in found.items() if status != 1]
    assert [] == [each for each in survivors if each.partition(": ")[2].partition(": ")[2] not in EQUIVALENT]


@pytest.mark.req("P1")
@pytest.mark.parametrize("pair", [pair for pair, each in TABLE.items() if each.effect is Effect.MOVE], ids="-".join)
def test_a_move_that_does_not_happen_is_noticed(pair: tuple[State, Event], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each move is not only in the table: without it an operation on a call does not do what is promised."""
    poorer = dict(TABLE) | {pair: Rule(Effect.NOTHING)}
    monkeypatch.setattr(states, "TABLE", poorer)
    monkeypatch.setattr(reconcile, "TABLE", poorer)
    with pytest.raises((AssertionError, ValueError)):
        happens_as_the_table_says(pair[0])
