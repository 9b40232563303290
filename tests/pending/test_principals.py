"""Who is calling, scopes, and what travels through a client under a MAC."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pending.box import ANN, BOB, SECRET, call_id
from ztrio.pending import (
    anonymous_id,
    gate_scope_of,
    mint_scope_handle,
    open_lineage,
    open_scope_handle,
    principal_id,
    seal_lineage,
)


@pytest.mark.req("P47")
def test_the_id_of_a_principal() -> None:
    """128 bits over owner, name and time of creation: another time of creation or another owner is somebody else."""
    mine = principal_id("ann", "ci", "2026-01-01T00:00:00Z")
    assert (3 + 26, mine) == (len(mine), principal_id("ann", "ci", "2026-01-01T00:00:00Z"))
    assert mine != principal_id("ann", "ci", "2026-01-02T00:00:00Z")
    assert mine != principal_id("bob", "ci", "2026-01-01T00:00:00Z")
    assert mine != principal_id("ann", "cd", "2026-01-01T00:00:00Z")


@pytest.mark.req("P47")
@given(st.lists(st.text(max_size=6), min_size=3, max_size=3), st.lists(st.text(max_size=6), min_size=3, max_size=3))
def test_no_two_triples_read_alike(one: list[str], other: list[str]) -> None:
    """Two principals have one id only when owner, name and creation are equal, however they are cut."""
    assert (one == other) == (principal_id(*one) == principal_id(*other))


@pytest.mark.req("P47")
def test_length_prefixes() -> None:
    """Moving a letter from one part to the next makes another principal."""
    assert 4 == len(
        {principal_id(*cut) for cut in (("ab", "c", "d"), ("a", "bc", "d"), ("a", "b", "cd"), ("", "abc", "d"))}
    )


@pytest.mark.req("P47")
def test_anonymous_principals() -> None:
    """Each confined profile is a principal of its own, which no token can have."""
    ids = [
        anonymous_id("default"),
        anonymous_id("public"),
        principal_id("default", "", ""),
        principal_id("", "", "default"),
    ]
    assert 4 == len(set(ids))
    assert ["pa_", "pa_", "pr_", "pr_"] == [each[:3] for each in ids]


@pytest.mark.req("P50", "P51")
@pytest.mark.parametrize(
    ("principal", "session", "transport", "setting", "split"),
    [
        ("local", "s1", "http", "auto", True),
        ("local", "s1", "http", "principal", False),
        ("local", "s1", "stdio", "auto", False),
        ("local", None, "http", "auto", False),
        ("pr_x", "s1", "http", "auto", False),
        ("pr_x", None, "stdio", "principal", False),
    ],
)
def test_gate_scopes(principal: str, session: str | None, transport: str, setting: str, split: bool) -> None:
    """A scope is a principal's, but `local` over HTTP has one per session; its name does not show whose it is."""
    scope = gate_scope_of(principal, session, transport=transport, setting=setting)
    assert split == (scope != gate_scope_of(principal, None, transport=transport, setting=setting))
    assert principal == "local" or principal not in scope
    assert scope == gate_scope_of(principal, session, transport=transport, setting=setting)
    if split:
        assert scope != gate_scope_of(principal, "s2", transport=transport, setting=setting)


@pytest.mark.req("P51")
def test_scope_handles() -> None:
    """A handle brings its principal back into its scope, and nobody else, and nowhere else."""
    handle = mint_scope_handle(SECRET, ANN, "gs_one_two")
    assert "gs_one_two" == open_scope_handle(SECRET, ANN, handle)
    mac, scope = handle[3:27], handle[28:]
    forged = [
        mint_scope_handle(SECRET, BOB, scope),
        mint_scope_handle(b"x" * 32, ANN, scope),
        f"zg_{mac}_gs_other",
        f"zg_{'a' * 24}_{scope}",
        f"zx_{mac}_{scope}",
        f"{mac}_{scope}",
        f"zg_{mac}{scope}".replace("_", "", 1),
        f"zg_{mac}",
        mint_scope_handle(SECRET, ANN, "").rstrip("_"),
        f"zg_ä{mac[1:]}_{scope}",
        "",
    ]
    assert [None] * len(forged) == [open_scope_handle(SECRET, ANN, each) for each in forged]


@pytest.mark.req("P37")
def test_sealed_state() -> None:
    """What was sealed for a server and a principal opens for them alone, with the upstream's state as it was."""
    sealed = seal_lineage(SECRET, "files", ANN, call_id(1), "état.with.dots\n")
    assert (call_id(1), "état.with.dots\n") == open_lineage(SECRET, "files", ANN, sealed)
    version, name, mac, body = sealed.split(".")
    forged = [
        seal_lineage(b"x" * 32, "files", ANN, call_id(1), "s"),
        f"{version}.{call_id(2)}.{mac}.{body}",
        f"{version}.{name}.{'a' * 24}.{body}",
        f"{version}.{name}.ä.{body}",
        f"{version}.{name}.{mac}.eA==",
        f"{version}.{name}.{mac}.!",
        f"{version}.{name}.{mac}._w==",
        f"zl2.{name}.{mac}.{body}",
        f"{version}.{name}.{mac}",
        sealed + ".",
        "",
    ]
    assert [None] * len(forged) == [open_lineage(SECRET, "files", ANN, each) for each in forged]
    assert open_lineage(SECRET, "mail", ANN, sealed) is None
    assert open_lineage(SECRET, "files", BOB, sealed) is None


@pytest.mark.req("P37", "P51")
def test_what_was_minted_as_one_is_not_the_other() -> None:
    """The MAC of a handle never passes for that of a lineage, though both are made with one secret."""
    handle = mint_scope_handle(SECRET, ANN, call_id(1))
    mac = handle[3:27]
    for server, state in itertools.product(("scope", ANN, ""), ("", call_id(1))):
        assert open_lineage(SECRET, server, ANN, f"zl1.{call_id(1)}.{mac}.{state}") is None
