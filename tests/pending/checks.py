"""Every cap, count and index of a registry, computed anew from its records alone."""

from __future__ import annotations

from collections import Counter

from ztrio.pending import Blocker, Record, Registry, State, Tier, Transport
from ztrio.pending.bounds import Account
from ztrio.pending.indexes import due


def check_accounts(registry: Registry) -> None:
    """Assert that everything agrees."""
    bounds, indexes = registry.settings.bounds, registry._indexes
    everything: dict[str, Record] = {}
    for principal, account in registry._accounts.items():
        assert principal == account.principal
        assert all(record.call.principal == principal for record in account.records.values())
        check_account(registry, account)
        everything |= account.records
    assert everything == indexes.records
    assert len(indexes._heap) <= 2 * bounds.records * len(registry._accounts) + 65
    pending = {id(record) for when, tie, record in indexes._heap if indexes._valid(when, tie, record)}
    for record in everything.values():
        if due(record, bounds.tombstone) < float("inf") and not record.overdue:
            assert id(record) in pending, "nobody would wake it up"
    for (instance, wire_id), record in indexes._wires.items():
        assert (instance, wire_id) == (record.call.lease.instance, record.wire_ids[-1])
        assert everything[record.call.call_id] is record
    server_of = [(each.call.server, each.state) for each in everything.values()]
    assert Counter(server for server, state in server_of if state is State.RESERVED) == registry._reserved
    assert Counter(server for server, state in server_of if state is State.SENT) == registry._sent


def check_account(registry: Registry, account: Account) -> None:
    """Assert it of one account."""
    settings, bounds, records = registry.settings, registry.settings.bounds, list(account.records.values())
    assert len(records) <= bounds.records
    assert len(account.unsent) <= bounds.in_flight
    assert account.in_flight == sum(record.in_flight for record in records) <= bounds.in_flight
    observable = [record for record in records if record.observable]
    assert account.late_waits == len(observable) <= bounds.late_waits
    assert account.waits == Counter(record.call.server for record in observable)
    streams = Counter(record.call.server for record in observable if record.call.transport is Transport.HTTP)
    assert account.streams == streams
    assert all(count <= settings.share for count in streams.values())
    blockers = [record for record in records if isinstance(record, Blocker) and record.gating]
    assert account.blockers == len(blockers)
    own = Counter(each.call.server for each in blockers)
    assert len(blockers) <= bounds.blockers or max(own.values()) == 1
    assert account.wide == {each.call.server: each for each in blockers if each.wide}
    for server in account.wide:
        assert own[server] == 1
    gating = [record for record in records if record.gating]
    assert account.gating_on == Counter(record.call.server for record in gating)
    scopes: dict[tuple[str, str], list[Record]] = {}
    for record in gating:
        assert record.gate_tier is not Tier.READ
        assert record.journaled
        if not (isinstance(record, Blocker) and record.wide):
            scopes.setdefault((record.call.server, record.call.gate_scope), []).append(record)
    assert set(scopes) == set(account.scopes)
    for key, found in scopes.items():
        scope = account.scopes[key]
        entries = [record for record in found if not isinstance(record, Blocker)]
        assert {id(record) for record in entries} == {id(record) for record in scope.entries.values()}
        assert scope.blocker is next((record for record in found if isinstance(record, Blocker)), None)
        assert len(entries) <= bounds.gating or sum(record.foldable for record in entries) == 0
        assert scope.since_seq <= min(record.unresolved_seq for record in found)
    kept = [record for record in records if not record.in_flight and not record.gating]
    for server in {record.call.server for record in kept} | set(account.kept):
        here = [record for record in kept if record.call.server == server]
        books = account.kept[server]
        assert {id(each) for each in here} == {id(each) for each in (*books.reads.values(), *books.tombstones.values())}
        assert len(here) <= bounds.kept or all(record.claimed for record in here)
        assert all(each.open_end for each in books.reads.values())
        assert all(each.state.terminal for each in books.tombstones.values())
