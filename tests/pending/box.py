"""A registry with a clock and a counter of its own, and short words for what happens to calls."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import attrs

from ztrio.calls import ALL_TIERS, CallContext, Principal, View
from ztrio.pending import (
    ActorKind,
    Begun,
    Blocker,
    Bounds,
    Call,
    LateOutcome,
    Lease,
    Mode,
    PendingSettings,
    Reason,
    Record,
    Refusal,
    Registry,
    ServerPolicy,
    State,
    Tier,
    Transition,
    Transport,
)

SECRET = b"s" * 32
WALL = 1_700_000_000.0
ANN, BOB = "ann", "bob"


def call_id(number: int) -> str:
    """An id of the right shape."""
    return "pc_" + base64.b32encode(number.to_bytes(10, "big")).decode().lower()


def context(principal: str = ANN, **view: Any) -> CallContext:
    """A caller with a view."""
    return CallContext(Principal(principal), View(**view), surface="mcp")


def settings(*, mode: Mode = Mode.ENFORCE, **changes: Any) -> PendingSettings:
    """Settings for two principals, with `enforce` unless said otherwise."""
    servers: Mapping[str, ServerPolicy] = changes.pop("servers", {})
    principals = changes.pop("principals", (ANN, BOB))
    return PendingSettings(mode=mode, servers=servers, principals=principals, bounds=Bounds(**changes))


@attrs.define
class Box:
    """The registry, and what is handed to it."""

    registry: Registry = attrs.field(factory=lambda: Registry(settings()))
    now: float = 1000.0
    seq: int = 0
    minted: int = 0
    # Everything that changed so far.
    seen: list[Transition] = attrs.field(factory=list)

    @classmethod
    def of(cls, **changes: Any) -> Box:
        """A box with other settings."""
        return cls(Registry(settings(**changes)))

    def tick(self) -> dict[str, Any]:
        """The next moment, as arguments."""
        self.seq += 1
        return {"now": self.now, "seq": self.seq}

    def note(self, transitions: list[Transition]) -> list[Transition]:
        """Remember what changed."""
        self.seen += [each for each in transitions if each.changed]
        return transitions

    def call(self, *, tier: Tier | None = Tier.WRITE, scope: str | None = None, **facts: Any) -> Call:
        """A new call."""
        self.minted += 1
        principal = facts.pop("principal", ANN)
        defaults: dict[str, Any] = {
            "call_id": call_id(self.minted),
            "server": "files",
            "transport": Transport.STDIO,
            "lease": Lease("t1", 1),
            "principal": principal,
            "gate_scope": scope or principal,
            "tool": "look" if tier is Tier.READ else "put",
            "admission_tier": tier or Tier.WRITE,
            "gate_tier": tier,
        }
        return Call(**defaults | facts)

    def begin(self, call: Call) -> Begun | Refusal:
        """The check that counts."""
        found = self.registry.check_and_begin(call, **self.tick())
        if isinstance(found, Begun):
            self.note(found.transitions)
        return found

    def reserved(self, **facts: Any) -> Call:
        """A call that was let in."""
        call = self.call(**facts)
        found = self.begin(call)
        assert isinstance(found, Begun), found
        assert found.tracked
        return call

    def claim(self, call: Call, **facts: Any) -> State:
        """Its first byte is about to be written."""
        wire_id = facts.pop("wire_id", int(call.call_id == "") + self.minted)
        transitions = self.note(self.registry.claim(call.call_id, wire_id=wire_id, **self.tick(), **facts))
        return transitions[0].after if transitions else State.NOT_SENT

    def sent(self, **facts: Any) -> Call:
        """A call that was sent."""
        call = self.reserved(**facts)
        assert State.SENT == self.claim(call)
        return call

    def mark(self, call: Call, reason: Reason = Reason.DEADLINE_EXCEEDED, **facts: Any) -> Transition:
        """Its wait has ended."""
        return self.note(self.registry.mark_unresolved(call, reason=reason, **self.tick(), **facts))[0]

    def unresolved(self, **facts: Any) -> Call:
        """A call of which nobody knows whether it happened; while it is begun the gate is off."""
        with_gate = self.registry.settings
        self.registry.configure(attrs.evolve(with_gate, mode=Mode.OFF, servers={}))
        observable = facts.pop("observable", True)
        call = self.sent(**facts)
        self.registry.configure(with_gate)
        self.mark(call, observable=observable)
        return call

    def complete(self, call: Call, *named: str, succeeded: bool = True) -> list[Transition]:
        """Its response came in time."""
        return self.note(self.registry.complete(call.call_id, succeeded=succeeded, reconciles=named, **self.tick()))

    def read(self, *named: str, succeeded: bool = True, **facts: Any) -> list[Transition]:
        """A read that is answered at once; what it settled."""
        return self.complete(self.sent(tier=Tier.READ, **facts), *named, succeeded=succeeded)[1:]

    def late(self, call: Call, outcome: LateOutcome = LateOutcome.SUCCESS) -> list[Transition]:
        """Its response came after all."""
        return self.note(self.registry.resolve_late(call.call_id, outcome=outcome, **self.tick()))

    def cancel(self, call: Call, *, told: bool = True, frame_sent: bool = False) -> State:
        """Claim, send, finish."""
        self.note(self.registry.claim_cancel(call.call_id, actor=ActorKind.CALLER, **self.tick()))
        return self.finish(call, told=told, frame_sent=frame_sent)

    def finish(self, call: Call, *, told: bool = True, frame_sent: bool = False) -> State:
        """The last step of a cancel."""
        found = self.registry.finish_cancel(call.call_id, told=told, frame_sent=frame_sent, **self.tick())
        return self.note(found)[0].after

    def expire(self, after: float = 0.0) -> list[Transition]:
        """Time passes."""
        self.now += after
        return self.note(self.registry.expire(**self.tick()))

    def end_epoch(
        self, epoch: int = 1, server: str = "files", transport: Transport = Transport.STDIO
    ) -> list[Transition]:
        """A connection ends."""
        return self.note(self.registry.end_epoch(server, epoch, transport=transport, **self.tick()))

    def acknowledge(self) -> None:
        """The store has everything."""
        self.registry.acknowledge(
            [(each.call.call_id, each.revision) for each in self.registry.entries()], now=self.now
        )

    def record(self, call: Call) -> Record:
        """What is kept of a call."""
        found = self.registry.get(call.call_id)
        assert found is not None
        return found

    def state(self, call: Call) -> State | None:
        """Its state; None when it is on no books."""
        found = self.registry.get(call.call_id)
        return None if found is None else found.state

    def gated(self, *, principal: str = ANN, scope: str | None = None, server: str = "files") -> bool:
        """Whether a write would be refused now."""
        refusal = self.registry.check(self.call(principal=principal, scope=scope, server=server))
        return refusal is not None and refusal.code == "PENDING_CALL_UNRESOLVED"

    def blockers(self, principal: str = ANN) -> list[Blocker]:
        """The blockers of a principal."""
        return [each for each in self.registry.entries(principal) if isinstance(each, Blocker) and each.gating]

    def listed(self, principal: str = ANN) -> list[tuple[Any, ...]]:
        """Everything that a list shows of a principal, as plain values."""
        return [
            (
                each.call,
                each.state,
                each.gating,
                each.observable,
                each.reason,
                each.late_outcome,
                each.expires_at,
                each.settled_by,
                each.revision,
            )
            for each in self.registry.entries(principal)
        ]


__all__ = ["ALL_TIERS", "ANN", "BOB", "SECRET", "WALL", "Box", "call_id", "context", "settings"]
