"""Takes things out of the library, one at a time, for the tests of the tests.

A mutant is a name: `row:STATE:EVENT` (a row of the table is gone), `cap:NAME` (a cap is infinite), or
`guard:MODULE:NUMBER` (the condition that refuses something is never true, or one operand of a condition is left out).
With `-p tests.pending.mutants` and `ZTRIO_MUTANT` set, pytest loads the library with that change: sources are rewritten
as they are imported, so what is tested is the real code minus one thing.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parent.parent.parent / "ztrio" / "pending"
# Where conditions decide who may do what, what opens a gate, and what fits.
GUARDED = (
    "access",
    "reconcile",
    "gate",
    "settings",
    "principals",
    "registry",
    "settling",
    "folding",
    "bounds",
    "tiers",
)
CAPS = (
    "records",
    "in_flight",
    "late_waits",
    "gating",
    "blockers",
    "kept",
    "streams",
    "principals",
    "ttl",
    "tombstone",
    "progress",
)
CONSTANTS = {"bounds": ("MAX_RECONCILES", "MAX_ROUNDS", "MAX_SHOWN"), "tiers": ("MAX_TOOLS",)}


class _Without(ast.NodeTransformer):
    """Leaves one thing out, by its number in the order of the source."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.seen = 0
        # The line, and what was there.
        self.found: tuple[int, str] | None = None

    def _is_it(self, node: ast.AST, what: str) -> bool:
        self.seen += 1
        if self.seen - 1 != self.number:
            return False
        self.found = (getattr(node, "lineno", 0), what)
        return True

    def visit_If(self, node: ast.If) -> ast.AST:
        """The condition is never true."""
        if self._is_it(node, f"if {ast.unparse(node.test)}"):
            node.test = ast.copy_location(ast.Constant(False), node.test)
        self.generic_visit(node)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """One operand of a condition is left out."""
        for index, value in enumerate(node.values):
            if self._is_it(node, f"{ast.unparse(value)} in {ast.unparse(node)}"):
                rest = [each for each in node.values if each is not node.values[index]]
                return rest[0] if len(rest) == 1 else ast.copy_location(ast.BoolOp(node.op, rest), node)
        self.generic_visit(node)
        return node


def without(source: str, number: int) -> tuple[str, tuple[int, str]] | None:
    """The source without its thing of that number, the line and what was there; None when there is no such thing."""
    visitor = _Without(number)
    tree = ast.fix_missing_locations(visitor.visit(ast.parse(source)))
    return None if visitor.found is None else (ast.unparse(tree), visitor.found)


def guards(module: str) -> Iterator[tuple[str, int, str]]:
    """Every guard of a module: name of the mutant, line, what is left out."""
    source, number = (FOLDER / f"{module}.py").read_text(), 0
    while (found := without(source, number)) is not None:
        yield f"guard:{module}:{number}", *found[1]
        number += 1


def mutants() -> Iterator[tuple[str, str]]:
    """Every mutant, and what it leaves out."""
    from ztrio.pending.states import TABLE

    for state, event in TABLE:
        yield f"row:{state}:{event}", f"{state}, {event}"
    for cap in CAPS:
        yield f"cap:{cap}", f"Bounds.{cap}"
    for module, names in CONSTANTS.items():
        for name in names:
            yield f"constant:{module}:{name}", name
    for module in GUARDED:
        for name, line, what in guards(module):
            yield name, f"{module}.py:{line}: {what}"


def mutated(name: str, module: str, source: str) -> str:
    """The source of a module of the library, in the mutant of that name."""
    kind, _, rest = name.partition(":")
    if kind == "row" and module == "states":
        state, event = rest.split(":")
        key = f"State({state!r}), Event({event!r})"
        return source + f"\n_left = dict(TABLE)\ndel _left[{key}]\nTABLE = MappingProxyType(_left)\n"
    if kind == "cap" and module == "bounds":
        huge = "1e12" if rest in ("ttl", "tombstone", "progress") else "10**9"
        return source + (
            f"\n_init = Bounds.__init__\n"
            f"def _without(self, **caps):\n    _init(self, **caps)\n    object.__setattr__(self, {rest!r}, {huge})\n"
            f"Bounds.__init__ = _without\n"
        )
    if kind == "constant" and rest.startswith(f"{module}:"):
        name = rest.partition(":")[2]
        return source + f"\n{name} = {name} * 4\n"
    if kind == "guard" and rest.startswith(f"{module}:"):
        found = without(source, int(rest.partition(":")[2]))
        assert found is not None, name
        return found[0]
    return source


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> object:  # type: ignore[override]
        source = mutated(os.environ["ZTRIO_MUTANT"], fullname.rpartition(".")[2], Path(self.path).read_text())
        return compile(source, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("ztrio.pending."):
            return None
        place = FOLDER / f"{fullname.rpartition('.')[2]}.py"
        loader: Loader = _Loader(fullname, str(place))
        return importlib.util.spec_from_file_location(fullname, place, loader=loader)


if "ZTRIO_MUTANT" in os.environ:
    assert "ztrio.pending" not in sys.modules, "too late"
    sys.meta_path.insert(0, _Finder())
