"""How much is kept, and of whom: each principal has its own books, and nothing is shared between two.

So there is nothing to fight over: what one principal does is counted, folded and refused on its own account, and no
operation on one account can even reach another. The memory of all is the sum of the quotas, which are set aside for the
principals that are configured.

An account keeps its records by kind, in the order in which they became of that kind, because that is the order in which
they give way. A call costs a few dictionary operations, never a walk over records; only an account that is full looks
at its own scopes, of which it has at most as many as records.
"""

from __future__ import annotations

from typing import Final

import attrs

from ztrio.pending.reasons import Transport
from ztrio.pending.records import Blocker, Record
from ztrio.pending.states import State

__all__ = ["MAX_RECONCILES", "MAX_ROUNDS", "MAX_SHOWN", "QUIET", "Account", "Bounds", "Kept", "Scope", "lower"]

QUIET: Final = 30.0
"""Seconds without progress after which a call counts as quiet."""
MAX_SHOWN: Final = 16
"""Calls that a refusal or a warning names."""
MAX_RECONCILES: Final = 16
"""Calls that a read can name."""
MAX_ROUNDS: Final = 8
"""Wire ids of a call that are remembered, the newest ones."""


@attrs.frozen(kw_only=True)
class Bounds:
    """The caps. The defaults are the ones that the documentation promises.

    Args:
        principals: Principals that may be configured.
        records: Records of a principal, whatever their kind.
        in_flight: Of these, calls that are reserved or sent.
        late_waits: Of these, calls whose late response is waited for.
        gating: Gating entries of one server and scope, from 1 to 256; older ones fold into a blocker.
        blockers: Blockers of a principal; beyond it those of a server merge into one.
        kept: Settled calls and unresolved reads of one server and principal.
        streams: Late waits on one server that hold an HTTP stream, shared out evenly to the configured principals.
        ttl: Seconds that a call is watched beyond the ceiling of its timeout.
        tombstone: Seconds that a settled call is kept for being looked at.
        progress: Seconds for which a report of progress counts as recent.
        retry_after: Seconds after which it makes sense to repeat a call that did not fit.
    """

    principals: int = attrs.field(default=64, validator=attrs.validators.ge(1))
    records: int = attrs.field(default=256, validator=attrs.validators.ge(2))
    in_flight: int = attrs.field(default=128, validator=attrs.validators.ge(1))
    late_waits: int = attrs.field(default=64, validator=attrs.validators.ge(0))
    gating: int = attrs.field(default=16, validator=[attrs.validators.ge(1), attrs.validators.le(256)])
    blockers: int = attrs.field(default=64, validator=attrs.validators.ge(1))
    kept: int = attrs.field(default=64, validator=attrs.validators.ge(1))
    streams: int = attrs.field(default=64, validator=attrs.validators.ge(1))
    ttl: float = 600.0
    tombstone: float = 900.0
    progress: float = QUIET
    retry_after: float = 1.0


@attrs.define(eq=False)
class Scope:
    """The gating things of one server and gate scope. Exists only while there are any."""

    # The sequence number with which the gate was shut; constant while the scope exists.
    since_seq: int
    # In the order in which they became gating; at most `Bounds.gating`, those being cancelled excepted.
    entries: dict[str, Record] = attrs.field(factory=dict)
    blocker: Blocker | None = None

    def oldest_foldable(self) -> Record | None:
        """What folds first: the oldest unresolved entry, the oldest held one when there is no other."""
        held = None
        for record in self.entries.values():
            if record.foldable:
                if record.state is State.UNRESOLVED:
                    return record
                held = held or record
        return held


@attrs.define(eq=False)
class Kept:
    """What is kept of one server for being looked at: settled calls, and reads that are unresolved."""

    tombstones: dict[str, Record] = attrs.field(factory=dict)
    reads: dict[str, Record] = attrs.field(factory=dict)


