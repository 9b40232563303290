"""Doing the same to two registries, and keeping books beside them."""

from __future__ import annotations

from typing import Any

from hypothesis.stateful import RuleBasedStateMachine

from tests.pending.fates import BOUNDS, POLICIES, PRINCIPALS, SCOPES, SERVERS, WATCHED, Fate
from tests.pending.tables import Tables
from ztrio.pending import (
    Begun,
    Mode,
    PendingSettings,
    Registry,
    Rejected,
    Transition,
)


class Twins(RuleBasedStateMachine):
    """Two registries: one of which everybody makes use, and one that only hears of the principal that is watched."""

    def __init__(self) -> None:
        super().__init__()
        self.mode = Mode.WARN
        self.registry = Registry(self.settings_of(self.mode))
        self.twin = Registry(self.settings_of(self.mode))
        self.now, self.seq, self.minted = 1000.0, 0, 0
        self.epochs = dict.fromkeys(SERVERS, 1)
        self.fates: dict[str, Fate] = {}
        self.tables = Tables()
        # Blockers that are alive, and the ones that they were merged into.
        self.members: dict[str, set[str]] = {}

    @staticmethod
    def settings_of(mode: Mode) -> PendingSettings:
        return PendingSettings(principals=PRINCIPALS, mode=mode, servers=POLICIES, bounds=BOUNDS)

    # ---- doing things, twice

    def do(self, principal: str | None, name: str, *arguments: Any, **facts: Any) -> list[Transition]:
        """Do something to the registry on behalf of a principal, or of nobody, and see what it says."""
        self.seq += 1
        others = {each: self.seen_by(self.registry, each) for each in PRINCIPALS if principal not in (None, each)}
        found: Any = Rejected("", None)
        expected: Any = None
        for registry in (self.registry, self.twin):
            if registry is self.twin and principal not in (None, WATCHED):
                break
            expected, found = found, self.attempt(registry, name, *arguments, now=self.now, seq=self.seq, **facts)
        if principal in (None, WATCHED):
            assert self.about(expected) == self.about(found), "it depends on others"
            found = expected if principal is None else found
        for each, before in others.items():
            assert before == self.seen_by(self.registry, each), f"{principal} changed something of {each}"
        if isinstance(found, Begun):
            self.note(found.transitions)
        elif isinstance(found, list):
            self.note(found)
        self.found = found
        return found if isinstance(found, list) else []

    @staticmethod
    def attempt(registry: Registry, name: str, *arguments: Any, **facts: Any) -> Any:
        try:
            return getattr(registry, name)(*arguments, **facts)
        except Rejected as rejected:
            return rejected

    @staticmethod
    def about(found: Any) -> Any:
        """That part of an answer which is about the principal that is watched."""
        if isinstance(found, Rejected):
            return (found.why, found.state)
        if isinstance(found, Begun):
            return (found.tracked, found.warning, Twins.about(found.transitions))
        if isinstance(found, list):
            return [each for each in found if each.call.principal == WATCHED]
        return found

    def seen_by(self, registry: Registry, principal: str) -> Any:
        """Everything that a principal can see or notice."""
        records = [
            (each.call, each.state, each.gating, each.observable, each.expires_at, each.settled_by, each.revision)
            for each in registry.entries(principal)
        ]
        gates = [registry.gates(server, principal, scope) for server in SERVERS for scope in SCOPES]
        account = registry._accounts[principal]
        return (records, gates, account.in_flight, account.late_waits, len(account.records))

    def note(self, transitions: list[Transition]) -> None:
        """Keep the machine's own books, and the tables of a store."""
        self.tables.write(each for each in transitions if each.changed)
        for each in transitions:
            if not each.changed:
                continue
            name = each.call.call_id
            if name.startswith("pcb_"):
                self.note_blocker(each)
                continue
            fate = self.fates[name]
            assert not fate.state.terminal or fate.state is each.after, "a final state has changed"
            fate.state = each.after
            fate.settled = fate.settled or each.event == "settle"
            fate.forgotten = fate.forgotten or each.forgotten
            assert fate.gates == each.gating
            if each.blocker is not None:
                fate.blocker = each.blocker
                self.members.setdefault(each.blocker, set()).add(name)

    def note_blocker(self, each: Transition) -> None:
        name = each.call.call_id
        if each.event == "merge" and each.blocker is not None:
            self.members.setdefault(each.blocker, set()).update(self.members.pop(name, ()))
            for member in self.members[each.blocker]:
                self.fates[member].blocker = each.blocker
        elif not each.gating:
            for member in self.members.pop(name, ()):
                self.fates[member].settled, self.fates[member].blocker = True, None
