"""Session names, handles and pins."""

import base64
import re
import secrets
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from ztrio.errors import InvalidArguments, SessionNotFound
from ztrio.sessions import (
    HANDLE_PREFIX,
    MAX_NAME,
    SessionPin,
    SessionPins,
    check_name,
    is_handle,
    mint_handle,
)

SECRET = secrets.token_bytes(32)
HANDLE = mint_handle(SECRET, "ann")


def test_handles_have_one_shape_and_never_repeat() -> None:
    """A handle is its prefix and 56 base32 characters, with 120 random bits in them."""
    handles = {mint_handle(SECRET, "ann") for _ in range(500)}
    assert 500 == len(handles)
    assert all(re.fullmatch("zs_[a-z2-7]{56}", handle) for handle in handles)
    raw = [base64.b32decode(handle[3:].upper()) for handle in handles]
    assert 500 == len({body[5:20] for body in raw})
    now = time.time()
    assert all(now - 60 <= int.from_bytes(body[:5], "big") <= now + 1 for body in raw)


def test_a_handle_is_its_owners_and_its_stores() -> None:
    """A handle is genuine for the principal it was minted for, in the store that minted it, and nowhere else."""
    assert is_handle(SECRET, "ann", HANDLE)
    assert not is_handle(SECRET, "bob", HANDLE)
    assert not is_handle(SECRET, "", HANDLE)
    assert not is_handle(secrets.token_bytes(32), "ann", HANDLE)


@given(st.integers(0, len(HANDLE) - 1), st.sampled_from("abcdefghijklmnopqrstuvwxyz234567ABZ019_=-é"))
def test_a_changed_handle_is_none(place: int, character: str) -> None:
    """Changing any character makes it nobody's, another spelling of the same bytes included."""
    changed = HANDLE[:place] + character + HANDLE[place + 1 :]
    assert (changed == HANDLE) is is_handle(SECRET, "ann", changed)


def test_what_only_looks_like_a_handle() -> None:
    """Other spellings of the same bytes, cuts and additions are not handles."""
    handle = HANDLE
    while not {"s", "i"} <= set(handle[3:]):
        handle = mint_handle(SECRET, "ann")
    body = handle[3:]
    assert is_handle(SECRET, "ann", handle)
    for name in (
        handle.upper(),
        HANDLE_PREFIX + body.upper(),
        HANDLE_PREFIX + body.replace("s", "\u017f"),  # a long s, which is an S in upper case
        HANDLE_PREFIX + body.replace("i", "\u0131"),  # a dotless i
        handle[:-1],
        handle[:-8],
        handle + "a",
        handle + "aaaaaaaa",
        handle + "=",
        body,
        HANDLE_PREFIX,
        HANDLE_PREFIX + "default",
        "",
        "default",
    ):
        assert not is_handle(SECRET, "ann", name)


@given(st.text(max_size=80))
def test_no_text_breaks_the_check(text: str) -> None:
    """Whatever comes after the prefix, the answer is no, not an exception."""
    assert not is_handle(SECRET, "ann", HANDLE_PREFIX + text)


@pytest.mark.parametrize("name", ["default", "a", "é", "with space", "x" * MAX_NAME, "zs", "../../etc"])
def test_names_that_may_be_used(name: str) -> None:
    """Plain names of printable characters, and own handles, are returned as they are."""
    assert name == check_name(SECRET, "ann", name)
    assert HANDLE == check_name(SECRET, "ann", HANDLE)


@pytest.mark.parametrize("name", ["", "x" * (MAX_NAME + 1), "a\nb", "a\x00", "\ud800", 3, None, b"x", ["x"]])
def test_names_that_may_not_be_used(name: object) -> None:
    """Anything else is refused without being repeated."""
    with pytest.raises(InvalidArguments) as caught:
        check_name(SECRET, "ann", name)
    assert "session must be a string of 1 to 256 printable characters. Nothing ran." == caught.value.message


def test_foreign_and_unknown_handles_get_one_answer() -> None:
    """Nobody learns from the answer whether somebody else has such a session."""
    foreign = mint_handle(SECRET, "bob")
    unknown = HANDLE_PREFIX + "a" * 56
    other_store = mint_handle(secrets.token_bytes(32), "ann")
    answers = set()
    for name in (foreign, unknown, other_store, HANDLE_PREFIX + "x"):
        with pytest.raises(SessionNotFound) as caught:
            check_name(SECRET, "ann", name)
        answers.add((caught.value.code, caught.value.message.replace(name, "NAME")))
    assert {("SESSION_NOT_FOUND", "There is no session 'NAME'. Nothing ran; open one with session_open.")} == answers


class Pins(RuleBasedStateMachine):
    """Calls pin a name's life, leave, and are told of its destruction; compared with plain lists."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.pins = SessionPins()
        self.model: list[SessionPin] = []
        self.destroyed: set[int] = set()

    @rule(target=held, principal=st.sampled_from(["ann", "bob"]), name=st.sampled_from(["default", "x"]))
    def pin(self, principal: str, name: str) -> SessionPin:
        """A call is allowed."""
        pin = self.pins.pin(principal, name)
        self.model.append(pin)
        return pin

    @rule(pin=consumes(held))
    def unpin(self, pin: SessionPin) -> None:
        """A call ends; saying so twice is harmless."""
        self.pins.unpin(pin)
        self.pins.unpin(pin)
        self.model.remove(pin)

    @rule(by=held)
    def destroy(self, by: SessionPin) -> None:
        """A call destroys the session it is pinned to."""
        self.pins.destroy(by.principal, by.name, by=by)
        self.destroyed |= {
            id(pin) for pin in self.model if (pin.principal, pin.name) == (by.principal, by.name) and pin is not by
        }

    @invariant()
    def flags_are_right(self) -> None:
        """Every other call of the same life knows, later ones and those of others do not, and nothing is kept."""
        assert [id(pin) in self.destroyed for pin in self.model] == [pin.destroyed for pin in self.model]
        assert len(self.model) == len(self.pins)
        assert bool(self.model) is bool(self.pins._pins)


TestPins = Pins.TestCase


def test_destroying_a_name_nobody_uses() -> None:
    """A name without calls has nobody to tell."""
    pins = SessionPins()
    pin = pins.pin("ann", "default")
    pins.destroy("ann", "other", by=pin)
    assert not pin.destroyed