@attrs.define(eq=False)
class Account:
    """The books of one principal."""

    principal: str
    # Every record, by id; its length is what the quota is about.
    records: dict[str, Record] = attrs.field(factory=dict)
    # How many of them are reserved or sent, and how many are observable.
    in_flight: int = 0
    late_waits: int = 0
    # Server → late waits, and those of them that hold an HTTP stream; absent when none.
    waits: dict[str, int] = attrs.field(factory=dict)
    streams: dict[str, int] = attrs.field(factory=dict)
    # (server, gate scope) → what gates it.
    scopes: dict[tuple[str, str], Scope] = attrs.field(factory=dict)
    # Server → the blocker that gates all scopes; while there is one, no scope of that server has its own.
    wide: dict[str, Blocker] = attrs.field(factory=dict)
    # Server → gating entries and blockers; absent when none.
    gating_on: dict[str, int] = attrs.field(factory=dict)
    # How many blockers there are, wide ones included.
    blockers: int = 0
    # The newest calls that ended without having been sent, for callers who did not hear of it yet; at most as many as
    # can be in flight. Beside the quota: an id each.
    unsent: dict[str, None] = attrs.field(factory=dict)
    kept: dict[str, Kept] = attrs.field(factory=dict)

    # ---- questions

    def gated_since(self, server: str, scope: str, *, every: bool) -> int | None:
        """The sequence number since which calls of `scope` are gated on `server`; None when they are not.

        Args:
            server: The server's name.
            scope: The caller's gate scope.
            every: Whether every scope of the principal counts.
        """
        found = [] if (wide := self.wide.get(server)) is None else [wide.since_seq]
        if every:
            found += [each.since_seq for (where, _), each in self.scopes.items() if where == server]
        elif (own := self.scopes.get((server, scope))) is not None:
            found.append(own.since_seq)
        return min(found, default=None)

    def gating(self, server: str, scope: str, *, every: bool) -> list[Record]:
        """What gates calls of `scope` on `server`, oldest first, each scope's blocker before its entries."""
        found: list[Record] = [] if (wide := self.wide.get(server)) is None else [wide]
        for (where, _), each in self.scopes.items() if every else self._one(server, scope):
            if where == server:
                if each.blocker is not None:
                    found.append(each.blocker)
                found += each.entries.values()
        return sorted(found, key=_when)

    def _one(self, server: str, scope: str) -> list[tuple[tuple[str, str], Scope]]:
        own = self.scopes.get((server, scope))
        return [] if own is None else [((server, scope), own)]

    def covering(self, server: str, scope: str) -> Blocker | None:
        """The blocker that stands for folded calls of this scope, or None."""
        own = self.scopes.get((server, scope))
        return self.wide.get(server) or (None if own is None else own.blocker)

    def dense(self) -> Scope | None:
        """A scope in which folding makes room: one with a blocker and an entry to fold, or with two to fold."""
        for (server, _), scope in self.scopes.items():
            covered = scope.blocker is not None or server in self.wide
            foldable = sum(record.foldable for record in scope.entries.values())
            if foldable + covered >= 2:  # so that there is one to fold, whether or not there is a blocker
                return scope
        return None

    def crowded(self, most: int) -> bool:
        """Whether folding every scope would make more blockers than `most`, so that some of one server merge."""
        servers: dict[str, int] = {}
        for (server, _), scope in self.scopes.items():
            if scope.blocker is not None or any(record.foldable for record in scope.entries.values()):
                servers[server] = servers.get(server, 0) + 1
        return sum(servers.values()) + len(self.wide) > most and max(servers.values(), default=0) > 1

    # ---- changes

    def watch(self, record: Record, bounds: Bounds, share: int) -> bool:
        """Wait for the late response of `record`, unless this principal waits for too many; whether it does."""
        server = record.call.server
        streams = record.call.transport is Transport.HTTP
        if self.late_waits >= bounds.late_waits or (streams and self.streams.get(server, 0) >= share):
            return False
        self.late_waits += 1
        self.waits[server] = self.waits.get(server, 0) + 1
        if streams:
            self.streams[server] = self.streams.get(server, 0) + 1
        record.observable = True
        return True

    def unwatch(self, record: Record) -> bool:
        """Do not wait any more; whether it did."""
        if not record.observable:
            return False
        record.observable = False
        self.late_waits -= 1
        server = record.call.server
        lower(self.waits, server)
        if record.call.transport is Transport.HTTP:
            lower(self.streams, server)
        return True

    def gate(self, record: Record, seq: int) -> Scope:
        """Put a gating entry into its scope."""
        call = record.call
        scope = self.scopes.setdefault((call.server, call.gate_scope), Scope(seq))
        scope.entries[call.call_id] = record
        self.gating_on[call.server] = self.gating_on.get(call.server, 0) + 1
        record.gating = True
        return scope

    def ungate(self, record: Record) -> None:
        """Take a gating entry or a blocker out of its scope."""
        call = record.call
        record.gating = False
        lower(self.gating_on, call.server)
        if isinstance(record, Blocker):
            self.blockers -= 1
            if record.wide:
                del self.wide[call.server]
                return
            scope = self.scopes[call.server, call.gate_scope]
            scope.blocker = None
        else:
            scope = self.scopes[call.server, call.gate_scope]
            del scope.entries[call.call_id]
        if not scope.entries and scope.blocker is None:
            del self.scopes[call.server, call.gate_scope]

    def block(self, blocker: Blocker) -> None:
        """Put a blocker into its scope, or over all scopes of its server."""
        server = blocker.call.server
        if blocker.wide:
            self.wide[server] = blocker
        else:
            scope = self.scopes.setdefault((server, blocker.call.gate_scope), Scope(blocker.since_seq))
            scope.blocker = blocker
        self.blockers += 1
        self.gating_on[server] = self.gating_on.get(server, 0) + 1
        self.records[blocker.call.call_id] = blocker
        blocker.gating = True

    def keep(self, record: Record) -> None:
        """Keep a settled call, or an unresolved read, for being looked at."""
        kept = self.kept.setdefault(record.call.server, Kept())
        (kept.reads if record.open_end else kept.tombstones)[record.call.call_id] = record

    def unkeep(self, record: Record) -> None:
        """Take a record out of what is kept, if it is there."""
        server, call_id = record.call.server, record.call.call_id
        kept = self.kept.get(server)
        if kept is None:
            return
        kept.reads.pop(call_id, None)
        kept.tombstones.pop(call_id, None)
        if not kept.reads and not kept.tombstones:
            del self.kept[server]


def _when(record: Record) -> int:
    return record.unresolved_seq


def lower(counts: dict[str, int], key: str) -> None:
    """Count one less; what is at zero vanishes, so that nothing grows with the number of keys ever seen."""
    left = counts[key] - 1
    if left:
        counts[key] = left
    else:
        del counts[key]
