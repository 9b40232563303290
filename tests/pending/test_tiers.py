"""How much a call may change, as its server describes it."""

import pytest

from tests.pending.box import ANN, Box, settings
from ztrio.pending import (
    Action,
    Mode,
    PendingSettings,
    Refusal,
    Tier,
    Tiers,
    tier_of,
)
from ztrio.pending.tiers import MAX_TOOLS

WAIT, RECONCILE, CANCEL, ASK = Action.WAIT, Action.RECONCILE, Action.CANCEL, Action.ASK_OPERATOR


@pytest.mark.req("P32")
@pytest.mark.parametrize(
    ("read_only", "destructive", "tier"),
    [
        (None, None, Tier.WRITE),
        (None, False, Tier.WRITE),
        (None, True, Tier.DESTRUCTIVE),
        (False, None, Tier.WRITE),
        (False, False, Tier.WRITE),
        (False, True, Tier.DESTRUCTIVE),
        (True, None, Tier.READ),
        (True, False, Tier.READ),
        (True, True, Tier.DESTRUCTIVE),
        ("true", None, Tier.WRITE),
        (1, None, Tier.WRITE),
        (True, "yes", Tier.READ),
    ],
)
def test_tiers_of_annotations(read_only: object, destructive: object, tier: Tier) -> None:
    """Only `readOnlyHint: true` without `destructiveHint: true` is a read; what is no boolean says nothing."""
    hints = {"readOnlyHint": read_only, "destructiveHint": destructive}
    assert tier == tier_of({name: value for name, value in hints.items() if value is not None})
    assert Tier.WRITE == tier_of(None) == tier_of({})


@pytest.mark.req("P32", "P33")
def test_a_tool_never_becomes_more_harmless() -> None:
    """The tier is the highest that any catalogue said; an unknown tool, or one of an unknown server, is destructive."""
    tiers = Tiers()
    for hints, expected in [
        ({"readOnlyHint": True}, Tier.READ),
        (None, Tier.WRITE),
        ({"readOnlyHint": True}, Tier.WRITE),
        ({"destructiveHint": True}, Tier.DESTRUCTIVE),
        ({"readOnlyHint": True}, Tier.DESTRUCTIVE),
    ]:
        tiers.observe("files", {"put": hints}, seq=1)
        assert expected == tiers.tier("files", "put")
    assert Tier.DESTRUCTIVE == tiers.tier("files", "unknown") == tiers.tier("mail", "put")


@pytest.mark.req("P32")
def test_names_of_tools_are_bounded() -> None:
    """A server that invents names for ever fills its own table, and what comes later counts as unknown."""
    assert 4096 == MAX_TOOLS
    tiers = Tiers()
    tiers.observe("files", {f"t{number}": {"readOnlyHint": True} for number in range(MAX_TOOLS + 5)}, seq=1)
    tiers.observe("mail", {"look": {"readOnlyHint": True}}, seq=2)
    assert (Tier.READ, Tier.DESTRUCTIVE) == (tiers.tier("files", "t0"), tiers.tier("files", f"t{MAX_TOOLS}"))
    assert Tier.READ == tiers.tier("mail", "look")


@pytest.mark.req("P32")
def test_a_tool_first_seen_while_its_scope_is_gated_is_a_write() -> None:
    """A read that shows up while a scope is gated is refused there, and passes in other scopes and afterwards."""
    box = Box()
    box.registry.tiers.observe("files", {"look": {"readOnlyHint": True}, "put": None}, seq=1)
    call = box.unresolved()
    box.registry.tiers.observe("files", {"peek": {"readOnlyHint": True}}, seq=box.tick()["seq"])

    def verdict(tool: str, scope: str = ANN) -> type:
        return type(box.registry.check(box.call(tier=None, tool=tool, scope=scope)))

    assert type(None) is verdict("look")
    assert [Refusal, Refusal, Refusal] == [verdict(tool) for tool in ("put", "peek", "unknown")]
    assert type(None) is verdict("peek", "other")
    read = box.call(tier=None, tool="peek", scope="other")
    box.begin(read)
    assert Tier.READ == box.record(read).gate_tier
    box.late(call)
    assert type(None) is verdict("peek")


@pytest.mark.req("P32")
def test_a_tool_that_appears_stays_what_it_is() -> None:
    """Whoever shows up while a gate is shut is a write at least: what destroys becomes no more harmless by that."""
    tiers = Tiers()
    tiers.observe("files", {}, seq=1)
    tiers.observe("files", {"rm": {"destructiveHint": True}, "put": None, "peek": {"readOnlyHint": True}}, seq=9)
    found = [tiers.tier("files", tool, gated_since=5) for tool in ("rm", "put", "peek")]
    assert [Tier.DESTRUCTIVE, Tier.WRITE, Tier.WRITE] == found
    assert Tier.READ == tiers.tier("files", "peek", gated_since=9)


@pytest.mark.req("P32")
@pytest.mark.parametrize("merged", [False, True])
def test_the_moment_a_gate_was_shut_survives_folding(merged: bool) -> None:
    """A tool first seen after the first of the calls that gate is a write, also when that one was folded long ago."""
    box = Box.of(gating=1, blockers=1 if merged else 9, mode=Mode.OFF)
    box.registry.tiers.observe("files", {"look": {"readOnlyHint": True}}, seq=box.tick()["seq"])
    box.unresolved(scope="b")
    box.registry.tiers.observe("files", {"peek": {"readOnlyHint": True}}, seq=box.tick()["seq"])
    for scope in ("b", "a", "a", "b"):
        box.unresolved(scope=scope)
    box.registry.configure(settings(gating=1))
    for scope in ("b", "never seen") if merged else ("b",):
        assert isinstance(box.registry.check(box.call(tier=None, tool="peek", scope=scope)), Refusal)


@pytest.mark.req("P33")
def test_a_call_without_context_fails_closed() -> None:
    """A call whose caller is not known counts as destructive, even of a tool that only reads."""
    box = Box()
    box.unresolved(principal="local")
    box.registry.tiers.observe("files", {"look": {"readOnlyHint": True}}, seq=0)
    call = box.call(principal="local", tool="look", tier=None)
    assert box.registry.check(call) is None
    assert isinstance(box.registry.check(call.evolved(gate_tier=Tier.DESTRUCTIVE)), Refusal)
    assert "local" in PendingSettings(principals=("ann",)).all_principals, "there is always somebody to charge"
