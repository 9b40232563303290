"""Session names: whose they are, which ones open by being used, and what destruction does to calls already allowed.

A plain name lives in its principal's namespace and opens by being used. A *handle* is minted, unguessable, opens only
by `session_open`, and once destroyed is burnt for ever. Burnt handles need no list that grows: a handle carries a MAC
over its owner and random part, so "genuine, but no session" can only mean "destroyed", and a name that merely looks
like a handle gets the answer of any unknown one.

Destruction must reach calls that were allowed before it and still wait. Each call pins the name when it is allowed;
destruction raises a flag on the pins of that name. Pins exist only while calls do, so nothing grows here either.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from typing import Final

import attrs

from ztrio.errors import InvalidArguments, SessionNotFound

__all__ = ["HANDLE_PREFIX", "MAX_NAME", "SessionPin", "SessionPins", "check_name", "is_handle", "mint_handle"]

HANDLE_PREFIX: Final = "zs_"
MAX_NAME: Final = 256
"""Characters of the longest session name."""

_STAMP_BYTES: Final = 5  # seconds since the epoch, enough until the year 36812
_RANDOM_BYTES: Final = 15
_MAC_BYTES: Final = 15


def mint_handle(secret: bytes, principal: str) -> str:
    """Make a new session handle for `principal`: its age and 120 random bits, under a MAC of the store's secret."""
    body = int(time.time()).to_bytes(_STAMP_BYTES, "big") + secrets.token_bytes(_RANDOM_BYTES)
    return _written(body + _mac(secret, principal, body))


def is_handle(secret: bytes, principal: str, name: str) -> bool:
    """Whether `name` is a handle that this store minted for `principal`."""
    if not name.startswith(HANDLE_PREFIX):
        return False
    try:
        raw = base64.b32decode(name[len(HANDLE_PREFIX) :].upper().encode("ascii"))
    except ValueError:
        return False
    if name != _written(raw):  # another spelling is another name, and nobody minted that
        return False
    body, mac = raw[:-_MAC_BYTES], raw[-_MAC_BYTES:]
    return len(body) == _STAMP_BYTES + _RANDOM_BYTES and hmac.compare_digest(mac, _mac(secret, principal, body))


def _written(raw: bytes) -> str:
    return HANDLE_PREFIX + base64.b32encode(raw).decode("ascii").lower()


def _mac(secret: bytes, principal: str, body: bytes) -> bytes:
    return hmac.digest(secret, body + principal.encode(), hashlib.sha256)[:_MAC_BYTES]


def check_name(secret: bytes, principal: str, name: object) -> str:
    """Return `name` if a call may use it as its session.

    Raises:
        InvalidArguments: not a string of 1 to `MAX_NAME` printable characters.
        SessionNotFound: it looks like a handle and is not one of this principal's.
    """
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise InvalidArguments(f"session must be a string of 1 to {MAX_NAME} printable characters. Nothing ran.")
    if name.startswith(HANDLE_PREFIX) and not is_handle(secret, principal, name):
        raise SessionNotFound(f"There is no session {name!r}. Nothing ran; open one with session_open.")
    return name


@attrs.define(eq=False)
class SessionPin:
    """A call's hold on the life of a session that it was allowed for."""

    principal: str
    name: str
    # Set once, by the destruction of the life that the call was allowed for.
    destroyed: bool = False


class SessionPins:
    """The pins of calls in flight."""

    def __init__(self) -> None:
        self._pins: dict[tuple[str, str], set[SessionPin]] = {}

    def pin(self, principal: str, name: str) -> SessionPin:
        """Pin the life that `name` has now, without a checkpoint."""
        pin = SessionPin(principal, name)
        self._pins.setdefault((principal, name), set()).add(pin)
        return pin

    def unpin(self, pin: SessionPin) -> None:
        """Let go."""
        pins = self._pins.get((pin.principal, pin.name), set())
        pins.discard(pin)
        if not pins:
            self._pins.pop((pin.principal, pin.name), None)

    def destroy(self, principal: str, name: str, *, by: SessionPin) -> None:
        """Tell every call pinned to this life, except the destroying one, that it is over."""
        for pin in self._pins.get((principal, name), set()):
            if pin is not by:
                pin.destroyed = True

    def __len__(self) -> int:
        return sum(map(len, self._pins.values()))
