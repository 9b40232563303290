"""A restart after any history: which gates the next process has to find shut."""

from __future__ import annotations

from tests.pending.box import WALL
from tests.pending.checks import check_accounts
from tests.pending.fates import PRINCIPALS, SCOPES, SERVERS, Fate
from tests.pending.twins import Twins
from ztrio.pending import Blocker, Registry, State, Tier, Transport


def check_restart(machine: Twins) -> None:
    """Assert that a registry made from the tables alone gates what has to gate, and nothing else."""
    after = Registry(machine.settings_of(machine.mode))
    rows = sorted(machine.tables.journal.values(), key=lambda row: row.seq)
    after.restore(rows, machine.tables.activity, now=0.0, wall=WALL + machine.now, seq=machine.seq + 1)
    check_accounts(after)
    gating = {
        (fate.call.principal, fate.call.server, fate.call.gate_scope)
        for fate in machine.fates.values()
        if stays(machine, fate)
    }
    for principal in PRINCIPALS:
        for server in SERVERS:
            covering = after.covering(server, principal, "*")
            wide = covering is not None and covering.wide
            assert not wide or any((principal, server, scope) in gating for scope in SCOPES)
            for scope in SCOPES:
                assert ((principal, server, scope) in gating or wide) == after.gates(server, principal, scope)


def stays(machine: Twins, fate: Fate) -> bool:
    """Whether a call gates after a restart: those of processes only where they were held already."""
    if fate.tier is Tier.READ or not fate.tracked:
        return False
    if not (fate.gates or fate.state in (State.RESERVED, State.SENT)):
        return False
    blocker = None if fate.blocker is None else machine.registry.get(fate.blocker)
    if isinstance(blocker, Blocker):
        return blocker.stays or SERVERS[fate.call.server] is not Transport.STDIO
    return SERVERS[fate.call.server] is not Transport.STDIO or fate.state is State.EXPIRED
